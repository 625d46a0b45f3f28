"""What verbs print for other programs."""

from __future__ import annotations

import codecs
import json
import sys
from typing import Any

import click


def as_json(data: Any) -> None:
    """Print a JSON document, as ``--json`` asks for.

    Where the output has not every character, JSON's own escapes stand for those that it lacks.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    plain = codecs.lookup(encoding).name != "utf-8"
    click.echo(json.dumps(data, indent=2, ensure_ascii=plain))
