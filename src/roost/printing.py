"""What verbs print for other programs."""

from __future__ import annotations

import json
from typing import Any

import click


def as_json(data: Any) -> None:
    """Print a JSON document, as ``--json`` asks for."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
