"""What a lab is asked to be, and what its controller must be; nothing is started."""

from __future__ import annotations

import ipaddress
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from roost.errors import RoostError, UsageError
from roost.lab import controller, network, paths, profiles
from roost.lab.cli import lab as command
from roost.lab.cli import next_command, parse_host
from roost.lab.hosts import HostSpec
from roost.lab.lab import Lab, LabSpec


@pytest.fixture(autouse=True)
def _no_lab_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_LAB_STATE", str(tmp_path / "state"))


def spec(**fields: object) -> LabSpec:
    return LabSpec.model_validate(fields)


def test_the_default_lab() -> None:
    lab = LabSpec().addressed()
    assert str(lab.gateway) == "10.77.0.1/24"
    assert [(host.name, str(host.address), host.profile) for host in lab.hosts] == [
        ("lab-01", "10.77.0.11", "cpu"),
        ("lab-02", "10.77.0.12", "cpu"),
    ]


def test_given_addresses_are_kept_and_not_given_twice() -> None:
    lab = spec(hosts=[{"name": "a"}, {"name": "b", "address": "10.77.0.11"}, {"name": "c"}])
    assert [str(host.address) for host in lab.addressed().hosts] == [
        "10.77.0.12",
        "10.77.0.11",
        "10.77.0.13",
    ]


def test_a_host_that_joins_gets_the_next_address() -> None:
    lab = LabSpec().addressed().joined_by([HostSpec(name="lab-02"), HostSpec(name="new")])
    assert [(host.name, str(host.address)) for host in lab.hosts] == [
        ("lab-01", "10.77.0.11"),
        ("lab-02", "10.77.0.12"),
        ("new", "10.77.0.13"),
    ]


def test_a_host_that_is_there_as_another_is_refused() -> None:
    with pytest.raises(UsageError, match="docker=True, not False"):
        LabSpec().addressed().joined_by([HostSpec(name="lab-01", docker=False)])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "much-too-long"}, "at most 8"),
        ({"name": "Lab"}, "pattern"),
        ({"subnet": "10.77.0.0/16"}, "a /24"),
        ({"subnet": "10.77.0.5/24"}, "not a valid IPv4 network"),
        ({"hosts": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"hosts": [{"name": "a", "address": "10.78.0.11"}]}, "no host can have"),
        ({"hosts": [{"name": "a", "address": "10.77.0.1"}]}, "no host can have"),
        ({"hosts": [{"name": "a", "gpu": 1}]}, "Extra inputs"),
        ({"hosts": [{"name": "a_b"}]}, "pattern"),
    ],
)
def test_labs_that_cannot_be(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        spec(**fields)


def test_names_of_interfaces_fit_the_kernel() -> None:
    name = "x" * network.MAX_LAB_NAME
    assert len(network.link_name(name, ipaddress.IPv4Address("10.77.0.254"))) <= 15


def test_a_host_on_the_command_line() -> None:
    host = parse_host("spark-01=gb10,gpu_runtime=false,driver=570.86,disk_mb=50")
    assert host == HostSpec(
        name="spark-01", profile="gb10", gpu_runtime=False, driver="570.86", disk_mb=50
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spark-01", "NAME=PROFILE"),
        ("spark-01=", "NAME=PROFILE"),
        ("spark-01=gb10,docker", "NAME=PROFILE"),
        ("spark-01=gb10,dockr=false", "dockr: Extra inputs are not permitted"),
        ("spark-01=gb10,disk_mb=small", "disk_mb: Input should be a valid integer"),
        ("Spark=gb10", "name: String should match pattern"),
    ],
)
def test_a_host_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_host(text)


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        profiles.load("h900")
    assert refused.value.fix == "one of: cpu, gb10, rtx5070ti-x2"


@pytest.mark.parametrize("name", profiles.names())
def test_profiles_are_whole(name: str) -> None:
    profile = profiles.load(name)
    assert (profile.driver is None) == (not profile.gpus)


def test_an_inventory_checks_host_keys() -> None:
    lab = Lab()
    inventory = lab.inventory()["all"]
    assert inventory["hosts"]["lab-01"] == {
        "ansible_host": "10.77.0.11",
        "roost_hardware": "cpu",
    }
    options = inventory["vars"]["ansible_ssh_common_args"]
    assert f"UserKnownHostsFile={lab.state}/ssh/known_hosts" in options
    assert "StrictHostKeyChecking=yes" in options
    assert inventory["vars"]["ansible_user"] == "root"


def deploys(*hosts: HostSpec, **given: Any) -> list[str]:
    spec = LabSpec(**given, **({"hosts": hosts} if hosts else {}))
    return shlex.split(next_command(Lab(spec)))


def test_what_comes_next_names_what_the_inventory_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "USUAL_STATE", tmp_path / "state")
    assert deploys() == ["ansible-playbook", "deploy.yml", "-i", "inventory/lab"]
    state = paths.state_dir("other")
    asked = [
        "ansible-playbook",
        "deploy.yml",
        "-i",
        f"{state}/inventory.yml",
        "-e",
        "roost_recipe=smollm2-135m",
        "-e",
        f"roost_lock_file={state}/roost.lock.yml",
    ]
    assert deploys(name="other") == asked
    cpu, spark, gate = (
        HostSpec(name="desk"),
        HostSpec(name="spark", profile="gb10"),
        HostSpec(name="gate", gateway=True),
    )
    assert deploys(cpu, spark, gate, name="other") == [*asked, "--limit", "desk,gate"]
    assert deploys(spark, gate, name="other") == ["roost", "probe", "-i", f"{state}/inventory.yml"]


def test_another_lab_of_the_usual_name_has_an_inventory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = f"{tmp_path}/state/lab/inventory.yml"
    assert written in deploys()  # kept elsewhere
    monkeypatch.setattr(paths, "USUAL_STATE", tmp_path / "state")
    assert written in deploys(subnet=ipaddress.IPv4Network("10.78.0.0/24"))
    assert written in deploys(HostSpec(name="lab-01"), HostSpec(name="lab-03"))


# -- the controller


def test_a_gateway_stands_before_the_other_hosts() -> None:
    hosts = (HostSpec(name="a"), HostSpec(name="gate", docker=False, gateway=True))
    inventory = Lab(LabSpec(name="unit", hosts=hosts)).inventory()["all"]
    assert inventory["children"] == {"gateways": {"hosts": {"gate": None}}}
    address = inventory["hosts"]["a"]["ansible_host"]
    assert inventory["hosts"]["a"]["roost_gateway"] == "gate"
    assert inventory["hosts"]["a"]["roost_listen"] == address
    assert "roost_gateway" not in inventory["hosts"]["gate"]


def test_without_root_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for arguments in (["up"], ["down"], ["status"]):
        failed = CliRunner().invoke(command, arguments)
        assert isinstance(failed.exception, RoostError)
        assert str(failed.exception).splitlines() == [
            "the lab needs root (namespaces, mounts); run it with sudo"
        ]
        assert failed.output == ""


def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RoostError, match="needs Linux") as refused:
        controller.check_machine()
    assert "\n" not in str(refused.value)


def test_missing_packages_are_named_with_the_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ip").touch(mode=0o755)
    (tmp_path / "ss").touch(mode=0o755)
    with pytest.raises(RoostError) as refused:
        controller.check_tools()
    packages = "docker-registry dpkg-dev mmdebstrap openssh-client skopeo systemd-container umoci"
    assert packages.replace(" ", ", ") in refused.value.what
    assert f"apt-get install {packages} " in refused.value.fix


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that only notes what it is asked and what the policy was; gives the note."""
    note = tmp_path / "note"
    policy = tmp_path / "policy-rc.d"
    fake = tmp_path / "bin" / "apt-get"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {note}\n/bin/cat {policy} >> {note}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    monkeypatch.setattr(controller, "_POLICY", policy)
    monkeypatch.setattr("roost.lab.cgroups.managed_by_systemd", lambda: False)
    return note


def test_installing_starts_no_service(apt: Path) -> None:
    controller.install_tools(lambda _: None)
    asked = apt.read_text()
    assert "install --no-install-recommends docker-registry dpkg-dev iproute2" in asked
    assert asked.count("exit 101") == 2
    assert not (apt.parent / "policy-rc.d").exists()


def test_a_policy_of_the_machine_is_kept(apt: Path) -> None:
    policy = apt.parent / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    controller.install_tools(lambda _: None)
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"


def test_a_failed_install_is_one_message_and_leaves_no_policy(apt: Path) -> None:
    fake = apt.parent / "bin" / "apt-get"
    fake.write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
    with pytest.raises(RoostError, match="`apt-get -qq update` failed") as refused:
        controller.install_tools(lambda _: None)
    assert refused.value.why == "E: Unable to locate package"
    assert not (apt.parent / "policy-rc.d").exists()


def test_a_foreign_interface_and_a_foreign_route_are_conflicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subnet = ipaddress.IPv4Network("10.77.0.0/24")

    def answer(*arguments: str) -> list[dict[str, object]]:
        if "address" in arguments:
            return [
                {"ifname": "rl-lab", "addr_info": [{"local": "10.77.0.1", "prefixlen": 24}]},
                {"ifname": "eth0", "addr_info": [{"local": "192.0.2.2", "prefixlen": 24}]},
            ]
        return [
            {"dst": "default", "dev": "eth0"},
            {"dst": "10.77.0.0/24", "dev": "rl-lab"},
            {"dst": "10.0.0.0/8", "dev": "vpn0"},
        ]

    monkeypatch.setattr(network, "_ip", answer)
    assert network.conflict(subnet, "lab") == "a route to 10.0.0.0/8 goes through vpn0"
    assert network.conflict(ipaddress.IPv4Network("192.0.2.0/24"), "lab") == (
        "interface eth0 has 192.0.2.2/24"
    )
    assert network.conflict(ipaddress.IPv4Network("172.30.0.0/24"), "lab") is None


def test_status_of_a_lab_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shown = CliRunner().invoke(command, ["status", "--json"])
    assert shown.exit_code == 1
    assert '"up": false' in shown.output


@pytest.mark.parametrize(("words", "up"), [([], ""), (["--name", "other"], " --name other")])
def test_a_lab_that_is_down_is_brought_up_by_its_name(
    words: list[str], up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shown = CliRunner().invoke(command, ["status", *words])
    assert f"`roost lab up{up}` brings it up" in shown.output
