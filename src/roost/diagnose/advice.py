"""Advice computed from what a log said: the sentences of a fingerprint, filled in.

Sentences are Jinja templates over the fingerprint's values, ``settings`` (engine-neutral, as far as
known) and ``version`` (of the engine, or none).
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

import jinja2

from roost import catalog
from roost.diagnose.fingerprints import Kind
from roost.diagnose.text import Passage
from roost.units import GIB, MIB

Value: TypeAlias = Decimal | str | list[str] | None

# No figure of a log is longer, and nothing is computed with one that is.
_FIGURE = re.compile(r"\d{1,15}(?:\.\d{1,15})?(?![\d])")
# A name without its quotes, as a shell or a template leaves it.
_BARE_WORD = re.compile(r"([{,:]\s*)([A-Za-z_][\w./\-]*)(?=\s*[,:}])")


def read_value(passage: Passage, span: tuple[int, int], kind: Kind) -> Value:
    """A named group of a pattern as a value; none if it should be a figure and is not."""
    if kind == "rest":
        return passage.rest(span[0])
    said = passage.slice(*span)
    if kind == "number":
        figure = _FIGURE.match("".join(said.replace(",", "").split()))
        return Decimal(figure[0]) if figure else None
    if kind == "word":
        return "".join(said.split())
    if kind == "words":
        return re.findall(r"[^\s,'\"\[\](){}]+", said)
    return said


def fill(sentence: str, values: Mapping[str, Value], **more: Any) -> str:
    """A sentence with its values in place, on one line."""
    return " ".join(_template(sentence).render(**values, **more).split())


@cache
def _template(sentence: str) -> jinja2.Template:
    return environment().from_string(sentence)


@cache
def environment() -> jinja2.Environment:
    """What the sentences are written for: an undefined name is an error."""
    made = jinja2.Environment(
        autoescape=jinja2.select_autoescape([], default_for_string=False),
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "share": share,
        "enough_bytes": enough_bytes,
        "closest": closest,
        "closest_flag": lambda given: closest(given, list(_flags())),
        "setting_of": lambda flag: _flags()[flag],
        "renamed": renamed,
        "mended_json": mended_json,
        "plus": lambda value, more: value + Decimal(more),
        "commas": lambda value: f"{int(value):,}",
    }
    return made


def share(part: Decimal, whole: Decimal) -> str:
    """The largest fraction of ``whole``, in hundredths, that is no more than ``part``.

    >>> share(Decimal("74.9"), Decimal("142.5"))
    '0.52'
    """
    hundredths = int(part * 100 / whole) if whole else 0
    return f"0.{hundredths:02}" if hundredths < 100 else "1.0"


def enough_bytes(gib: Decimal) -> int:
    """Whole MiB, in bytes, that hold a rounded figure in GiB whichever way it was rounded.

    >>> enough_bytes(Decimal("5.08"))
    5460983808
    """
    exponent = gib.as_tuple().exponent
    half = Decimal(5).scaleb(int(exponent) - 1)
    return math.ceil((gib + half) * GIB / MIB) * MIB


def closest(given: str, options: Sequence[str]) -> str:
    """The option that was probably meant, or nothing.

    >>> closest("TRITON", ["FLASH_ATTN", "TRITON_ATTN"])
    'TRITON_ATTN'
    """
    folded = {option.lower(): option for option in reversed(options)}
    near = [name for name in reversed(folded) if name.startswith(given.lower())]
    near += difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.5)
    return folded[near[0]] if near else ""


def mended_json(given: str) -> str:
    """What a value was meant to be that is no JSON object, or nothing where that cannot be told.

    >>> mended_json("{'method': 'mtp', 'parallel_drafting': True}")
    '{"method":"mtp","parallel_drafting":true}'
    """
    bare = given.strip().strip("'\"") if given[:1] in "'\"" else given
    braced = bare.replace("{{", "{").replace("}}", "}")
    braced = braced if braced.startswith("{") else f"{{{braced}}}"
    for text in (bare, bare.replace("\\", ""), braced, _BARE_WORD.sub(r'\1"\2"', braced)):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(text)
                if isinstance(value, dict):
                    return json.dumps(value, separators=(",", ":"))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
    return ""


def renamed(flag: str) -> str:
    """What an engine calls a flag that some of its versions do not know, or nothing."""
    history = (
        past for engine in catalog.builtin().engines.values() for past in engine.flag_history
    )
    return next((past.instead for past in history if past.flag == flag and past.instead), "")


def _flags() -> dict[str, str]:
    """Every flag that a setting stands for, of all engines, with the setting."""
    engines = catalog.builtin().engines.values()
    return {flag.flag: name for engine in engines for name, flag in engine.flags.items()}
