"""The API key: it reaches the engine, and nothing that people look at."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import write_lock

from roost import catalog, deployment, site
from roost.catalog_schema import ApiKey
from roost.engines import keys
from roost.errors import RefusedError, UsageError
from roost.inventory import Connection, Host
from roost.launch import resolving, shown
from roost.launch.container import KEY_PATH, KEY_SOURCE, LaunchSpec, Mount, Secret
from roost.settings import Settings

KEY = "k3y-f0r-tests"
AEON, UNTRUSTED = "qwen3.5-27b-aeon-nvfp4-dflash", "ornith-1.0-35b-aeon-nvfp4-dflash"
CPU = {"roost_hardware": "cpu", "roost_recipe": "smollm2-135m"}

#: Says what it was started with, as /proc would.
ENGINE = """#!/bin/sh
printf '%s\\n' "$@" >"$SEEN/argv"
printf '%s' "$VLLM_API_KEY" >"$SEEN/key"
"""
#: What the published start script of the environment-configured image does that matters here: a
#: variable it sees goes to the command line, and the command line to the log.
START_SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
CMD=(vllm serve "$MODEL_PATH")
if [[ -n "${VLLM_API_KEY:-}" ]]; then CMD+=(--api-key "$VLLM_API_KEY"); fi
if [[ -n "${EXTRA_ARGS:-}" ]]; then read -ra EXTRA <<< "$EXTRA_ARGS"; CMD+=("${EXTRA[@]}"); fi
echo "Starting: ${CMD[*]}"
exec "${CMD[@]}"
"""


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def started(folder: Path, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    executable(folder / "vllm", ENGINE)
    return subprocess.run(
        words,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def key_file(folder: Path, text: str = KEY + "\n") -> str:
    path = folder / "key-file"
    path.write_text(text)
    return str(path)


def test_the_engine_reads_its_key_from_the_file(tmp_path: Path) -> None:
    reads = catalog.builtin().engines["vllm"].api_key
    assert reads
    words = keys.entrypoint(["vllm"], reads, key_file(tmp_path))
    done = started(tmp_path, [*words, "serve", "/model", "--x", '{"a": "b c"}'])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "key").read_text() == KEY
    assert (tmp_path / "argv").read_text().splitlines() == [
        "serve",
        "/model",
        "--x",
        '{"a": "b c"}',
    ]
    assert KEY not in done.stdout + done.stderr + " ".join(words)


def test_a_start_script_that_would_show_the_key_never_sees_it(tmp_path: Path) -> None:
    script = executable(tmp_path / "start.sh", START_SCRIPT)
    reads = catalog.builtin().engines["aeon-vllm-dflash"].api_key
    assert reads
    here = reads.model_copy(update={"start_script": script})
    words = keys.entrypoint([], here, key_file(tmp_path))
    done = started(tmp_path, words, MODEL_PATH="/model", EXTRA_ARGS='--x {"a":1}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "key").read_text() == KEY
    assert (tmp_path / "argv").read_text().splitlines() == ["serve", "/model", "--x", '{"a":1}']
    assert done.stdout == 'Starting: vllm serve /model --x {"a":1}\n'


@pytest.mark.parametrize("engine", ["vllm", "aeon-vllm-dflash"])
@pytest.mark.parametrize("text", [None, "\n"])
def test_without_its_key_nothing_serves(tmp_path: Path, engine: str, text: str | None) -> None:
    script = executable(tmp_path / "start.sh", START_SCRIPT)
    reads = catalog.builtin().engines[engine].api_key
    assert reads
    if reads.start_script:
        reads = reads.model_copy(update={"start_script": script})
    file = str(tmp_path / "nowhere") if text is None else key_file(tmp_path, text)
    done = started(tmp_path, keys.entrypoint(["vllm"], reads, file), MODEL_PATH="/model")
    assert done.returncode != 0
    assert not (tmp_path / "argv").exists()


def build(recipe: str, hardware: str, **changes: Any) -> LaunchSpec:
    return resolving.resolve(catalog.builtin(), recipe, hardware, **changes).spec


def test_a_site_with_a_key_mounts_it_and_a_site_without_has_nothing_of_it() -> None:
    spec = build("smollm2-135m", "cpu", site=site.Site(api_key=True))
    assert spec.secrets == [Secret(name="api_key", source=KEY_SOURCE, target=KEY_PATH)]
    assert spec.mounts[-1] == Mount(source=KEY_SOURCE, target=KEY_PATH)
    assert spec.entrypoint[:2] == ["sh", "-c"]
    assert spec.entrypoint[3:] == ["vllm"]
    assert not any("API_KEY" in name for name in spec.env)
    plain = build("smollm2-135m", "cpu")
    assert (plain.secrets, plain.entrypoint) == ([], ["vllm"])
    assert KEY_PATH not in shown.docker_command(plain)


def test_what_is_served_with_a_key_says_so_and_needs_one(tmp_path: Path) -> None:
    assert build(AEON, "gb10").secrets
    variables = {"roost_hardware": "gb10", "roost_recipe": AEON}
    with pytest.raises(UsageError, match="roost_api_key is not set") as caught:
        deployment.from_variables("h", variables, tmp_path)
    assert "openssl rand -hex 32" in str(caught.value)


def test_an_untrusted_image_gets_none() -> None:
    with pytest.raises(RefusedError, match="its image is not trusted with one") as caught:
        build(UNTRUSTED, "gb10", site=site.Site(api_key=True))
    assert "gateway" in str(caught.value)
    assert not build(UNTRUSTED, "gb10").secrets


def test_an_engine_that_cannot_keep_it_gets_none() -> None:
    known = catalog.builtin()
    shows = known.engines["vllm"].model_copy(update={"api_key": None})
    changed = known.model_copy(update={"engines": {**known.engines, "vllm": shows}})
    with pytest.raises(RefusedError, match="none that vLLM keeps to itself"):
        resolving.resolve(changed, "smollm2-135m", "cpu", site=site.Site(api_key=True))


@pytest.mark.parametrize("bad", ["", "two words", "tab\tbed", "ümlaut", 12345, ["a"]])
def test_a_bad_key_is_refused_and_not_shown(bad: Any) -> None:
    with pytest.raises(UsageError) as caught:
        site.from_variables("h", {**CPU, "roost_api_key": bad})
    assert "h: roost_api_key: " in str(caught.value)
    assert not bad or str(bad) not in str(caught.value)


def test_the_key_is_in_nothing_that_is_computed(tmp_path: Path) -> None:
    write_lock(tmp_path / "roost.lock.yml")
    variables = {**CPU, "roost_api_key": KEY}
    resolved = deployment.from_variables("h", variables, tmp_path)
    assert [secret.name for secret in resolved.spec.secrets] == ["api_key"]
    given = site.from_variables("h", variables)
    host = Host("h", variables, Connection("h"))
    for text in (
        resolved.model_dump_json(),
        resolved.docker_command,
        json.dumps(shown.as_json(resolved.spec)),
        repr(given),
        repr(host),
    ):
        assert KEY not in text
    assert site.api_key(variables) == KEY
    assert site.api_key(CPU) is None


def test_a_setting_does_not_lose_the_key() -> None:
    image = "vllm/vllm-openai@sha256:" + "a" * 64
    spec = build(
        "smollm2-135m", "cpu", site=site.Site(api_key=True), overrides=Settings(image=image)
    )
    assert spec.secrets


def test_start_script_and_program_go_together() -> None:
    with pytest.raises(ValueError, match="go together"):
        ApiKey(variable="KEY", program="x", source="a test")
