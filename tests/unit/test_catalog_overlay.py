"""A user's own catalogue on top of what ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roost import catalog, deployment
from roost.catalog import ROOT
from roost.errors import UsageError
from roost.root import CATALOG_VARIABLE

SMOLLM = yaml.safe_load((ROOT / "recipes" / "smollm2-135m.yml").read_text(encoding="utf-8"))
DIGEST = "sha256:" + "a" * 64


def write(root: Path, kind: str, name: str, data: object) -> Path:
    path = root / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data))
    return path


def test_files_are_added_and_replace_their_twins(tmp_path: Path) -> None:
    write(tmp_path, "recipes", "mine.yml", {**SMOLLM, "id": "mine"})
    write(tmp_path, "recipes", "smollm2-135m.yml", {**SMOLLM, "title": "Another"})
    known = catalog.load(ROOT, tmp_path)
    assert known.recipe("smollm2-135m").title == "Another"
    assert set(known.recipes) == {*catalog.builtin().recipes, "mine"}
    assert known.engines == catalog.builtin().engines


def test_a_mistake_names_the_user_s_file(tmp_path: Path) -> None:
    path = write(tmp_path, "recipes", "mine.yml", {**SMOLLM, "id": "mine", "engine": "tgi"})
    with pytest.raises(UsageError) as caught:
        catalog.load(ROOT, tmp_path)
    assert str(caught.value).startswith(f"{path}: engine: 'tgi' is not described")


def test_what_would_be_passed_over_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        catalog.load(ROOT, tmp_path / "absent")
    write(tmp_path, "receipes", "mine.yml", SMOLLM)
    with pytest.raises(UsageError, match="is no catalogue"):
        catalog.load(ROOT, tmp_path)
    write(tmp_path, "recipes", "mine.yaml", SMOLLM)
    with pytest.raises(
        UsageError, match=r"mine\.yaml: would not be read\n  fix: call it mine\.yml"
    ):
        catalog.load(ROOT, tmp_path)


def test_two_files_about_one_repository_are_refused(tmp_path: Path) -> None:
    source = next(ROOT.glob("models/*.yml"))
    model = yaml.safe_load(source.read_text(encoding="utf-8"))
    path = write(tmp_path, "models", "mine.yml", {**model, "id": "mine"})
    with pytest.raises(UsageError) as caught:
        catalog.load(ROOT, tmp_path)
    assert str(path) in str(caught.value)
    assert f"{model['repo']} is described already" in str(caught.value)


def test_a_deploy_takes_it_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"repo": "org/mine", "revision": {"commit": "c" * 40}}
    recipe = {
        **SMOLLM,
        "id": "mine",
        "model": model,
        "default_speculation": "none",
        "speculation": {"none": {}},
    }
    write(tmp_path, "recipes", "mine.yml", recipe)
    monkeypatch.setenv(CATALOG_VARIABLE, str(tmp_path))
    given = {
        "roost_hardware": "cpu",
        "roost_recipe": "mine",
        "roost_settings": {"image": f"org/image@{DIGEST}"},
    }
    wanted = deployment.from_variables("host-01", given, tmp_path)
    assert [item.repo for item in wanted.weights] == ["org/mine"]


def test_the_command_takes_it_as_an_option_or_from_the_environment(tmp_path: Path) -> None:
    write(tmp_path, "recipes", "mine.yml", {**SMOLLM, "id": "mine"})

    def ids(*options: str, **environment: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-m", "roost.cli", *options, "recipes", "--json"],
            cwd=tmp_path.parent,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return {row["id"] for row in json.loads(done.stdout)}

    assert "mine" in ids("--catalog", tmp_path.name)
    assert "mine" in ids(**{CATALOG_VARIABLE: str(tmp_path)})
    assert "mine" not in ids(**{CATALOG_VARIABLE: ""})
