"""All hosts of an inventory side by side, from the runs that were kept of them.

:mod:`roost.measure.fleet.looking` reads the runs and says which of them count,
:mod:`roost.measure.fleet.outliers` compares each host with its class,
:mod:`roost.measure.fleet.drift` with its own earlier runs; :mod:`roost.measure.fleet.judging` makes
checks of both, and :mod:`roost.measure.fleet.rows` rows for tables.
"""
