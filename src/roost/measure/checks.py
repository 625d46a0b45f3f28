"""Checks, figures and evidence: what everything that looks at a host reports in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from roost import ssh
from roost.deployment import Deployment
from roost.errors import RoostError
from roost.inventory import Host
from roost.measure.client import Client, EngineError
from roost.parquet import Table


def whole(text: str) -> str:
    """Without half characters: JSON may have some, and no file can hold them."""
    return text.encode(errors="replace").decode()


_Text = Annotated[str, AfterValidator(whole)]

#: What a check came to. `not seen`: nothing contradicts it and nothing shows it either.
Verdict = Literal["pass", "fail", "not seen", "not applicable"]


class Check(BaseModel):
    """One thing looked at.

    ``ok`` is false where it stands against the host. ``observed`` is empty where nothing could be
    observed; ``why`` then says why not. On a check that passed, ``why`` is a remark. ``fix`` says
    how to mend what does not hold. Without a verdict, ``ok`` says whether it passed.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool = True
    expected: _Text
    observed: _Text = ""
    why: _Text = ""
    fix: _Text = ""
    verdict: Verdict = "pass"

    @model_validator(mode="before")
    @classmethod
    def _either_says_the_other(cls, given: Any) -> Any:
        if isinstance(given, dict) and "verdict" not in given:
            return {**given, "verdict": "pass" if given.get("ok", True) else "fail"}
        if isinstance(given, dict) and "ok" not in given:
            return {**given, "ok": given["verdict"] != "fail"}
        return given


#: What a check tells in a host's words.
_TOLD = ("expected", "observed", "why", "fix")
#: What wants attention first.
_ORDER: tuple[Verdict, ...] = ("fail", "not seen", "pass", "not applicable")


def ordered(made: Iterable[Check]) -> list[Check]:
    """What does not hold first, what does not apply last; otherwise as they were made."""
    return sorted(made, key=lambda check: (check.ok, _ORDER.index(check.verdict)))


def unseen(id_: str, expected: str, why: str, *, observed: str = "", fix: str = "") -> Check:
    """A check for which there was nothing to look at."""
    return Check(id=id_, expected=expected, observed=observed, why=why, fix=fix, verdict="not seen")


def inapplicable(id_: str, why: str, *, observed: str = "") -> Check:
    """A check that this deployment has no use for."""
    return Check(
        id=id_,
        expected="",
        observed=observed,
        why=why,
        verdict="not applicable",
    )


class Figure(BaseModel):
    """One number and where it comes from; ``low`` and ``high`` are its 95 % interval, if any."""

    model_config = ConfigDict(frozen=True)

    title: str
    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None


def hidden(name: str, text: str, hide: Callable[[str], str]) -> str:
    """A file's text without a secret; in JSON only values are looked at, so that it stays JSON.

    Args:
        name: The file's.
        text: What is in it.
        hide: A text without the secret.
    """
    if name.endswith(".json"):
        try:
            document = json.loads(text)
        except ValueError:
            return hide(text)
        told = _in_values(document, hide)
        return text if told == document else json.dumps(told, ensure_ascii=False)
    return hide(text)


def _in_values(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: _in_values(item, hide) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_values(item, hide) for item in value]
    return value


@dataclass
class Evidence:
    """Everything one verification found out."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    #: Raw texts by file name, for the run's folder.
    artefacts: dict[str, str] = field(default_factory=dict)
    #: What is long, by file name.
    tables: dict[str, Table] = field(default_factory=dict)
    #: Artefacts that hold figures, and names of roost's own, alone: no secret is looked for there.
    own: set[str] = field(default_factory=set)

    def hide(self, hide: Callable[[str], str]) -> list[str]:
        """Take a secret out of everything that is text.

        Args:
            hide: A text without the secret.

        Returns:
            The artefacts that had it.
        """
        told = {
            name: text if name in self.own else hidden(name, text, hide)
            for name, text in self.artefacts.items()
        }
        had = [name for name, text in self.artefacts.items() if told[name] != text]
        self.artefacts |= told
        self.checks[:] = [
            check.model_copy(update={name: hide(getattr(check, name)) for name in _TOLD})
            for check in self.checks
        ]
        return had

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]


@dataclass
class Target:
    """A host with its deployment, and the ways to it that could be opened.

    Attributes:
        remote: The SSH connection, or none with the reason in ``no_remote``.
        client: A client for the endpoint through the tunnel; none without ``remote``.
        tunnel: The tunnel, which remembers why the far side refused.
        container: What ``docker inspect`` says of the container; empty until it was asked.
    """

    host: Host
    deployment: Deployment
    remote: ssh.Remote | None = None
    no_remote: str = ""
    client: Client | None = None
    tunnel: ssh.Tunnel | None = None
    container: Mapping[str, Any] = field(default_factory=dict)

    def reached(self) -> ssh.Remote:
        """The SSH connection; raises the reason where there is none."""
        if self.remote is None:
            raise RoostError(self.no_remote)
        return self.remote

    def inspect(self) -> Mapping[str, Any]:
        """What Docker says of the container now."""
        name = self.deployment.spec.name
        found: Mapping[str, Any] = self.docker(["container", "inspect", name])[0]
        return found

    def docker(self, words: Sequence[str]) -> list[Any]:
        """What a command of Docker that prints a JSON list says."""
        done = ssh.run_privileged(self.reached(), ["docker", *words])
        if done.rc != 0:
            raise RoostError(done.err.strip() or done.out.strip() or f"docker exited {done.rc}")
        return list(json.loads(done.out))

    def endpoint(self) -> Client:
        """The client; raises the reason where there is none."""
        if self.client is None:
            raise RoostError(self.no_remote)
        return self.client


#: What reading an answer of an unexpected form raises: text instead of a map, a count of zero to
#: divide by, brackets nested without end.
_NOT_AS_EXPECTED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def attempt(
    check_id: str, expected: str, make: Callable[[], Check], target: Target | None = None
) -> Check:
    """The check, or a failed one that says why it could not be made.

    Args:
        check_id: Of the check that failed.
        expected: Of the check that failed.
        make: Makes the check.
        target: Whose tunnel it goes through; none: it asks the endpoint nothing.
    """
    refused = len(target.tunnel.refusals) if target and target.tunnel else 0
    fix = ""
    try:
        return make()
    except RoostError as error:
        why, fix = _without_fix(error), error.fix
        if target and target.tunnel and len(target.tunnel.refusals) > refused:
            why, fix = f"{target.host.name}: {target.tunnel.refusals[-1]}", ""
        elif isinstance(error, EngineError) and error.status and error.status >= 500:
            why += "; engine.log has the reason"
    except _NOT_AS_EXPECTED as error:
        why = f"what came back could not be read: {type(error).__name__}: {error}"
    return Check(id=check_id, ok=False, expected=expected, why=why, fix=fix)


def _without_fix(error: RoostError) -> str:
    return str(RoostError(error.what, why=error.why))
