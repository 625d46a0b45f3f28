"""Every flag of every launch spec, read by the engine's own argument parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from roost import catalog, launch
from roost.lab import paths
from roost.lab.build import packages

pytestmark = pytest.mark.lab

#: Runs in the engine's Python: reads command lines, prints what the parser made of each.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
for command in json.load(sys.stdin):
    print(json.dumps(vars(parser.parse_args(command)), default=str))
"""


def cases() -> list[tuple[str, str, str]]:
    known = catalog.builtin()
    return [
        (recipe.id, hardware, choice)
        for recipe in known.recipes.values()
        if known.engines[recipe.engine].style == "vllm"
        for hardware, support in recipe.hardware.items()
        if support.support == "verified"
        for choice in recipe.speculation
    ]


def parse(commands: list[list[str]], engine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(packages.PYTHON), "-c", PARSE],
        input=json.dumps(commands),
        env={"PYTHONPATH": str(engine), "VLLM_TARGET_DEVICE": "cpu", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def engine() -> Path:
    return packages.engine_packages(paths.cache_dir(), print)


def test_every_launch_spec_is_understood(engine: Path) -> None:
    built = [
        launch.build(catalog.builtin(), recipe, hardware, speculation=choice)
        for recipe, hardware, choice in cases()
    ]
    assert len(built) == 7
    commands = [one.spec.command[len(one.engine.subcommand) :] for one in built]
    done = parse(commands, engine)
    assert done.returncode == 0, done.stderr[-2000:]
    understood = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for one, got in zip(built, understood, strict=True):
        assert got["model_tag"] == "/model"
        assert got["served_model_name"] == [one.served_name]
        for name, value in meant(one).items():
            assert got[name] == value, f"{one.recipe.id} on {one.hardware.id}: {name}"


def meant(one: launch.Resolved) -> dict[str, Any]:
    """What the parser must have understood, under the engine's own names."""
    settings = one.settings
    wanted: dict[str, Any] = {
        "max_model_len": settings.max_model_len,
        "enforce_eager": bool(settings.enforce_eager),
        "tensor_parallel_size": settings.tensor_parallel or 1,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "attention_backend": settings.attention_backend,
        "moe_backend": settings.moe_backend or "auto",
        "quantization": settings.quantization,
        "trust_remote_code": "--trust-remote-code" in (settings.extra_args or []),
    }
    if one.speculation.method:
        wanted["speculative_config"] = {
            key: value
            for key, value in {
                "method": one.speculation.method,
                "model": "/drafter" if one.drafter else None,
                "num_speculative_tokens": settings.num_speculative_tokens,
                "moe_backend": settings.moe_backend,
                "attention_backend": settings.attention_backend,
                **one.speculation.options,
            }.items()
            if value is not None
        }
    else:
        wanted["speculative_config"] = None
    return wanted


def test_a_flag_that_does_not_exist_would_be_seen(engine: Path) -> None:
    done = parse([["/model", "--no-such-flag", "1"]], engine)
    assert done.returncode == 2
    assert "--no-such-flag" in done.stderr
