"""Docker's own settings (``daemon.json``), which are a site's: read strictly, added to."""

from __future__ import annotations

import json

from roost.errors import RoostError

_PLAIN = "insecure-registries"


def naming_plain(held: bytes, path: str, registry: str) -> str | None:
    """The settings with a registry named among those without TLS.

    Args:
        held: What stands in the file; nothing where there is none.
        path: Where it is, for messages.
        registry: As ``host[:port]``.

    Returns:
        The file's whole text; none where it says so already.

    Raises:
        RoostError: It is not what Docker could read, so it is not to be written over either.
    """
    try:
        settings = json.loads(held) if held.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise _refusal(path, "it is JSON, but not an object: {…}")
    plain = settings.get(_PLAIN) or []
    if not isinstance(plain, list) or not all(isinstance(name, str) for name in plain):
        raise _refusal(path, f"its {_PLAIN} is not a list of names")
    if registry in plain:
        return None
    named = {**settings, _PLAIN: [*plain, registry]}
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"


def _refusal(path: str, why: str) -> RoostError:
    return RoostError(
        f"{path} cannot be read, and was left as it is",
        why=f"{why}. Docker itself would not start with it",
        fix=f"mend it on the host (python3 -m json.tool {path} shows the place), then deploy again",
    )
