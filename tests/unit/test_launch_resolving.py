"""Launch specs: the container around the command.

The commands themselves are compared with their authors' in test_golden_vllm.py.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.unit.source_000 import (
    AUTHOR_DIGEST,
    AUTHOR_ENV,
    AUTHOR_IPC,
    DRAFTER,
    MODEL,
    flags,
)

from roost import catalog
from roost.errors import UsageError
from roost.launch import resolving, shown
from roost.launch.container import LaunchSpec, Security
from roost.lock import Lock, LockedModel
from roost.settings import Settings

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"
COMMIT, OTHER = "1" * 40, "2" * 40
TODAY = dt.date(2026, 11, 29)

#: Variables roost adds, and why.
ADDED_ENV = {
    "HF_HUB_OFFLINE": "weights are on disk and pinned; nothing may be fetched at start-up",
    "VLLM_NO_USAGE_STATS": "nothing is reported to anybody",
}


def locked() -> Lock:
    return Lock(
        models={
            repo: {"main": LockedModel(commit=commit, bytes=10, files=2, resolved=TODAY)}
            for repo, commit in ((MODEL, COMMIT), (DRAFTER, OTHER))
        }
    )


def build(hardware: str, **changes: Any) -> LaunchSpec:
    return resolving.resolve(catalog.builtin(), ORNITH, hardware, lock=locked(), **changes).spec


@pytest.mark.parametrize("hardware", ["gb10", "rtx5070ti-x2"])
def test_container_is_the_author_s_plus_what_is_listed(hardware: str) -> None:
    spec = build(hardware)
    assert spec.image == f"vllm/vllm-openai@{AUTHOR_DIGEST[hardware]}"
    assert {k: v for k, v in spec.env.items() if k not in ADDED_ENV} == AUTHOR_ENV[hardware]
    assert set(spec.env) - set(AUTHOR_ENV[hardware]) == set(ADDED_ENV)
    assert spec.gpus == "all"
    assert spec.ipc == AUTHOR_IPC[hardware]
    # The author leaves Docker's 64 MiB, which newer versions of the engine refuse.
    assert spec.shm_size == (None if spec.ipc == "host" else "1g")
    # The author mounts a cache and one directory; roost mounts both revisions, read-only.
    root = "/var/lib/roost/models"
    assert [(m.source, m.target, m.read_only) for m in spec.mounts] == [
        (f"{root}/pottokao--Ornith-1.0-35B-Heretic-NVFP4-DFlash/{COMMIT}", "/model", True),
        (f"{root}/z-lab--Qwen3.6-35B-A3B-DFlash/{OTHER}", "/drafter", True),
    ]
    # The author publishes on every address; roost on loopback.
    assert [(p.listen, p.host, p.container) for p in spec.ports] == [("127.0.0.1", 8000, 8000)]
    # What roost adds: a name, limits, no privileges.
    assert spec.name == "roost-llm"
    assert spec.security == Security(cap_drop=["ALL"], no_new_privileges=True, privileged=False)
    assert spec.pids_limit == 4096
    assert spec.log_options == {"max-size": "50m", "max-file": "3"}
    assert spec.unresolved == []


def test_an_image_that_nobody_trusts_shares_no_memory_with_the_host() -> None:
    """Neither by its recipe nor by its hardware; the shared memory it needs is its own."""
    known = catalog.builtin()
    recipe, hardware = known.recipe(ORNITH), known.machine("gb10")
    support = recipe.hardware["gb10"]
    assert support.ipc_host
    assert support.image
    image = support.image.model_copy(update={"untrusted": "nobody has looked into it"})
    support = support.model_copy(update={"image": image})
    recipe = recipe.model_copy(update={"hardware": {"gb10": support}})
    hardware = hardware.model_copy(update={"ipc_host": True})
    known = known.model_copy(
        update={
            "recipes": {**known.recipes, ORNITH: recipe},
            "hardware": {**known.hardware, "gb10": hardware},
        }
    )
    spec = resolving.resolve(known, ORNITH, "gb10", lock=locked()).spec
    assert (spec.ipc, spec.shm_size) == (None, "1g")
    words = shown.docker_argv(spec)
    assert "--ipc" not in words
    assert words[words.index("--shm-size") + 1] == "1g"


def test_without_speculation_there_is_no_drafter() -> None:
    spec = build("gb10", speculation="none")
    assert "--speculative-config" not in spec.command
    assert [m.target for m in spec.mounts] == ["/model"]
    assert "roost.drafter" not in spec.labels


def test_drafter_backend_follows_the_target_unless_said() -> None:
    def backends(**settings: Any) -> tuple[Any, Any]:
        got = flags(build("gb10", overrides=Settings(**settings)).command[2:])
        return got["--attention-backend"], got["--speculative-config"]["attention_backend"]

    assert backends(attention_backend="FLASH_ATTN") == ("FLASH_ATTN", "FLASH_ATTN")
    assert backends(drafter_attention_backend="FLASH_ATTN") == ("TRITON_ATTN", "FLASH_ATTN")


def test_toggle_and_switch_spellings() -> None:
    on = build("gb10", overrides=Settings(prefix_caching=True, enforce_eager=True)).command
    off = build("gb10", overrides=Settings(prefix_caching=False, enforce_eager=False)).command
    assert "--enable-prefix-caching" in on
    assert "--enforce-eager" in on
    assert "--no-enable-prefix-caching" in off
    assert not any("eager" in word for word in off)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": f"vllm/vllm-openai:nightly@sha256:{'a' * 64}"}, "carries a tag or digest"),
        ({"image": "vllm/vllm-openai@sha256:abc"}, "is not a digest"),
        ({"drafter_revision": "refs pr"}, "is not the name of a branch or tag"),
        ({"drafter_revision": "-x"}, "is not the name of a branch or tag"),
    ],
)
def test_what_a_setting_names_badly_is_a_usage_error(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build("gb10", overrides=Settings(**settings))
