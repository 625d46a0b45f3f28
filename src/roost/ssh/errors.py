"""Errors of SSH connections."""

from __future__ import annotations

from roost.errors import RoostError


class SshError(RoostError):
    """A host cannot be reached or logged in to."""


class BrokenConnectionError(SshError):
    """A connection ended while a command was under way, which may go on or not."""
