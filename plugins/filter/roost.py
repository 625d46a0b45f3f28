"""Filters that hand roles what the package computes. What to do with it, roles decide.

A user's mistake is returned as text for one ``fail`` task to print: raised from a filter, it would
arrive wrapped in where Ansible was when it happened.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from roost import deployment, hosts, preflight, pulls, quality, references
    from roost.deployment import Deployment
    from roost.errors import RoostError
    from roost.launch import Port
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


def roost_preflight(
    given: Mapping[str, Any],
    probe: str,
    snapshots: Sequence[Mapping[str, Any]],
    image: Mapping[str, Any],
    registry: Mapping[str, Any],
    check_mode: bool,
    hub_token: str | None = None,
) -> dict[str, str]:
    """Everything that speaks against deploying, from what was asked of host, hub and registry.

    Args:
        given: The deployment.
        probe: What the probe printed.
        snapshots: A result of ``hf_snapshot`` in check mode for each of the weights.
        image: Docker's answer about the image on the host (a result of ``uri``).
        registry: Docker's answer about the image in the registry, or a skipped task.
        check_mode: Then nothing is fetched, and an outage is worth a warning only.
        hub_token: The site's, for the configs of gated repositories.

    Returns:
        ``{errors, remarks}``: texts, empty where there is nothing to say. Remarks are warnings and
        notes, each beginning with its severity.
    """
    wanted = _deployment(given)
    try:
        facts = hosts.parse(probe)
    except RoostError as error:
        return {"errors": str(error), "remarks": ""}
    missing = [
        snapshot.get("bytes", weights.bytes or 0)
        for weights, snapshot in zip(wanted.weights, snapshots, strict=True)
    ]
    planned = gate.plan(wanted, facts, str(hub_token) if hub_token else None)
    findings = [
        *preflight.check(facts, wanted),
        *preflight.disk(
            facts,
            weights_bytes=sum(missing),
            image_bytes=0
            if image.get("status") == 200
            else wanted.requirements.image_bytes.get(facts.architecture),
            model_dir=wanted.model_dir,
        ),
        *_hub(snapshots, check_mode),
        *_registry(registry, wanted, check_mode),
    ]
    errors = [found.text() for found in findings if found.severity == "error"]
    remarks = [
        f"{found.severity}: {found.text()}" for found in findings if found.severity != "error"
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
    return {"errors": "\n".join(errors), "remarks": "\n".join(remarks)}


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


def _registry(answer: Mapping[str, Any], wanted: Deployment, check_mode: bool) -> Iterator[Finding]:
    """What Docker's own question to the registry brought."""
    if answer.get("skipped") or answer.get("status") == 200:
        return
    image = wanted.spec.image
    if wanted.spec.build is not None:
        yield preflight.unbuilt(image, wanted.other_images)
        return
    said = (answer.get("json") or {}).get("message") or answer.get("msg", "no answer")
    yield preflight.registry(said, image, wanted.other_images, check_mode=check_mode)


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


def roost_judge(responses: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the answers of the quality gate.

    Args:
        responses: A result of ``uri`` for each request of the gate, in its order.
        given: The deployment.

    Returns:
        ``{wrong, answers}``: a text about what was answered wrongly (empty if nothing was), and a
        line for every question with its answer.
    """
    questions = _deployment(given).gate.questions
    wrong, answers = [], []
    for question, response in zip(questions, responses, strict=True):
        verdict = quality.judge(question, response.get("json") or response.get("msg"))
        answers.append(f"{question.prompt} {verdict.observed}")
        if not verdict.ok:
            wrong.append(
                f"{verdict.id}: asked {question.prompt!r}, the answer was {verdict.observed!r}\n"
                f"  wants: {verdict.expected}\n  why: {verdict.why}"
            )
    return {"wrong": "\n".join(wrong), "answers": answers}


def roost_release(given: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a release: what runs and what it came from.

    Returns:
        ``{id, record}``. The id is the recipe and a hash of the record, which says nothing of
        when or how often it was deployed: the same deployment is the same release.
    """
    wanted = _deployment(given)
    record = wanted.model_dump(
        mode="json",
        include={
            "recipe",
            "hardware",
            "speculation",
            "served_name",
            "engine_version",
            "weights",
            "spec",
            "docker_command",
            "accept_findings",
        },
    )
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {"id": f"{wanted.recipe}-{digest[:12]}", "record": record}


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
            "roost_preflight": roost_preflight,
            "roost_registry_auth": roost_registry_auth,
            "roost_pull_failure": roost_pull_failure,
            "roost_published": roost_published,
            "roost_judge": roost_judge,
            "roost_release": roost_release,
        }
        return filters if _missing is None else dict.fromkeys(filters, _not_installed)
