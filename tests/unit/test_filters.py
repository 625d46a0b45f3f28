"""The filters between the package and the roles."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from tests.unit.deployments import DRAFTER, ORNITH, WEIGHTS, deployment, write_lock
from tests.unit.plugins import load
from tests.unit.probes import Section, probe_output

from roost.errors import UsageError
from roost.plan.reading import NotReadError

filters = load("filter", "roost")

PRESENT: dict[str, Any] = {"changed": False, "present": True, "bytes": 0}
IMAGE_ABSENT = (1, "Error response from daemon: No such image: of/it@sha256:1")
IMAGE_ID = "sha256:" + "9" * 64
NOT_ASKED = {"skipped": True}


def given(folder: Path, hardware: str = "cpu", **variables: Any) -> dict[str, Any]:
    return deployment(folder, hardware, **variables).model_dump(mode="json")


def findings(
    wanted: dict[str, Any],
    *,
    probe: str | None = None,
    snapshots: list[dict[str, Any]] | None = None,
    image: Section | None = None,
    registry: dict[str, Any] = NOT_ASKED,
    check_mode: bool = False,
) -> dict[str, Any]:
    found: dict[str, Any] = filters.roost_preflight(
        wanted,
        probe or probe_output(**({"image": image} if image else {})),
        snapshots or [PRESENT, PRESENT],
        registry,
        check_mode,
    )
    return found


def test_a_resolved_deployment_is_plain_json(tmp_path: Path) -> None:
    write_lock(tmp_path / "roost.lock.yml")
    resolved = filters.roost_resolve(
        {"roost_hardware": "gb10", "roost_recipe": ORNITH, "ansible_host": "x"},
        "spark-01",
        str(tmp_path),
    )
    assert resolved["refusal"] is None
    assert json.loads(json.dumps(resolved["deployment"])) == resolved["deployment"]
    assert resolved["deployment"]["host"] == "spark-01"


def test_a_mistake_in_the_inventory_is_a_refusal_and_no_exception(tmp_path: Path) -> None:
    resolved = filters.roost_resolve({"roost_hardwear": "cpu"}, "spark-01", str(tmp_path))
    assert resolved["deployment"] is None
    assert "did you mean roost_hardware?" in resolved["refusal"]


def test_a_healthy_host_has_nothing_said_against_it(tmp_path: Path) -> None:
    found = findings(given(tmp_path))
    assert (found["errors"], found["remarks"]) == ("", "")
    assert found["plan"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("snapshots", "image", "lacks"),
    [
        ([PRESENT, PRESENT], None, (False, False)),
        ([PRESENT, {"present": False, "bytes": 1}], None, (True, False)),
        # What could not be asked for is not known to be there.
        ([PRESENT, {"failed": True, "msg": "MODULE FAILURE"}], None, (True, False)),
        ([PRESENT, PRESENT], IMAGE_ABSENT, (False, True)),
        # The daemon's socket: no image was asked for.
        ([PRESENT, PRESENT], (1, "docker.sock: no such file or directory"), (False, True)),
        ([PRESENT, PRESENT], (0, "[]"), (False, True)),
    ],
)
def test_what_the_host_lacks_is_what_was_not_seen_on_it(
    tmp_path: Path,
    snapshots: list[dict[str, Any]],
    image: Section | None,
    lacks: tuple[bool, bool],
) -> None:
    found = findings(given(tmp_path), snapshots=snapshots, image=image)
    assert tuple(found["lacks"][name] for name in ("weights", "image")) == lacks


def test_services_are_those_that_the_probe_saw(tmp_path: Path) -> None:
    found = findings(given(tmp_path))["services"]
    assert found == {"units": {}, "program": {}, "watchdog_at_boot": False, "watchdog_runs": False}


@pytest.mark.parametrize(
    ("mirror", "plain"),
    [(None, None), ("https://10.0.0.1:5000", None), ("http://10.0.0.1:5000", "10.0.0.1:5000")],
)
def test_a_registry_without_tls_that_docker_does_not_know_is_something_to_do(
    tmp_path: Path, mirror: str | None, plain: str | None
) -> None:
    found = findings(given(tmp_path, **({"registry_mirror": mirror} if mirror else {})))
    assert found["lacks"]["containers"] is (plain is not None)
    assert found["plain_registry"] == plain


def test_what_the_doctor_fails_is_worth_knowing_and_no_reason_to_refuse(tmp_path: Path) -> None:
    head = "Filesystem 1K-blocks Used Available Capacity Mounted\n"
    disks = {"disk_models": 10**8, "disk_docker": 10**8, "disk_root": 9}
    # A check that only warns is left to `roost doctor`.
    slow = (0, '{"ServerVersion":"20.10.24","Driver":"vfs","Runtimes":{"runc":{}}}')
    probe = probe_output(
        docker=slow,
        **{
            name: (0, f"{head}/dev/x 99999999 1 {free} 1% {'/' if free == 9 else '/data'}")
            for name, free in disks.items()
        },
    )
    found = findings(given(tmp_path), probe=probe)
    assert found["errors"] == ""
    disk = (
        "doctor: disk: saw 9.0 KiB free on / (system); wants at least 1.0 GiB free\n  why: a full"
    )
    assert found["remarks"].startswith(disk)
    assert "\n  fix: docker system df" in found["remarks"]
    assert "doctor" not in found["remarks"].removeprefix("doctor")
    # What the preflight has said is not said again.
    full = probe_output(disk_models=(0, f"{head}/dev/x 99999999 1 9 1% /data"))
    hub = {"changed": True, "present": False, "bytes": 10**9}
    found = findings(given(tmp_path), probe=full, snapshots=[hub, PRESENT])
    assert "disk: saw" in found["errors"]
    assert "doctor: disk" not in found["remarks"]


def test_an_image_that_docker_cannot_be_asked_for_is_not_counted_again(tmp_path: Path) -> None:
    away = (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    tight = "Filesystem 1K-blocks Used Available Capacity Mounted\n/dev/x 9999999 1 1500000 1% /"
    probe = probe_output(
        docker=away,
        containers=away,
        image=away,
        disk_models=(0, tight),
        disk_docker=(0, tight),
    )
    found = findings(given(tmp_path), probe=probe)
    assert found["errors"] == ""
    assert found["remarks"].startswith("warning: docker: saw Cannot connect")
    absent = probe_output(disk_models=(0, tight), disk_docker=(0, tight), image=IMAGE_ABSENT)
    assert "disk: saw" in findings(given(tmp_path), probe=absent)["errors"]


def test_every_error_is_listed(tmp_path: Path) -> None:
    down = {"reason": "network", "msg": "x on y: the hub cannot be reached. Check y."}
    found = findings(
        given(tmp_path),
        probe=probe_output(docker=(1, "permission denied on the socket"), containers=(1, "")),
        snapshots=[PRESENT, down],
    )
    assert "docker: saw permission denied" in found["errors"]
    assert "network: saw x on y: the hub cannot be reached" in found["errors"]
    assert "fix: Check y." in found["errors"]


def test_a_cut_off_probe_is_an_error(tmp_path: Path) -> None:
    assert "did not finish" in findings(given(tmp_path), probe="==> machine 0\n")["errors"]


def _df(free_bytes: int) -> tuple[int, str]:
    return 0, f"Filesystem 1024-blocks Used Available Capacity\n/dev/x 9 9 {free_bytes >> 10} 9% /"


@pytest.mark.parametrize("present", [True, False])
def test_only_what_is_missing_has_to_fit_on_the_disk(tmp_path: Path, present: bool) -> None:
    wanted = given(tmp_path)
    missing = {"changed": False, "present": False, "bytes": 300_000_000}
    free = _df(1200 * 2**20)
    found = findings(
        wanted,
        probe=probe_output(disk_models=free, disk_docker=free),
        snapshots=[PRESENT if present else missing, PRESENT],
    )
    assert ("disk: saw" in found["errors"]) is not present


def test_weights_that_the_hub_cannot_size_count_as_the_lock_says(tmp_path: Path) -> None:
    wanted = given(tmp_path, "gb10")
    down = {"reason": "hub_unreachable", "msg": "the hub cannot be reached. Check."}
    free = _df(WEIGHTS)
    found = findings(
        wanted, probe=probe_output(disk_models=free, disk_docker=free), snapshots=[down, down]
    )
    assert f"{(WEIGHTS + DRAFTER) / 2**30:.1f} GiB" in found["errors"]


@pytest.mark.parametrize(
    ("message", "severity", "in_check_mode"),
    [
        ("manifest unknown: manifest unknown", "errors", "errors"),
        ("Get https://x/v2/: dial tcp: connection refused", "errors", "remarks"),
    ],
)
def test_a_missing_digest_and_a_registry_that_is_down_are_told_apart(
    tmp_path: Path, message: str, severity: str, in_check_mode: str
) -> None:
    wanted = given(tmp_path)
    registry = {"status": 404, "json": {"message": message}}
    for check_mode, where in ((False, severity), (True, in_check_mode)):
        found = findings(wanted, image=IMAGE_ABSENT, registry=registry, check_mode=check_mode)
        assert message in found[where]
        assert [name for name in ("errors", "remarks") if found[name]] == [where]


@pytest.mark.parametrize(("machine", "refused"), [("x86_64", False), ("aarch64", True)])
def test_an_image_for_other_machines_is_refused_though_the_lock_does_not_know(
    tmp_path: Path, machine: str, refused: bool
) -> None:
    wanted = given(tmp_path)
    wanted["requirements"] |= {"image_bytes": {}, "architecture": None}
    # As dockerd 20.10 answers about an image of one architecture, and with a list's attestation.
    platforms = [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "unknown", "os": "unknown"},
        {"architecture": "arm64", "os": "windows"},
    ]
    registry = {"status": 200, "json": {"Platforms": platforms}}
    probe = probe_output(machine=(0, machine))
    found = findings(wanted, probe=probe, image=IMAGE_ABSENT, registry=registry)
    assert ("image_architecture: saw arm64; wants one of amd64\n" in found["errors"]) is refused


@pytest.mark.parametrize(("mirror", "refused"), [("http://m:5000", False), ("m:5000", True)])
def test_a_registry_without_tls_is_arranged_with_docker_later(
    tmp_path: Path, mirror: str, refused: bool
) -> None:
    wanted = given(tmp_path, registry_mirror=mirror)
    said = "Get https://m:5000/v2/: http: server gave HTTP response to HTTPS client"
    found = findings(wanted, image=IMAGE_ABSENT, registry={"status": 500, "msg": said})
    assert (said in found["errors"]) is refused


def test_a_built_image_that_is_not_on_the_host_is_no_matter_of_a_registry(tmp_path: Path) -> None:
    wanted = given(tmp_path)
    wanted["spec"]["build"] = "docker build https://example.org/x"
    wanted["other_images"] = "build it on the host: docker build https://example.org/x"
    denied = {"status": 500, "json": {"message": "pull access denied"}}
    found = findings(wanted, image=IMAGE_ABSENT, registry=denied)
    assert "fix: build it on the host: docker build" in found["errors"]
    assert "denied" not in found["errors"] + found["remarks"]


@pytest.mark.parametrize(
    ("labels", "allowed", "refused"),
    [
        ({"roost.build": "a" * 64}, False, False),
        ({"roost.build": "b" * 64}, False, True),
        ({}, False, True),
        (None, False, True),
        (None, True, False),
    ],
)
def test_a_built_image_must_say_that_it_is_the_build_of_the_recipe(
    tmp_path: Path, labels: dict[str, str] | None, allowed: bool, refused: bool
) -> None:
    wanted = built(tmp_path, allow_unlocked=allowed)
    image = json.dumps({"Id": IMAGE_ID, "Config": {"Labels": labels}})
    found = findings(wanted, image=(0, image), registry={"skipped": True})
    assert ("built from something else" in found["errors"]) == refused
    assert bool(found["errors"]) == refused


def test_docker_that_does_not_run_cannot_be_asked_for_a_built_image(tmp_path: Path) -> None:
    away = (1, "Cannot connect to the Docker daemon")
    probe = probe_output(docker=away, containers=away, image=away)
    found = findings(built(tmp_path), probe=probe)
    assert "Docker does not run, and cannot be asked for" in found["errors"]
    missing = probe_output(docker=(127, ""), containers=(127, ""), image=(127, ""))
    found = findings(built(tmp_path), probe=missing)
    assert "no image" in found["errors"]
    assert "cannot be asked" not in found["errors"]


def test_what_runs_of_a_built_image_is_its_id(tmp_path: Path) -> None:
    wanted = built(tmp_path)
    image = {"status": 200, "json": {"Id": IMAGE_ID}}
    pinned = filters.roost_pinned(wanted, image)
    assert pinned["spec"]["image"] == IMAGE_ID
    assert IMAGE_ID in pinned["docker_command"]
    assert pinned["gate"]["output_key"] != wanted["gate"]["output_key"]
    release, other = filters.roost_release(pinned), filters.roost_release(wanted)
    assert release["files"]["release.json"]["spec"]["image"] == IMAGE_ID
    assert release["id"] != other["id"]
    # Not there yet, or published: nothing to pin.
    assert filters.roost_pinned(wanted, {"status": 404}) == wanted
    published = given(tmp_path)
    assert filters.roost_pinned(published, image) == published


def built(folder: Path, **changes: Any) -> dict[str, Any]:
    """The deployment of an image that the host builds."""
    wanted = {**given(folder), **changes}
    wanted["spec"]["build"] = "docker build https://example.org/x"
    wanted["build"] = {
        "name": "localhost/x:1",
        "digest": "a" * 64,
        "git": "https://example.org/x.git",
        "commit": "c" * 40,
        "directory": None,
        "dockerfile": None,
        "args": {},
    }
    return wanted


def test_a_pull_that_failed_says_why_and_names_the_choices(tmp_path: Path) -> None:
    wanted = given(tmp_path)
    wanted["other_images"] = "take one of these"
    gone = filters.roost_pull_failure(
        {"msg": "Error pulling image: manifest for x@sha256:1 not found: manifest unknown"}, wanted
    )
    assert wanted["spec"]["image"] in gone
    assert gone.endswith("fix: take one of these")
    full = filters.roost_pull_failure({"msg": "write /var: no space left on device"}, wanted)
    assert "take one of these" not in full


def test_the_same_deployment_is_the_same_release(tmp_path: Path) -> None:
    first = filters.roost_release(given(tmp_path))
    again = filters.roost_release(given(tmp_path))
    other = filters.roost_release(given(tmp_path, settings={"max_model_len": 1024}))
    assert first == again
    assert first["id"].startswith("smollm2-135m-")
    assert first["id"] != other["id"]
    assert {item["repo"] for item in first["files"]["release.json"]["weights"]} == {
        "roost-lab/SmolLM2-135M-Instruct",
        "roost-lab/SmolLM2-135M-DFlash",
    }


@pytest.mark.parametrize(
    ("listen", "published"),
    [("127.0.0.1", "127.0.0.1:8000:8000"), ("::1", "[::1]:8000:8000")],
)
def test_ports_are_published_on_the_address_that_was_said(
    tmp_path: Path, listen: str, published: str
) -> None:
    assert filters.roost_published(given(tmp_path, listen=listen)["spec"]) == [published]


def test_another_python_is_told_what_it_lacks() -> None:
    with pytest.raises(AnsibleFilterError, match="roost is not installed in the Python"):
        filters._not_installed()


def test_every_public_filter_is_registered() -> None:
    registered = filters.FilterModule().filters()
    assert set(registered) == {name for name in dir(filters) if name.startswith("roost_")}


GB10_PROBE = probe_output(
    machine=(0, "aarch64"),
    meminfo=(0, "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB"),
    gpu=(0, "0, GPU-0000, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"),
    runtime_hook=(0, "/usr/bin/nvidia-container-runtime-hook"),
)


def test_the_plan_refuses_before_anything_is_fetched(tmp_path: Path) -> None:
    small = given(tmp_path, "gb10", settings={"kv_cache_bytes": 100_000_000, "max_num_seqs": 2})
    refused = findings(small, probe=GB10_PROBE)
    assert "kv-too-small: the KV pool of 100,000,000 bytes" in refused["errors"]
    assert "fix: kv_cache_bytes=" in refused["errors"]
    assert refused["errors"].endswith("roost_accept_findings: [kv-too-small]")
    assert findings(given(tmp_path, "gb10"), probe=GB10_PROBE)["errors"] == ""


def test_a_finding_that_there_is_not_is_not_accepted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"host-01: roost_accept_findings: .*kv-too-small\?"):
        given(tmp_path, "gb10", accept_findings=["memory-tight", "kv-to-small"])


def test_an_accepted_finding_is_a_remark_and_in_the_release(tmp_path: Path) -> None:
    accepted = given(
        tmp_path,
        "gb10",
        settings={"kv_cache_bytes": 100_000_000, "max_num_seqs": 2},
        accept_findings=["kv-too-small"],
    )
    found = findings(accepted, probe=GB10_PROBE)
    assert found["errors"] == ""
    assert "accepted: kv-too-small" in found["remarks"]
    assert filters.roost_release(accepted)["files"]["release.json"]["accept_findings"] == [
        "kv-too-small"
    ]


def test_what_our_own_container_holds_is_free_again_at_the_swap(tmp_path: Path) -> None:
    busy = GB10_PROBE.replace("MemAvailable:   118566368", "MemAvailable:   20000000")
    assert "utilization-too-high" in findings(given(tmp_path, "gb10"), probe=busy)["errors"]
    # In place, or on trial for a deploy that goes on at the moment.
    for name in ("roost-llm", "roost-llm-0123456789ab"):
        line = f"==> containers 0\n{name}\t127.0.0.1:8000->8000/tcp\n"
        ours = busy.replace("==> containers 0\n", line)
        assert ours != busy
        found = findings(given(tmp_path, "gb10"), probe=ours)
        assert "utilization-too-high" not in found["errors"]


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ("ghcr.io/org/engine@sha256:0", "at-ghcr"),
        ("vllm/vllm-openai@sha256:0", "at-hub"),
        ("registry.site:5000/org/engine@sha256:0", None),
    ],
)
def test_an_account_goes_to_its_own_registry_alone(image: str, user: str | None) -> None:
    logins = [
        {"registry": "ghcr.io", "username": "at-ghcr", "password": "one"},
        {"registry": "docker.io", "username": "at-hub", "password": "two"},
    ]
    header = filters.roost_registry_auth(image, logins)
    if user is None:
        assert header == {}
    else:
        account = json.loads(base64.urlsafe_b64decode(header["X-Registry-Auth"]))
        assert account["username"] == user


@pytest.mark.parametrize(("rollout", "refused"), [("", True), ("b2", True), ("a1", False)])
def test_a_host_that_takes_part_in_a_rollout_is_left_to_it(
    tmp_path: Path, rollout: str, refused: bool
) -> None:
    lease = {"owner": "a1", "who": "ann@desk", "inventory": "/fleet", "since": "9", "renewed": "10"}
    probe = probe_output(rollout=(0, f"60\n{json.dumps(lease)}"))
    found = filters.roost_preflight(
        given(tmp_path), probe, [PRESENT, PRESENT], NOT_ASKED, False, None, rollout
    )
    assert ("rollout: saw ann@desk rolls out /fleet, since 9, last" in found["errors"]) is refused
    assert ("-e despite_lease=true" in found["errors"]) is refused
    despite = filters.roost_preflight(
        given(tmp_path), probe, [PRESENT, PRESENT], NOT_ASKED, False, None, None
    )
    assert despite["errors"] == ""


def test_the_plan_reads_gated_configs_with_the_sites_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = []

    def read(_: object, __: object, token: str | None = None) -> None:
        tokens.append(token)
        raise NotReadError("nothing is read here")

    monkeypatch.setattr("roost.plan.reading.from_hub", read)
    filters.roost_preflight(
        given(tmp_path), probe_output(), [PRESENT, PRESENT], NOT_ASKED, False, "hf_mine"
    )
    assert tokens == ["hf_mine", "hf_mine"]


@pytest.mark.parametrize(("check_mode", "where"), [(True, "remarks"), (False, "errors")])
def test_an_outage_of_the_hub_is_a_warning_where_nothing_is_fetched(
    tmp_path: Path, check_mode: bool, where: str
) -> None:
    down = {"reason": "dns", "outage": True, "msg": "x: the name cannot be resolved. Check it."}
    gone = {"reason": "revision", "outage": False, "msg": "x: not this revision. Look."}
    found = findings(given(tmp_path), snapshots=[PRESENT, down], check_mode=check_mode)
    assert "dns: saw x: the name cannot be resolved" in found[where]
    found = findings(given(tmp_path), snapshots=[PRESENT, gone], check_mode=check_mode)
    assert "revision: saw x: not this revision" in found["errors"]
