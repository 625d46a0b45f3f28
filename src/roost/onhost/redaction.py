"""Taking keys, tokens and passwords out of text, with the same eyes on the host and elsewhere."""

from __future__ import annotations

import json
import re
from typing import Iterable

#: What stands where a secret stood.
INSTEAD = "<redacted>"

_KEY = r"(?:api[_\-]?keys?|token|secret|password|passwd)"
_SECRETS = [
    (re.compile(r"\b(?:hf_|sk-|nvapi-|gh[pousr]_|glpat-)[A-Za-z0-9_\-]{6,}"), INSTEAD),
    (re.compile(r"(?i)\b(bearer)\s+(?=\S*\d|\S{20})[^\s'\",]{6,}"), rf"\1 {INSTEAD}"),
    (re.compile(r"(://[^\s/:@]*:)[^\s/@]+@"), rf"\1{INSTEAD}@"),
    # An assignment (shell, YAML, JSON, Python), then an option and its value.
    (
        re.compile(rf"(?i)({_KEY}['\"]?\s*[=:]\s*[\['\"]*)[^\s'\",\]]{{6,}}"),
        rf"\1{INSTEAD}",
    ),
    (re.compile(rf"(?i)(--[\w\-]{{0,40}}{_KEY}\s+['\"]?)[^\s'\"]+"), rf"\1{INSTEAD}"),
]


def redact(text: str) -> str:
    """The text without what looks like a key, a token or a password."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class Redactor:
    """Takes out what looks like a secret, and the secrets that are known.

    Args:
        known: Values that must not be in any text.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        # The longest first: one may be the beginning of another.
        self._known = sorted({item for item in known if item}, key=len, reverse=True)

    def __call__(self, said: str) -> str:
        for secret in self._known:
            for spelled in {secret, json.dumps(secret)[1:-1]}:
                said = said.replace(spelled, INSTEAD)
        return redact(said)
