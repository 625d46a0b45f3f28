"""Image references and mirrors, taken apart in one place."""

from __future__ import annotations

#: A mirror's address: ``host[:port]``, with ``http://`` before it for one without TLS.
MIRROR = r"^(https?://)?[\w.\-\[\]:]+$"


def split_registry(repository: str) -> tuple[str | None, str]:
    """The registry that a repository's name begins with, if it names one, and the rest.

    The rule is Docker's: the first part is a registry if it has a dot or a port, or is localhost.
    """
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return None, repository


def split_mirror(mirror: str) -> tuple[str, str]:
    """Scheme and host of a mirror's address; TLS unless it says ``http://``."""
    scheme, separator, host = mirror.rpartition("://")
    return (scheme, host) if separator else ("https", mirror)
