"""The recipe of source 002 against what its author ran and published."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from tests.unit.figures_002 import TABLES, VALUES
from tests.unit.source_000 import flags
from tests.unit.source_002 import (
    AUTHOR_COMMAND,
    AUTHOR_PROGRAM,
    CONFIGURATIONS,
    DRAFTER,
    ENGINE_COMMIT,
    HARDWARE,
    MODEL,
    MODEL_COMMIT,
    RECIPE,
    WARM_START,
)

from roost import catalog
from roost.catalog_schema import Recipe
from roost.launch import resolving
from roost.launch.resolving import Resolved

#: What roost changes in the author's command on purpose: the flag, what it becomes, and why.
CHANGED: dict[str, tuple[str | None, str]] = {
    "--model-path": ("/model", "a pinned, read-only directory instead of a name to download"),
    "--revision": (None, "the directory holds that revision; the lock pins it"),
    "--speculative-draft-model-path": ("/drafter", "likewise, and the card names no revision"),
}
#: What roost adds to it, and why.
ADDED: dict[str, tuple[str | None, str]] = {
    "--served-model-name": ("ornith-1.5-35b", "clients need a name that is not a path"),
    "--host": ("0.0.0.0", "inside the container; loopback there could not be published"),
    "--port": ("30000", "the engine's default, said"),
    "--enable-metrics": (None, "without it there is no /metrics"),
}
#: Flags by which the other configurations differ from the published command, as the card says in
#: words or, for NEXTN's depth, as SGLang chooses for itself.
SPECULATION = {flag for flag in AUTHOR_COMMAND if flag.startswith("--speculative-")}
CONFIGURED: dict[str, dict[str, str | None]] = {
    "none": {},
    "mtp": {
        "--speculative-algorithm": "NEXTN",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
    },
    "dflash": {flag: AUTHOR_COMMAND[flag] for flag in SPECULATION},
    "dflash2": {flag: AUTHOR_COMMAND[flag] for flag in SPECULATION},
}


def recipe() -> Recipe:
    return catalog.builtin().recipe(RECIPE)


def build(hardware: str, speculation: str | None = None) -> Resolved:
    return resolving.resolve(catalog.builtin(), RECIPE, hardware, speculation=speculation)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_command_is_the_author_s(hardware: str) -> None:
    spec = build(hardware).spec
    assert [*spec.entrypoint, spec.command[0]] == AUTHOR_PROGRAM
    got = flags(spec.command[1:])
    want = {
        flag: CHANGED[flag][0] if flag in CHANGED else value
        for flag, value in AUTHOR_COMMAND.items()
        if flag != "--revision"
    }
    assert got == want | {flag: value for flag, (value, _) in ADDED.items()}


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("choice", CONFIGURATIONS)
def test_configurations_differ_in_speculation_alone(hardware: str, choice: str) -> None:
    published = flags(build(hardware).spec.command[1:])
    got = flags(build(hardware, choice).spec.command[1:])
    want: dict[str, Any] = {f: v for f, v in published.items() if f not in SPECULATION}
    speculating = dict(CONFIGURED[choice])
    if "--speculative-draft-model-path" in speculating:
        speculating["--speculative-draft-model-path"] = "/drafter"
    assert got == want | speculating


@pytest.mark.parametrize("hardware", HARDWARE)
def test_container_is_built_from_the_author_s_commit(hardware: str) -> None:
    resolved = build(hardware)
    spec, image = resolved.spec, resolved.image
    assert image.build is not None
    assert image.build.revision.commit == ENGINE_COMMIT
    assert image.build.args["BRANCH_TYPE"] == "local"
    assert spec.image == f"localhost/sglang:{ENGINE_COMMIT[:12]}"
    assert spec.build is not None
    context = f"https://github.com/sgl-project/sglang.git#{ENGINE_COMMIT}"
    assert shlex.split(spec.build)[-1] == context
    # Where nobody wants to build: a release, as an alternative that says it is untested.
    release = image.fallbacks[0]
    assert (release.image.tag, release.support) == ("v0.5.19-cu130", None)
    # The author says nothing of the container; roost's own defaults hold.
    assert (spec.gpus, spec.ipc, spec.shm_size) == ("all", None, "32g")
    assert spec.env == {"HF_HUB_OFFLINE": "1"}
    assert [port.published for port in spec.ports] == ["127.0.0.1:8000:30000"]
    assert all(mount.read_only for mount in spec.mounts)


def test_repositories_and_revisions() -> None:
    known = recipe()
    assert (known.model.repo, known.model.revision.commit) == (MODEL, MODEL_COMMIT)
    assert known.default_speculation == "dflash2"
    drafters = {
        name: (choice.drafter.repo, choice.drafter.revision.branch)
        for name, choice in known.speculation.items()
        if choice.drafter
    }
    assert drafters == {"dflash2": (DRAFTER, "main"), "dflash": (WARM_START, "main")}
    assert build("gb10").spec.image == f"localhost/sglang:{ENGINE_COMMIT[:12]}"
    assert build("gb10").spec.unresolved == [f"revision {DRAFTER}@main"]


@pytest.mark.parametrize("repo", [MODEL, DRAFTER, WARM_START])
def test_repositories_are_described(repo: str) -> None:
    model = catalog.builtin().models[repo]
    assert model.licence == ("MIT" if repo == MODEL else "Apache-2.0")
    assert model.role == ("target" if repo == MODEL else "drafter")


def test_every_configuration_is_known_on_both_machines() -> None:
    known = recipe()
    assert set(known.speculation) == set(CONFIGURATIONS)
    support = {
        hardware: {known.support_on(hardware, choice) for choice in CONFIGURATIONS}
        for hardware in catalog.builtin().hardware
    }
    assert {hw for hw, states in support.items() if states == {"verified"}} == set(HARDWARE)
    assert all(states == {"untested"} for hw, states in support.items() if hw not in HARDWARE)


def test_every_published_cell_is_there() -> None:
    tables = {table.id: table for table in recipe().figures}
    assert {name: len(table.figures()) for name, table in tables.items()} == TABLES
    for name in ("gb10-matrix", "h200-matrix"):
        matrix = tables[name]
        assert (len(matrix.rows), len(matrix.columns)) == (12, 5)
        assert [row.at["speculation"] for row in matrix.rows] == [
            choice for choice in CONFIGURATIONS for _ in (1, 4, 8)
        ]
        assert [row.at["concurrency"] for row in matrix.rows] == [1, 4, 8] * 4
        without = [row for row in matrix.rows if row.values[-1] is None]
        assert {row.at["speculation"] for row in without} == {"none"}


@pytest.mark.parametrize(("cell", "value"), VALUES.items(), ids=str)
def test_spot_checked_cell(cell: tuple[str, str | None, int | None, str], value: float) -> None:
    table, speculation, concurrency, what = cell
    found = [
        figure.value
        for figure in recipe().published()
        if (figure.table, figure.speculation, figure.what) == (table, speculation, what)
        and figure.conditions.get("concurrency") == concurrency
    ]
    assert found == [value]


def test_what_the_text_derives_follows_from_the_matrix() -> None:
    """The gain of 44.0 % is the ratio of two cells, so both must have been copied right."""
    speeds = {
        figure.speculation: figure.value
        for figure in recipe().published()
        if figure.table == "gb10-matrix"
        and figure.what == "output_throughput"
        and figure.conditions["concurrency"] == 1
    }
    fast, plain = speeds["dflash2"], speeds["none"]
    assert isinstance(fast, float)
    assert isinstance(plain, float)
    assert round((fast / plain - 1) * 100, 1) == 44.0


def test_one_stream_s_speed_is_the_inverse_of_its_time_per_token() -> None:
    """A check of transcription: two columns of a row say nearly the same thing."""
    for table in recipe().figures:
        if table.id not in {"gb10-matrix", "h200-matrix"}:
            continue
        for row in table.rows:
            _, per_user, _, tpot, _ = row.values
            assert isinstance(per_user, float)
            assert isinstance(tpot, float)
            assert per_user == pytest.approx(1000 / tpot, rel=0.05), (table.id, row.at)


def test_contradiction_about_depth_is_kept() -> None:
    (depth,) = recipe().contradictions
    assert len(depth.sides) == 3
    assert recipe().speculation["dflash2"].settings.num_speculative_tokens == 9
