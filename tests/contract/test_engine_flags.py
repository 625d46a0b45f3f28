"""Every flag of every launch spec, read by the engine's own argument parser.

The parser is that of the lab's engine. What a recipe pins is often older, so its flags are also
looked up in the lists of those releases (``data/vllm-*-flags.txt``: all of `vllm serve`, without
the ``--no-`` forms, taken from the sources; that of 0.24.0 is also its help text, word for word).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from roost import catalog
from roost.lab import paths
from roost.lab.build import packages
from roost.launch import resolving
from roost.launch.resolving import Resolved

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


#: Releases whose flags are listed, oldest first.
LISTED = {
    Version(path.name.split("-")[1]): set(path.read_text().split())
    for path in (Path(__file__).parent / "data").glob("vllm-*-flags.txt")
}


def built() -> list[Resolved]:
    """Every choice of every vLLM recipe, on every hardware that it is not known to fail on.

    Where nobody ran a recipe, it is built for the hardware that names an image for it.
    """
    known = catalog.builtin()
    return [
        resolving.resolve(known, recipe.id, hardware, speculation=choice)
        for recipe in known.recipes.values()
        if known.engines[recipe.engine].style == "vllm"
        for hardware in recipe.hardware or known.hardware
        for choice in recipe.speculation
        if recipe.support_on(hardware, choice) != "unsupported"
    ]


BUILT = built()


def named(one: Resolved) -> str:
    return f"{one.recipe.id}-{one.hardware.id}-{one.speculation_name}"


def parse(commands: list[list[str]], engine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(packages.PYTHON), "-c", PARSE],
        input=json.dumps(commands),
        env={"PYTHONPATH": str(engine), "VLLM_TARGET_DEVICE": "cpu", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@pytest.fixture(scope="module")
def engine() -> Path:
    return packages.engine_packages(paths.cache_dir(), print)


def test_every_recipe_of_the_engine_is_built() -> None:
    known = catalog.builtin()
    wanted = {r.id for r in known.recipes.values() if known.engines[r.engine].style == "vllm"}
    assert {one.recipe.id for one in BUILT} == wanted


def test_every_launch_spec_is_understood(engine: Path) -> None:
    commands = [one.spec.command[len(one.engine.subcommand) :] for one in BUILT]
    done = parse(commands, engine)
    assert done.returncode == 0, done.stderr[-2000:]
    understood = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for one, got in zip(BUILT, understood, strict=True):
        assert got["model_tag"] == "/model"
        assert got["served_model_name"] == [one.served_name]
        for name, value in meant(one).items():
            assert got[name] == value, f"{named(one)}: {name}"


def meant(one: Resolved) -> dict[str, Any]:
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
        "kv_cache_dtype": settings.kv_cache_dtype or "auto",
        "language_model_only": bool(settings.language_model_only),
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "trust_remote_code": "--trust-remote-code" in (settings.extra_args or []),
    }
    if one.speculation.method:
        wanted["speculative_config"] = {
            key: value
            for key, value in {
                "method": one.speculation.method,
                "model": "/drafter" if one.drafter else None,
                "num_speculative_tokens": settings.num_speculative_tokens,
                "moe_backend": settings.moe_backend if one.drafter else None,
                "attention_backend": settings.attention_backend,
                **one.speculation.options,
            }.items()
            if value is not None
        }
    else:
        wanted["speculative_config"] = None
    return wanted


def releases_around(version: str) -> list[Version]:
    """The listed releases that a version is, or lies between; none: nothing is listed for it."""
    pinned = Version(Version(version).public)
    if pinned in LISTED:
        return [pinned]
    older = max((one for one in LISTED if one < pinned), default=None)
    newer = min((one for one in LISTED if one > pinned), default=None)
    # What both releases have, a build of main between them has too.
    return [older, newer] if older and newer and pinned.is_devrelease else []


@pytest.mark.parametrize("one", BUILT, ids=named)
def test_the_pinned_version_has_every_flag(one: Resolved) -> None:
    around = releases_around(one.image.engine_version)
    if not around:
        assert Version(one.image.engine_version) == Version(packages.ENGINE_VERSION)
        return  # the parser that reads all of them is that version's own
    for release in around:
        for word in one.spec.command:
            if word.startswith("--"):
                flag = word.replace("--no-", "--", 1)
                assert flag in LISTED[release], f"vLLM {release} has no {word}"


def test_the_abbreviation_of_source_000_is_no_flag() -> None:
    for flags in LISTED.values():
        assert "--kv-cache-memory" not in flags
        assert [one for one in flags if one.startswith("--kv-cache-memory")] == [
            "--kv-cache-memory-bytes"
        ]


def test_a_flag_that_does_not_exist_would_be_seen(engine: Path) -> None:
    done = parse([["/model", "--no-such-flag", "1"]], engine)
    assert done.returncode == 2
    assert "--no-such-flag" in done.stderr
