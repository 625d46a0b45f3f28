"""Whether speculation changes what is said: greedy answers with it against those without.

A verification of a host that runs without speculation keeps its greedy answers in its run. A later
one, of the same model in the same image and number formats with speculation, can name that run as
its reference. Verified drafts are what the model would have said itself, so the texts must agree,
with one exception: where two tokens are about equally likely, a block of drafts and a single token
are rounded differently and either may come out. The reference keeps how likely its tokens and the
next best ones were, so that such a near tie can be told from a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from roost import kept_files, quality, runs
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.launch.resolving import Resolved
from roost.measure.checks import Check, Evidence, Target, attempt, inapplicable
from roost.measure.client import Client
from roost.root import places

FILE = "greedy.json"
TOKENS = 96
PROMPTS = (
    "What is a hash table? Explain it in a few sentences.",
    "Write a Python function that reverses a list.",
    "Name five animals that live in the sea.",
    "Copy this text exactly, twice:\nThe five boxing wizards jump quickly.",
)
#: How much likelier (in nats) a token may have been than the one that took its place. In bfloat16,
#: with 8 significant bits, logits of 16 to 32 lie 0.125 apart, and each may be rounded one step.
NEAR_TIE = 0.25
#: In float32, where rounding is 65,536 times finer, nothing that rounding does comes near this.
NEAR_TIE_FLOAT32 = 0.001
#: Share of the reference's text that must have been compared, to say that nothing is lost: what
#: comes after a near tie is another text, and a tie at the first words shows next to nothing.
ENOUGH = 0.5
#: Characters that a token may have before the first byte of one that it does not complete.
_LONGEST_WORD = 16
#: Settings that change what comes out, whatever speculates.
_FORMATS = ("dtype", "kv_cache_dtype", "quantization", "mamba_cache_dtype", "tensor_parallel")


class Token(BaseModel):
    """A token and what nearly stood in its place."""

    model_config = ConfigDict(frozen=True)

    text: str
    logprob: float
    others: dict[str, float] = {}


class Greedy(BaseModel):
    """The greedy answer to one prompt; no tokens where the engine does not give them."""

    model_config = ConfigDict(frozen=True)

    prompt: str
    text: str
    tokens: list[Token] = []


class Reference(BaseModel):
    """Greedy answers without speculation, and what gave them."""

    model_config = ConfigDict(frozen=True)

    run: str = ""
    identity: dict[str, Any]
    answers: list[Greedy]


def identity(deployment: Deployment, resolved: Resolved) -> dict[str, Any]:
    """What two deployments must have in common to say the same."""
    formats = resolved.settings.model_dump(include=set(_FORMATS), mode="json")
    model = deployment.weights[0]
    return {
        "model": f"{model.repo}@{model.revision}",
        "image": deployment.image_digest or deployment.spec.image,
        "chat_template_kwargs": dict(deployment.chat_template_kwargs),
        **formats,
    }


def read(named: Any, home: Path, wanted: dict[str, Any]) -> Reference:
    """The reference that a run keeps.

    Args:
        named: The run's folder, or its name in ``home``.
        home: Where runs are kept.
        wanted: Identity of what is to be compared with it.

    Raises:
        UsageError: There is no such run, it is not finished or did not pass, it keeps no answers,
            or they are of something else.
    """
    name = runs.text("reference", named)
    folder = next((path for path in (*places(name), home / name) if path.is_dir()), None)
    if folder is None:
        raise UsageError(
            f"reference {name}: no such run",
            why=f"it is no folder, and there is none of this name in {home}",
            fix=f"ls {home}",
        )
    try:
        passed = runs.read(folder).ok
    except RoostError as error:
        raise UsageError(
            f"reference {name}: {error.what}",
            why=error.why,
            fix="name the folder of a verification that came to its end",
        ) from None
    if not passed:
        raise UsageError(f"reference {name}: did not pass itself", fix="verify that host again")
    try:
        found = Reference.model_validate_json(kept_files.read(folder / FILE))
    except (OSError, ValidationError):
        raise UsageError(
            f"reference {name}: keeps no greedy answers ({FILE})",
            fix="verify a host that runs the same with speculation none, and name that run",
        ) from None
    if differing := [
        f"{key} is {found.identity.get(key)}, here {value}"
        for key, value in wanted.items()
        if found.identity.get(key) != value
    ]:
        raise UsageError(
            f"reference {name}: is of something else, so it may rightly answer otherwise",
            why="; ".join(differing),
            fix="name a run of the same model, image and number formats",
        )
    return found.model_copy(update={"run": folder.name})


def check(
    target: Target, evidence: Evidence, wanted: dict[str, Any], reference: Reference | None
) -> Check:
    """Greedy answers against the reference's; without speculation they are kept as one.

    Args:
        target: The host.
        evidence: Keeps the answers of a host that runs without speculation.
        wanted: Identity of what is deployed.
        reference: What to compare with.
    """
    check_id = "lossless"
    if not target.deployment.speculates:
        return attempt(
            check_id, "greedy answers, to be kept", lambda: _keep(target, evidence, wanted), target
        )
    if reference is None:
        return inapplicable(check_id, "no reference: name a kept run of speculation none")
    near = NEAR_TIE_FLOAT32 if wanted.get("dtype") == "float32" else NEAR_TIE
    expected = f"the greedy answers of {reference.run}, which ran without speculation"

    def make() -> Check:
        client = target.endpoint()
        ties: list[str] = []
        lost: list[str] = []
        compared = 0
        for before in reference.answers:
            text = _ask(client, target.deployment, before.prompt).text
            if parting := part(before, text, near):
                (ties if parting.near_tie else lost).append(parting.says)
            compared += parting.after if parting else len(before.text)
        same = len(reference.answers) - len(ties) - len(lost)
        share = compared / max(1, sum(len(before.text) for before in reference.answers))
        said = f", {len(ties)} up to a near tie: {share:.0%} of the text" if ties else ""
        why = lost or ties
        if not lost and share < ENOUGH:
            why = [f"less than {ENOUGH:.0%} of the text could be compared", *ties]
        return Check(
            id=check_id,
            verdict="fail" if lost else "pass" if share >= ENOUGH else "not seen",
            expected=expected,
            observed=f"{same} of {len(reference.answers)} word for word{said}",
            why="; ".join(why),
            fix="speculation changes what the model says: try another drafter, attention backend "
            "or engine version, and report it to the engine"
            if lost
            else "",
        )

    return attempt(check_id, expected, make, target)


def _keep(target: Target, evidence: Evidence, wanted: dict[str, Any]) -> Check:
    client = target.endpoint()
    answers = [_ask(client, target.deployment, prompt, likely=True) for prompt in PROMPTS]
    kept = Reference(identity=wanted, answers=answers)
    evidence.artefacts[FILE] = kept.model_dump_json(indent=1) + "\n"
    why = "nothing speculates here; the greedy answers are kept, so this run can be a reference"
    return inapplicable("lossless", why, observed=f"{len(answers)} answers kept")


def _ask(client: Client, deployment: Deployment, prompt: str, *, likely: bool = False) -> Greedy:
    """The greedy answer, with the likelihood of its tokens where that is asked for."""
    body = quality.chat_request(
        prompt, deployment.served_name, deployment.chat_template_kwargs, max_tokens=TOKENS
    )
    if likely:
        body |= {"logprobs": True, "top_logprobs": 3}
    reply = client.chat(body)
    tokens = []
    for one in (reply["choices"][0].get("logprobs") or {}).get("content") or []:
        others = {
            other["token"]: other["logprob"]
            for other in one.get("top_logprobs") or []
            if other["token"] != one["token"]
        }
        tokens.append(Token(text=one["token"], logprob=one["logprob"], others=others))
    text = quality.answer_text(reply)
    if text is None:
        raise RoostError("the reply is not a chat completion", why=str(reply)[:200])
    # Where thinking is on it comes first, and its tokens are among those given.
    return Greedy(prompt=prompt, text=quality.reasoning_text(reply) + text, tokens=tokens)


class Parting(NamedTuple):
    """Where a text leaves its reference, and whether rounding may be why.

    Attributes:
        after: Characters that are the same.
    """

    near_tie: bool
    says: str
    after: int


def part(reference: Greedy, text: str, near: float) -> Parting | None:
    """Where two greedy texts part; none where they are the same.

    Args:
        reference: The text without speculation.
        text: The text with it.
        near: How much likelier the reference's token may have been for a tie, in nats.
    """
    if text == reference.text:
        return None
    at = 0
    for piece, tokens in _pieces(reference):
        if not piece or not text.startswith(piece, at):
            rest = text[at:]
            # A character of several tokens may part at any of them.
            gaps = [
                token.logprob - likely
                for token in tokens
                for other, likely in token.others.items()
                if _leads_to(rest, other)
            ]
            gap = min(gaps, default=None)
            told = (
                "none of the likely ones" if gap is None else f"a token {gap:.3f} nats less likely"
            )
            return Parting(
                near_tie=gap is not None and gap <= near,
                says=f"{reference.prompt[:40]!r}: after {text[:at][-30:]!r} came {rest[:20]!r} "
                f"instead of {piece or tokens[0].text!r}, {told}",
                after=at,
            )
        at += len(piece)
    return Parting(
        near_tie=False,
        says=f"{reference.prompt[:40]!r}: {text[:60]!r} instead of {reference.text[:60]!r}",
        after=at,
    )


def _pieces(reference: Greedy) -> Iterator[tuple[str, list[Token]]]:
    """The reference's text in the shortest pieces that are whole tokens; last its end, if kept.

    A character may be made of several tokens, whose own texts engines give as nothing, as
    replacement characters or as bytes: they are one piece, up to where a token stands in the text.
    """
    at, tokens = 0, reference.tokens
    while tokens:
        if at == len(reference.text):
            yield "", tokens[:1]
            return
        size, end = 1, at + len(tokens[0].text)
        if not tokens[0].text or not reference.text.startswith(tokens[0].text, at):
            size, end = _fragments(reference.text, at, tokens)
        yield reference.text[at:end], tokens[:size]
        at, tokens = end, tokens[size:]


def _fragments(text: str, at: int, tokens: list[Token]) -> tuple[int, int]:
    """How many tokens make what stands at ``at``, and where it ends in the text."""
    for size, token in enumerate(tokens[1:], 1):
        if not token.text:
            continue
        found = text.find(token.text, at, at + size + _LONGEST_WORD + len(token.text))
        if found == at:  # it has the text of those before it
            return size + 1, at + len(token.text)
        if found > at:
            return size, found
    return len(tokens), len(text)


def _leads_to(rest: str, token: str) -> bool:
    """Whether a text may go on with a token, of which only its text is known."""
    if not rest:
        return _ends(token)
    if not token.strip("\ufffd"):  # part of a character: of which one, nobody says
        return not rest[0].isascii()
    return rest.startswith(token)


def _ends(token: str) -> bool:
    """Whether a token ends an answer: it has no text of its own, or is written as a marker."""
    return not token or (token.startswith("<") and token.endswith(">"))
