"""The planner: what an engine would say, from a few kilobytes of configuration.

:mod:`~roost.plan.architecture` reads what a ``config.json`` says, :mod:`~roost.plan.rules` knows
how engine versions differ, :mod:`~roost.plan.memory` is the arithmetic of vLLM's KV pool. All of
it is pure: no file, host or network is touched, save by :mod:`~roost.plan.checkpoint`, which reads
what a checkpoint on a hub or on disk really holds.
"""
