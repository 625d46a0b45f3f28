"""What a hub's answer means, or that there is none: the reason, what was seen, what to do."""

from __future__ import annotations

import email.utils
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
from typing import Any

from .failures import SnapshotError

CHECK_ADDRESS = "Check the network of this host and the hub's address (roost_hub_endpoint)"


def no_answer(where: str, error: BaseException, timeout: float) -> SnapshotError:
    """The error for a connection that could not be made, or that broke."""
    cause = getattr(error, "reason", None) or error
    text = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, socket.gaierror):
        return SnapshotError(
            "dns",
            f"{where}: the name of the hub (or of its storage) cannot be resolved ({text})",
            "Check this host's name server and the hub's address (roost_hub_endpoint)",
            outage=True,
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return SnapshotError(
            "tls",
            f"{where}: no trusted connection to the hub ({text})",
            "Check this host's clock and certificates (a private mirror's authority must be among "
            "them), whether the mirror's own has expired, and roost_hub_endpoint",
        )
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return SnapshotError(
            "tls",
            f"{where}: what answers there speaks no TLS, or none that this host speaks ({text})",
            "Write http:// in roost_hub_endpoint if it is a mirror without TLS; else look what "
            "answers at that address",
        )
    if isinstance(cause, TimeoutError):
        return SnapshotError(
            "timeout",
            f"{where}: the hub did not answer within {timeout:.0f} s",
            CHECK_ADDRESS,
            outage=True,
        )
    return SnapshotError(
        "network", f"{where}: the hub cannot be reached ({text})", CHECK_ADDRESS, outage=True
    )


#: What a mirror that `playbooks/mirror.yml` set up says of itself, by its X-Error-Code.
MIRROR_REFUSALS = {
    "MirrorNetwork": (
        "gated",
        "the mirror does not serve this host's network",
        "Add this host's network to mirror_allow and run playbooks/mirror.yml",
    ),
    "MirrorKey": (
        "token",
        "the mirror asks for its key, and was given none or another",
        "Set roost_hub_token to the mirror's key (mirror_key)",
    ),
    "MirrorUpstream": (
        "network",
        "the mirror does not have it yet, and cannot reach its hub",
        "Check the network and the name server of the mirror, and its mirror_hub",
    ),
    "MirrorRevision": (
        "revision",
        "the mirror serves a bundle, and this revision is not in it",
        "Pack it (`roost bundle`) and have the mirror serve that, or correct the lock",
    ),
}

_CODES = {
    "RevisionNotFound": "revision",
    "EntryNotFound": "entry",
    "GatedRepo": "gated",
    "RepoNotFound": "repository",
    **dict.fromkeys(MIRROR_REFUSALS, "mirror"),
}
_STATUSES = {401: "repository", 403: "forbidden", 416: "range", 429: "limit"}
#: Also said to who comes with a token that nobody has.
_UNSEEN = {"", "gated", "repository"}


def asked_wait(headers: Any) -> float | None:
    """Seconds that an answer asks to be left alone for, in whichever way it says so."""
    after = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", after):
        return float(after)
    # As huggingface.co has it (draft-ietf-httpapi-ratelimit-headers): r requests are left until a
    # window ends in t seconds.
    if found := re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)", headers.get("RateLimit", "")):
        return float(found[1])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def passes(status: int) -> bool:
    """Whether an answer of this status may be another one soon."""
    return status >= 500 or status in {408, 429}


def meaning(status: int, headers: Any, *, with_token: bool) -> str:
    """What a hub means by an answer that is not what was asked for.

    Args:
        status: Of HTTP.
        headers: Of the answer; their names are found in any case.
        with_token: Whether a token went with the question.

    Returns:
        ``revision`` or ``entry`` (the repository has no such revision, or no such file),
        ``mirror`` (see :data:`MIRROR_REFUSALS`), ``token`` (the hub does not know it), ``gated``,
        ``repository`` (there is none to be seen), ``forbidden``, ``range`` (it has no such bytes),
        ``limit`` (too many questions), or ``other``.
    """
    said = headers.get("X-Error-Message", "").lower()
    meant = _CODES.get(headers.get("X-Error-Code", ""), "")
    if status == 401 and with_token and "credentials" in said and meant in _UNSEEN:
        return "token"
    return meant or _STATUSES.get(status, "other")


def refusal(where: str, error: urllib.error.HTTPError, with_token: bool) -> SnapshotError:
    """What an HTTP status of the hub means."""
    meant = meaning(error.code, error.headers, with_token=with_token)
    if meant == "revision":
        return SnapshotError(
            "revision",
            f"{where}: the hub has the repository, but not this revision",
            "It was removed (by a rewritten history, for example), or the lock was written against "
            "another hub: run `roost lock` and look at what changed",
        )
    if meant == "mirror":
        reason, saw, fix = MIRROR_REFUSALS[error.headers["X-Error-Code"]]
        return SnapshotError(reason, f"{where}: {saw}", fix, outage=passes(error.code))
    if meant == "entry":
        return SnapshotError(
            "incomplete",
            f"{where}: the hub lists this file and does not have it",
            "Try again; if it stays so, the repository is broken at this revision: pin another one",
        )
    if meant == "token":
        return SnapshotError(
            "token",
            f"{where}: the hub does not know the token (expired, revoked or mistyped)",
            "Make a new one on the hub and set roost_hub_token",
        )
    if meant == "gated" and with_token:
        return SnapshotError(
            "gated",
            f"{where}: the repository is gated, and the token does not open it",
            "Accept its terms on the hub with the account that the token belongs to, and give "
            "the token the right to read gated repositories",
        )
    if meant == "gated":
        return SnapshotError(
            "gated",
            f"{where}: the repository is gated, and no token was given",
            "Accept its terms on the hub, make a token there and set roost_hub_token",
        )
    if meant == "repository":
        return SnapshotError(
            "repository",
            f"{where}: the hub shows no such repository: it is missing, private, or gated and "
            "asked without a token that opens it; the hub answers all three alike",
            "Check its name; for a private one set roost_hub_token",
        )
    if meant == "forbidden":
        said = error.headers.get("X-Error-Message", "")[:200].replace(". ", "; ")
        host = urllib.parse.urlsplit(error.url).netloc
        return SnapshotError(
            "forbidden",
            f"{where}: {host} forbids it (403{f', {said!r}' if said else ''})",
            "If it is the hub, give the token (roost_hub_token) the right to read this repository; "
            "if it is a proxy or a firewall, have it let that address through",
        )
    if meant == "range":
        return SnapshotError(
            "stale", f"{where}: the hub does not have the part that was asked for", "Deploy again"
        )
    wait = asked_wait(error.headers)
    if meant == "limit":
        asks = f" and asks to wait {wait:.0f} s" if wait is not None else ""
        return SnapshotError(
            "rate_limit",
            f"{where}: the hub's rate limit is reached{asks}",
            "Wait and deploy again; a token (roost_hub_token) or a mirror (roost_hub_endpoint) "
            "raises the limit",
            outage=True,
            wait=wait,
        )
    # The status of a storage host may come with its own page; its first line says nothing more.
    return SnapshotError(
        "hub_error",
        f"{where}: the hub answered {error.code} ({error.reason})",
        "Wait and try again; if it stays so, check that roost_hub_endpoint is a model hub",
        outage=passes(error.code),
        wait=wait,
    )
