"""Filters that hand roles what the package computes. What to do with it, roles decide.

A user's mistake is returned as text for one ``fail`` task to print: raised from a filter, it would
arrive wrapped in where Ansible was when it happened.
"""

from __future__ import annotations

import base64
import getpass
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from roost import (
        builds,
        cuda_context,
        deployment,
        docker_settings,
        doctor,
        downloads,
        gateway,
        hosts,
        preflight,
        programs,
        pulls,
        references,
        releases,
    )
    from roost.deployment import Deployment
    from roost.errors import RoostError
    from roost.launch.container import Port
    from roost.onhost import haproxy
    from roost.pins import BUILD_LABEL
    from roost.plan import gate
    from roost.preflight import Finding
except ImportError as error:
    # Left to itself, Ansible would only say that there is no filter of that name.
    _missing: str | None = str(error)
else:
    _missing = None


def roost_resolve(variables: Mapping[str, Any], host: str, root: str) -> dict[str, Any]:
    """One host's deployment, or the reason why there is none.

    Args:
        variables: The host's ``roost_*`` variables by their full name.
        host: Inventory name, for messages.
        root: The repository root.

    Returns:
        ``{deployment, refusal}``, one of which is none.
    """
    try:
        resolved = deployment.from_variables(host, variables, Path(root))
    except RoostError as error:
        return {"deployment": None, "refusal": str(error)}
    return {"deployment": resolved.model_dump(mode="json"), "refusal": None}


def roost_probe(_: object) -> str:
    """The host probe, shell text for the standard input of ``sh -s``."""
    return hosts.probe_script()


def roost_seen_image(probe: str) -> dict[str, Any]:
    """What the probe saw of the image that it was given: ``{status, json}``, see the facts."""
    try:
        return hosts.parse(probe).image
    except RoostError:  # the preflight says it
        return {"status": -1}


def roost_watchdog_program(folder: str) -> dict[str, str]:
    """SHA-256 of the files of the watchdog's program by path, if they were in this directory."""
    return {f"{folder}/{name}": digest for name, digest in programs.watchdog().items()}


def roost_cuda(given: Mapping[str, Any]) -> dict[str, Any]:
    """The command that tries CUDA in a deployment's image, as ``{argv, stdin}``."""
    resolved = _deployment(given)
    return {"argv": cuda_context.argv(resolved), "stdin": cuda_context.program()}


def roost_cuda_verdict(
    given: Mapping[str, Any], result: Mapping[str, Any], serving: bool
) -> dict[str, Any]:
    """What came of it, as ``{line, failure}``.

    Args:
        given: The deployment.
        result: Of the task that ran the command.
        serving: Whether an engine ran meanwhile.
    """
    said = (str(result.get(stream) or "") for stream in ("stdout", "stderr"))
    rc = int(result.get("rc", 1))
    line, failure = cuda_context.verdict(_deployment(given), rc, *said, serving=serving)
    return {"line": line, "failure": str(failure or "")}


def roost_plain_named(held: str, path: str, registry: str) -> dict[str, Any]:
    """Docker's settings with a registry named that has no TLS, as ``{content, refusal}``.

    Args:
        held: What stands in the file, in Base64; empty where there is none.
        path: Where it is, for messages.
        registry: As ``host[:port]``.

    Returns:
        ``content`` is none where nothing is to be written, ``refusal`` where it can be.
    """
    try:
        content = docker_settings.naming_plain(base64.b64decode(held), path, registry)
    except RoostError as error:
        return {"content": None, "refusal": str(error)}
    return {"content": content, "refusal": None}


def roost_preflight(
    given: Mapping[str, Any],
    probe: str,
    snapshots: Sequence[Mapping[str, Any]],
    registry: Mapping[str, Any],
    check_mode: bool,
    hub_token: str | None = None,
    rollout: str | None = "",
) -> dict[str, Any]:
    """Everything that speaks against deploying, from what was asked of host, hub and registry.

    Args:
        given: The deployment.
        probe: What the probe printed.
        snapshots: A result of ``hf_snapshot`` in check mode for each of the weights.
        registry: Docker's answer about the image in the registry, or a skipped task.
        check_mode: Then nothing is fetched, and an outage is worth a warning only.
        hub_token: The site's, for the configs of gated repositories.
        rollout: Owner of the lease of the rollout that deploys; empty: it is deployed by hand;
            none: whatever rollout the host takes part in.

    Returns:
        ``{errors, remarks, plan, lacks, services, image, plain_registry}``: texts, empty where
        there is nothing to say, the plan with its verdict, whether the host ``lacks`` ``weights``,
        the ``image``, or something to run ``containers``, what it has of roost's own ``services``
        and of the ``image``, and the site's registry without TLS, if it has one. Remarks are
        warnings and notes, each beginning with its severity.
    """
    wanted = _deployment(given)
    try:
        facts = hosts.parse(probe)
    except RoostError as error:
        return {"errors": str(error), "remarks": "", "plan": None, "lacks": None, "services": None}
    image = facts.image
    missing = [
        snapshot.get("bytes", weights.bytes or 0)
        for weights, snapshot in zip(wanted.weights, snapshots, strict=True)
    ]
    planned = gate.plan(wanted, facts, str(hub_token) if hub_token else None)
    findings = [
        *(preflight.of_a_rollout(facts, rollout) if rollout is not None else []),
        *preflight.check(facts, wanted),
        *preflight.disk(
            facts,
            weights_bytes=sum(missing),
            # Docker that does not run yet cannot be asked what it has.
            image_bytes=0
            if image.get("status") == 200
            or wanted.spec.build
            or (facts.docker is None and facts.docker_installed)
            else wanted.requirements.image_bytes.get(facts.architecture),
            model_dir=wanted.model_dir,
        ),
        *_hub(snapshots, check_mode),
        *(
            _registry(registry, wanted, facts.architecture, check_mode)
            if wanted.spec.build is None
            else _built(image, wanted, asked=facts.docker is not None or not facts.docker_installed)
        ),
    ]
    errors = [found.text() for found in findings if found.severity == "error"]
    remarks = [
        f"{found.severity}: {found.text()}" for found in findings if found.severity != "error"
    ]
    # What makes an engine slow or fail later is no reason to refuse, and worth knowing now.
    judged = {found.id for found in findings}
    remarks += [
        f"doctor: {check.id}: saw {check.saw}; wants {check.wants}\n  why: {check.why}\n"
        f"  fix: {check.fix}"
        for check in doctor.examine(facts, deployment=wanted)
        if check.severity == "fail" and check.id not in judged
    ]
    errors += [found.text() for found in planned.refused]
    if planned.refused:
        ids = ", ".join(found.id for found in planned.refused)
        errors.append(f"to go on all the same: roost_accept_findings: [{ids}]")
    remarks += [
        f"{'accepted' if found.accepted else found.severity}: {found.text()}"
        for found in planned.findings
        if found not in planned.refused and found.severity != "info"
    ]
    return {
        "errors": "\n".join(errors),
        "remarks": "\n".join(remarks),
        "plan": planned.model_dump(mode="json"),
        "lacks": {
            "weights": not all(snapshot.get("present") for snapshot in snapshots),
            "image": image.get("status") != 200,
            "containers": not facts.holds_containers(wanted.plain_registry),
        },
        "image": image,
        "plain_registry": wanted.plain_registry,
        "services": {
            "units": facts.units,
            "program": facts.program,
            "watchdog_at_boot": facts.watchdog_at_boot,
            "watchdog_runs": facts.condition.watchdog is not None
            and facts.condition.watchdog.active,
        },
    }


def _hub(snapshots: Sequence[Mapping[str, Any]], check_mode: bool) -> Iterator[Finding]:
    for snapshot in snapshots:
        if reason := snapshot.get("reason"):
            saw, _, fix = snapshot["msg"].partition(". ")
            yield Finding(
                id=reason,
                severity="warning" if check_mode and snapshot.get("outage") else "error",
                saw=saw,
                wants="every file of the pinned revision",
                why="the weights are not on this host yet",
                fix=fix,
            )


def _registry(
    answer: Mapping[str, Any], wanted: Deployment, architecture: str, check_mode: bool
) -> Iterator[Finding]:
    """What Docker's own question to the registry brought."""
    if answer.get("skipped"):
        return
    if answer.get("status") == 200:
        platforms = (answer.get("json") or {}).get("Platforms") or []
        found = {one["architecture"] for one in platforms if one.get("os") == "linux"}
        # What the lock says of it is judged already; it may have been written without a registry.
        if found and not wanted.requirements.image_bytes:
            yield from preflight.image_architecture(architecture, found)
        return
    said = (answer.get("json") or {}).get("message") or answer.get("msg", "no answer")
    if pulls.cause(said) == "tls" and wanted.plain_registry:
        return  # the role container_host tells Docker that this one has none
    yield preflight.registry(said, wanted.spec.image, wanted.other_images, check_mode=check_mode)


def _built(image: Mapping[str, Any], wanted: Deployment, *, asked: bool) -> Iterator[Finding]:
    """Whether the host has the image that only it can build; without Docker it has none."""
    if not asked:
        yield preflight.unasked(wanted.spec.image)
        return
    if image.get("status") != 200:
        yield preflight.unbuilt(wanted.spec.image, wanted.other_images)
        return
    label = (image["json"]["Config"].get("Labels") or {}).get(BUILD_LABEL)
    if (wanted.build is None or label != wanted.build.digest) and not wanted.allow_unlocked:
        yield preflight.built_otherwise(wanted.spec.image, wanted.other_images)


def roost_pinned(given: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment, with an image that its host has built by the id that Docker has for it.

    Args:
        given: The deployment.
        image: Docker's answer about the image on the host (a result of ``uri``).
    """
    if given["spec"]["build"] is None or image.get("status") != 200:
        return dict(given)
    found = deployment.with_image(_deployment(given), str(image["json"]["Id"]))
    return found.model_dump(mode="json")


def roost_build_failure(result: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Why an image was not built, and what to do about it.

    Args:
        result: Of the module ``image_build``.
        given: The deployment.
    """
    return builds.failure(_plain(result), _deployment(given))


def roost_registry_auth(image: str, logins: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The header with which Docker's API takes an account at the image's registry; none: empty.

    Args:
        image: A reference.
        logins: The site's accounts.
    """
    registry = references.split_registry(image)[0] or "docker.io"
    for login in logins:
        if login["registry"] == registry:
            account = {"username": str(login["username"]), "password": str(login["password"])}
            text = json.dumps(account).encode()
            return {"X-Registry-Auth": base64.urlsafe_b64encode(text).decode()}
    return {}


def roost_downloads(begun: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What to wait for, as the action ``await_downloads`` takes it.

    Args:
        begun: Results of the loop that began to fetch weights in the background.
    """
    return [
        {
            "name": one["item"]["repo"],
            "job": one["results_file"],
            "path": one["item"]["directory"],
            "bytes": one["item"].get("bytes"),
        }
        for one in begun
    ]


def roost_fetch_failures(
    results: Sequence[Mapping[str, Any] | None], awaited: Sequence[Mapping[str, Any]]
) -> str:
    """Why weights did not come; empty where all did. See :func:`roost.downloads.failures`."""
    return downloads.failures(_plain(awaited), _plain(results))


def roost_pull_failure(result: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Why an image did not come, and what to do about it.

    Args:
        result: Of the task that pulled.
        given: The deployment.
    """
    wanted = _deployment(given)
    said = " ".join(str(result.get("msg", "no reason given")).split())
    return pulls.failure(said, wanted.spec.image, wanted.other_images)


def roost_published(spec: Mapping[str, Any]) -> list[str]:
    """A launch spec's ports in Docker's short form, ``listen:host:container``."""
    return [Port.model_validate(_plain(port)).published for port in spec["ports"]]


def roost_release(
    given: Mapping[str, Any], plan: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a host is told of a release, and keeps; see :func:`roost.releases.release`."""
    return releases.release(_deployment(given), _plain(plan))


def roost_outcome(
    result: Mapping[str, Any], host: str, release: Mapping[str, Any], drained: bool = False
) -> dict[str, Any]:
    """What became of a release, for people; see :func:`roost.releases.outcome`."""
    return releases.outcome(_plain(result), host, _plain(release["deployment"]), drained=drained)


def roost_back(
    facts: Mapping[str, Any], host: str, wanted: str | None, rollout: str | None
) -> dict[str, Any]:
    """The release that a rollback is about; see :func:`roost.releases.to_go_back_to`."""
    return releases.to_go_back_to(_plain(facts), host, wanted or None, rollout)


def roost_status(facts: Mapping[str, Any]) -> list[str]:
    """What serves on a host, in lines; see :func:`roost.releases.status`."""
    return releases.status(_plain(facts))


def roost_behind(
    variables: Mapping[str, Mapping[str, Any]], name: str, engines: Sequence[str], root: str
) -> dict[str, Any]:
    """The engines behind a gateway, or the reason why it cannot lead to them.

    Args:
        variables: Of all hosts, by their names.
        name: The gateway's.
        engines: Names of all hosts that are no gateways.
        root: The repository root.

    Returns:
        ``{behind, refusal}``, one of which is none.
    """
    try:
        found = gateway.behind(name, variables, engines, Path(root))
    except RoostError as error:
        return {"behind": None, "refusal": str(error)}
    return {"behind": found.model_dump(mode="json"), "refusal": None}


def roost_state_keeper(_: object) -> str:
    """The program with which a gateway keeps its servers' states over a reload."""
    return Path(haproxy.__file__).read_text(encoding="utf-8")


def roost_who(_: object) -> str:
    """Who runs this, for those who wait on a host meanwhile."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _deployment(given: Mapping[str, Any]) -> Deployment:
    return Deployment.model_validate(_plain(given))


def _plain(value: Any) -> Any:
    """A value without Ansible's containers, whose items are templated only when read one by one."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _not_installed(*_: Any) -> Any:
    raise AnsibleFilterError(
        f"roost is not installed in the Python that runs Ansible ({sys.executable}: {_missing}). "
        "Use the checkout's own: .venv/bin/ansible-playbook, or `. .venv/bin/activate` first."
    )


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        filters: dict[str, Callable[..., Any]] = {
            "roost_resolve": roost_resolve,
            "roost_probe": roost_probe,
            "roost_seen_image": roost_seen_image,
            "roost_watchdog_program": roost_watchdog_program,
            "roost_cuda": roost_cuda,
            "roost_cuda_verdict": roost_cuda_verdict,
            "roost_plain_named": roost_plain_named,
            "roost_preflight": roost_preflight,
            "roost_registry_auth": roost_registry_auth,
            "roost_downloads": roost_downloads,
            "roost_fetch_failures": roost_fetch_failures,
            "roost_pull_failure": roost_pull_failure,
            "roost_pinned": roost_pinned,
            "roost_build_failure": roost_build_failure,
            "roost_published": roost_published,
            "roost_release": roost_release,
            "roost_outcome": roost_outcome,
            "roost_back": roost_back,
            "roost_status": roost_status,
            "roost_behind": roost_behind,
            "roost_state_keeper": roost_state_keeper,
            "roost_who": roost_who,
        }
        return filters if _missing is None else dict.fromkeys(filters, _not_installed)
