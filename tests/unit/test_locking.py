"""What is locked, what is said where it cannot be, and what a deploy does with the unlocked."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.deployments import ORNITH
from tests.unit.source_000 import AUTHOR_DIGEST, DRAFTER

from roost import catalog, deployment, lock, locking, registry
from roost.catalog_schema import Recipe
from roost.errors import RefusedError, RoostError, UnansweredError, UsageError
from roost.hub import HubUnansweredError
from roost.lock import Lock, LockedImage, LockedModel
from roost.pins import Image, Repository, Revision
from roost.root import CATALOG_VARIABLE
from roost.settings import Settings

NOBODY = "http://127.0.0.1:9"
GONE_DIGEST, OTHER_DIGEST = "sha256:" + "0" * 64, "sha256:" + "1" * 64
COMMIT = "b" * 40

RECIPE: dict[str, Any] = {
    "id": "mine",
    "title": "Mine",
    "model": {"repo": "org/model", "revision": {"commit": "a" * 40}},
    "engine": "vllm",
    "served_name": "mine",
    "default_speculation": "none",
    "speculation": {"none": {}},
    "hardware": {},
    "image": {
        "repository": "org/engine",
        "digest": GONE_DIGEST,
        "engine_version": "0.26",
        "fallbacks": [
            {
                "image": {
                    "repository": "org/engine",
                    "tag": "v0.26",
                    "engine_version": "0.26",
                },
                "reason": "A release.",
                "source": "here",
            },
            {
                "image": {"repository": "org/other", "tag": "muse", "engine_version": "0.1"},
                "support": "unsupported",
                "reason": "No kernels.",
                "source": "here",
            },
        ],
    },
    "source": "here",
}
BUILT = {
    "repository": "org/built",
    "engine_version": "0.5",
    "build": {"git": "https://example.org/engine.git", "revision": {"commit": COMMIT}},
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own catalogue with one recipe."""
    folder = tmp_path / "own"
    monkeypatch.setenv(CATALOG_VARIABLE, str(folder))
    write(folder)
    return folder


def write(folder: Path, **changes: Any) -> None:
    path = folder / "recipes" / "mine.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**RECIPE, **changes}))


def deploy(folder: Path, lock_file: Path, **variables: Any) -> deployment.Deployment:
    lock_file.touch()  # without an entry, where nothing has written it
    given = {"roost_hardware": "gb10", "roost_recipe": "mine", "roost_lock_file": str(lock_file)}
    given.update({f"roost_{name}": value for name, value in variables.items()})
    return deployment.from_variables("host-01", given, folder)


@pytest.mark.usefixtures("own")
def test_a_recipe_is_asked_for_with_what_it_may_run_instead() -> None:
    job = locking.plan(["mine"], lock_file=Path("x"))
    assert [image.reference for image in job.images] == [
        f"org/engine@{GONE_DIGEST}",
        "org/engine:v0.26",
    ]


@pytest.mark.usefixtures("own")
def test_an_inventory_is_asked_for_what_it_runs_and_no_more(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    image = f"mirror.example.org/engine@{OTHER_DIGEST}"
    variables = {
        "roost_hardware": "gb10",
        "roost_recipe": "mine",
        "roost_settings": {"image": image, "engine_version": "0.26"},
    }
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"spark-01": variables}}}))
    job = locking.plan([], inventory=hosts, lock_file=Path("x"))
    assert [one.reference for one in job.images] == [image]


@pytest.mark.parametrize(
    ("token", "endpoint", "options", "sent"),
    [
        (None, None, {}, None),
        ("hf_mine", None, {}, "hf_mine"),
        ("hf_mine", None, {"hub": "https://hub"}, "hf_mine"),
        ("hf_mine", "https://mirror", {"hub": "https://hub"}, None),
    ],
)
@pytest.mark.usefixtures("own")
def test_the_hub_is_asked_with_the_site_s_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    endpoint: str | None,
    options: dict[str, str],
    sent: str | None,
) -> None:
    asked = []

    def resolve(repository: Repository, endpoint: str | None, token: str | None) -> LockedModel:
        asked.append((repository.repo, endpoint, token))
        raise RoostError("not now")

    monkeypatch.setattr("roost.hub.resolve", resolve)
    common = {"roost_hardware": "gb10", "roost_recipe": "mine", "roost_registry_mirror": "[::1]:9"}
    # Two hosts name the same repository, and the first one has no token.
    of = {"a-01": {}, "b-01": {"roost_hub_token": token}}
    hosts = tmp_path / "hosts.yml"
    variables = {**common, "roost_hub_endpoint": endpoint}
    hosts.write_text(yaml.safe_dump({"all": {"vars": variables, "hosts": of}}))
    job = locking.plan([], inventory=hosts, lock_file=tmp_path / "lock.yml", **options)
    assert "hf_mine" not in repr(job)
    locking.run(job, write=False)
    assert asked == [("org/model", options.get("hub", endpoint), sent)]


def test_a_shortened_drafter_revision_is_asked_for_beside_the_recipe_s_own() -> None:
    job = locking.plan([ORNITH], overrides=Settings(drafter_revision="31977fbe13a8"))
    asked = [one.revision for one in job.repositories if one.repo == DRAFTER]
    assert asked[-1].prefix == "31977fbe13a8"
    assert asked[0].branch == "main"


def test_an_image_that_a_host_builds_is_asked_of_nobody(own: Path) -> None:
    write(own, image=BUILT)
    assert locking.plan(["mine"], lock_file=Path("x")).images == []


@pytest.mark.usefixtures("own")
def test_without_network_it_says_so_and_locks_what_the_recipe_pins(tmp_path: Path) -> None:
    path = tmp_path / "roost.lock.yml"
    job = locking.plan(["mine"], hub=NOBODY, registry=NOBODY, lock_file=path)
    before = today()
    outcome = locking.run(job, write=True)
    said = [str(failure) for failure in outcome.failures]
    assert len(said) == 3
    assert "the hub cannot be reached" in said[0]
    assert said[0].endswith(f"kept: {'a' * 40}, as the recipe pins it; its size is not known")
    assert said[2].endswith("kept: nothing: it was not locked before")
    written = lock.read(path)
    day = written.images["org/engine"][GONE_DIGEST].resolved
    assert before <= day <= today()
    assert written.images == {
        "org/engine": {GONE_DIGEST: LockedImage(digest=GONE_DIGEST, resolved=day)}
    }
    # The next time the same is kept, and nothing differs.
    again = locking.run(job, write=True)
    assert again.drift == []
    assert f"kept: {'a' * 40} of {day}" in str(again.failures[0])
    assert deploy(tmp_path, path).requirements.image_bytes == {}


class Hub:
    """Is silent when asked for the first repositories, and again from another one on."""

    def __init__(self, silent: set[int]) -> None:
        self.silent, self.asked = silent, 0

    def resolve(self, repository: Repository, *_: object) -> LockedModel:
        self.asked += 1
        if self.asked in self.silent:
            raise HubUnansweredError(f"{repository.repo}: no answer", why="timeout", fix="wait")
        if self.asked == 3:
            raise RoostError("no such repository")
        return LockedModel(commit=COMMIT, resolved=today())


@pytest.mark.parametrize(
    ("silent", "asked", "unanswered"), [({1, 2}, 2, 6), ({1, 4, 6}, 6, 3), ({2, 4, 5}, 5, 4)]
)
def test_a_service_that_stays_silent_is_not_waited_for_each_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent: set[int],
    asked: int,
    unanswered: int,
) -> None:
    hub = Hub(silent)
    monkeypatch.setattr("roost.hub.resolve", hub.resolve)
    repositories = [
        Repository(repo=f"org/{at}", revision=Revision(branch="main")) for at in range(6)
    ]
    job = locking.Job(repositories, [], None, None, tmp_path / "lock.yml")
    told: list[tuple[int, int, str]] = []
    failures = locking.run(job, write=False, progress=lambda *seen: told.append(seen)).failures
    assert hub.asked == asked
    quiet = [one for one in failures if isinstance(one.error, UnansweredError)]
    assert len(quiet) == unanswered
    assert told == [(at + 1, 6, f"org/{at}@main") for at in range(6)]
    # Whether asked or not, the reason is the same, and is said once.
    assert sum("why: timeout" in text for text in lock.told(failures)) == 1


def today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


@pytest.mark.usefixtures("own")
def test_a_digest_that_is_gone_is_answered_with_the_recipe_s_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def resolve(_: object, image: Image) -> LockedImage:
        if image.digest:
            raise registry.GoneError("it is gone")
        return LockedImage(digest=OTHER_DIGEST, resolved=today())

    monkeypatch.setattr(registry.Registry, "resolve", resolve)
    path = tmp_path / "roost.lock.yml"
    job = locking.plan(["mine"], hub=NOBODY, lock_file=path)
    first = str(locking.run(job, write=True).failures[1])
    assert "it is gone" in first
    assert "org/engine:v0.26: untested. A release." in first
    assert "org/other:muse: unsupported. No kernels." in first
    # Once the release is locked, its digest is there to paste.
    second = str(locking.run(job, write=True).failures[1])
    assert f'roost_settings: {{image: "org/engine@{OTHER_DIGEST}"' in second
    assert f'image: "org/engine@{OTHER_DIGEST}"' in deploy(tmp_path, path).other_images


def test_a_tag_is_deployed_only_by_a_user_who_says_so(own: Path, tmp_path: Path) -> None:
    write(own, image={"repository": "org/engine", "tag": "nightly", "engine_version": "0.26"})
    path = tmp_path / "roost.lock.yml"
    with pytest.raises(RefusedError, match=r"not pinned: image org/engine:nightly") as caught:
        deploy(tmp_path, path)
    assert "roost lock -i INVENTORY" in caught.value.fix
    permitted = deploy(tmp_path, path, allow_unlocked=True)
    assert permitted.spec.image == "org/engine:nightly"
    assert permitted.image_digest is None


def test_weights_need_a_commit_whatever_is_allowed(own: Path, tmp_path: Path) -> None:
    write(own, model={"repo": "org/model", "revision": {"branch": "main"}})
    with pytest.raises(RefusedError, match="not pinned: revision org/model@main") as caught:
        deploy(tmp_path, tmp_path / "roost.lock.yml", allow_unlocked=True)
    assert "weights are kept on a host by their commit" in caught.value.why
    assert "roost lock -i INVENTORY" in caught.value.fix


def test_a_build_of_a_commit_is_pinned_and_says_how_it_is_made(own: Path, tmp_path: Path) -> None:
    write(own, image=BUILT)
    path = tmp_path / "roost.lock.yml"
    wanted = deploy(tmp_path, path, registry_mirror="10.0.0.1:5000")
    assert wanted.spec.image == f"org/built:{COMMIT[:12]}"
    assert wanted.spec.unresolved == []
    assert wanted.build
    assert wanted.build.commit == COMMIT
    by_hand = f"docker build --tag org/built:{COMMIT[:12]} --label roost.build="
    assert by_hand + wanted.build.digest in wanted.other_images
    assert "--set image=org/built@sha256:…" in wanted.other_images
    pushed = deploy(tmp_path, path, settings={"image": f"me/built@{OTHER_DIGEST}"})
    assert pushed.spec.image == f"me/built@{OTHER_DIGEST}"
    assert pushed.build is None


def test_a_build_of_a_branch_is_refused(own: Path, tmp_path: Path) -> None:
    build = {"git": "https://example.org/engine.git", "revision": {"branch": "main"}}
    write(own, image={**BUILT, "build": build})
    path = tmp_path / "roost.lock.yml"
    with pytest.raises(RefusedError, match="not pinned: image org/built:main") as caught:
        deploy(tmp_path, path)
    assert "git ls-remote https://example.org/engine.git" in caught.value.fix
    assert "roost lock -i" not in caught.value.fix
    assert deploy(tmp_path, path, allow_unlocked=True).build is None


def test_the_repository_s_lock_pins_the_author_s_digests() -> None:
    shipped = lock.read(Path(__file__).parents[2] / "roost.lock.yml")
    recipe = catalog.builtin().recipe(ORNITH)
    for hardware, digest in AUTHOR_DIGEST.items():
        assert locked_image(shipped, recipe, hardware) == digest


def locked_image(shipped: Lock, recipe: Recipe, hardware: str) -> str | None:
    image = recipe.hardware[hardware].image
    entry = shipped.image(image) if image else None
    return entry.digest if entry else None


@pytest.mark.usefixtures("own")
def test_a_lock_file_that_is_none_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "roost.lock.yml"
    path.write_text("version: 99\n")
    with pytest.raises(RoostError, match="version 99 of the lock is not known here"):
        locking.run(locking.plan(["mine"], lock_file=path), write=True)


@pytest.mark.usefixtures("own")
def test_nobody_is_asked_for_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "resolve", lambda *_, **__: pytest.fail("was asked"))
    # Where a link leads decides, not where it is.
    (tmp_path / "link.yml").symlink_to("/proc/roost.lock.yml")
    for path in (tmp_path, tmp_path / "link.yml"):
        job = locking.plan(["mine"], lock_file=path)
        with pytest.raises(UsageError, match="cannot be written; nothing was asked"):
            locking.run(job, write=True)
