"""The doctor: each thing that is wrong is named rightly, and a healthy host has nothing wrong.

Rows and messages are those of public reports about these machines, of an H200 (driver 580.159.04)
and of two; G and D number the project's field cases.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.deployments import deployment
from tests.unit.probes import Section, probe_output

from roost import doctor, doctor_cli, hosts
from roost.doctor import Check, Skew
from roost.errors import RoostError, UsageError
from roost.hosts import HostFacts

GB10_MEMINFO = (
    "MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {available} kB\n"
    "SwapTotal: 16777212 kB\nSwapFree: {swap} kB"
)


def meminfo(
    total: int = 127600748, free: int = 109051904, available: int = 118566368, swap: int = 16777212
) -> Section:
    text = GB10_MEMINFO.format(total=total, free=free, available=available, swap=swap)
    # As the kernel aligns it.
    return 0, text.replace(": ", ":       ")


GB10: dict[str, Section] = {
    "machine": (0, "aarch64"),
    "gpu": (0, "0, GPU-0000, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"),
    "gpu_state": (0, "0, P0, 2411, 3003, 61.20, [N/A], 64, 96, 0x0000000000000000"),
    "driver_module": (0, "580.173.02"),
    "toolkit": (0, "NVIDIA Container Toolkit CLI version 1.19.0\ncommit: abc"),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
    "cdi": (0, "/var/run/cdi/nvidia.yaml 580.173.02"),
    "meminfo": meminfo(),
}
CARD = "{n}, GPU-a{n}, NVIDIA GeForce RTX 5070 Ti, 16303, 16291, 610.47, 12.0"
CARDS: dict[str, Section] = {
    "gpu": (0, "\n".join(CARD.format(n=n) for n in (0, 1))),
    "gpu_state": (
        0,
        "0, P8, 180, 3090, 11.20, 300.00, 34, 0, 0x0000000000000001\n"
        "1, P8, 180, 3090, 10.80, 300.00, 33, 0, 0x0000000000000001",
    ),
    "gpu_peers": (0, " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n\nLegend:\n"),
    "driver_module": (0, "610.47"),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
}
TWO_H200: dict[str, Section] = {
    "gpu": (
        0,
        "0, GPU-0, NVIDIA H200, 143771, 143156, 580.159.04, 9.0\n"
        "1, GPU-1, NVIDIA H200, 143771, 143156, 580.159.04, 9.0",
    ),
    "gpu_state": (
        0,
        "0, P0, 345, 1980, 92.70, 700.00, 37, 0, 0x0000000000000001\n"
        "1, P0, 345, 1980, 78.66, 700.00, 36, 0, 0x0000000000000001",
    ),
    "gpu_peers": (0, " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n"),
    "driver_module": (0, "580.159.04"),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
}
MISMATCH = (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library: 565.57")
NOT_LOADED = (
    9,
    "NVIDIA-SMI has failed because it couldn\u2019t communicate\r\nwith the NVIDIA driver.",
)
EMPTY_DOCUMENT = '{"ID":"","ServerVersion":"","Driver":""}\n'
DENIED = EMPTY_DOCUMENT + (
    "permission denied while trying to connect to the Docker daemon socket at "
    "unix:///var/run/docker.sock"
)


SHM = "/dev/shm"  # noqa: S108 - a mount point, and nothing is written


def docker(driver: str = "overlay2", root: str = "/var/lib/docker") -> Section:
    runtimes: dict[str, object] = {"runc": {}}
    info = {"ServerVersion": "28.3", "Driver": driver, "Runtimes": runtimes, "DockerRootDir": root}
    return 0, json.dumps(info)


def df(free_kib: int, mount: str) -> Section:
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on"
    return 0, f"{head}\n/dev/vda 104857600 9 {free_kib} 9% {mount}"


def facts(**sections: Section) -> HostFacts:
    return hosts.parse(probe_output(**sections))


def bad(checks: list[Check]) -> dict[str, str]:
    """What fails or warns, by id."""
    return {check.id: check.severity for check in checks if check.severity in {"fail", "warn"}}


def one(name: str, machine: dict[str, Section], **sections: Section) -> Check:
    checks = doctor.examine(facts(**{**machine, **sections}))
    (found,) = [check for check in checks if check.id == name]
    return found


# -- healthy


@pytest.mark.parametrize("machine", [{}, GB10, CARDS, TWO_H200])
def test_nothing_is_wrong_with_a_healthy_host(machine: dict[str, Section]) -> None:
    checks = doctor.examine(facts(**machine), skew=Skew(0.01, 0.005))
    assert bad(checks) == {}
    assert {check.id for check in checks} >= {"gpu", "docker", "memory", "disk", "kernel", "clock"}


@pytest.mark.parametrize("machine", ["gb10", "rtx5070ti-x2", "cpu"])
def test_a_host_is_fit_for_its_deployment(tmp_path: Path, machine: str) -> None:
    sections = {"gb10": GB10, "rtx5070ti-x2": CARDS, "cpu": {}}[machine]
    checks = doctor.examine(facts(**sections), deployment=deployment(tmp_path, machine))
    assert bad(checks) == {}
    (found,) = [check for check in checks if check.id == "deployment"]
    assert found.saw.endswith(f"as {machine}")


# -- one thing wrong at a time


@pytest.mark.parametrize(
    ("machine", "sections", "wanted"),
    [
        # G7, G8, G5: what nvidia-smi says where it has no table.
        (GB10, {"gpu": MISMATCH}, ("gpu", "fail", "sudo reboot")),
        (GB10, {"gpu": NOT_LOADED}, ("gpu", "fail", "dkms status")),
        (GB10, {"gpu": (6, "No devices were found")}, ("gpu", "fail", "lspci")),
        (
            GB10,
            {"gpu": (2, 'Field "compute_cap" is not a valid field to query.')},
            ("gpu", "fail", "nvidia-smi --help-query-gpu"),
        ),
        (GB10, {"gpu": (127, "")}, ("gpu", "fail", "install the NVIDIA driver")),
        # Clocks: a starved GB10, one whose clocks were set, a hot card, a weak supply.
        (
            GB10,
            {"gpu_state": (0, "0, P0, 513, 3003, 14.05, [N/A], 41, 96, 0x0000000000000000")},
            ("gpu_clocks", "fail", "power supply off"),
        ),
        (
            GB10,
            {"gpu_state": (0, "0, P0, 850, 3003, 18.00, [N/A], 41, 94, Not Active")},
            ("gpu_clocks", "fail", "power supply off"),
        ),
        (
            GB10,
            {"gpu_state": (0, "0, P0, 600, 3003, 20.00, [N/A], 41, 94, 0x0000000000000002")},
            ("gpu_clocks", "fail", "sudo nvidia-smi -rgc; sudo nvidia-smi -rac"),
        ),
        (
            GB10,
            {"gpu_state": (0, "0, P0, 1800, 3003, 60.00, [N/A], 92, 96, 0x0000000000000020")},
            ("gpu_clocks", "warn", "fans"),
        ),
        (
            GB10,
            {"gpu_state": (0, "0, P0, 300, 3003, 9.00, [N/A], 40, 96, 0x0000000000000088")},
            ("gpu_clocks", "warn", "supply and its cables"),
        ),
        # D1, D2: the toolkit missing, installed but unconfigured, a stale specification.
        (
            GB10,
            {"runtime_hook": (1, ""), "toolkit": (127, "not found")},
            ("gpu_runtime", "fail", "install nvidia-container-toolkit"),
        ),
        (GB10, {"runtime_hook": (1, "")}, ("gpu_runtime", "fail", "nvidia-ctk runtime configure")),
        (
            GB10,
            {
                "cdi": (0, "/etc/cdi/nvidia.yaml 570.86.15"),
                "runtime_hook": (0, "/etc/cdi/nvidia.yaml"),
            },
            ("cdi", "fail", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        ),
        (
            GB10,
            {"cdi": (0, "/var/run/cdi/nvidia.yaml 570.86.15\n/etc/cdi/more.yaml 580.173.02")},
            ("cdi", "warn", "sudo systemctl restart nvidia-cdi-refresh.service"),
        ),
        # D10: who asks may not.
        (
            {},
            {"docker": (1, DENIED), "docker_group": (0, "ops\nops\ndocker:x:998:")},
            ("docker_group", "warn", "sudo usermod -aG docker ops"),
        ),
        (
            {},
            {"docker": (1, DENIED), "docker_group": (0, "ops\nops\ndocker:x:998:mia,ops")},
            ("docker_group", "warn", "ssh -O exit"),
        ),
        (
            {},
            {"docker": (1, EMPTY_DOCUMENT + "Cannot connect to the Docker daemon.")},
            ("docker", "fail", "systemctl start docker"),
        ),
        ({}, {"docker": docker("vfs")}, ("docker", "warn", "storage-driver")),
        (
            GB10,
            {"docker": docker(root="/var/snap/docker/common/var-lib-docker")},
            ("docker_snap", "fail", "snap remove docker"),
        ),
        # Memory.
        (GB10, {"meminfo": meminfo(available=3000000, free=2900000)}, ("memory", "warn", "lower")),
        (GB10, {"meminfo": meminfo(swap=9000000)}, ("swap", "warn", "swapoff")),
        (
            GB10,
            {"meminfo": meminfo(free=60000000)},
            ("page_cache", "warn", "/proc/sys/vm/drop_caches"),
        ),
        # File systems.
        ({}, {"disk_models": df(9, "/data")}, ("disk", "fail", "du -xh --max-depth=2 /data")),
        ({}, {"disk_docker": df(9 * 2**20, "/d")}, ("disk", "warn", "docker system df")),
        ({}, {"disk_root": df(9 * 2**10, "/")}, ("disk", "fail", "docker system df")),
        ({}, {"shared_memory": df(65536, SHM)}, ("shared_memory", "warn", "remount")),
        (
            {},
            {"daemon_limits": (0, "Max open files            1024      1024      files")},
            ("open_files", "warn", "LimitNOFILE"),
        ),
        # The system.
        (GB10, {"kernel": (0, "7.0.0-1019-nvidia")}, ("kernel", "warn", "6.17.0-1032-nvidia")),
        ({}, {"shared_memory_owners": (0, "0\n1000")}, ("remove_ipc", "warn", "RemoveIPC=no")),
        (
            {},
            {"interfaces": (0, "eth0 up 1400\ndocker0 down 1500")},
            ("network", "warn", '"mtu": 1400'),
        ),
    ],
)
def test_what_is_wrong(
    machine: dict[str, Section], sections: dict[str, Section], wanted: tuple[str, str, str]
) -> None:
    everything = {**machine, **sections}
    if "disk_root" in sections:
        everything |= dict.fromkeys(("disk_models", "disk_docker"), sections["disk_root"])
    checks = doctor.examine(facts(**everything))
    name, severity, fix = wanted
    assert bad(checks) == {name: severity}
    found = checks[0]
    assert fix in found.fix
    assert found.saw
    assert found.wants
    assert found.why


def test_cards_without_a_path_between_them_need_nccl_to_know(tmp_path: Path) -> None:
    wanted = deployment(tmp_path, "rtx5070ti-x2")
    assert wanted.spec.env["NCCL_P2P_DISABLE"] == "1"
    env = {name: value for name, value in wanted.spec.env.items() if name != "NCCL_P2P_DISABLE"}
    unaware = wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"env": env})})
    assert bad(doctor.examine(facts(**CARDS), deployment=unaware)) == {"nccl": "warn"}
    # Where nvidia-smi cannot tell, consumer cards are taken for what they are.
    silent = {**CARDS, "gpu_peers": (2, "unknown option")}
    assert bad(doctor.examine(facts(**silent), deployment=unaware)) == {"nccl": "warn"}
    assert one("nccl", CARDS).severity == "unknown"
    assert one("nccl", TWO_H200).severity == "ok"


@pytest.mark.parametrize(
    ("seconds", "uncertainty", "severity"),
    [(0.2, 0.1, "ok"), (-30, 0.1, "warn"), (3600, 0.1, "fail"), (8, 4, "ok"), (-86400, 1, "fail")],
)
def test_a_clock_is_judged_by_what_is_certain(
    seconds: float, uncertainty: float, severity: str
) -> None:
    checks = doctor.examine(facts(), skew=Skew(seconds, uncertainty))
    (clock,) = [check for check in checks if check.id == "clock"]
    assert clock.severity == severity
    assert ("ahead" if seconds > 0 else "behind") in clock.saw


def test_uplinks_of_one_fleet_have_one_mtu() -> None:
    jumbo = facts(interfaces=(0, "eth0 up 9000\nlo unknown 65536"))
    assert doctor.between({"a": facts(), "b": facts()}) == []
    (found,) = doctor.between({"a": facts(), "b": jumbo, "c": jumbo})
    assert found.saw == "1500 on a; 9000 on b, c"


def test_page_cache_of_a_serving_engine_is_no_matter() -> None:
    serving: Section = (0, "roost-llm\t127.0.0.1:8000->8000/tcp")
    cached = meminfo(free=60000000)
    assert one("page_cache", GB10, meminfo=cached, containers=serving).severity == "ok"


# -- a deployment


def test_what_the_preflight_says_is_said_once(tmp_path: Path) -> None:
    wanted = deployment(tmp_path, "gb10")
    assert bad(doctor.examine(facts(**CARDS), deployment=wanted)).keys() >= {"architecture"}
    none = facts(machine=(0, "aarch64"))
    checks = doctor.examine(none, deployment=wanted)
    (gpu,) = [check for check in checks if check.id == "gpu"]
    assert (gpu.severity, gpu.wants) == ("fail", "1 x NVIDIA GB10")
    # Who asks may not use Docker; who deploys may.
    denied = facts(**{**GB10, "docker": (1, DENIED)})
    assert "docker" not in bad(doctor.examine(denied, deployment=wanted))
    # Who deploys starts it; who asks is told that it does not run.
    away = facts(docker=(1, EMPTY_DOCUMENT + "Cannot connect to the Docker daemon."))
    assert bad(doctor.examine(away, deployment=wanted))["docker"] == "fail"


def test_a_deployment_that_cannot_be_resolved_is_not_the_hosts_fault() -> None:
    checks = doctor.examine(facts(), deployment=RoostError("not pinned", why="w", fix="roost lock"))
    assert bad(checks) == {}
    (found,) = [check for check in checks if check.id == "deployment"]
    assert (found.severity, found.saw, found.fix) == ("unknown", "not pinned", "roost lock")


# -- what was not seen

NEW = ("disk_root", "gpu_state", "gpu_peers", "driver_module", "toolkit", "cdi", "docker_group")
NEW += ("daemon_limits", "shared_memory", "shared_memory_owners", "remove_ipc", "time_sync")
NEW += ("interfaces", "routes")


@pytest.mark.parametrize("machine", [GB10, CARDS, TWO_H200])
@pytest.mark.parametrize("content", [(1, "sh: not found"), (0, ""), (0, "\x00 %&! 7 garbage")])
def test_what_cannot_be_read_is_unknown_and_never_wrong(
    machine: dict[str, Section], content: Section
) -> None:
    checks = doctor.examine(facts(**{**machine, **dict.fromkeys(NEW, content)}))
    assert bad(checks) == {}
    unknown = {check.id for check in checks if check.severity == "unknown"}
    assert unknown >= {"gpu_clocks", "disk", "shared_memory", "open_files", "network", "clock"}


def test_facts_of_an_older_probe_are_facts_still() -> None:
    text = probe_output(**GB10)
    for name in NEW:
        start = text.index(f"==> {name} ")
        text = text[:start] + text[text.index("==> ", start + 4) :]
    assert bad(doctor.examine(hosts.parse(text))) == {}
    old = hosts.parse(text).model_dump(mode="json")
    del old["condition"]
    assert HostFacts.model_validate(old).condition.gpus is None


@pytest.mark.parametrize("absent", ["[N/A]", "N/A", "Not Supported", "[Not Supported]"])
def test_g2_every_spelling_of_absent(absent: str) -> None:
    row = ", ".join(["0", *[absent] * 8])
    found = one("gpu_clocks", GB10, gpu_state=(0, row))
    assert (found.severity, found.saw) == (
        "unknown",
        "GPU 0: nothing reported: nvidia-smi does not report enough",
    )


@pytest.mark.parametrize(
    ("held", "unit", "ago", "severity", "saw"),
    [
        (None, 0, None, "ok", "nothing for a day"),
        (None, 0, 90_000, "ok", "nothing for a day"),
        (None, 0, 3600, "warn", "1 events in a day, the last: it has ended"),
        (None, 3, None, "warn", "the watchdog does not run"),
        ("900 MiB were available", 0, 60, "fail", "the engine was stopped: 900 MiB"),
    ],
)
def test_what_the_watchdog_has_seen(
    held: str | None, unit: int, ago: int | None, severity: str, saw: str
) -> None:
    def at(seconds: int) -> str:
        moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    events = [{"at": at(ago), "what": "ended", "said": "it has ended"}] if ago else []
    state = {"floor_mib": 0, "held": held and {"said": held}, "events": events}
    active = (unit, "inactive" if unit else "active")
    facts = hosts.parse(probe_output(watchdog=(0, json.dumps(state)), watchdog_unit=active))
    (check,) = [check for check in doctor.examine(facts) if check.id == "watchdog"]
    assert check.severity == severity
    assert check.saw.startswith(saw)
    assert bool(check.fix) == (severity != "ok")


@pytest.mark.parametrize("state", ["", "{", "{}", "[]", '{"floor_mib": "x", "held": 1}'])
def test_a_watchdog_that_is_not_there_or_not_understood_is_no_check(state: str) -> None:
    facts = hosts.parse(probe_output(watchdog=(0, state)))
    assert not [check for check in doctor.examine(facts) if check.id == "watchdog"]


def test_idle_clocks_prove_nothing() -> None:
    found = one("gpu_clocks", GB10, gpu_state=(0, "0, P8, 208, 3003, 3.00, [N/A], 36, 0, 0x1"))
    assert (found.severity, found.fix) == ("unknown", "ask again while it serves")


def test_a_driver_of_which_only_the_module_is_left_is_no_cpu_machine() -> None:
    found = one("gpu", {}, driver_module=(0, "580.95"))
    assert (found.severity, "loaded kernel module: 580.95" in found.saw) == ("fail", True)


@pytest.mark.parametrize("said", ["/etc/cdi/nvidia.yaml ", "grep: /etc/cdi/nvidia.yaml: denied"])
def test_a_specification_that_names_no_driver_is_neither_good_nor_bad(said: str) -> None:
    assert one("cdi", GB10, cdi=(0, said)).severity == "unknown"


def test_a_toolkit_without_docker_is_told_from_none() -> None:
    hook: Section = (1, "")
    assert "1.19.0 is installed" in one("gpu_runtime", GB10, runtime_hook=hook).saw
    none = one("gpu_runtime", GB10, runtime_hook=hook, toolkit=(127, "not found"))
    assert none.saw == "no NVIDIA runtime in Docker"


def test_docker_is_quoted_without_the_document_it_prints_beside_its_error() -> None:
    said = EMPTY_DOCUMENT + "Cannot connect to the Docker daemon."
    assert one("docker", {}, docker=(1, said)).saw == "Cannot connect to the Docker daemon."


# -- the probe's new questions


def test_specifications_are_read_for_the_driver_they_name(tmp_path: Path) -> None:
    """The probe's own shell, with its directories put below a temporary one."""
    cdi = tmp_path / "etc" / "cdi"
    cdi.mkdir(parents=True)
    library = "hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so"
    (cdi / "nvidia.yaml").write_text(
        f"kind: nvidia.com/gpu\n- {library}.570.86.15\n- {library}.1\n- {library}.570.86.15\n"
    )
    (cdi / "other.yaml").write_text("kind: vendor.com/nic\n")
    (cdi / "empty.json").write_text('{"kind": "nvidia.com/gpu"}')
    script = hosts.probe_script().replace("/etc/cdi/", f"{cdi}/").replace("/var/run/cdi/", "/none/")
    done = subprocess.run(
        [shutil.which("dash") or "sh", "-s", "--", str(tmp_path)],
        input=script,
        capture_output=True,
        text=True,
        check=True,
    )
    specs = hosts.parse(done.stdout).condition.cdi
    assert specs is not None
    assert {Path(spec.path).name: spec.driver for spec in specs} == {
        "nvidia.yaml": "570.86.15",
        "empty.json": None,
    }


# -- the command


def run(*words: str) -> Any:
    return CliRunner().invoke(doctor_cli.doctor, list(words))


@pytest.fixture
def listing(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text(
        "all: {hosts: {here: {ansible_connection: local}, "
        "gone: {ansible_host: 127.0.0.1, ansible_port: 9}}}\n"
    )
    return str(path)


def test_a_lost_host_stops_nobody_and_lines_fit_a_terminal(listing: str) -> None:
    done = run("-i", listing)
    assert isinstance(done.exception, RoostError)
    assert str(done.exception) == "1 of 2 not examined: gone"
    assert "not examined: gone (127.0.0.1:9): cannot connect" in done.output
    here = done.output[done.output.index("\nhere\n") :]
    severities = [
        line.split()[0] for line in here.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    order = ["fail", "warn", "unknown", "ok"]
    assert [order.index(word) for word in severities] == sorted(map(order.index, severities))
    assert max(map(len, here.splitlines())) <= 80


def test_json_has_every_key(listing: str) -> None:
    done = run("-i", listing, "--limit", "here", "--json")
    report = json.loads(done.output)
    (row,) = report["hosts"]
    assert (row["host"], row["error"], report["between_hosts"]) == ("here", None, [])
    assert {tuple(check) for check in row["checks"]} == {
        ("id", "severity", "saw", "wants", "why", "fix")
    }
    failed = any(check["severity"] == "fail" for check in row["checks"])
    assert done.exit_code == (1 if failed else 0)


def test_a_limit_needs_an_inventory() -> None:
    assert isinstance(run("--limit", "here", "desk").exception, UsageError)
