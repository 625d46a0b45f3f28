"""The role that deploys, and the gateway before its hosts: what is drained when, and returned.

The roles' own tasks and a real HAProxy. Only what happens on the hosts in between is made up: each
host's ``engine_release`` says what it is told to, and notes whether the host was drained then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from tests.unit import plays
from tests.unit.deployments import deployment
from tests.unit.gateways import Gateway, gateway

from roost import releases

STANDINS = {
    # By whose behalf it is asked: the rollout's own, another's between two batches, or none.
    "rollout_lease": """
others = {lease!r}
if others and given['lease']['owner'] == 'between':
    others = {{'owner': 'a1'}}
mine = not others or given['lease']['owner'] == others['owner']
said = {{'others': None}} if mine else {{
    'others': others, 'said': 'ann@desk rolls out /fleet', 'fix': 'wait for its end'}}
""",
    "release_facts": "said = {{'busy': {busy!r}}}",
    # The real one is far too long for what is asked here; it is told its outcome by its release.
    "engine_release": """
sys.path.insert(0, {src!r})
from roost.onhost.haproxy import Haproxy
end = given['release']['outcome']
servers = Haproxy(*{paths!r}).servers()
state = next(one.state for one in servers if one.name == given['release']['host'])
failure = {{'what': 'it failed', 'step': 'start', 'exit_code': None, 'checks': [], 'kernel': [],
           'log': ''}}
said = {{'outcome': end, 'release': 'x', 'previous': 'y', 'failure': failure, 'restored': 'healthy',
        'checks': [], 'figures': {{}}, 'answers': {{}}, 'kept': False,
        'lease': {{'who': 'ann@desk', 'inventory': '/fleet', 'since': '9', 'renewed': '10'}}}}
with open({seen!r} + '/' + given['release']['host'], 'w') as file:
    file.write(json.dumps([state, int(given['turn_timeout'])]))
""",
    "engine_stop": """
with open({seen!r} + '/stopped', 'a') as file:
    file.write('x')
said = {{}}
""",
}
MODULE = """#!/usr/bin/python
import json, sys
WANT_JSON = None
given = json.load(open(sys.argv[1]))
{body}
print(json.dumps({{'changed': False, **said}}))
"""


def standins(folder: Path, made: Gateway, busy: str | None, lease: dict[str, str] | None) -> Path:
    """Write the modules that are made up; their folder."""
    library, seen = folder / "library", folder / "seen"
    for made_up in (library, seen):
        made_up.mkdir(exist_ok=True)
    paths = [str(folder / "master.sock"), str(made.config), str(folder / "states")]
    for name, body in STANDINS.items():
        text = body.format(
            src=str(plays.ROOT / "src"), paths=paths, seen=str(seen), busy=busy, lease=lease
        )
        (library / f"{name}.py").write_text(MODULE.format(body=text))
    return library


def run(
    folder: Path,
    made: Gateway,
    hosts: dict[str, dict[str, Any]],
    busy: str | None = None,
    lease: dict[str, str] | None = None,
) -> str:
    """Swap on these hosts as the role does, from the drain on; what Ansible said.

    Args:
        folder: For all that it needs.
        made: The gateway before them.
        hosts: Their variables.
        busy: Who deploys them at the moment.
        lease: Of the rollout that they take part in.
    """
    library = standins(folder, made, busy, lease)
    wanted = deployment(folder).model_dump(mode="json")
    common = {
        "ansible_connection": "local",
        # A condition outside of the role sees none of its variables.
        **yaml.safe_load((plays.ROOT / "roles/llm_server/defaults/main.yml").read_text()),
        **yaml.safe_load((plays.ROOT / "roles/llm_server/vars/main.yml").read_text()),
        "llm_server_deployment": wanted,
        "__llm_server_container": {"container": {"Id": "c", "Name": "/roost-llm-new"}},
        "__llm_server_key": {"changed": False},
        "gateway_drain_timeout": 120,
        "gateway_return_timeout": 120,
    }
    release = releases.release(deployment(folder))
    everyone = {
        name: {
            **common,
            "llm_server_gateway": "gate",
            **given,
            "llm_server_release": {**release, "host": name, "outcome": given["outcome"]},
        }
        for name, given in hosts.items()
    }
    everyone["gate"] = common
    tasks = [
        {
            "ansible.builtin.include_role": {"name": "llm_server", "tasks_from": f"{name}.yml"},
            "when": condition,
        }
        for name, condition in (
            ("drain", "__llm_server_drains"),
            ("transaction", "true"),
        )
    ]
    return play(folder, made, everyone, tasks, "-v", library=library)


def play(
    folder: Path,
    made: Gateway,
    hosts: dict[str, dict[str, Any]],
    tasks: list[dict[str, Any]],
    *options: str,
    library: Path | None = None,
    **environment: str,
) -> str:
    """Run tasks on all hosts but the gateway; what Ansible said."""
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    written = [{"hosts": "all:!gate", "gather_facts": False, "tasks": tasks}]
    (folder / "play.yml").write_text(json.dumps(written))
    places = {"master": folder / "master.sock", "config": made.config, "states": folder / "states"}
    overrides = json.dumps({f"__gateway_{key}": str(path) for key, path in places.items()})
    modules = [library, plays.ROOT / "plugins" / "modules"]
    done = plays.ansible(
        *("-i", str(folder / "hosts.json"), str(folder / "play.yml"), "-e", overrides, *options),
        ANSIBLE_LIBRARY=":".join(str(place) for place in modules if place),
        **environment,
    )
    return done.stdout + done.stderr


def test_hosts_are_drained_for_a_swap_and_returned_if_something_serves(tmp_path: Path) -> None:
    with gateway(tmp_path, 5) as made:
        made.haproxy.set("four", "drain")  # by a run that was killed
        serving = {"Id": "c", "Name": "/roost-llm"}
        unchanged = {"__llm_server_container": {"container": serving}}
        said = run(
            tmp_path,
            made,
            {
                "one": {"outcome": "serves"},
                "two": {"outcome": "restored"},
                "three": {"outcome": "unproved"},
                "four": {"outcome": "serves", **unchanged},
                "five": {"outcome": "serves", **unchanged},
            },
        )
        states = {server.name: server.state for server in made.haproxy.servers()}
    meanwhile = {file.name: json.loads(file.read_text()) for file in (tmp_path / "seen").iterdir()}
    # Who is drained by this run must not wait behind another deploy, which would return it.
    assert meanwhile == {
        **{name: ["drain", 0] for name in ("one", "two", "three")},
        "four": ["drain", 7200],
        "five": ["ready", 7200],
    }, said
    assert states == {
        **dict.fromkeys(("one", "two", "four", "five"), "ready"),
        "three": "drain",
    }, said
    assert said.count("fatal:") == 2
    text = " ".join(said.split())
    # Of one host: twice by Ansible itself, and in the fact that -v shows.
    assert text.count("its gateway sends it no requests until") == 3


def test_a_host_that_a_rollout_took_while_it_was_drained_is_returned(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        said = run(tmp_path, made, {"one": {"outcome": "held"}})
        assert made.server("one").state == "ready", said
    assert json.loads((tmp_path / "seen" / "one").read_text())[0] == "drain"
    assert "one: takes part in a rollout (ann@desk rolls out /fleet, since 9" in said
    assert said.count("fatal:") == 1


def test_what_cannot_be_drained_is_not_swapped(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        made.haproxy.set("two", "drain")
        said = run(tmp_path, made, {"one": {"outcome": "serves"}})
        assert made.server("one").state == "ready"
    assert not list((tmp_path / "seen").iterdir())
    text = " ".join(said.split())
    assert "one: it was not drained, and nothing was changed why: no other host would be" in text
    assert "fix: deploy hosts one after another" in text
    assert said.count("fatal:") == 1


def test_a_host_that_another_deploy_works_on_is_not_drained(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        one = {"outcome": "serves", "llm_server_turn_timeout": 6}
        said = run(tmp_path, made, {"one": one}, busy="ann@desk deploys x-1")
        states = {server.name: server.state for server in made.haproxy.servers()}
    assert "one: another deploy is at work on this host (ann@desk deploys x-1)" in said
    assert "deploy again when that has ended; nothing was changed" in said
    assert states == {"one": "ready", "two": "ready"}
    assert not list((tmp_path / "seen").iterdir())


def test_hosts_of_a_rollout_are_drained_and_returned_by_that_alone(tmp_path: Path) -> None:
    unchanged = {"__llm_server_container": {"container": {"Id": "c", "Name": "/roost-llm"}}}
    with gateway(tmp_path, 5) as made:
        for name in ("four", "five"):
            made.haproxy.set(name, "drain")
        said = run(
            tmp_path,
            made,
            {
                "one": {"outcome": "serves"},
                "two": {"outcome": "serves", "llm_server_rollout": "a1"},
                "three": {"outcome": "serves", "llm_server_despite_lease": True},
                # A canary that is judged, and what is deployed by hand is what it serves already.
                "four": {"outcome": "serves", **unchanged},
                "five": {"outcome": "serves", "llm_server_rollout": "between", **unchanged},
            },
            lease={"owner": "a1", "wanted": "r-2"},
        )
        states = {server.name: server.state for server in made.haproxy.servers()}
    seen = {file.name: json.loads(file.read_text())[0] for file in (tmp_path / "seen").iterdir()}
    assert seen == {"two": "drain", "three": "drain", "four": "drain", "five": "drain"}, said
    assert states == {
        **dict.fromkeys(("one", "two", "three", "five"), "ready"),
        "four": "drain",
    }, said
    text = " ".join(said.split())
    why = "a rollout (ann@desk rolls out /fleet)"
    assert f"one: takes part in {why}; it was not drained fix: wait for its end" in text
    assert (
        f"four: is being changed and judged by {why} why: the release r-2 has not passed yet"
        in text
    )
    assert said.count("fatal:") == 2


def by_hand(
    folder: Path, made: Gateway, name: str, library: Path | None = None, **variables: Any
) -> str:
    """What ``playbooks/drain.yml`` and ``return.yml`` do, for a host that cannot be reached.

    With ``library``, modules are taken from there first.
    """
    away = {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "gateway_host": "gate",
        "gateway_busy_gauges": [],
        "gateway_metrics_path": "/metrics",
        **variables,
    }
    hosts = {"one": away, "gate": {"ansible_connection": "local"}}
    role = {"name": "gateway", "tasks_from": f"{name}.yml"}
    said = play(
        *(folder, made, hosts, [{"ansible.builtin.include_role": role}]),
        library=library,
        ANSIBLE_CONFIG=str(plays.ROOT / "ansible.cfg"),
    )
    return " ".join(said.split())


def test_a_host_that_cannot_be_asked_whose_it_is_is_drained_and_not_returned(
    tmp_path: Path,
) -> None:
    """It may be a canary whose connection is cut, and whose engine serves."""
    with gateway(tmp_path, 2) as made:
        by_hand(tmp_path, made, "drain")
        assert made.server("one").state == "drain"
        said = by_hand(tmp_path, made, "return")
        assert made.server("one").state == "drain"
        assert "one: cannot be reached, so it may be being changed and judged" in said
        assert "-e despite_lease=true" in said
        by_hand(tmp_path, made, "return", gateway_rollout="a1")
        assert made.server("one").state == "ready"
        by_hand(tmp_path, made, "drain")
        by_hand(tmp_path, made, "return", gateway_despite_lease=True)
        assert made.server("one").state == "ready"


def stop(
    folder: Path,
    made: Gateway,
    limit: str,
    lease: dict[str, str] | None = None,
    **variables: Any,
) -> tuple[str, int]:
    """Stop engines as ``playbooks/stop.yml`` does; what Ansible said, and how many were stopped."""
    library = standins(folder, made, None, lease)
    (folder / "seen" / "stopped").write_text("")
    common = {
        "ansible_connection": "local",
        "llm_server_deployment": deployment(folder).model_dump(mode="json"),
        "llm_server_gateway": "gate",
        "roost_gateway": "gate",
        "gateway_drain_timeout": 120,
        **variables,
    }
    # A third host, of another gateway.
    hosts = {"one": common, "two": common, "far": {**common, "roost_gateway": "elsewhere"}}
    everyone = {**hosts, "gate": {"ansible_connection": "local"}}
    tasks = [{"ansible.builtin.include_role": {"name": "llm_server", "tasks_from": "stop.yml"}}]
    said = " ".join(play(folder, made, everyone, tasks, "--limit", limit, library=library).split())
    return said, len((folder / "seen" / "stopped").read_text())


def test_the_last_host_is_stopped_with_all_the_others_and_not_alone(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        said, stopped = stop(tmp_path, made, "one")
        assert (stopped, made.server("one").state) == (1, "drain"), said
        said, stopped = stop(tmp_path, made, "two")
        assert stopped == 0
        assert made.server("two").state == "ready"
        assert "no other host would be left to serve" in said
        said, stopped = stop(tmp_path, made, "one:two")
        assert (stopped, made.server("two").state) == (2, "drain"), said


def test_a_host_of_others_is_neither_drained_nor_stopped(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        lease = {"owner": "t1", "experiment": "tune"}
        said, stopped = stop(tmp_path, made, "one", lease)
        assert (stopped, made.server("one").state) == (0, "ready")
        assert "one: its engine was not stopped why: it takes part in" in said
        assert "fix: wait for its end" in said
        said, stopped = stop(tmp_path, made, "one", lease, llm_server_despite_lease=True)
        assert (stopped, made.server("one").state) == (1, "drain"), said


def test_where_nothing_is_in_place_nothing_is_drained(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        said, stopped = stop(tmp_path, made, "one", llm_server_deployment={})
        assert (stopped, made.server("one").state) == (1, "ready"), said


def test_a_host_of_an_experiment_is_drained_by_hand_and_not_returned(tmp_path: Path) -> None:
    with gateway(tmp_path, 2) as made:
        lease = {"owner": "t1", "experiment": "tune"}
        library = standins(tmp_path, made, None, lease)
        local = {"ansible_connection": "local", "library": library}
        by_hand(tmp_path, made, "drain", **local)
        assert made.server("one").state == "drain"
        said = by_hand(tmp_path, made, "return", **local)
        assert made.server("one").state == "drain"
        assert "one: takes part in an experiment (ann@desk rolls out /fleet)" in said
        by_hand(tmp_path, made, "return", gateway_rollout="t1", **local)
        assert made.server("one").state == "ready"
