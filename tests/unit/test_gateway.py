"""Which hosts a gateway leads to, and which it refuses to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import write_lock
from tests.unit.plugins import load

from roost.errors import RefusedError, UsageError
from roost.gateway import Behind, behind


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """A gateway before two hosts, and one that stands by itself."""
    write_lock(tmp_path / "roost.lock.yml")
    common = {
        "roost_hardware": "cpu",
        "roost_recipe": "smollm2-135m",
        "roost_lock_file": str(tmp_path / "roost.lock.yml"),
    }
    before = {**common, "roost_gateway": "gate"}
    return {
        # What is said of all hosts is said of it too.
        "gate": {**before, "ansible_host": "192.0.2.1"},
        "b": {**before, "ansible_host": "192.0.2.12", "roost_listen": "192.0.2.12"},
        "a": {**before, "ansible_host": "192.0.2.11", "roost_listen": "0.0.0.0", "roost_port": 80},
        "alone": common,
    }


def found(fleet: dict[str, dict[str, Any]], **changes: dict[str, Any]) -> Behind:
    hosts = {name: {**variables, **changes.get(name, {})} for name, variables in fleet.items()}
    return behind("gate", hosts, [name for name in hosts if name != "gate"], Path("/"))


def test_the_hosts_that_name_it(fleet: dict[str, dict[str, Any]]) -> None:
    one = found(fleet)
    assert one.served_name == "smollm2-135m"
    assert one.key_from is None
    places = [(server.name, server.address, server.port) for server in one.servers]
    assert places == [("a", "192.0.2.11", 80), ("b", "192.0.2.12", 8000)]


def test_the_name_must_be_listed_whole(fleet: dict[str, dict[str, Any]]) -> None:
    named = {"roost_served_name": "some/model-1.0"}
    listed = found(fleet, a=named, b=named).listed
    assert re.search(listed, '{"data":[{"id":"some/model-1.0"}]}')
    assert re.search(listed, '{"data": [{"id": "some/model-1.0"}]}')
    assert not re.search(listed, '{"data": [{"id": "some/model-1.0-old"}]}')
    assert not re.search(listed, '{"data": [{"id": "some/model-1x0"}]}')


def test_an_address_of_its_own_wins(fleet: dict[str, dict[str, Any]]) -> None:
    one = found(fleet, a={"roost_address": "10.0.0.5"})
    assert one.servers[0].address == "10.0.0.5"


def test_engines_on_the_gateway_s_own_machine_may_stay_on_loopback(
    fleet: dict[str, dict[str, Any]],
) -> None:
    one = found(fleet, a={"ansible_host": "192.0.2.1", "roost_listen": "127.0.0.1"})
    assert one.servers[0].address == "127.0.0.1"


def test_a_key_that_all_of_them_ask_for(fleet: dict[str, dict[str, Any]]) -> None:
    key = {"roost_api_key": "secret"}
    one = found(fleet, a=key, b=key)
    assert one.key_from == "a"
    assert "secret" not in one.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"a": {"roost_gateway": "x"}, "b": {"roost_gateway": "x"}}, ["no host stands behind"]),
        ({"a": {"roost_served_name": "other"}}, ["different names", "a: other; b: smollm2-135m"]),
        ({"a": {"roost_api_key": "secret"}}, ["different keys", "without one: b"]),
        (
            {"a": {"roost_api_key": "secret"}, "b": {"roost_api_key": "another"}},
            ["different keys", "each has one of its own"],
        ),
        ({"a": {"roost_listen": "127.0.0.1"}}, ["a cannot be reached", "set its roost_listen"]),
        ({"a": {"ansible_host": "a.local"}}, ["the address of a is not known", "roost_address"]),
        ({"b": {"ansible_host": "b.local"}}, []),
        ({"a": {"roost_recipe": "nothing"}}, ["nothing"]),
        ({"a": {"roost_gatway": "gate"}}, ["a: roost_gatway is no variable of roost"]),
        (
            {"a": {"roost_served_name": "it's"}, "b": {"roost_served_name": "it's"}},
            ["cannot stand in HAProxy's configuration"],
        ),
    ],
)
def test_what_cannot_be_one_endpoint_is_refused_in_one_message(
    fleet: dict[str, dict[str, Any]], changes: dict[str, dict[str, Any]], says: list[str]
) -> None:
    if not says:
        found(fleet, **changes)
        return
    with pytest.raises((UsageError, RefusedError)) as caught:
        found(fleet, **changes)
    message = str(caught.value)
    assert [text for text in says if text not in message] == [], message
    assert "secret" not in message


def test_the_filter_returns_a_refusal_as_text(fleet: dict[str, dict[str, Any]]) -> None:
    roost_behind = load("filter", "roost").FilterModule().filters()["roost_behind"]
    good = roost_behind(fleet, "gate", ["a", "b", "alone"], "/")
    assert (good["refusal"], len(good["behind"]["servers"])) == (None, 2)
    bad = roost_behind(fleet, "gate", ["alone"], "/")
    assert bad["behind"] is None
    assert bad["refusal"].startswith("gate: no host stands behind")
