"""Why Docker cannot get an image: the daemon's messages, sorted by cause.

The daemon hands on what a registry said, in one line without a code. A digest that is gone is one
case of many, and the only one that another image mends.
"""

from __future__ import annotations

import re
from typing import Literal

from roost import failures

Cause = Literal[
    "gone",
    "repository",
    "architecture",
    "login",
    "rate_limit",
    "tls",
    "disk",
    "damaged",
    "trouble",
    "unreachable",
    "unknown",
]

# In this order, for one message often holds the words of two: Docker's client says "Not Found"
# before a refused login, and "denied" of a repository that may not exist.
_SAYS: tuple[tuple[Cause, str], ...] = (
    ("rate_limit", r"toomanyrequests|too many requests|rate limit"),
    ("architecture", r"no matching manifest for|no match for platform"),
    ("disk", r"no space left on device|disk quota exceeded"),
    (
        "damaged",
        r"verification failed for digest|unexpected commit (digest|size)|failed size validation"
        r"|does not match (provided )?digest",
    ),
    (
        "login",
        r"unauthorized|pull access denied|access to the resource is denied|\bdenied:"
        r"|authentication required|no basic auth|403 forbidden",
    ),
    ("tls", r"x509:|tls:|http response to https client|tls handshake"),
    ("repository", r"name unknown|repository (name not known|\S+ not found)"),
    (
        "gone",
        r"manifest unknown|manifest for \S+ not found|no such manifest"
        r"|@sha256:[0-9a-f]{64}: not found",
    ),
    (
        "trouble",
        r"unexpected (http )?status\b.*\b5\d\d\b|\b50[0234] (internal|bad|service|gateway)",
    ),
    (
        "unreachable",
        r"dial tcp|no such host|connection (refused|reset|failure)|timeout|timed out"
        r"|deadline exceeded|no route to host|unreachable|unexpected eof|\beof\b|proxyconnect"
        r"|request canceled|server misbehaving",
    ),
)

_EXPLAINED: dict[Cause, tuple[str, str]] = {
    "gone": (
        "the registry does not have this digest: it never was there, or was removed, as nightly "
        "builds are after a while",
        "",  # the recipe's own choices, which this module does not know
    ),
    "repository": (
        "the registry answers, and has no repository of that name",
        "check the image's name, and that a mirror has it (roost_registry_mirror)",
    ),
    "architecture": (
        "the image is not built for this host's architecture",
        "name an image that is (roost_settings.image), or correct roost_hardware",
    ),
    "login": (
        "the registry wants a login, or has no such repository and does not say so",
        "docker login on the host, as the user that deploys",
    ),
    "rate_limit": (
        "the registry's rate limit is reached; the image itself is not in question",
        "wait and deploy again, log in on the host for a higher limit, or name a mirror "
        "(roost_registry_mirror)",
    ),
    "tls": (
        "the registry's certificate is not trusted on this host, or it speaks no TLS",
        "install its certificate under /etc/docker/certs.d, or for one without TLS list it under "
        "insecure-registries in /etc/docker/daemon.json",
    ),
    "disk": (
        "the disk that holds Docker's data is full",
        "free space (`docker image prune`), or move Docker's data-root, and deploy again",
    ),
    "damaged": (
        "what arrived is not what its digest names, and was not taken: a mirror or a proxy on the "
        "way has a damaged copy, or alters it",
        "deploy again; if it stays so, have the mirror forget its copy (docs/mirror.md), or read a "
        "bundle again (`roost bundle --check`)",
    ),
    "trouble": (
        "the registry, or the mirror before it, is in trouble (5xx); the image is not in question",
        "wait and deploy again; on a mirror `journalctl -u 'roost-mirror-registry@*'` says more",
    ),
    "unreachable": (
        "the registry cannot be reached from this host",
        "check the network and the registry's address (roost_registry_mirror)",
    ),
    "unknown": (
        "Docker could not get the image, and its words are of no known kind",
        "read them; `docker pull` on the host says the same",
    ),
}


def cause(said: str) -> Cause:
    """What one error message of Docker's daemon, or of a module around it, is about."""
    for kind, pattern in _SAYS:
        if re.search(pattern, said, re.IGNORECASE):
            return kind
    return "unknown"


def explain(kind: Cause, other_images: str) -> tuple[str, str]:
    """Why, and what to do about it.

    Args:
        kind: The cause.
        other_images: The recipe's choices where a digest is gone (:mod:`roost.fallbacks`).
    """
    why, fix = _EXPLAINED[kind]
    return why, other_images if kind == "gone" else fix


def failure(said: str, image: str, other_images: str) -> str:
    """A pull that failed, as text for a person; the arguments are as in :func:`explain`."""
    kind = cause(said)
    message = f"{image} could not be pulled: {said}"
    if kind == "unknown" and (told := failures.explained(message)) != message:
        return told
    why, fix = explain(kind, other_images)
    return f"{message}\n  why: {why}\n  fix: {fix}"
