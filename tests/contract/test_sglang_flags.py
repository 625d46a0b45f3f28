"""SGLang's launch specs and the facts in its engine file, read by SGLang's own argument parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from roost import catalog, versions
from roost.lab import paths
from roost.lab.build import packages, sglang
from roost.launch import resolving
from roost.launch.resolving import Resolved

pytestmark = pytest.mark.lab

PARSER = Path(__file__).with_name("sglang_parser.py")
KNOWN = catalog.builtin()
ENGINE = KNOWN.engines["sglang"]

#: What to add to a command, and the releases that must refuse it.
REFUSED = {
    ("--no-such-flag", "1"): "",
    # Dropped by a release between those that are read here.
    ("--mamba-scheduler-strategy", "extra_buffer"): ">=0.5.20",
    ("--speculative-dflash-draft-window-size", "4096"): ">=0.5.20",
    # What vLLM calls the same.
    ("--max-model-len", "131072"): "",
    ("--kv-cache-dtype", "fp8"): "",
    ("--mamba-ssm-dtype", "auto"): "",
}


def specs() -> list[Resolved]:
    """Every recipe of this engine, hardware it is verified on, and choice."""
    return [
        resolving.resolve(KNOWN, recipe.id, hardware, speculation=choice)
        for recipe in KNOWN.recipes.values()
        if recipe.engine == ENGINE.id
        for hardware, support in recipe.hardware.items()
        if support.support == "verified"
        for choice in recipe.speculation
    ]


def arguments(resolved: Resolved) -> list[str]:
    return resolved.spec.command[len(ENGINE.subcommand) :]


@pytest.fixture(scope="module", params=sglang.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answer(version: str) -> dict[str, Any]:
    cache = paths.cache_dir()
    commands = [arguments(one) for one in specs()]
    commands += [[*commands[0], *extra] for extra in REFUSED]
    done = subprocess.run(
        [packages.PYTHON, PARSER, sglang.sglang_sources(version, cache, print)],
        input=json.dumps(commands),
        env={"PYTHONPATH": str(packages.engine_packages(cache, print)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_launch_spec_is_understood(answer: dict[str, Any]) -> None:
    built = specs()
    assert len(built) == 8
    for one, got in zip(built, answer["parsed"][: len(built)], strict=True):
        assert isinstance(got, dict), got
        # An abbreviation would be understood too, until a second flag begins with it.
        words = [word for word in arguments(one) if word.startswith("--")]
        assert set(words) <= set(answer["flags"])
        for name, value in meant(one).items():
            assert got[name] == value, f"{one.speculation_name} on {one.hardware.id}: {name}"


def meant(one: Resolved) -> dict[str, Any]:
    """What the parser must have understood, under the engine's own names."""
    settings = one.settings
    proposals = settings.num_speculative_tokens
    return {
        "model_path": "/model",
        "served_model_name": one.served_name,
        "host": "0.0.0.0",
        "port": ENGINE.port,
        "enable_metrics": True,
        "trust_remote_code": True,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "attention_backend": settings.attention_backend,
        "moe_runner_backend": settings.moe_backend,
        "mamba_ssm_dtype": settings.mamba_cache_dtype,
        "mamba_radix_cache_strategy": "extra_buffer",
        "tp_size": 1,
        "speculative_algorithm": {None: None, "mtp": "NEXTN", "dflash": "DFLASH"}[
            one.speculation.method
        ],
        "speculative_draft_model_path": "/drafter" if one.drafter else None,
        "speculative_draft_attention_backend": settings.attention_backend if one.drafter else None,
        "speculative_num_steps": proposals if one.speculation.method == "mtp" else None,
        "speculative_num_draft_tokens": proposals + 1 if proposals else None,
    }


def test_a_block_proposes_one_less_than_it_counts(answer: dict[str, Any]) -> None:
    """Why nine proposals are spelled 10: of a block of 10, no more than nine can be accepted."""
    assert answer["accepted"] == 9


def test_spellings_are_the_parser_s(answer: dict[str, Any], version: str) -> None:
    for name, spelling in ENGINE.flags.items():
        found = answer["flags"].get(spelling.flag)
        assert found, f"{version} has no {spelling.flag} ({name})"
        assert found["takes_value"] == (spelling.kind == "value"), spelling.flag
        # The file lists what any version takes.
        assert set(found["choices"] or []) <= set(spelling.choices), spelling.flag


def test_history_is_the_parser_s(answer: dict[str, Any], version: str) -> None:
    for known in ENGINE.flag_history:
        assert (known.flag in answer["flags"]) == versions.within(version, known.versions), known
        if known.instead:
            assert known.instead in answer["flags"]


def test_what_a_version_does_not_have_is_seen(answer: dict[str, Any], version: str) -> None:
    for (extra, refusing), got in zip(
        REFUSED.items(), answer["parsed"][len(specs()) :], strict=True
    ):
        if versions.within(version, refusing):
            assert isinstance(got, str), f"{version} understands {extra}"
            assert extra[0] in got
        else:
            assert isinstance(got, dict), got
