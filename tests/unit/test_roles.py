"""The roles' own promises: one home for each default, one list of variables, one direction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.deployments import deployment
from tests.unit.plugins import load

from roost.onhost.vigil import WORKING
from roost.site import PREFIX, known_variables

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
INVENTORIES = sorted(path.name for path in (ROOT / "inventory").iterdir())

FILTERS = set(load("filter", "roost").FilterModule().filters())


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return data


def options(role: str) -> dict[str, dict[str, Any]]:
    """The inputs of a role, from all of its entry points."""
    specs = read(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    found: dict[str, dict[str, Any]] = {}
    for entry in specs.values():
        found.update(entry["options"])
    return found


def files() -> list[Path]:
    folders = [ROOT / "roles", ROOT / "playbooks", ROOT / "inventory"]
    return [path for folder in folders for path in sorted(folder.rglob("*.yml"))]


@pytest.mark.parametrize("role", ROLES)
def test_optional_inputs_have_the_default_that_their_specification_says(role: str) -> None:
    specified = {
        name: option.get("default")
        for name, option in options(role).items()
        if not option.get("required")
    }
    assert read(ROOT / "roles" / role / "defaults" / "main.yml") == specified


@pytest.mark.parametrize("role", ROLES)
def test_inputs_are_named_after_the_role_and_internals_are_hidden(role: str) -> None:
    assert all(name.startswith(f"{role}_") for name in options(role))
    internal = read(ROOT / "roles" / role / "vars" / "main.yml")
    assert all(name.startswith(f"__{role}_") for name in internal)


@pytest.mark.parametrize("role", ROLES)
def test_every_input_is_used_and_described(role: str) -> None:
    tasks = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "roles" / role).rglob("*")
        if path.parent.name in {"tasks", "templates", "vars"}
    )
    for name, option in options(role).items():
        assert name in tasks, f"{name} is used nowhere"
        assert option["description"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_variables_of_roost_are_known_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    mentioned = set(re.findall(rf"\b{PREFIX}\w+", text)) - FILTERS
    assert mentioned <= set(known_variables())


@pytest.mark.parametrize("name", INVENTORIES)
def test_inventories_set_what_is_required(name: str) -> None:
    variables = read(ROOT / "inventory" / name / "group_vars" / "all.yml")
    assert {"roost_hardware", "roost_recipe"} <= set(variables)
    assert read(ROOT / "inventory" / name / "hosts.yml")["all"]["hosts"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_roles_register_nothing_that_looks_like_an_inventory_variable(path: Path) -> None:
    registered = re.findall(r"^\s*register: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(name.startswith("__") for name in registered)


def test_room_is_looked_for_then_everything_begins_then_it_is_waited_for() -> None:
    (play,) = yaml.safe_load((ROOT / "playbooks" / "deploy.yml").read_text(encoding="utf-8"))
    roles = [
        task.get("ansible.builtin.import_role") or task["ansible.builtin.include_role"]
        for task in play["tasks"][1:]
    ]
    assert [(role["name"], role.get("tasks_from")) for role in roles] == [
        ("preflight", None),
        ("container_host", None),
        ("llm_server", "pull.yml"),
        ("model_store", "begin.yml"),
        ("llm_server", "image.yml"),
        ("llm_server", "cuda.yml"),
        ("model_store", None),
        ("watchdog", None),
        ("llm_server", None),
    ]


def test_no_variables_lie_beside_the_playbooks() -> None:
    # They would beat the inventory's own.
    beside = [
        folder / kind
        for folder in (ROOT, ROOT / "playbooks")
        for kind in ("group_vars", "host_vars")
    ]
    assert not [path for path in beside if path.exists()]


def test_attempts_are_counted_over_as_long_as_the_slowest_of_them_take() -> None:
    """An engine that hangs at its start or wedges at its first request is not started for ever."""
    unit = (ROOT / "roles/llm_server/templates/roost-llm.service.j2").read_text(encoding="utf-8")
    found = re.search(r"StartLimitIntervalSec=.*ready_timeout \+ (\d+)\)", unit)
    assert found
    given = read(ROOT / "roles/watchdog/defaults/main.yml")
    slowest = max(given["watchdog_frozen_seconds"] * WORKING, given["watchdog_silent_seconds"])
    longest_pause, stop, evidence = 65, 10, 60
    assert int(found[1]) > slowest + longest_pause + stop + evidence


@pytest.mark.parametrize(
    ("hardware", "given", "floor"),
    [
        ("gb10", {}, 4096),
        ("gb10", {"memory_floor_mib": 0}, 0),
        ("gb10", {"memory_floor_mib": 1500}, 1500),
        ("cpu", {}, 0),
        ("rtx5070ti-x2", {}, 0),
    ],
)
def test_the_memory_floor_is_the_hardwares_unless_the_site_says_otherwise(
    tmp_path: Path, hardware: str, given: dict[str, Any], floor: int
) -> None:
    watched = deployment(tmp_path, hardware, allow_unlocked=True, **given).watched
    assert watched.memory_floor_mib == floor
    assert watched.working_watts == (30 if hardware == "gb10" else None)
    assert watched.series
    assert watched.series.generated == "vllm:generation_tokens_total"
