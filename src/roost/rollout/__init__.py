"""Rollouts: a release goes over a fleet batch by batch, judged by notebooks before each next one.

:mod:`roost.rollout.conduct` decides what comes next, :mod:`roost.rollout.fleet` has Ansible do it,
:mod:`roost.rollout.judging` runs the notebooks, :mod:`roost.rollout.record` is what is kept of it.
"""
