"""What a probed host is taken for, and the inventory that comes of it."""

from __future__ import annotations

import datetime as dt
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.probes import Section, probe_output

from roost import catalog, hosts, inventory, probe_cli, probing, site
from roost.catalog import Catalog
from roost.catalog_schema import Support
from roost.errors import RoostError, UsageError
from roost.hosts import HostFacts
from roost.inventory import Connection, Host
from roost.pins import Image
from roost.probing import Probed

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"
# Three machines and one recipe for each, however many ship.
SHIPPED = catalog.builtin()
CATALOG = SHIPPED.model_copy(
    update={
        "recipes": {one: SHIPPED.recipes[one] for one in (ORNITH, "smollm2-135m")},
        "hardware": {one: SHIPPED.hardware[one] for one in ("cpu", "gb10", "rtx5070ti-x2")},
    }
)

GB10: dict[str, Section] = {
    "machine": (0, "aarch64"),
    "gpu": (0, "0, GPU-0000, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"),
    "meminfo": (0, "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB"),
    "runtime_hook": (0, "/usr/bin/nvidia-container-runtime-hook"),
}
CARD = "{n}, GPU-a{n}, NVIDIA GeForce RTX 5070 Ti, 16303, 16291, 610.47, 12.0"
TWO_CARDS: dict[str, Section] = {"gpu": (0, "\n".join(CARD.format(n=n) for n in (0, 1)))}
MISMATCH = (18, "Failed to initialize NVML: Driver/library version mismatch")


def facts(**sections: Section) -> HostFacts:
    return hosts.parse(probe_output(**sections))


def probed(
    seen: HostFacts | None, *, name: str = "spark-01", user: str | None = "nvidia", **variables: Any
) -> Probed:
    host = Host(name, variables, Connection("192.0.2.10"))
    return Probed("nvidia@192.0.2.10", host, seen, user, None if seen else RoostError("no way"))


def described(seen: HostFacts, known: Catalog = CATALOG, **variables: Any) -> dict[str, str]:
    """The rows of a description by title, continuation lines joined."""
    first, *lines = probing.describe(probed(seen, **variables), known).splitlines()
    assert first == "nvidia@192.0.2.10"
    rows: dict[str, str] = {}
    title = ""
    for line in lines:
        title = line[2:15].strip() or title
        rows[title] = f"{rows.get(title, '')} {line[15:].strip()}".strip()
    return rows


def hosts_of(text: str) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(text)["all"]["hosts"]
    return loaded


# -- recognition


@pytest.mark.parametrize(
    ("sections", "hardware"),
    [
        (GB10, "gb10"),
        (TWO_CARDS, "rtx5070ti-x2"),
        ({}, "cpu"),
        ({"machine": (0, "aarch64")}, "cpu"),
    ],
)
def test_every_machine_of_the_catalogue_is_recognised(
    sections: dict[str, Section], hardware: str
) -> None:
    known = probing.recognise(facts(**sections), CATALOG)
    assert known.hardware is CATALOG.hardware[hardware]
    assert known.differences == ()


@pytest.mark.parametrize(
    ("sections", "nearest", "differences"),
    [
        pytest.param(
            {"gpu": (0, CARD.format(n=0))}, "rtx5070ti-x2", ["1 GPU, not 2"], id="one card"
        ),
        pytest.param(
            {**GB10, "machine": (0, "x86_64")}, "gb10", ["architecture amd64, not arm64"], id="arch"
        ),
        pytest.param(
            {**GB10, "gpu": (0, "0, GPU-0, NVIDIA GB10, [N/A], [N/A], 580.95, [N/A]")},
            "gb10",
            ["compute capability unknown, not 12.1"],
            id="capability",
        ),
        pytest.param(
            {**GB10, "meminfo": (0, "MemTotal:       64000000 kB")},
            "gb10",
            ["MemTotal 61.0 GiB, not 121.7 GiB"],
            id="half a GB10",
        ),
        pytest.param(
            {"gpu": (0, "\n".join(CARD.format(n=n).replace("16303", "8151") for n in (0, 1)))},
            "rtx5070ti-x2",
            ["8151 MiB a GPU, not 16303"],
            id="half the memory",
        ),
        pytest.param(
            {"gpu": (0, "0, GPU-0, NVIDIA GeForce RTX 4090, 24564, 24000, 580.95, 8.9")},
            "rtx5070ti-x2",
            [
                "1 GPU, not 2",
                "NVIDIA GeForce RTX 4090, not NVIDIA GeForce RTX 5070 Ti",
                "compute capability 8.9, not 12.0",
            ],
            id="another card",
        ),
        pytest.param(
            {"gpu": (0, CARD.format(n=0) + "\n" + CARD.format(n=1).replace("5070", "5060"))},
            "rtx5070ti-x2",
            ["NVIDIA GeForce RTX 5060 Ti, not NVIDIA GeForce RTX 5070 Ti"],
            id="mixed cards",
        ),
    ],
)
def test_an_unknown_machine_is_told_what_is_nearest_and_what_differs(
    sections: dict[str, Section], nearest: str, differences: list[str]
) -> None:
    seen = facts(**sections)
    known = probing.recognise(seen, CATALOG)
    assert known.hardware is None
    assert known.nearest is CATALOG.hardware[nearest]
    assert list(known.differences) == differences
    said = described(seen)["hardware"]
    assert f"nearest is {nearest}" in said
    assert all(difference in said for difference in differences)


def test_a_card_may_report_a_little_less_or_more_than_its_profile() -> None:
    for memory in ("16000", "16384"):
        rows = TWO_CARDS["gpu"][1].replace("16303", memory)
        known = probing.recognise(facts(gpu=(0, rows)), CATALOG)
        assert known.hardware is CATALOG.hardware["rtx5070ti-x2"]


@pytest.mark.parametrize(
    ("gpu", "fix"),
    [
        (MISMATCH, "sudo reboot; nothing has to be installed again"),
        (
            (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
            "dkms status",
        ),
        ((6, "No devices were found"), "lspci"),
        ((2, "Format modifier is not recognized."), "nvidia-smi --help-query-gpu"),
        ((1, "Segmentation fault"), "run nvidia-smi by hand"),
    ],
)
def test_a_gpu_that_cannot_be_read_is_no_cpu_host(gpu: Section, fix: str) -> None:
    seen = facts(gpu=gpu)
    assert probing.recognise(seen, CATALOG) == probing.Recognition(None)
    rows = described(seen)
    assert rows["hardware"] == "cannot be told until nvidia-smi works"
    assert gpu[1] in rows["GPU"]
    assert fix in rows["GPU"]
    assert probing.as_json(probed(seen), CATALOG)["hardware"] is None


# -- the account


def test_unified_memory_is_said_as_such_and_never_zero() -> None:
    rows = described(facts(**GB10))
    assert rows["hardware"] == "gb10 (NVIDIA DGX Spark and its kin (GB10 Grace Blackwell))"
    assert rows["GPU"] == (
        "0: NVIDIA GB10, compute capability 12.1, driver 580.173.02 memory is unified, shared "
        "with the CPU: 121.7 GiB (MemTotal), 113.1 GiB available"
    )
    assert rows["GPU runtime"] == "NVIDIA's, for Docker"
    assert rows["recipes"] == f"{ORNITH}, verified (source 000)"
    assert "N/A" not in str(rows)
    assert rows["disk"] == "models: 100.0 GiB free on / Docker: 100.0 GiB free on /"
    assert (rows["kernel"], rows["python"]) == ("6.1.0-18-amd64", "/usr/bin/python3")


def test_two_cards_have_a_line_of_memory_each() -> None:
    said = described(facts(**TWO_CARDS))
    assert said["GPU"].count("memory 16303 MiB, 16291 free") == 2
    assert said["GPU runtime"].startswith("none: install nvidia-container-toolkit")


def test_what_could_not_be_read_is_not_reported() -> None:
    row = "0, GPU-0, NVIDIA Odd, 4096, [N/A], [N/A], 9.9"
    rows = described(facts(gpu=(0, row), meminfo=(1, ""), disk_models=(1, ""), python=(1, "")))
    assert rows["memory"] == "not reported"
    assert "driver not reported memory 4096 MiB, free: not reported" in rows["GPU"]
    assert rows["disk"].startswith("models: not reported Docker: 100.0 GiB")
    assert rows["python"].startswith("none")


@pytest.mark.parametrize(
    ("docker", "said", "runtime"),
    [
        ((0, '{"ServerVersion":"27.1","Driver":"overlay2"}'), "27.1, storage driver", "none: "),
        ((127, ""), "not installed; a deploy installs it", "none: "),
        (
            (1, "permission denied while trying to connect to the Docker daemon socket"),
            "this user may not ask it",
            "none to be seen",
        ),
        ((1, "Cannot connect to the Docker daemon"), "does not answer: Cannot", "none to be seen"),
    ],
)
def test_docker_as_far_as_the_user_may_see(docker: Section, said: str, runtime: str) -> None:
    rows = described(facts(**TWO_CARDS, docker=docker))
    assert said in rows["Docker"]
    assert rows["GPU runtime"].startswith(runtime)


def test_an_old_driver_is_named_beside_the_recipe() -> None:
    rows = {**GB10, "gpu": (0, GB10["gpu"][1].replace("580.173.02", "570.86"))}
    least = CATALOG.engines["vllm"].min_driver
    assert f"but driver 570.86 is too old: {least} or newer" in described(facts(**rows))["recipes"]


def test_a_wrong_inventory_is_contradicted() -> None:
    assert "but the inventory says gb10" in described(facts(), roost_hardware="gb10")["hardware"]
    assert "inventory" not in described(facts(), roost_hardware="cpu")["hardware"]


# -- the inventory


@pytest.mark.parametrize(
    ("sections", "hardware", "recipe"),
    [(GB10, "gb10", ORNITH), (TWO_CARDS, "rtx5070ti-x2", ORNITH), ({}, "cpu", "smollm2-135m")],
)
def test_the_inventory_is_one_that_a_deploy_accepts(
    sections: dict[str, Section], hardware: str, recipe: str
) -> None:
    entry = hosts_of(probing.inventory([probed(facts(**sections))], CATALOG))["spark-01"]
    assert (entry["ansible_host"], entry["ansible_user"]) == ("192.0.2.10", "nvidia")
    assert "ansible_port" not in entry
    checked = site.from_variables("spark-01", entry)
    assert (checked.hardware, checked.recipe) == (hardware, recipe)


def test_ansible_reads_the_inventory(tmp_path: Path) -> None:
    connection = Connection("192.0.2.11", port=2222, key_file=Path("/keys/some key"))
    other = Probed("x", Host("on", {}, connection), facts(), "1000")
    local = Probed("y", Host("here", {}, Connection("here", local=True)), facts(), "root")
    unknown = probed(facts(gpu=MISMATCH), name="odd")
    path = tmp_path / "hosts.yml"
    path.write_text(probing.inventory([probed(facts(**GB10)), other, local, unknown], CATALOG))
    read = inventory.load(path)
    assert sorted(read.hosts) == ["here", "odd", "on", "spark-01"]
    assert read.host("on").connection.address == "192.0.2.11"
    assert read.host("on").connection.port == 2222
    assert read.host("on").connection.user == "1000"
    assert read.host("on").connection.key_file == Path("/keys/some key")
    assert read.host("here").connection.local
    assert read.host("spark-01").variables == {"roost_hardware": "gb10", "roost_recipe": ORNITH}
    assert read.host("odd").variables == {}


def test_of_several_verified_recipes_one_is_to_be_chosen() -> None:
    small = CATALOG.recipes["smollm2-135m"]
    support = Support(
        support="verified",
        date=dt.date(2026, 1, 1),
        source="a test",
        image=Image(repository="some/image", tag="1", engine_version="1"),
    )
    wider = small.model_copy(update={"hardware": {**small.hardware, "gb10": support}})
    both = CATALOG.model_copy(update={"recipes": {**CATALOG.recipes, small.id: wider}})
    text = probing.inventory([probed(facts(**GB10))], both)
    assert f"# Choose one:\n      # roost_recipe: {ORNITH}\n      # roost_recipe: smollm2" in text
    assert "roost_recipe" not in hosts_of(text)["spark-01"]

    neither = CATALOG.model_copy(update={"recipes": {}})
    text = probing.inventory([probed(facts(**GB10))], neither)
    assert "# None is verified on gb10:\n      # roost_recipe: see `roost recipes`" in text
    assert described(facts(**GB10), neither)["recipes"] == "none verified on gb10"


def test_what_is_not_known_stays_a_comment() -> None:
    one_card = facts(gpu=(0, CARD.format(n=0)))
    items = [probed(one_card, name="desk-01"), probed(None, name="gone")]
    text = probing.inventory(items, CATALOG, "inventory/old")
    assert hosts_of(text) == {
        "desk-01": {"ansible_host": "192.0.2.10", "ansible_user": "nvidia"},
    }
    assert "# roost_hardware: rtx5070ti-x2\n" in text
    assert "which differs: 1 GPU, not 2\n" in text
    assert "# gone is left out: it was not probed." in text
    assert "inventory/old" in text


def test_json_has_the_contract_s_keys() -> None:
    row = json.loads(json.dumps(probing.as_json(probed(facts(**GB10)), CATALOG)))
    assert list(row) == ["host", "facts", "hardware", "recipes", "error"]
    assert (row["host"], row["hardware"]) == ("nvidia@192.0.2.10", "gb10")
    assert (row["recipes"], row["error"]) == ([ORNITH], None)
    assert row["facts"]["gpus"][0]["memory_total_mib"] is None
    lost = probing.as_json(probed(None), CATALOG)
    assert (lost["facts"], lost["hardware"], lost["recipes"]) == (None, None, [])
    assert lost["error"] == "no way"


# -- destinations


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("spark", Connection("spark")),
        ("nvidia@192.0.2.10", Connection("192.0.2.10", user="nvidia")),
        ("nvidia@spark.local:2222", Connection("spark.local", port=2222, user="nvidia")),
        ("spark:22", Connection("spark", port=22)),
        ("ssh://a@b:23/", Connection("b", port=23, user="a")),
        ("a@[2001:db8::1]:2222", Connection("2001:db8::1", port=2222, user="a")),
        ("2001:db8::1", Connection("2001:db8::1")),
    ],
)
def test_destinations_are_ssh_s(text: str, wanted: Connection) -> None:
    assert probing.destination(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "a b", "-oProxyCommand=x y", "a@", "a..b", "spark:ssh", "spark:0", "spark:65536"]
)
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no ssh destination"):
        probing.destination(text)


def test_hosts_of_one_address_get_names_of_their_own() -> None:
    asked = ["a@127.0.0.1:2201", "a@127.0.0.1:2202", "a@127.0.0.1:2201", "::1"]
    found = probing.destinations(asked)
    assert {text: host.name for text, host in found.items()} == {
        "a@127.0.0.1:2201": "127.0.0.1",
        "a@127.0.0.1:2202": "127.0.0.1-2",
        "::1": "1",
    }


# -- the command, where no host is needed


def test_the_machine_itself_is_probed(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    done = CliRunner().invoke(probe_cli.probe, ["-i", str(path), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["host"], row["error"]) == ("here", None)
    assert row["facts"]["memory_total_bytes"] > 0


def test_what_goes_into_a_file_is_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    done = CliRunner().invoke(probe_cli.probe, ["-i", str(path)])
    assert list(yaml.safe_load(done.stdout)["all"]["hosts"]) == ["here"]
    assert done.stderr.startswith("here\n  hardware ")


def test_no_host_is_a_mistake() -> None:
    done = CliRunner().invoke(probe_cli.probe, [])
    assert isinstance(done.exception, UsageError)
    assert "user@address" in done.exception.fix


def test_without_an_inventory_an_address_is_not_corrected_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    shown = " ".join(CliRunner().invoke(probe_cli.probe, ["nosuch.invalid"]).stderr.split())
    assert "no such address why: Name or service not known" in shown
    assert "fix: correct the address (in an inventory ansible_host)" in shown
