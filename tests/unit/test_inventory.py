"""Inventories through the real Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roost import inventory
from roost.errors import RoostError, UsageError

HOSTS = """
all:
  vars:
    domain: example
    roost_hardware: gb10
    ansible_user: ops
    ansible_ssh_private_key_file: "{{ inventory_dir }}/key"
    ansible_ssh_common_args: >-
      -o UserKnownHostsFile={{ inventory_dir }}/known_hosts -o IdentitiesOnly=yes
      -o GlobalKnownHostsFile=/dev/null -J jump@bastion.{{ domain }}:2222
  hosts:
    spark-01: {ansible_host: 10.0.0.1, ansible_port: 2201, roost_port: "{{ 8000 + 1 }}"}
    spark-02: {roost_settings: {max_num_seqs: 2}, unrelated: "{{ nowhere }}"}
    here: {ansible_connection: local}
  children:
    # Stands before others and serves nothing.
    gateways: {hosts: {gate-01: {ansible_host: 10.0.0.9}}}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "inventory" / "spark"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "group_vars" / "all.yml").write_text('roost_recipe: "{{ inventory_hostname }}-r"\n')
    return folder


def test_variables_are_templated_and_others_left_out(site: Path) -> None:
    loaded = inventory.load(site)
    assert list(loaded.hosts) == ["here", "spark-01", "spark-02"]
    assert loaded.host("spark-01").variables == {
        "roost_hardware": "gb10",
        "roost_port": 8001,
        "roost_recipe": "spark-01-r",
    }
    assert loaded.host("spark-02").variables["roost_settings"] == {"max_num_seqs": 2}


def test_connection_is_what_ansible_would_use(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A site's environment is honoured, where host variables do not say otherwise.
    monkeypatch.setenv("ANSIBLE_SSH_EXTRA_ARGS", "-o ProxyCommand='nc -X 5 %h %p'")
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "somebody-else")
    connection = inventory.load(site).host("spark-01").connection
    assert connection == inventory.Connection(
        address="10.0.0.1",
        port=2201,
        user="ops",
        key_file=site / "key",
        known_hosts=(site / "known_hosts",),
        global_known_hosts=(Path("/dev/null"),),
        identities_only=True,
        proxy_jump="jump@bastion.example:2222",
        proxy_command="nc -X 5 %h %p",
    )
    assert inventory.load(site).host("spark-02").connection.address == "spark-02"
    assert inventory.load(site).host("here").connection.local


def test_noise_around_ansible_is_survived(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ANSIBLE_CALLBACKS_ENABLED", "ansible.posix.profile_tasks,ansible.posix.timer"
    )
    monkeypatch.setenv("ANSIBLE_VERBOSITY", "3")
    monkeypatch.setenv("ANSIBLE_LOG_PATH", str(site / "ansible.log"))
    assert len(inventory.load(site).hosts) == 3
    # Variables may hold secrets; reading them must not write them down.
    assert not (site / "ansible.log").exists()


def test_limit(site: Path) -> None:
    assert list(inventory.load(site, "spark-*:!spark-02").hosts) == ["spark-01"]
    with pytest.raises(UsageError, match="no host matches 'nope'"):
        inventory.load(site, "nope")


@pytest.mark.parametrize(
    ("limit", "hosts"),
    [
        ("spark-0[1-2]", "1 2"),
        ("spark-0[2-3],!spark-0[3-3]", "2"),
        ("spark-[01-11]", "1 2 3 11"),
        ("spark-[9-11]", "11"),
        ("sp?rk-[!1][1-1]", "1"),
        ("*rk-0[2-9]:&all", "2 3"),
        # As Ansible has them: places in the list, an expression, a shell's pattern.
        ("spark*[0:1]", "1 2"),
        ("~spark-0[1-2]", "1 2"),
        ("spark-0[1-2]*", "1 2"),
    ],
)
def test_ranges_mean_what_they_mean_to_a_shell(tmp_path: Path, limit: str, hosts: str) -> None:
    names = [f"spark-{number:02}" for number in (1, 2, 3, 11)]
    (tmp_path / "hosts.yml").write_text("all: {hosts: {" + ", ".join(names) + "}}\n")
    found = inventory.load(tmp_path / "hosts.yml", limit).hosts
    assert list(found) == [f"spark-{int(number):02}" for number in hosts.split()]


@pytest.mark.parametrize("limit", ["spark-0[4-1]", "spark-[0-99999999]"])
def test_no_range_matches_nothing(site: Path, limit: str) -> None:
    with pytest.raises(UsageError, match="no host matches"):
        inventory.load(site, limit)


def test_places_in_a_group_have_a_colon(site: Path) -> None:
    with pytest.raises(UsageError, match=r"no host matches[\s\S]*NAME\[0:1\]"):
        inventory.load(site, "ungrouped[0-1]")


@pytest.mark.parametrize("limit", ["", " "])
def test_an_empty_pattern_is_not_every_host(site: Path, limit: str) -> None:
    with pytest.raises(UsageError, match=r"pattern .* is empty"):
        inventory.load(site, limit)


def test_what_holds_programs_is_no_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, home = tmp_path / "src" / "checkout", tmp_path / "home"
    (checkout / "playbooks").mkdir(parents=True)
    (checkout / "deploy.yml").touch()
    program = home / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(checkout)
    (tmp_path / "link").symlink_to(checkout)
    for path in ("", " ", ".", "..", "~", "/", tmp_path / "link"):
        with pytest.raises(UsageError, match=r"no inventory: it (is|holds)|is empty"):
            inventory.load(path)
    assert not (tmp_path / "was-run").exists()


def test_unknown_host_names_near_misses(site: Path) -> None:
    with pytest.raises(UsageError, match=r"no host 'spark-1'[\s\S]*did you mean spark-01"):
        inventory.load(site).host("spark-1")


def test_paths_relative_to_here_or_to_the_root(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy.yml").touch()
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "notebooks").mkdir()
    for here in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(here)
        assert inventory.resolve_path("inventory/spark") == site
    with pytest.raises(UsageError, match=r"inventory/sparc[\s\S]*did you mean inventory/spark\?"):
        inventory.load("inventory/sparc")


def test_unresolvable_variable_names_host_and_variable(site: Path) -> None:
    (site / "group_vars" / "all.yml").write_text('roost_recipe: "{{ missing_thing }}"\n')
    with pytest.raises(
        UsageError, match=r"of here cannot be resolved[\s\S]*'missing_thing' is und"
    ):
        inventory.load(site)


def test_no_hosts_and_bad_yaml(tmp_path: Path) -> None:
    (tmp_path / "empty.yml").write_text("all: {hosts: {}}\n")
    with pytest.raises(UsageError, match="no hosts in it"):
        inventory.load(tmp_path / "empty.yml")
    (tmp_path / "bad.yml").write_text("all: [\n")
    with pytest.raises(RoostError, match="Ansible cannot read it") as caught:
        inventory.load(tmp_path / "bad.yml")
    assert "bad.yml:2:1" in caught.value.why
    assert "Traceback" not in caught.value.why
    # Once, and not what other formats' plugins have to say.
    assert caught.value.why.count("parsing failed") == 1
    assert "ini" not in caught.value.why


def test_vault(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = tmp_path / "password"
    password.write_text("x")
    vault = [str(Path(sys.executable).with_name("ansible-vault")), "encrypt", "--vault-id"]
    subprocess.run([*vault, password, site / "group_vars" / "all.yml"], check=True)
    with pytest.raises(RoostError, match="ANSIBLE_VAULT_PASSWORD_FILE"):
        inventory.load(site)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    assert inventory.load(site).host("here").variables["roost_recipe"] == "here-r"


def test_ansible_missing(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RoostError, match="Ansible is not installed"):
        inventory.load(site)


def test_passwords_do_not_show(site: Path) -> None:
    (site / "group_vars" / "all.yml").write_text("ansible_password: hunter2\n")
    host = inventory.load(site).host("spark-01")
    assert host.connection.password == "hunter2"
    assert "hunter2" not in repr(host)


@pytest.mark.parametrize("locale", ["C", "nosuch", "nosuch.UTF-8"])
def test_a_locale_that_ansible_refuses(site: Path, locale: str) -> None:
    # In a process of its own: what a locale is, is found out once.
    program = f"from roost import inventory; print(*inventory.load({str(site)!r}).hosts)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LC_ALL": locale},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "here spark-01 spark-02\n"), done.stderr


def test_a_home_that_cannot_be_written(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ansible").touch()
    for home in (tmp_path, tmp_path / ".ansible"):
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(UsageError, match=r"cannot be written[\s\S]*ANSIBLE_HOME"):
            inventory.load(site)
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "elsewhere"))
    assert inventory.load(site).hosts


def test_no_path_in_the_environment(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert inventory.load(site).hosts
