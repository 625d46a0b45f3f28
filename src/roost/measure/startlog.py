"""What an engine says of itself while it starts: backends, number formats, graphs, its pool.

An engine that cannot do what it was asked for often takes something else and only says so here.
Each fact comes with the line that says it, for people. Lines may carry Docker's time stamps, an
engine's process name and level, or none of them.

The formats are those of logs of vLLM 0.24 and 0.32, and of the sources of vLLM 0.23 to 0.33 and of
SGLang 0.5.19 to 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: Longer lines are shown in part: so many characters from where they say it.
_WHOLE, _PART = 300, 100


class Said(NamedTuple):
    """One fact, in the engine's own spelling, and the line it stands in."""

    value: str
    line: str


@dataclass(frozen=True)
class StartLog:
    """One start of an engine. Empty where nothing was said.

    Attributes:
        target_attention: Attention backends of the target, without those of a vision tower.
        drafter_attention: Of the drafter, or of the model's own head.
        moe: Backends of the target's experts.
        kv_dtype: Number formats of the KV cache.
        graphs: CUDA graphs, newest last: what is resolved or fallen back to (``FULL``,
            ``FULL_AND_PIECEWISE``, ``FULL_DECODE_ONLY``, ``PIECEWISE``, ``NONE``).
        captured: Graphs that were really captured: ``FULL``, ``PIECEWISE``.
        pool_tokens: Tokens that the KV pool holds.
        concurrency: Requests of the longest length at a time, as printed (two decimals).
    """

    target_attention: tuple[Said, ...] = ()
    drafter_attention: tuple[Said, ...] = ()
    moe: tuple[Said, ...] = ()
    kv_dtype: tuple[Said, ...] = ()
    graphs: tuple[Said, ...] = ()
    captured: tuple[Said, ...] = ()
    pool_tokens: tuple[Said, ...] = ()
    concurrency: tuple[Said, ...] = ()


def parse(text: str, style: str) -> StartLog:
    """Read the log of one start.

    Args:
        text: The log, from the start on.
        style: ``sglang``, or one of the styles that run vLLM in the end.
    """
    lines = list(_lines(text))
    return _sglang(lines) if style == "sglang" else _vllm(lines)


class _Line(NamedTuple):
    process: str
    message: str


_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+) )?"
    r"(?:\((?P<process>[\w-]+ pid=\d+)\) )?"
    r"(?:(?:INFO|WARNING|ERROR) [\d-]+ [\d:]+ (?:\[[^\]]*\]|\S+\]) )?"
    # SGLang: `[2026-11-29 14:43:27 TP0] `.
    r"(?:\[\d{4}-[^\]]*\] )?"
)


def _lines(text: str) -> Iterator[_Line]:
    # A progress bar writes itself anew with carriage returns; each writing is a line to read.
    for raw in re.split(r"[\r\n]+", text):
        # Every part of the prefix may be missing, so it always matches.
        if found := _PREFIX.match(raw):
            yield _Line(found["process"] or "", raw[found.end() :].strip())


def _find(lines: list[_Line], pattern: str) -> tuple[Said, ...]:
    """Each different value of the pattern's group, in the order of the log."""
    compiled = re.compile(pattern)
    found: dict[str, Said] = {}
    for line in lines:
        for match in compiled.finditer(line.message):
            value = next(group for group in match.groups() if group is not None)
            found.setdefault(value, Said(value, _around(line.message, match)))
    return tuple(found.values())


def _around(message: str, match: re.Match[str]) -> str:
    """The line; of one that is far too long, the part that says it."""
    if len(message) <= _WHOLE:
        return message
    return f"…{message[match.start() : match.start() + _PART].strip()}…"


# --- vLLM -----------------------------------------------------------------------------------------

# Asked for, and chosen by the engine.
_ATTENTION = r"Using AttentionBackendEnum\.(\w+) backend\.|Using (\w+) attention backend out of"
# Quoted for NVFP4, bare for the others; some have a space in their name.
_MOE = r"Using (?:'([^']+)'|(\S.*?)) \S+ MoE backend\b"
_DRAFTER_FOLLOWS = "Loading drafter model"


def _vllm(lines: list[_Line]) -> StartLog:
    config = [line for line in lines if line.message.startswith("Initializing a V1 LLM engine")]
    target, drafter = _parts(lines)
    return StartLog(
        target_attention=_find(target, _ATTENTION),
        drafter_attention=_find(drafter, _ATTENTION),
        # A head of the model's own may be stored in another format, with kernels of its own.
        moe=_find(target, _MOE),
        kv_dtype=_find(config, r"\bkv_cache_dtype=(\w+)"),
        graphs=_graphs(lines),
        captured=_find(lines, r"Capturing (?:\w+ )?CUDA graphs \((?:[\w -]+, )?(FULL|PIECEWISE)\)"),
        pool_tokens=_find(lines, r"KV cache size: ([\d,]+) tokens"),
        concurrency=_find(lines, r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    )


def _parts(lines: list[_Line]) -> tuple[list[_Line], list[_Line]]:
    """Lines before and after the drafter is loaded, process by process.

    Ranks of a tensor-parallel engine write at the same time. Where some of them say when their
    drafter begins, lines of the others are left out: whose they are cannot be told.
    """
    told = {line.process for line in lines if line.message.startswith(_DRAFTER_FOLLOWS)}
    if not told:
        return lines, []
    target: list[_Line] = []
    drafter: list[_Line] = []
    loading: set[str] = set()
    for line in lines:
        if line.process not in told:
            continue
        if line.message.startswith(_DRAFTER_FOLLOWS):
            loading.add(line.process)
        (drafter if line.process in loading else target).append(line)
    return target, drafter


def _graphs(lines: list[_Line]) -> tuple[Said, ...]:
    """What was resolved, each change of it, the newest last."""
    compiled = re.compile(
        r"'cudagraph_mode': <CUDAGraphMode\.(\w+)|setting cudagraph_mode=(\w+)"
        r"|(Cudagraph is disabled under eager mode|Enforce eager set)"
    )
    said: list[Said] = []
    for line in lines:
        for match in compiled.finditer(line.message):
            mode = match[1] or match[2] or "NONE"
            if not said or said[-1].value != mode:
                said.append(Said(mode, _around(line.message, match)))
    return tuple(said)


# --- SGLang ---------------------------------------------------------------------------------------


def _sglang(lines: list[_Line]) -> StartLog:
    settled = [line for line in lines if line.message.startswith("server_args=")]

    def argument(*names: str) -> tuple[Said, ...]:
        """What the server settled on, which it prints as a dictionary."""
        either = "|".join(names)
        return _find(settled, rf"'(?:{either})': '([^']+)'|\b(?:{either})='([^']+)'")

    pools = r"KV Cache is allocated\. dtype: torch\.(\w+)|KV cache allocated\. dtype: torch\.(\w+)"
    # Of a DFlash drafter the server prints what it took; of a head only what was settled.
    drafter = _find(lines, r"Initialized DFLASH draft runner\. attention_backend=(\w+)")
    graphs = tuple(_sglang_graphs(lines))
    finished = _find(lines, r"(Capture target (?:verify|decode) CUDA graph end)\.")
    return StartLog(
        # Prefill and decode may differ; both are the target's.
        target_attention=argument("prefill_attention_backend", "decode_attention_backend")
        or argument("attention_backend"),
        drafter_attention=drafter or argument("speculative_draft_attention_backend"),
        moe=argument("moe_runner_backend"),
        kv_dtype=_find(lines, pools) or argument("kv_cache_dtype"),
        graphs=graphs,
        captured=graphs if finished else (),
        pool_tokens=_find(lines, r"\bmax_total_num_tokens=(\d+), "),
    )


def _sglang_graphs(lines: list[_Line]) -> Iterator[Said]:
    """Graphs of decoding steps, which verify drafts where the server speculates."""
    modes = {
        "full": "FULL",
        "breakable": "PIECEWISE",
        "tc_piecewise": "PIECEWISE",
        "disable_cuda_graph": "NONE",
    }
    for said in _find(
        lines,
        r"Capture target (?:verify|decode) CUDA graph begin\. backend=(\w+),"
        r"|^server_args=.*'(disable_cuda_graph)': True",
    ):
        yield Said(modes.get(said.value, said.value.upper()), said.line)
