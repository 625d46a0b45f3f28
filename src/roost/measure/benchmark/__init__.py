"""How fast is a host, by its engine's own load generator, and may the numbers be believed?

Every call of the harness stands between two readings of the engine's counters and beside samples of
the GPU's clocks. A repetition in which something else happened (a restart, failed requests, another
client, a throttled GPU) is kept with its reason and counts for nothing; a cell without enough clean
ones is a failed check. What was measured before something broke stays in the run's folder.

:mod:`roost.measure.benchmark.planning` says what is asked, and
:mod:`roost.measure.benchmark.measuring` asks it: :mod:`roost.measure.benchmark.rendering` makes the
prompts, :mod:`roost.measure.benchmark.repeating` measures a cell,
:mod:`roost.measure.benchmark.accounting` compares counters with what the harness counted, and
:mod:`roost.measure.benchmark.concluding` makes checks and figures of it all.
:mod:`roost.measure.benchmark.session` is what they share.
"""
