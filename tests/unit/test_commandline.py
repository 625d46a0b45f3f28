"""Command lines read back: what was spelled from settings gives the same settings again."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost import catalog, commandline, engines
from roost.catalog_schema import Speculation
from roost.errors import UsageError
from roost.settings import Settings

ENGINES = catalog.builtin().engines
VLLM = ENGINES["vllm"]
PLACE = engines.Place("/model", None, "served")

_WORDS = st.from_regex(r"[A-Za-z0-9_.\-]{1,12}", fullmatch=True).filter(
    lambda text: not text.startswith("-")
)


def _said(name: str) -> st.SearchStrategy[Any]:
    if VLLM.flags[name].kind != "value":
        # A switch that is off is not written, and cannot be told from one that nobody mentioned.
        return st.just(True) if VLLM.flags[name].kind == "switch" else st.booleans()
    annotation = str(Settings.model_fields[name].annotation)
    if literals := re.findall(r"'(\w+)'", annotation):
        return st.sampled_from(literals)
    if "float" in annotation:
        return st.floats(0.01, 1.0)
    return st.integers(1, 10**12) if "int" in annotation else _WORDS


@given(st.fixed_dictionaries({}, optional={name: _said(name) for name in VLLM.flags}))
def test_what_is_spelled_is_read_back(said: dict[str, Any]) -> None:
    settings = Settings(**said)
    spelled = engines.spell(VLLM, settings, Speculation(), PLACE)
    found = commandline.read([["vllm", *spelled.command]], ENGINES)
    assert Settings(**found.settings) == settings
    assert (found.model, found.served_name) == ("/model", "served")
    assert (found.extra_args, found.lost, found.speculation) == ([], [], {})


def read(text: str) -> commandline.Read:
    return commandline.read(commandline.split(text), ENGINES)


@pytest.mark.parametrize(
    ("words", "settings", "extra"),
    [
        ("-tp 2", {"tensor_parallel": 2}, []),
        ("--max-model-len 128k", {"max_model_len": 128_000}, []),
        ("--max-model-len 128K", {"max_model_len": 131_072}, []),
        ("--max_model_len=25.6k", {"max_model_len": 25_600}, []),
        ("--max-model-len auto", {}, ["--max-model-len", "auto"]),
        ("--max-model-len -1", {}, ["--max-model-len", "-1"]),
        ("--kv-cache-memory 3200000000", {"kv_cache_bytes": 3_200_000_000}, []),
        ("--no-enable-prefix-caching", {"prefix_caching": False}, []),
        (
            "--enable-prefix-caching --no-enforce-eager",
            {"prefix_caching": True, "enforce_eager": False},
            [],
        ),
        ("--gpu-memory-utilization 7", {}, ["--gpu-memory-utilization", "7"]),
        (
            "--limit-mm-per-prompt '{\"image\": 4}' --cudagraph-capture-sizes 1 2 4",
            {},
            [
                "--limit-mm-per-prompt",
                '{"image": 4}',
                "--cudagraph-capture-sizes",
                "1",
                "2",
                "4",
            ],
        ),
    ],
)
def test_spellings_that_engines_take(
    words: str, settings: dict[str, Any], extra: list[str]
) -> None:
    found = read(f"vllm serve org/model {words}")
    assert found.model == "org/model"
    assert found.settings == settings
    assert found.extra_args == extra


def test_a_line_is_read_as_a_shell_would() -> None:
    found = read(
        "# how it is started\n"
        "export OMP_NUM_THREADS=1\n"
        "exec env VLLM_X=y python3 -m vllm.entrypoints.openai.api_server \\\n"
        "  --model org/model \\ \n"
        '  --speculative-config \'{"method": "mtp",\n   "num_speculative_tokens": 2}\'\n'
    )
    assert found.model == "org/model"
    assert found.env == {"OMP_NUM_THREADS": "1", "VLLM_X": "y"}
    assert found.speculation == {"method": "mtp", "num_speculative_tokens": 2}
    assert found.lost == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("--host 0.0.0.0 --port 80", ["--host: ", "--port: "]),
        ("--api-key sk-verysecret", ["--api-key: a secret"]),
        ("--api-k sk-verysecret", ["--api-key: a secret"]),
        ("--seed $SEED", ["--seed: needs a variable of the shell"]),
        ("--pipeline-parallel-size 2", ["--pipeline-parallel-size 2: roost starts one engine"]),
        ("--max-num-seqs 2 --max-num-seqs 4", ["--max-num-seqs: stands twice"]),
        ("more words", ["command: more words"]),
    ],
)
def test_what_is_not_kept_is_said(text: str, lost: list[str]) -> None:
    found = read(f"vllm serve org/model {text}")
    assert len(found.lost) == len(lost)
    assert all(said.startswith(wanted) for said, wanted in zip(found.lost, lost, strict=True))
    assert "sk-verysecret" not in str(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts 0 engines"),
        ("llama-server -m x", "starts 0 engines"),
        ("vllm serve a/b\nvllm serve c/d", "starts 2 engines"),
        ("vllm serve", "names no model"),
        ("vllm serve $MODEL", "is a variable of the shell"),
        ("vllm serve a/b && rm -rf /", "has '&&' in it"),
        ("vllm serve a/b | tee log", "has '|' in it"),
        ("vllm serve a/b > log", "has '>' in it"),
        ("vllm serve a/b --x $(cat /etc/passwd)", "in it"),
        ("vllm serve a/b --x `id`", "in it"),
        ("vllm serve 'a/b", "no closing quotation"),
        ("vllm serve a/b -sc {method:mtp}", "is not JSON"),
        ("vllm serve a/b --speculative-config '{{\"a\": 1}}'", "is not JSON"),
        ("vllm serve a/b --speculative-config 3", "is not JSON (it is no object)"),
        ("vllm serve a/b --speculative-config " + "[" * 100_000, "is not JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_read_is_one_message(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
