"""The preflight: each thing that is wrong is named, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment
from tests.unit.probes import Section, probe_output

from roost import hosts, preflight

GB10: dict[str, Section] = {
    "machine": (0, "aarch64"),
    "gpu": (0, "0, GPU-0, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"),
    "meminfo": (0, "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB"),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
}
RTX: dict[str, Section] = {
    "gpu": (
        0,
        "0, GPU-a, NVIDIA GeForce RTX 5070 Ti, 16303, 16000, 610.47, 12.0\n"
        "1, GPU-b, NVIDIA GeForce RTX 5070 Ti, 16303, 16000, 610.47, 12.0",
    ),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
}
MACHINES: dict[str, dict[str, Section]] = {"gb10": GB10, "rtx5070ti-x2": RTX, "cpu": {}}


def findings(
    folder: Path, hardware: str, variables: dict[str, Any] | None = None, **sections: Section
) -> list[preflight.Finding]:
    facts = hosts.parse(probe_output(**{**MACHINES[hardware], **sections}))
    return preflight.check(facts, deployment(folder, hardware, **(variables or {})))


@pytest.mark.parametrize("hardware", list(MACHINES))
def test_a_right_host_has_no_findings(tmp_path: Path, hardware: str) -> None:
    assert findings(tmp_path, hardware) == []


@pytest.mark.parametrize(
    ("hardware", "sections", "wanted", "saw"),
    [
        (
            "gb10",
            {"gpu": (0, "0, GPU-0, NVIDIA GB10, [N/A], [N/A], 570.86.15, 12.1")},
            "driver",
            "driver 570.86.15",
        ),
        (
            "gb10",
            {"gpu": (0, "0, GPU-0, NVIDIA GB10, [N/A], [N/A], 580.95, 12.0")},
            "compute_capability",
            "NVIDIA GB10 with 12.0",
        ),
        ("gb10", {"gpu": (127, "")}, "gpu", "no nvidia-smi"),
        ("gb10", {"machine": (0, "x86_64")}, "architecture", "x86_64"),
        ("gb10", {"runtime_hook": (1, "")}, "gpu_runtime", "no NVIDIA runtime in Docker"),
        (
            "gb10",
            {"runtime_hook": (1, ""), "docker": (127, "sh: docker: not found")},
            "gpu_runtime",
            "no NVIDIA runtime in Docker",
        ),
        (
            "gb10",
            {"meminfo": (0, "MemTotal:       65000000 kB\nMemAvailable:   60000000 kB")},
            "memory",
            "62.0 GiB MemTotal",
        ),
        (
            "rtx5070ti-x2",
            {"gpu": (0, "0, GPU-a, NVIDIA GeForce RTX 5070 Ti, 16303, 16000, 610.47, 12.0")},
            "gpu_count",
            "1 GPU: NVIDIA GeForce RTX 5070 Ti",
        ),
        (
            "rtx5070ti-x2",
            {
                "gpu": (
                    0,
                    "0, GPU-a, NVIDIA GeForce RTX 5060, 8151, 8000, 610.47, 12.0\n"
                    "1, GPU-b, NVIDIA GeForce RTX 5070 Ti, 16303, 16000, 610.47, 12.0",
                )
            },
            "gpu_memory",
            "8151 MiB on NVIDIA GeForce RTX 5060",
        ),
        (
            "cpu",
            {"docker": (1, "permission denied while trying to connect to the Docker daemon")},
            "docker",
            "permission denied",
        ),
        (
            "cpu",
            {"tcp": (0, "header\n   0: 0100007F:1F40 00000000:0000 0A")},
            "port",
            "port 8000 is taken",
        ),
        (
            "cpu",
            {
                "tcp": (0, "header\n   0: 0100007F:1F40 00000000:0000 0A"),
                "containers": (0, "web\t0.0.0.0:8000->80/tcp"),
            },
            "port",
            "port 8000 is taken by container web",
        ),
        (
            "cpu",
            {"meminfo": (0, "MemTotal:       4000000 kB\nMemAvailable:   2000000 kB")},
            "memory",
            "1.9 GiB MemAvailable",
        ),
        ("cpu", {"machine": (0, "aarch64")}, "image_architecture", "arm64"),
    ],
)
def test_one_fault_is_one_error(
    tmp_path: Path, hardware: str, sections: dict[str, Section], wanted: str, saw: str
) -> None:
    found = findings(tmp_path, hardware, **sections)
    assert [f.id for f in found if f.severity == "error"] == [wanted]
    assert saw in found[0].saw
    assert found[0].why
    assert found[0].fix


def test_our_own_container_may_hold_port_and_memory(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        "cpu",
        tcp=(0, "header\n   0: 0100007F:1F40 00000000:0000 0A"),
        containers=(0, "roost-llm\t127.0.0.1:8000->8000/tcp"),
        meminfo=(0, "MemTotal:       4000000 kB\nMemAvailable:   2000000 kB"),
    )
    assert found == []


def test_docker_that_does_not_run_is_no_obstacle_for_who_deploys(tmp_path: Path) -> None:
    away: Section = (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    (found,) = findings(tmp_path, "cpu", docker=away)
    assert (found.id, found.severity) == ("docker", "warning")
    assert "a deploy starts it" in found.fix


def test_docker_missing_is_installed_or_refused_by_the_site(tmp_path: Path) -> None:
    missing: Section = (127, "sh: docker: not found")
    (allowed,) = findings(tmp_path, "cpu", docker=missing)
    (forbidden,) = findings(tmp_path, "cpu", {"install_docker": False}, docker=missing)
    assert (allowed.severity, forbidden.severity) == ("info", "error")


@pytest.mark.parametrize(
    ("needed", "found"), [(None, []), (20, []), (25, ["docker_version"]), (100, ["docker_version"])]
)
def test_docker_older_than_the_image_s_author_asks_for_is_worth_a_warning(
    tmp_path: Path, needed: int | None, found: list[str]
) -> None:
    wanted = deployment(tmp_path, "cpu")
    needs = wanted.requirements.model_copy(update={"min_docker": needed})
    facts = hosts.parse(probe_output())
    got = preflight.check(facts, wanted.model_copy(update={"requirements": needs}))
    assert [(finding.id, finding.severity) for finding in got] == [(i, "warning") for i in found]
    assert all(finding.saw == "Docker 20.10.24" for finding in got)


def test_errors_come_first(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        "cpu",
        docker=(127, ""),
        tcp=(0, "header\n   0: 0100007F:1F40 00000000:0000 0A"),
    )
    assert [f.severity for f in found] == ["error", "info"]


def _df(mount: str, kilobytes: int) -> Section:
    return (0, f"Filesystem 1024-blocks Used Available\n/dev/x 9 9 {kilobytes} 9% {mount}")


def test_disk_is_counted_per_filesystem() -> None:
    gib = 2**20  # in kilobytes
    one = hosts.parse(probe_output(disk_models=_df("/", 40 * gib), disk_docker=_df("/", 40 * gib)))
    two = hosts.parse(
        probe_output(disk_models=_df("/data", 26 * gib), disk_docker=_df("/", 40 * gib))
    )

    def ids(facts: hosts.HostFacts, weights: int, image: int) -> list[tuple[str, str]]:
        found = preflight.disk(
            facts,
            weights_bytes=weights * 2**30,
            image_bytes=image * 2**30,
            model_dir="/var/lib/roost/models",
        )
        return [(f.severity, f.saw) for f in found]

    # 24 GiB of weights and 8 GiB of packed image (20 unpacked): 44, and one of headroom.
    assert ids(one, 24, 8) == [("error", "40.0 GiB free on /")]
    assert ids(two, 24, 8) == []
    assert ids(two, 26, 8) == [("error", "26.0 GiB free on /data")]
    # Nothing to fetch needs no room, on whatever disk.
    full = hosts.parse(probe_output(disk_models=_df("/", 0), disk_docker=_df("/", 0)))
    assert ids(full, 0, 0) == []


def test_an_image_of_unknown_size_is_a_warning_beside_what_is_known() -> None:
    facts = hosts.parse(probe_output(disk_models=_df("/", 0), disk_docker=_df("/", 0)))
    found = preflight.disk(facts, weights_bytes=2**30, image_bytes=None, model_dir="/m")
    assert [(f.id, f.severity) for f in found] == [("disk", "error"), ("image_size", "warning")]


@pytest.mark.parametrize(
    ("said", "wanted", "severity", "in_check_mode"),
    [
        ("manifest unknown: manifest unknown", "image", "error", "error"),
        ("manifest for x@sha256:1 not found: manifest unknown", "image", "error", "error"),
        (
            "errors: denied: requested access to the resource",
            "registry_login",
            "warning",
            "warning",
        ),
        ("unauthorized: authentication required", "registry_login", "warning", "warning"),
        (
            "x509: certificate signed by unknown authority",
            "registry_tls",
            "error",
            "warning",
        ),
        ("name unknown: repository name not known", "image_repository", "error", "error"),
        ("toomanyrequests: pull rate limit", "registry_rate_limit", "error", "warning"),
        ("something that nobody ever said", "registry_error", "error", "warning"),
        ("dial tcp: lookup x: no such host", "registry_unreachable", "error", "warning"),
        ("Connection failure: timed out", "registry_unreachable", "error", "warning"),
    ],
)
def test_answers_of_a_registry_are_told_apart(
    said: str, wanted: str, severity: str, in_check_mode: str
) -> None:
    found = preflight.registry(said, "r/x@sha256:1", "take another", check_mode=False)
    assert (found.id, found.severity) == (wanted, severity)
    assert preflight.registry(said, "r/x", "", check_mode=True).severity == in_check_mode
    # Another image helps only where this one is gone.
    assert (found.fix == "take another") is (wanted == "image")


def test_unreadable_disk_is_a_warning_not_a_pass() -> None:
    facts = hosts.parse(probe_output(disk_models=(1, "df: no such thing")))
    (found,) = preflight.disk(facts, weights_bytes=1, image_bytes=0, model_dir="/m")
    assert found.severity == "warning"
