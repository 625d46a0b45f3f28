"""Logs for the diagnosis tests: where they are, and the ways in which they reach a person."""

from __future__ import annotations

import gzip
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

LOGS = Path(__file__).parent / "data" / "engine-logs"


def log(name: str) -> str:
    """A real log. Its own CRLFs are made plain ends of lines, variations bring theirs."""
    return gzip.decompress((LOGS / f"{name}.txt.gz").read_bytes()).decode().replace("\r\n", "\n")


def _each(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.split("\n"))


def wrapped(columns: int) -> Callable[[str], str]:
    """As a terminal does it: at its width, inside words."""
    return _each(
        lambda line: "\n".join(line[at : at + columns] for at in range(0, len(line) or 1, columns))
    )


def folded(columns: int) -> Callable[[str], str]:
    """As a mail program does it: between words."""
    return _each(
        lambda line: "\n".join(
            textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) or [""]
        )
    )


def _docker_json(line: str) -> str:
    record = {"log": line + "\n", "stream": "stderr", "time": "2026-11-29T14:43:27.123456789Z"}
    # Docker escapes what could be taken for HTML.
    return json.dumps(record, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")


def _coloured(text: str) -> str:
    text = re.sub(r"(\([\w-]+ pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", text)
    return text.replace("ERROR", "\x1b[31mERROR\x1b[0m")


def _interleaved(text: str) -> str:
    other = "(Worker_TP1 pid=99) INFO 11-29 14:43:27 [worker.py:7] Waiting for the others"
    return text.replace("\n", f"\n{other}\n{other}\n")


#: What happens to a log between the program and the person. Each keeps what the log says.
VARIATIONS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "coloured": _coloured,
    "colours pasted": lambda text: _coloured(text).replace("\x1b", ""),
    "grep --color": lambda text: text.replace("rror", "\x1b[01;31m\x1b[Krror\x1b[m\x1b[K"),
    "docker logs -t": _each(lambda line: "2026-11-29T14:43:27.123456789Z " + line),
    "docker's json-file": _each(_docker_json),
    "docker compose": _each(lambda line: "vllm-1  | " + line),
    "journald": _each(lambda line: "Nov 29 14:43:27 spark-01 docker[1234]: " + line),
    "journald, iso": _each(lambda line: "2026-11-29T14:43:27+0000 spark-01 docker[1234]: " + line),
    "kubectl": _each(lambda line: "[pod/vllm-0/vllm] " + line),
    "terminal of 80": wrapped(80),
    "terminal of 132": wrapped(132),
    "folded at 100": folded(100),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
    "quoted in a mail": _each(lambda line: "> " + line),
    "indented": lambda text: textwrap.indent(text, "    "),
    "an item each": _each(lambda line: f"        {json.dumps(line)},"),
    "one string": lambda text: f'{{"msg": {json.dumps(text)}}}',
    "interleaved": _interleaved,
    "without processes": lambda text: re.sub(r"(?m)^\([\w-]+ pid=\d+\) ", "", text),
    "level in the old way": lambda text: re.sub(r"\[(\w+\.py:\d+)\]", r"\1]", text),
    "other process names": lambda text: text.replace("(EngineCore pid", "(EngineCore_DP0 pid"),
    "other line numbers": lambda text: re.sub(r"(line |\.py:)\d+", r"\g<1>4711", text),
    "typographer's quotes": lambda text: text.replace("'", "\u2019"),
    "garbage between": lambda text: text.replace("\n", "\n\x00\x01\ufffd\x02 \x7f\n"),
}
