"""Which settings serve a host's load best: a grid within what the planner allows, measured.

A point costs an engine start and a benchmark, minutes each, so a search has some ten to thirty of
them. That is too few for an optimiser that has to learn a model first; a grid is exhaustive at that
size, says of every point why it was not tried, and can be interrupted and continued anywhere. Its
order is that of the fewest changes, so that a limit cuts off the combinations and leaves what each
setting does by itself.

:mod:`roost.tuning.grid` has the points, :mod:`roost.tuning.searching` tries them,
:mod:`roost.tuning.front` sets their throughput against their times, :mod:`roost.tuning.choosing`
chooses one, and :mod:`roost.tuning.concluding` makes checks, figures, a table and a snippet of it
all.
"""
