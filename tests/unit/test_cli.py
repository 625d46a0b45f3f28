"""The command as a user meets it: whole processes, exit codes, and no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from roost import fleet, options
from roost.cli import cli

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"


def roost(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "roost.cli", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def verbs() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command}


def test_recipes_as_json() -> None:
    rows = json.loads(roost("recipes", "--json").stdout)
    by_id = {row["id"]: row for row in rows}
    assert set(by_id[ORNITH]) == {
        "id",
        "model",
        "drafter",
        "engine",
        "speculation",
        "hardware",
        "source",
    }
    marks = by_id[ORNITH]["hardware"]
    assert {hardware: marks[hardware] for hardware in ("cpu", "gb10", "rtx5070ti-x2")} == {
        "cpu": "untested",
        "gb10": "verified",
        "rtx5070ti-x2": "verified",
    }
    assert by_id["smollm2-135m"]["speculation"] == ["dflash", "ngram", "none"]


def test_recipes_fit_a_terminal() -> None:
    lines = roost("recipes").stdout.splitlines()
    assert any(line.startswith(ORNITH) for line in lines)
    assert max(map(len, lines)) <= 80


def test_show_json_has_the_contract_s_keys(tmp_path: Path) -> None:
    done = roost("show", ORNITH, "--on", "gb10", "--json", cwd=tmp_path)
    spec = json.loads(done.stdout)
    wanted = {
        "image",
        "entrypoint",
        "command",
        "env",
        "mounts",
        "ports",
        "gpus",
        "ipc",
        "shm_size",
        "security",
    }
    assert wanted <= set(spec)
    assert spec["ports"] == ["127.0.0.1:8000:8000"]
    assert "not pinned yet" in done.stderr


def test_show_argv_and_docker(tmp_path: Path) -> None:
    argv = roost("show", "smollm2-135m", "--on", "cpu", "--format", "argv", cwd=tmp_path).stdout
    assert argv.startswith("vllm serve /model ")
    docker = roost("show", "smollm2-135m", "--on", "cpu", cwd=tmp_path).stdout
    assert docker.startswith("docker run")
    assert "--enforce-eager" in docker


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "nope", "--on", "cpu"], 2, "is not in the catalogue"),
        (["show", "smollm2-135m"], 2, "--on"),
        (["show", "smollm2-135m", "--on", "gb10"], 3, "has never been run on gb10"),
        (["show", "smollm2-135m", "--on", "cpu", "--set", "x=1"], 2, "no such setting"),
        (["deploy", "-i", "no/such"], 2, "no such inventory"),
        (["lock", "nope"], 2, "is not in the catalogue"),
        (["frobnicate"], 2, "No such command"),
        (["plann"], 2, "Did you mean 'plan'?"),
        (["show", "smollm2-135m", "--on", "cpu", "--variant", "x"], 2, "has no variants"),
        (["show", "smollm2-135m", "--on", "cpu", "--lock-file", "x.yml"], 2, "does not exist"),
        (["plan", "smollm2-135m", "--on", "cpu", "--host-facts", "x"], 2, "does not exist"),
        (["plan", "smollm2-135m", "--on", "cpu", "--hub", "hub.local"], 2, "must be http://HOST"),
        (["lock", "smollm2-135m", "--hub", "hub.local"], 2, "must be http://HOST"),
        (["lock", "smollm2-135m", "--lock-file", "/proc/x.yml"], 2, "cannot be written; nothing"),
        (["lock", "smollm2-135m", "--registry", "http://"], 2, "must be HOST[:PORT]"),
        (["bundle", "smollm2-135m", "--to", "b", "--registry", "a b"], 2, "must be HOST[:PORT]"),
        (["plan", "smollm2-135m", "--on", "cpu", "--accept", "x"], 2, "no finding has the name"),
        (["probe", "--limit", "x"], 2, "--limit needs an inventory"),
        (["deploy", "-i", "inventory/lab", "-K"], 2, "no password to read"),
        (["verify", "-i", "inventory/lab", "--long-context", "500"], 2, "512 or more"),
        (["bench", "-i", "inventory/lab", "--suite", "gate", "--prompts", __file__], 2, "neither"),
        (["verify", "-i", "inventory/lab", "--long-context-seconds", "inf"], 2, "no finite number"),
        (["fleet", "-i", "inventory/lab", "--tolerance", "nan"], 2, "no finite number"),
        (["compare", "a", "b", "--tolerance", "NaN"], 2, "no finite number"),
        (
            ["tune", "-i", "x", "--host", "h", "--suite", "smoke", "--hours", "inf"],
            2,
            "no finite number",
        ),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    done = roost(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("models: [\n", "2: "), ("models\n", "1: (the whole file): must be a mapping of keys")],
)
def test_a_damaged_lock_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "roost.lock.yml").write_text(text)
    lock = ("--lock-file", "roost.lock.yml")
    done = roost("show", "smollm2-135m", "--on", "cpu", *lock, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"roost: roost.lock.yml:{message}")
    assert "Traceback" not in done.stderr


def test_lock_says_what_it_could_not_ask_and_keeps_the_rest(tmp_path: Path) -> None:
    """Nothing listens on the discard port of loopback."""
    done = roost(
        "lock",
        "smollm2-135m",
        "--hub",
        "http://127.0.0.1:9",
        "--registry",
        "http://127.0.0.1:9",
        "--lock-file",
        "roost.lock.yml",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "the hub cannot be reached" in done.stderr
    assert "the registry cannot be reached" in done.stderr
    assert not (tmp_path / "roost.lock.yml").exists()


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before it begins, or a pipe takes it all
    with os.fdopen(writer, "w") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "roost.cli", "recipes", "--json"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("check", "said"), [(False, "deployed: "), (True, "checked, nothing was ")]
)
def test_a_check_deploys_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, check: bool, said: str
) -> None:
    done = fleet.PlayResult("successful", changed={"a": 2}, hosts=["a"])
    monkeypatch.setattr(fleet, "run_playbook", lambda *_, **__: done)
    words = ["deploy", "-i", "inventory/lab", *(["--check"] if check else [])]
    output = CliRunner().invoke(cli, words).output
    assert output.startswith(said)
    assert output.endswith(": a (changed=2)\n")


def test_a_full_disk_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "roost.cli", "recipes", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "roost: No space left on device\n")


def test_a_terminal_without_a_character_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "roost.cli", "plan", "ornith-1.0-35b-fp8", "--on", "gb10"],
        capture_output=True,
        encoding="latin-1",
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "roost plan \\u2026 --hub URL" in done.stdout


def test_the_list_of_verbs_has_whole_sentences() -> None:
    listed = CliRunner().invoke(cli, ["--help"], env={"COLUMNS": "80"}).output
    assert "..." not in listed.partition("Commands:")[2]


def test_an_option_has_one_name_in_all_verbs() -> None:
    spelled: dict[str, set[tuple[str, ...]]] = {}
    for command in verbs().values():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name:
                spelled.setdefault(parameter.name, set()).add(tuple(parameter.opts))
    assert {name: names for name, names in spelled.items() if len(names) > 1} == {}


def test_a_password_is_asked_for_at_a_terminal_and_read_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\nmore\n"))
    assert options.password(True) == "secret"
    assert options.password(False) is None


@pytest.mark.parametrize("verb", ["plan", "deploy", "lock", "probe", "bundle", "compare"])
def test_an_empty_inventory_path_is_refused(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb, "-i", ""])
    assert done.exit_code == 2
    assert "is a variable of the shell unset?" in done.output
