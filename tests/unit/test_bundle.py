"""A bundle: packed from a hub, gone on with, checked, and served by any web server."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from tests.unit import faulty, snapshots
from tests.unit.faulty import Faulty
from tests.unit.servers import serving
from tests.unit.snapshots import FIRST, REPO, SECOND, Site, hf_snapshot

from roost import bundle, hub, lock
from roost.bundle import Contents
from roost.bundle_cli import bundle as command
from roost.errors import RefusedError, RoostError, UsageError
from roost.launch.pinning import Weights
from roost.lock import LockedImage, LockedModel
from roost.pins import Repository, Revision
from roost.root import CATALOG_VARIABLE

DIGEST = "sha256:" + "1" * 64


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Faulty]]:
    with snapshots.hub() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, served: tuple[str, Faulty]) -> Site:
    return snapshots.site(tmp_path, served)


@pytest.fixture
def packed(site: Site, tmp_path: Path) -> Path:
    """A whole bundle."""
    pack(site, tmp_path)
    site.hub.behave()
    return tmp_path / "bundle"


def pack(site: Site, folder: Path, *others: Weights, size: int | None = None) -> list[str]:
    """Pack the site's repository, and others; what was said."""
    lock.write(folder / "mine.lock.yml", lock.Lock())
    said: list[str] = []
    wanted = [weights(REPO, site.commit, size), *others]
    contents = Contents(wanted, [], folder / "mine.lock.yml", site.endpoint, None)
    bundle.pack(contents, folder / "bundle", said.append)
    return said


def weights(repo: str, commit: str, size: int | None = None) -> Weights:
    return Weights(repo=repo, name="main", revision=commit, directory="/unused", bytes=size)


def test_what_is_packed_is_listed_for_any_tool(packed: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"],
        cwd=packed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    listed = {line.split("  ")[1] for line in (packed / "SHA256SUMS").read_text().splitlines()}
    files = {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()}
    assert files - listed == {"SHA256SUMS", f"hub/{REPO}/.hf_snapshot.lock"}
    assert (packed / "roost.lock.yml").read_bytes() == (
        packed.parent / "mine.lock.yml"
    ).read_bytes()


def test_any_web_server_is_a_hub_of_it(packed: Path, site: Site, tmp_path: Path) -> None:
    app = Starlette(routes=[Mount("/", StaticFiles(directory=packed / "hub"))])
    with serving(app) as endpoint:
        # To the module, and to the hub's own client, it is what the hub was.
        dest = tmp_path / "host" / "models" / "a--b" / site.commit
        params = site.params(endpoint=endpoint, dest=str(dest))
        snapshot = hf_snapshot.Snapshot(params)
        theirs = hf_snapshot.Snapshot(site.params())
        listed, wanted = snapshot.download().ask(), theirs.download().ask()
        assert [vars(one) for one in listed] == [vars(one) for one in wanted]
        assert snapshot.present(False)["changed"]
        repository = Repository(repo=REPO, revision=Revision(commit=site.commit))
        today = {"resolved": dt.date(2026, 11, 29)}
        assert hub.resolve(repository, endpoint).model_copy(update=today) == hub.resolve(
            repository, site.endpoint
        ).model_copy(update=today)
    assert (dest / FIRST).read_bytes() == (site.source / FIRST).read_bytes()


def test_packing_again_asks_for_nothing(packed: Path, site: Site, tmp_path: Path) -> None:
    before = (packed / "SHA256SUMS").read_text()
    pack(site, tmp_path)
    assert site.hub.requests == []
    assert (packed / "SHA256SUMS").read_text() == before


def test_an_interrupted_run_is_gone_on_with(site: Site, tmp_path: Path) -> None:
    pack(site, tmp_path)
    other = weights("roost-lab/other", site.publish("roost-lab/other"))
    site.hub.order(other.revision, faulty.refuse(404, "RevisionNotFound"))
    with pytest.raises(RoostError, match="not this revision"):
        pack(site, tmp_path, other)
    with pytest.raises(RoostError, match="was not finished"):
        bundle.check(tmp_path / "bundle", print)
    site.hub.behave()
    said = pack(site, tmp_path, other)
    assert [line.split(":")[0] for line in said[:2]] == ["weights 1 of 2", "weights 2 of 2"]
    assert {"/".join(one.path.split("/")[:3]) for one in site.hub.of(".safetensors")} == {
        "/roost-lab/other"
    }
    assert bundle.check(tmp_path / "bundle", print) == []


def test_what_a_killed_run_had_begun_to_write_is_no_part_of_it(site: Site, tmp_path: Path) -> None:
    """An older roost used one name each time, and listed what was gone once the list was there."""
    pack(site, tmp_path)
    before = (tmp_path / "bundle" / "SHA256SUMS").read_text()
    for name in (".SHA256SUMS.new", ".SHA256SUMS.0123abcd.new", "hub/api/.x.0123abcd.new"):
        (tmp_path / "bundle" / name).write_text("half a li")
    assert bundle.check(tmp_path / "bundle", print) == []
    pack(site, tmp_path)
    assert (tmp_path / "bundle" / "SHA256SUMS").read_text() == before
    assert bundle.check(tmp_path / "bundle", print) == []


def test_what_differs_is_found(packed: Path, site: Site) -> None:
    assert bundle.check(packed, print) == []
    weights = packed / "hub" / REPO / "resolve" / site.commit
    data = bytearray((weights / FIRST).read_bytes())
    data[1000] ^= 1
    (weights / FIRST).write_bytes(data)
    (weights / SECOND).unlink()
    first, second = sorted(bundle.check(packed, print))
    assert f"{FIRST}: has another content" in first
    assert f"{SECOND}: No such file" in second
    result = CliRunner().invoke(command, ["--check", "--to", str(packed)])
    assert isinstance(result.exception, RoostError)
    assert "2 files are not as they were packed" in str(result.exception)


@pytest.mark.parametrize("lines", [0, 2])
def test_a_list_that_was_copied_half_is_no_proof(packed: Path, lines: int) -> None:
    listed = (packed / "SHA256SUMS").read_text().splitlines(keepends=True)
    (packed / "SHA256SUMS").write_text("".join(listed[:lines]))
    (wrong,) = bundle.check(packed, print)
    assert f"SHA256SUMS: is not whole: it lacks {len(listed) - lines} files" in wrong


def test_a_list_that_is_something_else(packed: Path) -> None:
    (packed / "SHA256SUMS").write_bytes(b"\xff\x00")
    with pytest.raises(RoostError, match="is no bundle"):
        bundle.check(packed, print)


def test_the_lock_is_the_last_line_of_the_list(packed: Path) -> None:
    """The role of the mirror knows by it that the list is whole."""
    assert (packed / "SHA256SUMS").read_text().endswith("  roost.lock.yml\n")


def test_room_is_checked_before_the_first_byte(site: Site, tmp_path: Path) -> None:
    with pytest.raises(RoostError, match="not enough room"):
        pack(site, tmp_path, size=1 << 50)
    assert site.hub.requests == []


def test_a_directory_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("no directory")
    with pytest.raises(RoostError, match="cannot be written"):
        pack(site, tmp_path)


# -- what is packed


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with two drafters, and its lock."""
    recipe: dict[str, Any] = {
        "id": "mine",
        "title": "Mine",
        "model": {"repo": "org/model", "revision": {"branch": "main"}},
        "engine": "vllm",
        "served_name": "mine",
        "default_speculation": "a",
        "speculation": {
            "none": {},
            **{
                name: {
                    "method": "dflash",
                    "drafter": {"repo": f"org/{name}", "revision": {"branch": "main"}},
                }
                for name in ("a", "b")
            },
        },
        "hardware": {},
        "image": {"repository": "ghcr.io/org/engine", "tag": "1", "engine_version": "0.26"},
        "source": "here",
    }
    path = tmp_path / "own" / "recipes" / "mine.yml"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(recipe))
    monkeypatch.setenv(CATALOG_VARIABLE, str(tmp_path / "own"))
    return path


def locked(folder: Path, *repos: str) -> Path:
    today = dt.date(2026, 11, 29)
    models = {
        repo: {"main": LockedModel(commit=digit * 40, bytes=7, files=1, resolved=today)}
        for repo, digit in zip(repos, "abc", strict=False)
    }
    image = LockedImage(digest=DIGEST, bytes={"arm64": 3, "amd64": 4}, resolved=today)
    lock.write(
        folder / "x.lock.yml", lock.Lock(models=models, images={"ghcr.io/org/engine": {"1": image}})
    )
    return folder / "x.lock.yml"


@pytest.mark.usefixtures("own")
def test_every_speculation_of_a_recipe(tmp_path: Path) -> None:
    contents = bundle.of_recipes(
        ["mine"], ["gb10"], locked(tmp_path, "org/model", "org/a", "org/b")
    )
    assert [(one.repo, one.revision[0]) for one in contents.weights] == [
        ("org/model", "a"),
        ("org/a", "b"),
        ("org/b", "c"),
    ]
    (image,) = contents.images
    assert (image.repository, image.digest, image.bytes) == ("ghcr.io/org/engine", DIGEST, 7)


@pytest.mark.usefixtures("own")
def test_only_what_an_inventory_deploys(tmp_path: Path) -> None:
    path = locked(tmp_path, "org/model", "org/a")
    (tmp_path / "hosts.yml").write_text(
        "all: {hosts: {x: }, vars: {roost_hardware: gb10, roost_recipe: mine, "
        f"roost_lock_file: {path}, roost_hub_endpoint: 'http://mirror', "
        "roost_registry_mirror: mirror}}"
    )
    contents = bundle.of_inventory(tmp_path / "hosts.yml")
    assert [one.repo for one in contents.weights] == ["org/model", "org/a"]
    # From the hub and the registry, not from the mirror that is to serve it.
    assert (contents.hub, contents.registry) == (None, None)
    assert [one.repository for one in contents.images] == ["ghcr.io/org/engine"]
    path.rename(tmp_path / "elsewhere.yml")
    with pytest.raises(UsageError, match=f"x: roost_lock_file: {path}: no such file"):
        bundle.of_inventory(tmp_path / "hosts.yml")
    other = bundle.of_inventory(tmp_path / "hosts.yml", lock_file=tmp_path / "elsewhere.yml")
    assert other.weights == contents.weights


@pytest.mark.usefixtures("own")
def test_what_is_not_locked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="org/b@main"):
        bundle.of_recipes(["mine"], ["gb10"], locked(tmp_path, "org/model", "org/a"))


@pytest.mark.parametrize(
    "argv", [["--to", "x"], ["mine", "--to", "x"], ["mine", "--to", "x", "-i", "y"]]
)
def test_what_to_pack_must_be_said(argv: list[str]) -> None:
    result = CliRunner().invoke(command, argv)
    assert isinstance(result.exception, UsageError)
