"""An engine's command line, read back: the inverse of :mod:`roost.engines`.

What has a neutral name becomes a setting, what says how to speculate becomes a speculation choice,
and the rest stays as it was written. What cannot be kept is said, never dropped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from roost.catalog_schema import Engine
from roost.engines.spellings import ALIASES, SPREADING
from roost.errors import UsageError
from roost.settings import Settings, secret_flag

#: Decided by the site, or by roost itself, so no recipe says them.
_SITE = {"--host", "--port"}

#: Engines over several machines, which roost does not start.
_CLUSTER = {
    *SPREADING,
    "--distributed-executor-backend",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--dist-init-addr",
    "--headless",
}

#: As vLLM's parser reads them; it takes decimals with the first three only.
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}

#: The value of a setting whose flag is there, by the flag's kind.
_PRESENT = {"switch": True, "toggle": True, "inverse": False}


@dataclass
class Read:
    """What a command line said."""

    engine: str
    model: str | None = None
    revision: str | None = None
    served_name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    extra_args: list[str] = field(default_factory=list)
    speculation: dict[str, Any] = field(default_factory=dict)
    """As vLLM's speculative configuration spells it, whatever the engine."""
    lost: list[str] = field(default_factory=list)


def split(text: str) -> list[list[str]]:
    """The commands in a text, one a line, each as the words that a shell would make of it.

    Raises:
        UsageError: A quote does not end, or it is a script (``&&``, ``|``, ``>``, ``$(…)``).
    """
    import shlex

    # A blank after the backslash of a continued line: easily written, never meant.
    joined = re.sub(r"\\[ \t]*\n", " ", re.sub(r"(?m)^[ \t]*#.*$", "", text))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if re.fullmatch(r"\n+", word):
                commands.append([])
            elif re.fullmatch(r"[;&|<>()\n]+", word) or "$(" in word or "`" in word:
                raise UsageError(
                    f"command: has {word.strip()!r} in it",
                    why="it is a shell script, and only the command of an engine can be read",
                    fix="leave the engine's own command in the file",
                )
            else:
                commands[-1].append(word)
    except ValueError as error:
        raise UsageError(
            f"command: {str(error).lower()}", why="a quote or backslash has no end", fix="close it"
        ) from None
    return [words for words in commands if words]


_BEGINNINGS = (
    (("vllm", "serve"), "vllm"),
    (("-m", "vllm.entrypoints.openai.api_server"), "vllm"),
    (("sglang", "serve"), "sglang"),
    (("-m", "sglang.launch_server"), "sglang"),
)


def read(commands: Sequence[Sequence[str]], engines: dict[str, Engine]) -> Read:
    """Take the command that starts an engine apart.

    Args:
        commands: As :func:`split` gives them.
        engines: Of the catalogue.

    Raises:
        UsageError: Nothing starts an engine that roost knows, or it says something impossible.
    """
    starts = [(words, *at) for words in commands if (at := _engine(words))]
    if len(starts) != 1:
        raise UsageError(
            f"command: starts {len(starts)} engines that roost knows, not one",
            why="it begins: " + " ".join(commands[0][:3]) if commands else "it is empty",
            fix="it must run `vllm serve` or `sglang serve`",
        )
    ((words, start, name),) = starts
    if name not in engines:
        raise UsageError(
            f"command: starts {name}, which is not in the catalogue",
            why="known: " + ", ".join(engines),
        )
    engine, found = engines[name], Read(name)
    for others in commands:
        _before(found, others if others is not words else words[: start - 2])
    for flag, values in _options(words[start:], ALIASES[engine.style]):
        _take(found, engine, flag, values)
    if found.model is None:
        raise UsageError("command: names no model")
    if "$" in found.model:
        raise UsageError(f"command: the model {found.model!r} is a variable of the shell")
    return found


def _engine(words: Sequence[str]) -> tuple[int, str] | None:
    """Where the options of an engine begin, and which engine it is."""
    for at in range(len(words) - 1):
        for beginning, name in _BEGINNINGS:
            if tuple(words[at : at + 2]) == beginning:
                return at + 2, name
    return None


def _before(found: Read, words: Sequence[str]) -> None:
    """What stands before the engine's own command: variables are kept."""
    rest = []
    for word in words:
        if re.fullmatch(r"[A-Za-z_]\w*=[^$]*", word):
            key, _, value = word.partition("=")
            found.env[key] = value
        elif not re.fullmatch(r"exec|env|export|python3?", word):
            rest.append(word)
    if rest:
        found.lost.append(f"command: `{' '.join(rest)}` beside the engine's own command")


def _options(
    words: Sequence[str], aliases: dict[str, str]
) -> Iterator[tuple[str | None, list[str]]]:
    """Flags in their long form with the words that follow; words before the first with none."""
    flag: str | None = None
    values: list[str] = []
    for word in words:
        if re.match(r"-{1,2}[A-Za-z]", word):
            if flag is not None or values:
                yield flag, values
            name, equals, value = word.partition("=")
            # Both engines' parsers take either spelling of a long flag.
            name = name.replace("_", "-") if name.startswith("--") else name
            flag, values = aliases.get(name, name), [value] if equals else []
        else:
            values.append(word)
    if flag is not None or values:
        yield flag, values


def _take(found: Read, engine: Engine, flag: str | None, values: list[str]) -> None:
    """Keep what a flag says where a recipe has a place for it, else say that it is lost."""
    if flag is None:
        found.model = values[0]
        if len(values) > 1:
            found.lost.append("command: " + " ".join(values[1:]))
    elif any("$" in value for value in values):
        found.lost.append(f"{flag}: needs a variable of the shell ({' '.join(values)})")
    elif any(re.search(r"\{[A-Za-z_]\w*\}", value) for value in values):
        found.lost.append(f"{flag}: nothing gives {' '.join(values)} a value")
    elif flag in {"--model", "--model-path"} and values:
        found.model = values[0]
    elif flag == "--revision" and values:
        found.revision = values[0]
    elif flag == "--served-model-name" and values:
        found.served_name = values[0]
        found.lost += [f"{flag}: {value}; one name is kept" for value in values[1:]]
    elif flag in _SITE:
        found.lost.append(f"{flag}: the site decides it (roost_listen, roost_port)")
    elif secret := secret_flag(flag):
        found.lost.append(f"{secret}: a secret belongs in no recipe; it was left out")
    elif flag in _CLUSTER:
        found.lost.append(f"{' '.join([flag, *values])}: roost starts one engine on one machine")
    elif not (_speculation(found, engine, flag, values) or _setting(found, engine, flag, values)):
        if any(value.startswith("/") for value in values):
            found.lost.append(f"{flag}: kept, but {values[0]} is a file that the image must have")
        found.extra_args += [flag, *values]


def _setting(found: Read, engine: Engine, flag: str, values: list[str]) -> bool:
    """Whether a flag has a neutral name; then its setting is kept."""
    for name, spelling in engine.flags.items():
        if spelling.kind == "value":
            if flag == spelling.flag and len(values) == 1:
                value = _value(name, values[0])
                if value is None:
                    return False
                if name in found.settings:
                    found.lost.append(f"{flag}: stands twice; the last one counts")
                found.settings[name] = value
                return True
        elif not values and flag == spelling.flag:
            found.settings[name] = _PRESENT[spelling.kind]
            return True
        elif not values and flag == spelling.flag.replace("--", "--no-", 1):
            found.settings[name] = not _PRESENT[spelling.kind]
            return True
    return False


def _value(name: str, text: str) -> int | float | str | None:
    """A word as the setting wants it; none where it means something that no setting says."""
    candidates: list[int | float | str] = []
    if human := re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)([kmgKMG]?)", text):
        number = Decimal(human[1]) * _SUFFIX.get(human[2], 1)
        candidates = [int(number)] if number == int(number) else []
        candidates.append(float(number))
    for candidate in [*candidates, text]:
        try:
            Settings.model_validate({name: candidate})
        except ValidationError:
            continue
        return candidate
    return None


#: Flags of SGLang, and vLLM's short ones, by the key of vLLM's speculative configuration.
_SPECULATIVE = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
    "--speculative-algorithm": "method",
    "--speculative-draft-model-path": "model",
    "--speculative-draft-model-revision": "revision",
    "--speculative-draft-attention-backend": "attention_backend",
    "--speculative-num-steps": "num_steps",
    "--speculative-eagle-topk": "topk",
    "--speculative-num-draft-tokens": "num_draft_tokens",
}


def _speculation(found: Read, engine: Engine, flag: str, values: list[str]) -> bool:
    if engine.style == "vllm" and flag == "--speculative-config":
        text = " ".join(values)
        shown = text if len(text) < 200 else text[:200] + "…"
        try:
            config = json.loads(text)
            if not isinstance(config, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"command: --speculative-config {shown}: is not JSON ({error})",
                why="the engine would refuse it at start-up",
                fix="quote keys and texts, and keep the shell from eating the quotes",
            ) from None
        found.speculation.update(config)
    elif flag in _SPECULATIVE and len(values) == 1:
        key = _SPECULATIVE[flag]
        number = values[0].isdecimal() and key not in {"model", "revision"}
        found.speculation[key] = int(values[0]) if number else values[0]
    else:
        return False
    return True
