"""The prompts of a benchmark, made by the model's own tokenizer and chat template."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from roost import quality, ssh
from roost.errors import RoostError
from roost.launch.container import MODEL_PATH
from roost.measure.benchmark.session import Session, file_of
from roost.measure.suites import Cell, Prompt

#: Prompts that one message names.
_TOLD = 10


@contextmanager
def prepared(session: Session, cells: Sequence[Cell]) -> Iterator[None]:
    """The prompts of every repetition as files in the container, for the length of a ``with``."""
    session.progress("prompts")
    session.directory = PurePosixPath(f"/tmp/roost-bench-{secrets.token_hex(4)}")  # noqa: S108  # in the container, made with mode 0700
    folder = str(session.directory)
    script = resources.files("roost.measure").joinpath("render_prompts.py").read_text("utf-8")
    command = session.deployment.spec.command
    # Each text once: every user and repetition asks it again, and all of it is in memory there.
    texts = list(dict.fromkeys(prompt.text for cell in cells for prompt in cell.prompts))
    places = {text: at for at, text in enumerate(texts)}
    job = {
        "directory": folder,
        "tokenizer": MODEL_PATH,
        "trust_remote_code": "--trust-remote-code" in command,
        "chat_template_kwargs": session.deployment.chat_template_kwargs,
        "format": session.style,
        "limit": session.context and session.context - session.suite.output_tokens,
        "texts": texts,
        "files": {
            file_of(cell.id, number): [_row(session, places, prompt) for prompt in cell.prompts]
            for cell in cells
            for number in range(1, session.suite.repetitions.most + 1)
        },
    }
    try:
        # The folder is an argument so that the process is found after its connection broke.
        words = ["exec", "-i", session.name, "python3", "-c", script, folder]
        said = _said(session.docker(words, json.dumps(job)))
        if all(check.id != "thinking" for check in session.evidence.checks):
            _judge_tail(session, str(said["tail"]))
        _require_short(session, cells, said["too_long"])
        session.filler = said["filler"]
        yield
    except ssh.BrokenConnectionError:
        # It is cleared when the host is reached again.
        raise
    except BaseException:
        with suppress(RoostError):
            _clear(session)
        raise
    _clear(session)


def _clear(session: Session) -> None:
    # The engine may be gone, and its container's files with it.
    ssh.run_privileged(
        session.remote,
        ["docker", "exec", session.name, "rm", "-rf", str(session.in_container)],
    )


def _said(said: str) -> dict[str, Any]:
    """What rendering the prompts says of them, from its output; libraries may print there too."""
    for line in reversed(said.splitlines()):
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and "tail" in found:
                return found
    raise RoostError(
        "the prompts were not rendered in the container", why=said[-400:] or "it said nothing"
    )


def _require_short(
    session: Session, cells: Sequence[Cell], too_long: Sequence[tuple[str, int, int]]
) -> None:
    """An engine ends the whole suite for one prompt that it does not take, and names none.

    Raises:
        RoostError: Some prompts are too long: file, place in it and tokens of each.
    """
    asked = {
        file_of(cell.id, number): cell.prompts
        for cell in cells
        for number in range(1, session.suite.repetitions.most + 1)
    }
    found = {asked[file][at].where: tokens for file, at, tokens in too_long}
    if not found:
        return
    told = ", ".join(f"{where} ({found[where]:,} tokens)" for where in list(found)[:_TOLD])
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    raise RoostError(
        f"{session.plan.prompts}: too long for the server: {told}{more}",
        why=f"its context is {session.context or 0:,} tokens, and "
        f"{session.suite.output_tokens:,} of them are for the answer",
        fix="take them out, or shorten them",
    )


def _row(session: Session, places: Mapping[str, int], prompt: Prompt) -> dict[str, Any]:
    nonce = f"[{secrets.token_hex(4)}] " if session.suite.fresh else ""
    return {"text": places[prompt.text], "tokens": prompt.tokens, "nonce": nonce}


def _judge_tail(session: Session, tail: str) -> None:
    """Is thinking off where the recipe says so? An open ``<think>`` at the end would show it."""
    off = session.deployment.chat_template_kwargs.get("enable_thinking") is False
    thinks = quality.leaves_thought_open(tail)
    session.check(
        "thinking",
        ok=not (off and thinks),
        expected="no open thinking block" if off else "whatever the chat template does",
        observed=f"prompts end in {tail[-40:]!r}",
        why="the chat template did not take the recipe's arguments" if off and thinks else "",
    )
