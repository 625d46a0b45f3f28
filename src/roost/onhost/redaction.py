"""Taking keys, tokens and passwords out of what is kept or sent."""

from __future__ import annotations

import json
import re
from typing import Sequence

_KEY = r"[\w\-]{0,40}(?:api[_\-]?keys?|token|secret|password|passwd)"
_SECRETS = [
    (re.compile(r"\b(?:hf_|sk-|nvapi-|gh[pousr]_|glpat-)[A-Za-z0-9_\-]{6,}"), "<redacted>"),
    (re.compile(r"(?i)\b(bearer)\s+(?=\S*\d|\S{20})[^\s'\",]{6,}"), r"\1 <redacted>"),
    (re.compile(r"(://[^\s/:@]*:)[^\s/@]+@"), r"\1<redacted>@"),
    # An assignment (shell, YAML, JSON, Python), then an option and its value.
    (re.compile(rf"(?i)\b({_KEY}['\"]?\s*[=:]\s*[\['\"]*)[^\s'\",\]]{{6,}}"), r"\1<redacted>"),
    (re.compile(rf"(?i)(--{_KEY}\s+['\"]?)[^\s'\"]+"), r"\1<redacted>"),
]


def redact(text: str) -> str:
    """The text with keys, tokens and passwords taken out."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class Redactor:
    """Takes out what looks like a secret, and the secrets that are known.

    Args:
        secrets: Their values.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        # The longest first: one may be the beginning of another.
        self._known = sorted({item for item in secrets if item}, key=len, reverse=True)

    def __call__(self, said: str) -> str:
        for secret in self._known:
            for spelled in {secret, json.dumps(secret)[1:-1]}:
                said = said.replace(spelled, "<redacted>")
        return redact(said)
