"""Host facts from real shapes of output.

Rows and messages are those of public reports about these machines; where one is from a report the
test's id names it as the field cases of the project do (G1 and so on).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.probes import probe_output

from roost import hosts
from roost.errors import RoostError
from roost.onhost import lease
from roost.onhost.store import Store

GB10_ROW = "0, GPU-0000, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"
GB10_MEMINFO = "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB"
RTX_ROW = "{n}, GPU-a{n}, NVIDIA GeForce RTX 5070 Ti, 16303, 9170, 610.47, 12.0"


def test_g1_gb10_has_unified_memory_and_never_zero() -> None:
    facts = hosts.parse(probe_output(gpu=(0, GB10_ROW), meminfo=(0, GB10_MEMINFO)))
    (gpu,) = facts.gpus
    assert (gpu.name, gpu.compute_capability, gpu.driver_major) == ("NVIDIA GB10", "12.1", 580)
    assert gpu.memory_total_mib is None
    assert facts.unified_memory
    assert facts.memory_total_bytes is not None
    assert facts.memory_available_bytes is not None
    assert round(facts.memory_total_bytes / 2**30, 2) == 121.69
    assert round(facts.memory_available_bytes / 2**30, 2) == 113.07


@pytest.mark.parametrize("absent", ["[N/A]", "N/A", "Not Supported", "[Not Supported]"])
def test_g2_every_spelling_of_absent(absent: str) -> None:
    row = f"0, GPU-0, NVIDIA GB10, {absent}, {absent}, 580.95, 12.1"
    facts = hosts.parse(probe_output(gpu=(0, row)))
    assert facts.gpus[0].memory_total_mib is None
    assert facts.gpu_trouble is None


def test_g3_two_cards_are_two_budgets() -> None:
    rows = "\n".join(RTX_ROW.format(n=n) for n in (0, 1))
    facts = hosts.parse(probe_output(gpu=(0, rows)))
    assert [gpu.memory_total_mib for gpu in facts.gpus] == [16303, 16303]
    assert [gpu.memory_free_mib for gpu in facts.gpus] == [9170, 9170]
    assert not facts.unified_memory


@pytest.mark.parametrize(
    ("code", "output", "trouble"),
    [
        (127, "", "missing"),
        (6, "No devices were found", "no_devices"),
        (2, 'Field "compute_cap" is not a valid field to query.', "unreadable"),
        (0, 'Field "compute_cap" is not a valid field to query.', "unreadable"),
        (0, "", "no_devices"),
        (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.",
            "driver_not_loaded",
        ),
        (
            9,
            "NVIDIA-SMI has failed because it couldn\u2019t communicate\r\nwith the NVIDIA driver.",
            "driver_not_loaded",
        ),
        (
            18,
            "Failed to initialize NVML: Driver/library version mismatch\n"
            "NVML library version: 565.57",
            "reboot_required",
        ),
    ],
)
def test_g5_g7_g8_trouble_is_told_apart(code: int, output: str, trouble: str) -> None:
    facts = hosts.parse(probe_output(gpu=(code, output)))
    assert facts.gpu_trouble == trouble
    assert facts.gpus == []


@pytest.mark.parametrize(
    ("code", "output", "installed", "running"),
    [
        (127, "sh: docker: not found", False, False),
        (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", True, False),
        (0, '{"ServerVersion":"20.10.24","Driver":"overlay2","Runtimes":{"runc":{}}}', True, True),
        (0, '{"ServerErrors":["permission denied while trying to connect"]}', True, False),
        (0, "WARNING: something\n" + '{"ServerVersion":"28.2","Driver":"overlay2"}', True, True),
    ],
)
def test_docker(code: int, output: str, installed: bool, running: bool) -> None:
    facts = hosts.parse(probe_output(docker=(code, output)))
    assert facts.docker_installed is installed
    assert (facts.docker is not None) is running


PLAIN = (
    '{"ServerVersion":"28.2.2","Driver":"overlay2","RegistryConfig":{"InsecureRegistryCIDRs":'
    '["127.0.0.0/8"],"IndexConfigs":{"10.0.0.1:5000":{"Name":"10.0.0.1:5000","Mirrors":[],'
    '"Secure":false,"Official":false},"docker.io":{"Name":"docker.io","Mirrors":[],"Secure":true,'
    '"Official":true}}}}'
)


@pytest.mark.parametrize(
    ("sections", "registry", "holds"),
    [
        ({}, None, True),
        ({"docker": (1, "Cannot connect to the Docker daemon")}, None, False),
        ({"docker_unit": (1, "disabled")}, None, False),
        ({"docker_unit": (1, "Failed to get unit file state for docker.service")}, None, False),
        ({"container_modules": (1, "")}, None, False),
        ({"container_modules": (127, "sh: /usr/bin/python3: not found")}, None, False),
        ({}, "10.0.0.1:5000", False),
        ({"docker": (0, PLAIN)}, "10.0.0.1:5000", True),
        ({"docker": (0, PLAIN)}, "docker.io", False),
    ],
)
def test_a_host_for_containers_has_all_that_a_deploy_would_see_to(
    sections: dict[str, tuple[int, str]], registry: str | None, holds: bool
) -> None:
    assert hosts.parse(probe_output(**sections)).holds_containers(registry) is holds


def test_services_as_a_deploy_left_them() -> None:
    facts = hosts.parse(
        probe_output(
            watchdog_at_boot=(0, "enabled"),
            units=(
                0,
                "ab12  /etc/systemd/system/roost-llm.service\n"
                "cd34  /etc/systemd/system/roost-watchdog.service",
            ),
        )
    )
    assert facts.watchdog_at_boot
    assert facts.units == {"roost-llm.service": "ab12", "roost-watchdog.service": "cd34"}
    none = hosts.parse(probe_output(units=(1, "find: '/etc/systemd/system': No such file")))
    assert (none.units, none.watchdog_at_boot) == ({}, False)


def test_gpu_runtime_from_hook_or_from_docker() -> None:
    with_runtime = '{"ServerVersion":"28","Driver":"overlay2","Runtimes":{"nvidia":{},"runc":{}}}'
    assert hosts.parse(probe_output(docker=(0, with_runtime))).gpu_runtime
    assert hosts.parse(probe_output(runtime_hook=(0, "/usr/bin/hook"))).gpu_runtime
    assert not hosts.parse(probe_output()).gpu_runtime


def test_ports_containers_and_disks() -> None:
    facts = hosts.parse(
        probe_output(
            containers=(
                0,
                "roost-llm\t127.0.0.1:8000->8000/tcp\n"
                "other\t0.0.0.0:80->80/tcp, :::80->80/tcp\nidle\t",
            ),
            tcp=(
                0,
                "  sl  local_address rem_address   st\n"
                "   0: 0100007F:1F40 00000000:0000 0A 0 0\n"
                "   1: 0100007F:1F41 0100007F:9C40 01 0 0\n",
            ),
            tcp6=(0, "  sl  local_address\n   0: 00000000000000000000000000000000:0016 0:0 0A\n"),
            disk_models=(
                0,
                "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
                "/dev/nvme0n1p2 983379308 100 51200 51% /var",
            ),
        )
    )
    assert facts.containers == {"roost-llm": [8000], "other": [80], "idle": []}
    assert facts.listening == [22, 8000]
    assert (facts.models_filesystem, facts.models_free_bytes) == ("/var", 51200 * 1024)


@pytest.mark.parametrize(
    ("machine", "architecture"),
    [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")],
)
def test_architecture_as_manifests_spell_it(machine: str, architecture: str) -> None:
    assert hosts.parse(probe_output(machine=(0, machine))).architecture == architecture


def test_cut_off_output_is_refused() -> None:
    whole = probe_output()
    for text in ("", "bash: sh: not found", whole[: whole.index("==> python")]):
        with pytest.raises(RoostError, match="the host probe did not finish"):
            hosts.parse(text)


def test_probe_runs_on_this_machine_and_parses(tmp_path: Path) -> None:
    """The script itself, in the smallest shell there is, on a directory that does not exist."""
    shell = shutil.which("dash") or "sh"
    done = subprocess.run(
        [shell, "-s", "--", str(tmp_path / "not" / "there")],
        input=hosts.probe_script(),
        capture_output=True,
        text=True,
        check=True,
    )
    facts = hosts.parse(done.stdout)
    assert facts.kernel
    assert facts.memory_total_bytes
    assert facts.memory_total_bytes > 2**28
    assert facts.models_free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert not (tmp_path / "not").exists()
    # Of no image that it was not given.
    assert facts.image == {"status": -1}


LEASE = '{"owner": "a1", "who": "ann@desk"}'


@pytest.mark.parametrize(
    ("output", "owner"),
    [
        (f"60\n{LEASE}", "a1"),
        (f"-60\n{LEASE}", "a1"),  # the clock was set back
        (f"86399\n{LEASE}", "a1"),
        (f"86400\n{LEASE}", None),
        (f"-86400\n{LEASE}", None),
        ("60\n", None),
        ("60\n{", None),
        ("60\n[]", None),
        (LEASE, None),
    ],
)
def test_whose_rollout_a_host_takes_part_in(output: str, owner: str | None) -> None:
    found = hosts.parse(probe_output(rollout=(0, output))).rollout
    assert (found and found["owner"]) == owner
    assert hosts.parse(probe_output(rollout=(1, output))).rollout is None
    assert hosts.parse(probe_output()).rollout is None


def test_the_probe_finds_what_a_host_was_leased_by(tmp_path: Path) -> None:
    lease.take(Store(str(tmp_path), str(tmp_path / "run")), json.loads(LEASE))
    script = hosts.probe_script().replace("/var/lib/roost/releases", str(tmp_path))
    shell = re.search(r"^rollout_lease\(\) \{.*?^\}$", script, flags=re.DOTALL | re.MULTILINE)
    assert shell
    done = subprocess.run(
        ["sh"], input=f"{shell[0]}\nrollout_lease", capture_output=True, text=True, check=True
    )
    facts = hosts.parse(probe_output(rollout=(done.returncode, done.stdout)))
    assert facts.rollout
    assert facts.rollout["who"] == "ann@desk"


def test_an_image_that_is_there_is_known_by_its_id_and_labels() -> None:
    said = 'WARNING: a line of Docker\'s\n{"Id":"sha256:9","Config":{"Labels":null},"Size":1}'
    image = hosts.parse(probe_output(image=(0, said))).image
    assert image == {"status": 200, "json": {"Id": "sha256:9", "Config": {"Labels": {}}}}
