"""The catalogue: what ships loads, and every mistake names file, line, key and reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.source_000 import AUTHOR_DIGEST

from roost import catalog
from roost.catalog import ROOT
from roost.errors import RoostError, UsageError

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"
GB10_DIGEST = AUTHOR_DIGEST["gb10"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    root = tmp_path / "catalog"
    shutil.copytree(ROOT, root)
    return root


def edit(root: Path, old: str, new: str, recipe: str = ORNITH) -> Path:
    path = root / "recipes" / f"{recipe}.yml"
    text = path.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new, 1))
    return path


def test_what_ships() -> None:
    known = catalog.load()
    assert set(known.hardware) >= {"gb10", "rtx5070ti-x2", "rtx5090", "cpu"}
    assert set(known.engines) >= {"vllm", "aeon-vllm-dflash"}
    assert set(known.recipes) >= {
        ORNITH,
        "ornith-1.0-35b-fp8",
        "qwen-agentworld-35b-a3b",
        "smollm2-135m",
    }
    images = {hw: s.image for hw, s in known.recipes[ORNITH].hardware.items()}
    assert {hw: image.digest for hw, image in images.items() if image} == AUTHOR_DIGEST
    smollm = known.recipes["smollm2-135m"]
    assert list(smollm.speculation) == ["dflash", "ngram", "none"]
    assert smollm.default_speculation == "dflash"
    assert smollm.support_on("cpu") == "verified"
    assert smollm.support_on("gb10") == "untested"


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("engine: vllm", "engin: vllm", "engin", "unknown key, did you mean engine?"),
        ("engine: vllm", "engin: vllm", "engine", "is missing"),
        (
            f"digest: {GB10_DIGEST}",
            "digest: nightly",
            "hardware.gb10.image.digest",
            "'nightly' is not a digest (sha256: and 64 hex digits); a tag goes under `tag:`",
        ),
        (
            "repository: vllm/vllm-openai",
            "repository: vllm/vllm-openai:nightly",
            "hardware.gb10.image.repository",
            "carries a tag or digest",
        ),
        (
            f"digest: {GB10_DIGEST}",
            f"digest: {GB10_DIGEST}\n      tag: nightly",
            "hardware.gb10.image",
            "must have exactly one of `digest`, `tag` and `build`",
        ),
        (
            "revision: {branch: main}",
            "revision: {commit: 31977}",
            "model.revision.commit",
            "is int 31977 because it is not quoted",
        ),
        (
            "revision: {branch: main}",
            "revision: {prefix: 2026-01-01}",
            "model.revision.prefix",
            "is date 2026-01-01 because it is not quoted",
        ),
        (
            "revision: {branch: main}",
            'revision: {commit: "31977fbe13a8"}',
            "model.revision.commit",
            "'31977fbe13a8' is not a full commit (40 hex digits)",
        ),
        (
            "revision: {branch: main}",
            'revision: {branch: main, prefix: "31977fbe13a8"}',
            "model.revision",
            "must be exactly one of `commit`, `branch` and `prefix`",
        ),
        (
            "default_speculation: dflash",
            "default_speculation: eagle",
            "(the whole file)",
            "default_speculation 'eagle' is not among the choices: dflash, mtp, none",
        ),
        (
            "max_model_len: 131072",
            "max_model_length: 131072",
            "settings.max_model_length",
            "unknown key, did you mean max_model_len? (its value is 131072)",
        ),
        (
            "max_model_len: 131072",
            'max_model_len: "131072"',
            "settings.max_model_len",
            "input should be a valid integer",
        ),
        (
            "support: verified",
            "support: works",
            "hardware.gb10.support",
            "input should be 'verified' or 'unsupported'",
        ),
        ("  gb10:", "  gb11:", "hardware.gb11", "is not described"),
        ("engine: vllm", "engine: tgi", "engine", "'tgi' is not described"),
        (f"id: {ORNITH}", "id: ornith", "id", "but the file is named"),
    ],
)
def test_mistake_names_file_key_and_reason(
    copy: Path, old: str, new: str, key: str, reason: str
) -> None:
    path = edit(copy, old, new)
    with pytest.raises(RoostError) as caught:
        catalog.load(copy)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(path)) for line in lines if not line.startswith("  ")), lines
    assert any(f"{key}: " in line and reason in line for line in lines), lines


def test_line_number_is_the_key_s_own(copy: Path) -> None:
    path = edit(copy, "max_model_len: 131072", "max_model_len: -1")
    wanted = next(n for n, t in enumerate(path.read_text().splitlines(), 1) if "max_model_len" in t)
    with pytest.raises(RoostError, match=rf"{path.name}:{wanted}: settings.max_model_len: "):
        catalog.load(copy)


def test_every_repository_is_described() -> None:
    known = catalog.load()
    for recipe in known.recipes.values():
        named = [recipe.model]
        for choice in recipe.speculation.values():
            named += [one for one in (choice.model, choice.drafter) if one is not None]
        for repository in named:
            model = known.models[repository.repo]
            drafts = any(c.drafter == repository for c in recipe.speculation.values())
            assert model.role == ("drafter" if drafts else "target"), repository.repo


def test_a_default_names_hardware_that_is_described(copy: Path) -> None:
    path = copy / "engines" / "vllm.yml"
    path.write_text(path.read_text().replace("hardware: [gb10]", "hardware: [gb11]", 1))
    with pytest.raises(
        RoostError, match=r"defaults.max_num_seqs.hardware: 'gb11' is not described"
    ):
        catalog.load(copy)


def test_unknown_ids_name_the_nearest() -> None:
    known = catalog.builtin()
    with pytest.raises(UsageError, match=r"did you mean smollm2-135m\?"):
        known.recipe("smollm2")
    with pytest.raises(UsageError, match=r"known: cpu, gb10, .*rtx5070ti-x2"):
        known.machine("h100")


def test_flags_of_an_engine_that_nobody_describes(copy: Path) -> None:
    path = copy / "engines" / "aeon-vllm-dflash.yml"
    path.write_text(path.read_text().replace("flags_of: vllm", "flags_of: tgi"))
    with pytest.raises(UsageError, match="flags_of: 'tgi' is not described"):
        catalog.load(copy)
