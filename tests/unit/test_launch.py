"""Launch specs: the container around the command, and what is refused.

The commands themselves are compared with their authors' in test_golden_vllm.py.
"""

from __future__ import annotations

import datetime as dt
import itertools
import shlex
from collections.abc import Iterator
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

from roost import catalog, launch
from roost.catalog_schema import Support
from roost.errors import RefusedError, UsageError
from roost.lock import Lock, LockedImage, LockedModel
from roost.settings import Settings
from roost.site import Site

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


def build(hardware: str, **changes: Any) -> launch.LaunchSpec:
    return launch.build(catalog.builtin(), ORNITH, hardware, lock=locked(), **changes).spec


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
    assert spec.security == launch.Security(
        cap_drop=["ALL"], no_new_privileges=True, privileged=False
    )
    assert spec.pids_limit == 4096
    assert spec.log_options == {"max-size": "50m", "max-file": "3"}
    assert spec.unresolved == []


def test_printed_docker_command_is_the_same_container() -> None:
    spec = build("gb10")
    words = shlex.split(launch.docker_command(spec).replace("\\\n", " "))
    assert words == launch.docker_argv(spec)
    at = words.index(spec.image)
    assert words[:3] == ["docker", "run", "-d"]
    assert words[at + 1 :] == spec.command
    assert words[at - 2 : at] == ["--entrypoint", "vllm"]
    for option, value in (
        ("--gpus", "all"),
        ("--ipc", "host"),
        ("-p", "127.0.0.1:8000:8000"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
    ):
        assert any(pair == (option, value) for pair in _pairs(words)), option
    assert "--privileged" not in words


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return itertools.pairwise(words)


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
    ("mirror", "image"),
    [
        (None, "roost-lab/vllm-cpu:0.32.0"),
        ("10.0.0.1:5000", "10.0.0.1:5000/roost-lab/vllm-cpu:0.32.0"),
        ("http://10.0.0.1:5000", "10.0.0.1:5000/roost-lab/vllm-cpu:0.32.0"),
    ],
)
def test_unlocked_names_are_said_and_refused(mirror: str | None, image: str) -> None:
    resolved = launch.build(
        catalog.builtin(), "smollm2-135m", "cpu", site=Site(registry_mirror=mirror)
    )
    assert resolved.spec.image == image
    assert resolved.spec.unresolved == [
        "image roost-lab/vllm-cpu:0.32.0",
        "revision roost-lab/SmolLM2-135M-Instruct@main",
        "revision roost-lab/SmolLM2-135M-DFlash@main",
    ]
    with pytest.raises(RefusedError, match="run `roost lock -i INVENTORY` and deploy again"):
        launch.require_resolved(resolved)


def test_lock_pins_image_by_digest_alone() -> None:
    digest = "sha256:" + "a" * 64
    lock = Lock(
        images={
            "roost-lab/vllm-cpu": {
                "0.32.0": LockedImage(
                    digest=digest, platforms=["amd64"], bytes={"amd64": 7}, resolved=TODAY
                )
            }
        }
    )
    resolved = launch.build(catalog.builtin(), "smollm2-135m", "cpu", lock=lock)
    assert resolved.spec.image == f"roost-lab/vllm-cpu@{digest}"
    assert resolved.image_bytes == {"amd64": 7}


def test_drafter_revision_selects_another_lock_entry() -> None:
    spec = build("gb10", overrides=Settings(drafter_revision="early"))
    assert spec.unresolved == [f"revision {DRAFTER}@early"]
    pinned = build("gb10", overrides=Settings(drafter_revision="3" * 40))
    assert pinned.mounts[1].source.endswith("3" * 40)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"recipe_id": "nope", "hardware_id": "cpu"}, UsageError, "is not in the catalogue"),
        ({"recipe_id": ORNITH, "hardware_id": "h100"}, UsageError, "is not in the catalogue"),
        ({"recipe_id": ORNITH, "hardware_id": "cpu"}, RefusedError, "has never been run on cpu"),
        (
            {"recipe_id": ORNITH, "hardware_id": "gb10", "speculation": "eagle"},
            UsageError,
            "has no speculation 'eagle'",
        ),
        (
            {
                "recipe_id": ORNITH,
                "hardware_id": "gb10",
                "speculation": "none",
                "overrides": Settings(num_speculative_tokens=4),
            },
            UsageError,
            "num_speculative_tokens is set, but speculation 'none' does not speculate",
        ),
        (
            {
                "recipe_id": "smollm2-135m",
                "hardware_id": "cpu",
                "speculation": "ngram",
                "overrides": Settings(drafter_revision="early"),
            },
            UsageError,
            "drafter_revision is set, but speculation 'ngram' has no drafter",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        launch.build(catalog.builtin(), **arguments)


def test_unsupported_gives_the_reason() -> None:
    known = catalog.builtin()
    recipe = known.recipes[ORNITH]
    refusing = Support(support="unsupported", reason="no kernels", source="a test")
    changed = recipe.model_copy(update={"hardware": {**recipe.hardware, "cpu": refusing}})
    other = known.model_copy(update={"recipes": {ORNITH: changed}})
    with pytest.raises(RefusedError, match=r"no kernels \(a test\)"):
        launch.build(other, ORNITH, "cpu")


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


@pytest.mark.parametrize(
    ("listen", "published", "url"),
    [
        ("127.0.0.1", "127.0.0.1:8000:8000", "http://127.0.0.1:8000"),
        ("0.0.0.0", "0.0.0.0:8000:8000", "http://127.0.0.1:8000"),
        ("::1", "[::1]:8000:8000", "http://[::1]:8000"),
        ("::", "[::]:8000:8000", "http://[::1]:8000"),
    ],
)
def test_a_port_is_published_and_reached(listen: str, published: str, url: str) -> None:
    spec = build("gb10", site=Site(listen=listen))
    assert (spec.ports[0].published, spec.ports[0].url) == (published, url)
    assert published in launch.docker_argv(spec)
    assert launch.as_json(spec)["ports"] == [published]


def test_untested_hardware_runs_with_a_named_image() -> None:
    image = "vllm/vllm-openai-cpu@sha256:" + "b" * 64
    spec = launch.build(
        catalog.builtin(), ORNITH, "cpu", lock=locked(), overrides=Settings(image=image)
    ).spec
    assert spec.image == image
    assert spec.gpus is None


@pytest.mark.parametrize(
    ("recipe", "speculation", "settings", "fix"),
    [
        ("ornith-1.0-35b-fp8", "none", {"num_speculative_tokens": 4}, "drop the setting"),
        ("smollm2-135m", "ngram", {"drafter_revision": "x"}, "drop the setting, or choose: dflash"),
    ],
)
def test_a_fix_names_only_choices_that_take_the_setting(
    recipe: str, speculation: str, settings: dict[str, Any], fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        launch.build(
            catalog.builtin(),
            recipe,
            "gb10",
            speculation=speculation,
            overrides=Settings(**settings),
            refuse=False,
        )
    assert caught.value.fix == fix
