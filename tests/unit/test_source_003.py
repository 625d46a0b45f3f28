"""The AEON recipe of Ornith against what source 003 ran, and the correction it carries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import figures_003, source_003
from tests.unit.published import Wanted, figure
from tests.unit.source_000 import flags

from roost import catalog
from roost.errors import RefusedError
from roost.launch import resolving
from roost.launch.resolving import Resolved

RECIPE = "ornith-1.0-35b-aeon-nvfp4-dflash"

#: What roost leaves out of the command, and why.
LEFT_OUT_FLAGS = {
    "--host": "the engine's default, inside the container",
    "--port": "the engine's default",
}
ADDED_ENV = {
    "HF_HUB_OFFLINE": "weights are on disk and pinned; nothing may be fetched at start-up",
    "VLLM_NO_USAGE_STATS": "nothing is reported to anybody",
}


def build(speculation: str, **changes: Any) -> Resolved:
    return resolving.resolve(
        catalog.builtin(), RECIPE, "gb10", speculation=speculation, refuse=False, **changes
    )


@pytest.mark.parametrize("speculation", ["dflash", "dflash-main"])
def test_command_is_the_source_s(speculation: str) -> None:
    spec = build(speculation).spec
    assert spec.entrypoint == source_003.ENTRYPOINT
    assert spec.command[:2] == ["serve", "/model"]
    got = flags(spec.command[2:])
    want = {k: v for k, v in source_003.COMMAND.items() if k not in LEFT_OUT_FLAGS}
    assert got == want


@pytest.mark.parametrize(
    ("speculation", "config"),
    [
        ("none", None),
        ("mtp", {"method": "mtp", "num_speculative_tokens": source_003.MTP_DRAFTS}),
    ],
)
def test_without_a_drafter_only_the_speculation_differs(
    speculation: str, config: dict[str, Any] | None
) -> None:
    spec = build(speculation).spec
    got = flags(spec.command[2:])
    assert got.pop("--speculative-config", None) == config
    left_out = {*LEFT_OUT_FLAGS, "--speculative-config"}
    if speculation == "mtp":
        # No command of it was published; with this the block is the one the source prints.
        assert got.pop("--mamba-cache-dtype") == "auto"
        left_out.add("--mamba-cache-dtype")
    assert got == {k: v for k, v in source_003.COMMAND.items() if k not in left_out}
    assert [mount.target for mount in spec.mounts] == ["/model"]


def test_container_is_the_source_s() -> None:
    resolved = build("dflash-main")
    spec = resolved.spec
    assert {k: v for k, v in spec.env.items() if k not in ADDED_ENV} == source_003.ENV
    assert set(spec.env) - set(source_003.ENV) == set(ADDED_ENV)
    assert spec.gpus == "all"
    # The source shares the host's, which is more than an image gets that nobody trusts.
    assert source_003.IPC == "host"
    assert (spec.ipc, spec.shm_size) == (None, "1g")
    assert [port.published for port in spec.ports] == [source_003.PUBLISHED]
    assert [f"{m.target}:{'ro' if m.read_only else 'rw'}" for m in spec.mounts] == source_003.MOUNTS
    # A digest instead of the tag, which means another build by now.
    assert resolved.image.repository == source_003.IMAGE
    assert resolved.image.tag is None
    assert spec.image.startswith(f"{source_003.IMAGE}@sha256:")
    assert resolved.model.repo == source_003.MODEL
    assert resolved.drafter
    assert (resolved.drafter.repo, resolved.drafter.revision) == (source_003.DRAFTER, "main")


def test_the_older_drafter_is_the_one_the_source_pins() -> None:
    drafter = build("dflash").drafter
    assert drafter
    assert drafter.repo == source_003.OLD_DRAFTER_CONFIG["model"]
    # A read-only directory at the whole commit, not a name and a shortened one to fetch.
    assert len(drafter.revision) == 40
    assert drafter.revision.startswith(source_003.OLD_DRAFTER)
    known = catalog.builtin().models[drafter.repo]
    old, neighbour, main = (
        known.revision(name) for name in (drafter.revision, "f98dc5c2908b", "main")
    )
    assert old
    assert old.drafter
    assert neighbour
    assert main
    assert main.drafter
    assert (old.drafter.kv_heads, old.drafter.window) == (4, None)
    assert (main.drafter.kv_heads, main.drafter.window) == (8, 4096)


def test_the_image_is_not_trusted_with_anything() -> None:
    spec = build("dflash").spec
    assert spec.untrusted
    assert not spec.secrets
    assert all(mount.read_only for mount in spec.mounts)
    assert not any("TOKEN" in name or "KEY" in name for name in spec.env)
    assert spec.ipc is None


def test_what_is_known_of_each_choice() -> None:
    recipe = catalog.builtin().recipes[RECIPE]
    states = {name: recipe.support_on("gb10", name) for name in recipe.speculation}
    assert states == {
        "none": "verified",
        # Recommended, measured on another checkpoint, and doubted.
        "mtp": "untested",
        # Measured on siblings, which is not this checkpoint.
        "dflash": "untested",
        "dflash-main": "unsupported",
    }
    assert recipe.default_speculation == "mtp"
    assert recipe.speculation["mtp"].doubt is not None
    refused = recipe.speculation["dflash-main"].hardware["gb10"]
    assert str(refused.date) == "2026-06-28"


def test_what_does_not_run_is_refused_with_the_reason() -> None:
    with pytest.raises(RefusedError, match="unify_kv_cache_spec_page_size") as caught:
        resolving.resolve(catalog.builtin(), RECIPE, "gb10", speculation="dflash-main")
    assert "choose one of: none, mtp, dflash" in str(caught.value)


def test_claim_and_correction_stand_side_by_side() -> None:
    recipe = catalog.builtin().recipes[RECIPE]
    text = " ".join(
        side.says for contradiction in recipe.contradictions for side in contradiction.sides
    )
    for number in figures_003.ISSUES:
        assert f"#{number}" in text
    for piece in ("blocked four ways", "no errors at 1, 8 and 32", "1.9", "+8.5 %", "26 % with 32"):
        assert piece in text


def test_every_published_table_is_there_cell_by_cell() -> None:
    recipe = catalog.builtin().recipes[RECIPE]
    assert {t.id: len(t.figures()) for t in recipe.figures} == figures_003.TABLES


@pytest.mark.parametrize("wanted", figures_003.VALUES, ids=str)
def test_published_values(wanted: Wanted) -> None:
    assert figure(catalog.builtin().recipes[RECIPE], wanted).value == wanted.value
