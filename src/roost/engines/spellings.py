"""What a word of an engine's command line means, however it is spelled, and whose business it is.

Read in the argument parsers of vLLM 0.23 to 0.33 and SGLang 0.5.20 to 0.5.23. ``style`` is that of
the engine that reads the words: one that hands flags on has the other's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from roost.catalog_schema import Engine

#: Other spellings that an engine's parser takes, and the flag that the catalogue or this file has.
ALIASES = {
    "vllm": {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
        "-dcp": "--decode-context-parallel-size",
        "-pcp": "--prefill-context-parallel-size",
        "-ep": "--enable-expert-parallel",
        "-n": "--nnodes",
        "-r": "--node-rank",
        "-q": "--quantization",
        # An argparse abbreviation, see the note at the flag itself.
        "--kv-cache-memory": "--kv-cache-memory-bytes",
        "-sc": "--speculative-config",
    },
    "sglang": {
        "--tp": "--tp-size",
        "--tensor-parallel-size": "--tp-size",
        "--pipeline-parallel-size": "--pp-size",
        "--pp": "--pp-size",
        "--data-parallel-size": "--dp-size",
        "--dp": "--dp-size",
        "--decode-context-parallel-size": "--dcp-size",
        "--attention-context-parallel-size": "--attn-cp-size",
        "--model": "--model-path",
        "--speculative-draft-model": "--speculative-draft-model-path",
        "--speculative-dflash-block-size": "--speculative-num-draft-tokens",
    },
}

#: Ways to spread a model that roost has no setting for, so no plan counts them.
SPREADING = {
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--pp-size",
    "--dp-size",
    "--dcp-size",
    "--attn-cp-size",
}

_MODEL = "take a recipe of that model"
_SITE = {
    "--served-model-name": "roost_served_name",
    "--host": "roost_listen",
    "--port": "roost_port",
}
_SPECULATION = "roost_speculation (--speculation on a command line), and num_speculative_tokens"
_DRAFTS = "num_speculative_tokens=…"

#: Flags that roost writes itself or counts on to be left alone, and what says the same.
OWN = {
    "vllm": {
        "--model": _MODEL,
        **_SITE,
        "--speculative-config": _SPECULATION,
        "--spec-method": _SPECULATION,
        "--spec-model": _SPECULATION,
        "--spec-tokens": _DRAFTS,
    },
    "sglang": {
        "--model-path": _MODEL,
        **_SITE,
        "--speculative-algorithm": _SPECULATION,
        "--speculative-draft-model-path": _SPECULATION,
        "--speculative-num-steps": _DRAFTS,
        "--speculative-eagle-topk": _DRAFTS,
        "--speculative-num-draft-tokens": _DRAFTS,
        "--speculative-draft-attention-backend": "drafter_attention_backend=…",
    },
}

#: The shortest beginning of a flag that is taken for it: fewer letters are those of too many flags.
_SHORTEST = 6


def reader(engine: Engine) -> Literal["vllm", "sglang"]:
    """The style of the engine whose parser reads extra words."""
    return "sglang" if engine.style == "sglang" else "vllm"


def flag_of(word: str, style: str, known: Collection[str]) -> str | None:
    """The long flag that a word is; none where it is none of those known, or a value.

    Args:
        word: As it stands on the command line, ``=value`` and all.
        style: Of the engine that reads it.
        known: Long flags. A beginning that only one of them has stands for it, as the engines'
            parsers have it.
    """
    # vLLM takes single keys of a JSON flag: --speculative-config.method x.
    said = word.partition("=")[0].partition(".")[0]
    said = said.replace("_", "-") if said.startswith("--") else said
    said = ALIASES[style].get(said, said)
    if said in known:
        return said
    if not said.startswith("--") or len(said) < _SHORTEST:
        return None
    meant = [flag for flag in known if flag.startswith(said)]
    return meant[0] if len(meant) == 1 else None
