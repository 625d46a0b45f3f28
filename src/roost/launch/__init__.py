"""Launch specs: the fully resolved container, as a pure function of what was decided.

:mod:`roost.launch.container` is what a container is, :mod:`roost.launch.resolving` makes one of
recipe, hardware, speculation choice, overrides, lock and site: :mod:`roost.launch.choosing` picks
from the recipe, or refuses, and :mod:`roost.launch.pinning` says what names mean.
:mod:`roost.launch.shown` prints the same container for people. Nothing here does I/O, and nothing
else in roost assembles a command line.
"""
