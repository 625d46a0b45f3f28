"""The lab itself: up, down, killed, mended; and hosts that are what they say."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from roost import registry_server
from roost.errors import RoostError, UsageError
from roost.lab import controller, hubstore, network, paths, preload, processes
from roost.lab.fixtures import Place, SharedLab
from roost.lab.hosts import SUDO_PASSWORD, SUDO_USER, Host, HostSpec
from roost.lab.lab import Lab, LabSpec

pytestmark = pytest.mark.lab

NAME, SUBNET = "pytest-b", "10.80.0.0/24"

# The lab of this file in a process of its own, to be killed or to compete.
UP = textwrap.dedent(f"""
    from roost.lab.lab import Lab, LabSpec
    hosts = [{{"name": "one"}}, {{"name": "two"}}]
    spec = LabSpec.model_validate({{"name": "{NAME}", "subnet": "{SUBNET}", "hosts": hosts}})
    Lab(spec).up(lambda line: print(line, flush=True))
""")


def quiet(_: str) -> None:
    """Say nothing."""


def make(*hosts: HostSpec) -> Lab:
    return Lab(LabSpec.model_validate({"name": NAME, "subnet": SUBNET, "hosts": hosts}))


Left = Callable[[str, Path], list[str]]


@pytest.fixture
def own(lab_turn: Place) -> Iterator[Lab]:  # noqa: ARG001  # for its order
    """A lab of two hosts that is down, and is down again afterwards."""
    lab = make(HostSpec(name="one"), HostSpec(name="two"))
    # Its name and subnet are fixed, and two sessions may be at it.
    with controller.turn(quiet, lock=Path("/run/lock/roost-lab-tests-own.lock")):
        lab.down(quiet)
        yield lab
        lab.down(quiet)


def ssh(lab: Lab, host: Host, command: str) -> subprocess.CompletedProcess[str]:
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "StrictHostKeyChecking=yes"]
    base = lab.ssh_command(host.name)
    return subprocess.run(
        [base[0], *options, *base[1:], command], capture_output=True, text=True, check=False
    )


def boot_of(host: Host) -> str:
    """When the host's own PID 1 started: another value is another boot."""
    return (
        host.exec(["cut", "-d ", "-f22", "/proc/1/stat"]).stdout
        + host.exec(["cat", "/etc/machine-id"]).stdout
    )


def ansible(lab: Lab, *arguments: str) -> str:
    program = Path(sys.executable).with_name("ansible")
    done = subprocess.run(
        [str(program), "-i", str(lab.inventory_file), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
    )
    return done.stdout + done.stderr


# -- life and death


def worked() -> float:
    """Seconds of processor time that this process and those it has waited for have used."""
    return sum(os.times()[:4])


def wait_gone(processes: Sequence[processes.Process], seconds: float) -> bool:
    """Wait until none of them runs any more; False if some still did after ``seconds``."""
    deadline = time.monotonic() + seconds
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill(up: subprocess.Popen[Any]) -> None:
    """Kill an up alone; the tools that it had just called may outlive it for a moment."""
    up.kill()
    up.wait()
    deadline = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(up.pid, 0)
            time.sleep(0.01)


def test_a_second_up_changes_nothing_and_down_leaves_nothing(own: Lab, left: Left) -> None:
    assert left(NAME, own.state) == []
    assert own.status() is None
    assert own.up(quiet) is True
    status = own.status()
    assert status is not None
    assert status.up
    boots = [boot_of(host) for host in own.hosts.values()]
    files = {path: path.stat().st_mtime_ns for path in (own.key, own.state / "ssh/hosts/one")}

    # Not by the clock: it waits while other labs of this machine are brought up.
    began = worked()
    assert own.up(quiet) is False
    assert worked() - began < 5
    assert [boot_of(host) for host in own.hosts.values()] == boots
    assert {path: path.stat().st_mtime_ns for path in files} == files

    # With a container running, so that Docker's own mounts, networks and groups have to go too.
    import_tiny(own.hosts["one"], "tiny:1")
    published = ["--memory=100m", "-p", "127.0.0.1:8000:8000"]
    ran = own.hosts["one"].exec(
        ["docker", "run", "-d", *published, "tiny:1", "/usr/bin/sleep", "600"]
    )
    assert ran.returncode == 0, ran.stderr
    assert left(NAME, own.state)
    assert own.down(quiet) is True
    assert left(NAME, own.state) == []
    assert own.down(quiet) is False


@pytest.mark.parametrize(
    "line", ["registry started", "hub started", "one: booting", "two: booting", "one: ready"]
)
def test_a_killed_up_is_cleaned_by_down_and_mended_by_up(own: Lab, left: Left, line: str) -> None:
    for mend in (own.down, own.up):
        killed = subprocess.Popen(
            [sys.executable, "-c", UP], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        with killed:
            assert killed.stdout is not None
            assert any(line in said for said in killed.stdout)
            kill(killed)
        mend(quiet)
        if mend == own.down:
            assert left(NAME, own.state) == []
    status = own.status()
    assert status is not None
    assert status.up


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.45, 0.6])
def test_an_up_killed_anywhere_leaves_nothing_after_down(
    own: Lab, left: Left, delay: float
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", UP], stdout=subprocess.DEVNULL, start_new_session=True
    )
    with killed:
        time.sleep(delay)
        kill(killed)
    own.down(quiet)
    assert left(NAME, own.state) == []


def test_ctrl_c_takes_back_what_was_started(own: Lab, left: Left) -> None:
    stopped = subprocess.Popen(
        [sys.executable, "-c", UP],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with stopped:
        assert stopped.stdout is not None
        assert any("two: booting" in said for said in stopped.stdout)
        os.killpg(stopped.pid, signal.SIGINT)
        stopped.communicate()
    assert stopped.returncode != 0
    assert left(NAME, own.state) == []


def test_ups_take_turns(own: Lab) -> None:
    racing = [
        subprocess.Popen([sys.executable, "-c", UP], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in racing]
    assert [process.returncode for process in racing] == [0, 0]
    assert sum("one: booting" in output for output in outputs) == 1
    status = own.status()
    assert status is not None
    assert status.up


def test_up_mends_a_dead_host_an_orphaned_one_and_adds_a_new_one(own: Lab) -> None:
    own.up(quiet)
    one, two = own.hosts["one"], own.hosts["two"]
    two.exec(["sh", "-c", "echo kept > /root/kept"])
    first_boot = boot_of(one)
    # Its supervisor killed, a host runs on as an orphan; its init killed, it is dead.
    supervisor = processes.recorded(two.folder / "nspawn.pid")
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    inits = [
        p
        for p in processes.in_network_namespace(two.folder / "netns")
        if processes.is_init_of_container(p)
    ]
    os.kill(inits[0].pid, signal.SIGKILL)
    assert wait_gone(inits, 60)
    assert two.state() == "dead"

    more = make(HostSpec(name="three"))
    assert more.up(quiet) is True
    assert sorted(more.hosts) == ["one", "three", "two"]
    assert {host.state() for host in more.hosts.values()} == {"running"}
    assert boot_of(more.hosts["one"]) == first_boot
    assert more.hosts["two"].exec(["cat", "/root/kept"]).stdout == "kept\n"
    assert str(more.hosts["three"].address) == "10.80.0.13"


def test_a_host_cannot_silently_become_another_machine(own: Lab) -> None:
    own.up(quiet)
    before = [boot_of(host) for host in own.hosts.values()]
    with pytest.raises(UsageError, match="profile=cpu, not gb10"):
        make(HostSpec(name="one", profile="gb10")).up(quiet)
    assert [boot_of(host) for host in own.hosts.values()] == before


# -- a place that is not free


def test_a_subnet_of_somebody_else_is_left_alone(own: Lab, left: Left) -> None:
    subprocess.run(["ip", "link", "add", "rltest0", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", "10.80.0.200/28", "dev", "rltest0"], check=True)
        with pytest.raises(RoostError) as refused:
            own.up(quiet)
    finally:
        subprocess.run(["ip", "link", "delete", "rltest0"], check=True)
    assert refused.value.what == (
        "subnet 10.80.0.0/24 is in use on this machine: interface rltest0 has 10.80.0.200/28"
    )
    assert "--subnet" in refused.value.fix
    assert left(NAME, own.state) == []


def test_a_taken_port_is_named_with_its_owner(own: Lab, left: Left) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        lab = Lab(own.spec.model_copy(update={"registry_port": port}))
        with pytest.raises(RoostError) as refused:
            lab.up(quiet)
    assert f"port {port}, for the lab's registry, is taken" in refused.value.what
    assert f"pid={os.getpid()}" in refused.value.what
    assert "\n" not in refused.value.what
    assert left(NAME, own.state) == []


def test_a_lab_of_that_name_elsewhere_is_left_alone(
    own: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.up(quiet)
    monkeypatch.setenv("ROOST_LAB_STATE", str(tmp_path))
    other = make(HostSpec(name="one"))
    for act in (other.up, other.down):
        with pytest.raises(RoostError, match="another lab named pytest-b is up"):
            act(quiet)
    status = own.status()
    assert status is not None
    assert status.up


# -- hub and registry


def test_the_labs_hub_serves_the_real_client(lab: SharedLab, tmp_path: Path) -> None:
    repo = "roost-tests/tiny"
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}\n")
    store = paths.hub_store(lab.lab.cache)
    try:
        commit = hubstore.publish(store, repo, "main", source)
        endpoint = lab.lab.site.hub_url
        got = snapshot_download(repo, endpoint=endpoint, cache_dir=tmp_path / "cache")
        assert Path(got).name == commit
        with pytest.raises(RevisionNotFoundError):
            snapshot_download(repo, revision="f" * 40, endpoint=endpoint, cache_dir=tmp_path)
        with pytest.raises(RepositoryNotFoundError):
            snapshot_download("roost-tests/no", endpoint=endpoint, cache_dir=tmp_path)
    finally:
        subprocess.run(["rm", "-rf", str(store / "models" / "roost-tests")], check=True)


def test_hub_and_registry_can_be_out(lab: SharedLab) -> None:
    for service, port in ((lab.lab.hub, 8080), (lab.lab.registry, 5000)):
        address = (str(lab.lab.spec.gateway.ip), port)
        assert service.running()
        service.stop()
        assert not service.running()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=2)
        assert service.start() is True
        assert service.start() is False
        socket.create_connection(address, timeout=60).close()


def test_an_image_goes_through_the_registry_by_digest(lab: SharedLab) -> None:
    host = lab.host()
    reference = f"{lab.lab.site.registry}/roost-tests/tiny"
    import_tiny(host, f"{reference}:1")
    try:
        pushed = host.exec(["docker", "push", f"{reference}:1"])
        assert pushed.returncode == 0, pushed.stderr
        digest = pushed.stdout.split("digest: ")[1].split()[0]
        host.exec(["docker", "rmi", f"{reference}:1"])
        pulled = host.exec(["docker", "pull", f"{reference}@{digest}"])
        assert pulled.returncode == 0, pulled.stderr
        ran = host.exec(["docker", "run", "--rm", f"{reference}@{digest}", "/usr/bin/true"])
        assert ran.returncode == 0, ran.stderr
    finally:
        place = "docker/registry/v2/repositories/roost-tests"
        subprocess.run(
            ["rm", "-rf", str(paths.registry_storage(lab.lab.cache) / place)], check=True
        )


def test_what_one_host_has_pulled_is_on_another_without_the_registry(
    lab: SharedLab, tmp_path: Path
) -> None:
    one, other = lab.host(fresh=True), lab.host(fresh=True)
    repository = f"{lab.lab.site.registry}/roost-tests/shared"
    import_tiny(one, f"{repository}:1")
    pushed = one.exec(["docker", "push", f"{repository}:1"])
    digest = pushed.stdout.split("digest: ")[1].split()[0]
    one.exec(["docker", "rmi", f"{repository}:1"])
    try:
        preload.have(one, f"roost-tests/shared@{digest}", tmp_path, print)
    finally:
        place = "docker/registry/v2/repositories/roost-tests"
        subprocess.run(
            ["rm", "-rf", str(paths.registry_storage(lab.lab.cache) / place)], check=True
        )
    preload.have(other, f"roost-tests/shared@{digest}", tmp_path, print)
    named = ["docker", "images", "--digests", "--format", "{{.Repository}}@{{.Digest}}"]
    for host in (one, other):
        assert host.exec(named).stdout.split() == [f"{repository}@{digest}"]
    # Of its own all the same: what goes on the one stays on the other.
    assert one.exec(["docker", "rmi", f"{repository}@{digest}"]).returncode == 0
    ran = other.exec(["docker", "run", "--rm", f"{repository}@{digest}", "/usr/bin/true"])
    assert ran.returncode == 0, ran.stderr


def test_a_registry_for_a_while(tmp_path: Path) -> None:
    with registry_server.serve(tmp_path) as place:
        assert httpx2.get(f"http://{place}/v2/_catalog").json() == {"repositories": []}
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://{place}/v2/")


def import_tiny(host: Host, reference: str) -> None:
    """Make an image of nothing but true and sleep on a host."""
    libraries = "$(ldd /usr/bin/true | grep -o '/lib[^ ]*' | cut -c2-)"
    files = f"usr/bin/true usr/bin/sleep {libraries}"
    script = f"tar -ch -C / {files} | docker import - {reference}"
    done = host.exec(["sh", "-c", script])
    assert done.returncode == 0, done.stderr


# -- hosts


def test_hosts_know_their_keys_before_they_are_known(lab: SharedLab, tmp_path: Path) -> None:
    host = lab.host()
    assert ssh(lab.lab, host, "hostname").stdout == f"{host.name}\n"
    # The same host under another key than it has: refused, so the check is a real one.
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    forged = tmp_path / "known_hosts"
    forged.write_text(f"{host.address} {stranger.with_suffix('.pub').read_text()}")
    base = lab.lab.ssh_command(host.name)
    base[base.index(f"UserKnownHostsFile={lab.lab.known_hosts}")] = f"UserKnownHostsFile={forged}"
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    refused = subprocess.run(
        [base[0], *options, *base[1:], "true"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_ansible_reaches_every_host(lab: SharedLab) -> None:
    host = lab.host("gb10")
    written = yaml.safe_load(lab.lab.inventory_file.read_text())
    assert written == lab.lab.inventory()
    assert "StrictHostKeyChecking=yes" in str(written)
    output = ansible(lab.lab, host.name, "-m", "ping")
    assert f"{host.name} | SUCCESS" in output, output


def test_a_gb10_is_played(lab: SharedLab) -> None:
    host = lab.host("gb10")
    fields = "index,uuid,name,memory.total,memory.used,memory.free,driver_version,compute_cap"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    row = host.exec(query).stdout
    index, uuid, rest = row.split(", ", 2)
    assert (index, uuid[:4]) == ("0", "GPU-")
    assert rest == "NVIDIA GB10, [N/A], [N/A], [N/A], 580.173.02, 12.1\n"
    meminfo = host.exec(["cat", "/proc/meminfo"]).stdout.split("\n")
    assert "MemTotal:       127600748 kB" in meminfo
    assert "MemAvailable:   118566368 kB" in meminfo
    assert host.exec(["uname", "-m"]).stdout == "aarch64\n"
    facts = ansible(lab.lab, host.name, "-m", "setup", "-a", "filter=ansible_architecture")
    assert '"ansible_architecture": "aarch64"' in facts


def test_two_5070_ti_are_played(lab: SharedLab) -> None:
    host = lab.host("rtx5070ti-x2")
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap"]
    rows = host.exec([*query, "--format=csv,noheader,nounits"]).stdout.splitlines()
    assert rows == [
        "0, NVIDIA GeForce RTX 5070 Ti, 16303, 12.0",
        "1, NVIDIA GeForce RTX 5070 Ti, 16303, 12.0",
    ]
    with_units = host.exec([*query, "--format=csv"]).stdout.splitlines()
    assert with_units[0] == "index, name, memory.total [MiB], compute_cap"
    assert with_units[1] == "0, NVIDIA GeForce RTX 5070 Ti, 16303 MiB, 12.0"
    assert len(host.exec(["nvidia-smi", "-L"]).stdout.splitlines()) == 2
    assert host.exec(["uname", "-m"]).stdout.strip() == os.uname().machine


def test_a_bad_query_is_answered_on_stdout(lab: SharedLab) -> None:
    host = lab.host("gb10")
    wrong = host.exec(["nvidia-smi", "--query-gpu=cuda_version", "--format=csv"])
    assert (wrong.returncode, wrong.stderr) == (2, "")
    assert wrong.stdout.startswith('Field "cuda_version" is not a valid field to query.\n')
    shape = host.exec(["nvidia-smi", "--query-gpu=name", "--format=json"])
    assert (shape.returncode, shape.stdout) == (2, "Format modifier is not recognized.\n")


def test_a_cpu_host_pretends_nothing(lab: SharedLab) -> None:
    host = lab.host()
    assert host.exec(["sh", "-c", "command -v nvidia-smi"]).returncode != 0
    assert host.exec(["ls", "/etc/roost-lab"]).returncode != 0
    assert host.exec(["uname", "-m"]).stdout.strip() == os.uname().machine


@pytest.mark.parametrize("runtime", [True, False])
def test_gpus_are_accepted_where_the_runtime_is(lab: SharedLab, runtime: bool) -> None:
    host = lab.host("gb10", gpu_runtime=runtime)
    import_tiny(host, "tiny:1")
    ran = host.exec(["docker", "run", "--rm", "--gpus", "all", "tiny:1", "/usr/bin/true"])
    if runtime:
        assert ran.returncode == 0, ran.stderr
    else:
        assert 'could not select device driver "" with capabilities: [[gpu]]' in ran.stderr


def test_an_old_driver_and_a_small_disk(lab: SharedLab) -> None:
    host = lab.host("gb10", driver="570.86", disk_mb=50)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    assert host.exec(query).stdout == "570.86\n"
    size = host.exec(["df", "--output=size", "-k", "/var/lib/roost"]).stdout.split()[-1]
    assert int(size) == 50 * 1024


def test_a_host_without_docker(lab: SharedLab) -> None:
    host = lab.host(docker=False)
    assert host.exec(["sh", "-c", "command -v docker"]).returncode != 0
    sources = host.exec(["cat", "/etc/apt/sources.list"]).stdout
    assert sources == f"deb [trusted=yes] {lab.lab.site.hub_url}/apt/ ./\n"


def test_sudo_asks_for_the_password(lab: SharedLab) -> None:
    host = lab.host(sudo_user=True)
    become = ["-m", "command", "-a", "id -un", "--become", "-e", f"ansible_user={SUDO_USER}"]
    right = ansible(lab.lab, host.name, *become, "-e", f"ansible_become_password={SUDO_PASSWORD}")
    assert "rc=0 >>\nroot" in right
    wrong = ansible(lab.lab, host.name, *become, "-e", "ansible_become_password=wrong")
    assert "Incorrect sudo password" in wrong
    missing = ansible(lab.lab, host.name, *become)
    assert "Missing sudo password" in missing


def test_a_host_is_stopped_started_cut_and_joined(lab: SharedLab) -> None:
    host = lab.host(fresh=True)
    assert host.exec(["sh", "-c", "echo 1 > /root/kept"]).returncode == 0
    host.stop()
    assert host.state() == "dead"
    assert ssh(lab.lab, host, "true").returncode == 255
    host.start()
    host.wait()
    assert ssh(lab.lab, host, "cat /root/kept").stdout == "1\n"

    host.cut()
    assert host.state() == "cut"
    assert ssh(lab.lab, host, "true").returncode == 255
    assert host.exec(["true"]).returncode == 0
    host.join()
    assert host.state() == "running"
    assert ssh(lab.lab, host, "true").returncode == 0


def test_hosts_reach_the_hub_and_each_other(lab: SharedLab) -> None:
    one, other = lab.host(), lab.host("gb10")
    fetch = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    hub = one.exec(["python3", "-c", fetch, f"{lab.lab.site.hub_url}/health"])
    assert hub.stdout.strip() == "ok"
    reach = "import socket, sys; print(socket.create_connection((sys.argv[1], 22)).recv(4))"
    assert "SSH-" in one.exec(["python3", "-c", reach, str(other.address)]).stdout


def test_nothing_of_the_lab_listens_anywhere_else(lab: SharedLab) -> None:
    shown = network.run(["ss", "-Hltn"])
    for port in (lab.lab.spec.hub_port, lab.lab.spec.registry_port):
        listeners = [line.split()[3] for line in shown.splitlines() if f":{port} " in line]
        assert f"{lab.lab.spec.gateway.ip}:{port}" in listeners
        assert not [one for one in listeners if one.startswith(("0.0.0.0", "*", "[::]"))]
