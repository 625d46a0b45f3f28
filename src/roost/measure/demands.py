"""Whether an engine says that it runs as its recipe demands, and with the pool that was planned.

What a recipe demands is in its settings, as the planner reads them; nothing is written down twice.
A demand of which the log says nothing is *not seen*, which is neither a pass nor a failure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from pydantic import ValidationError

from roost import catalog as catalog_module
from roost import ssh
from roost.catalog import Catalog
from roost.deployment import Deployment, resolved_again
from roost.errors import RoostError
from roost.measure.checks import Check, Target, inapplicable, unseen
from roost.measure.startlog import Said, StartLog
from roost.onhost import RELEASES
from roost.plan import planner, reading
from roost.plan.planner import Memory
from roost.plan.subject import Subject

#: What the host was deployed with; the role's default place.
PLAN = PurePosixPath(RELEASES, "current", "plan.json")

_NOT_THERE = "the log of this start does not say; it may have been rotated away"
_LOOK = "deploy again and verify soon after: a log that is rotated loses its beginning"
#: One number format by several names: vLLM's short one and PyTorch's.
_SAME_FORMAT = {
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "bf16": "bfloat16",
}


def examine(deployment: Deployment, catalog: Catalog | None = None) -> Subject:
    """The deployment as the planner sees it, without asking a hub."""
    known = catalog or catalog_module.current()
    return planner.examine(resolved_again(deployment, known), catalog=known)


def checks(subject: Subject, log: StartLog) -> list[Check]:
    """What the log says of everything that the settings demand."""
    settings = subject.resolved.settings
    drafts = subject.layers_added is not None or subject.drafter is not None
    moe = settings.moe_backend if settings.moe_backend != "auto" else None
    kv = settings.kv_cache_dtype if settings.kv_cache_dtype != "auto" else None
    return [
        _demand("log_attention", "attention_backend", subject.target_backend, log.target_attention),
        _demand(
            "log_drafter_attention",
            "drafter_attention_backend",
            subject.drafter_backend if drafts else None,
            log.drafter_attention,
            why_not="nothing of its own drafts here" if not drafts else "",
        ),
        _demand("log_moe", "moe_backend", moe, log.moe, _plain_moe),
        # A drafter's pool may have another format; the target's is allocated first.
        _demand("log_kv_dtype", "kv_cache_dtype", kv, log.kv_dtype[:1], _plain_format),
        _graphs(subject, log),
    ]


def _demand(
    check_id: str,
    setting: str,
    wanted: str | None,
    said: Sequence[Said],
    plain: Callable[[str], str] = str.upper,
    *,
    why_not: str = "",
) -> Check:
    observed = "; ".join(one.line for one in said)
    if wanted is None:
        why = why_not or f"the recipe leaves {setting} to the engine"
        return inapplicable(check_id, why, observed=observed)
    expected = f"{setting} {wanted}"
    if not said:
        return unseen(check_id, expected, _NOT_THERE, fix=_LOOK)
    others = [one.value for one in said if plain(one.value) != plain(wanted)]
    return Check(
        id=check_id,
        ok=not others,
        expected=expected,
        observed=observed,
        why=f"the engine took {', '.join(others)}" if others else "",
        fix=f"`roost diagnose` on engine.log says why; else set {setting} to what the engine takes"
        if others
        else "",
    )


def _plain_moe(name: str) -> str:
    """``cutlass`` is VLLM_CUTLASS in the log, ``flashinfer_trtllm`` may be `FlashInfer TRTLLM`."""
    return re.sub(r"^(?:BATCHED_)?(?:VLLM_)?|[_ ]", "", name.upper())


def _plain_format(name: str) -> str:
    return _SAME_FORMAT.get(name.lower(), name.lower())


def _graphs(subject: Subject, log: StartLog) -> Check:
    """Full graphs for decoding, unless the recipe or the plan says otherwise."""
    check_id = "log_graphs"
    observed = "; ".join(one.line for one in (*log.graphs[-1:], *log.captured))
    if subject.compute_capability is None:
        return inapplicable(check_id, "CUDA graphs need a GPU", observed=observed)
    mode = log.graphs[-1].value if log.graphs else None
    if subject.settings.enforce_eager:
        expected = "no CUDA graphs (enforce_eager)"
        if mode is None:
            return unseen(check_id, expected, _NOT_THERE, fix=_LOOK)
        ok = mode == "NONE"
        why = "" if ok else f"the engine resolved {mode} although the recipe asks for none"
        return Check(id=check_id, ok=ok, expected=expected, observed=observed, why=why)
    foretold = any(one.id == "cudagraph-piecewise" for one in planner.judge(subject).findings)
    expected = "CUDA graphs captured, FULL for decoding"
    if foretold:
        expected = "CUDA graphs captured, PIECEWISE as the plan foretells"
    wanted = {"FULL", "PIECEWISE"} if foretold else {"FULL"}
    if mode is not None and not any(one in mode for one in wanted):
        return Check(
            id=check_id,
            ok=False,
            expected=expected,
            observed=observed,
            why=f"the engine runs with {mode}: every step is slower than it need be",
            fix="`roost plan` says which backend takes the graphs away; TRITON_ATTN keeps them",
        )
    if not any(one.value in wanted for one in log.captured):
        why = "no graph was seen captured" if mode else _NOT_THERE
        return unseen(check_id, expected, why, observed=observed, fix=_LOOK)
    return Check(id=check_id, expected=expected, observed=observed)


# --- the pool -------------------------------------------------------------------------------------


def planned(target: Target, subject: Subject) -> tuple[Memory, str]:
    """The memory that was planned for this host, and where it stands.

    The plan that the host was deployed with; where it keeps none, the one that the catalogue gives
    now, read from the site's hub where the catalogue does not know the model.
    """
    done = ssh.run_privileged(target.reached(), ["cat", str(PLAN)])
    if done.rc == 0:
        try:
            kept = planner.Plan.model_validate(json.loads(done.out))
        except (ValueError, ValidationError):
            raise RoostError(f"{PLAN} is no plan that this roost can read") from None
        return kept.memory, "the plan it was deployed with"
    if ssh.run_privileged(target.reached(), ["test", "-e", str(PLAN)]).rc == 0:
        raise RoostError(f"{PLAN} cannot be read", why=done.err.strip())
    memory = planner.judge(subject).memory
    endpoint = target.deployment.hub_endpoint
    if memory.kv_pool_tokens is None and endpoint:
        made = planner.make(
            subject.resolved,
            catalog=subject.catalog,
            read=lambda weights: reading.from_hub(weights, endpoint),
        )
        memory = made.memory
    return memory, "a plan made now; the host keeps none"


def pool_checks(subject: Subject, log: StartLog, memory: Memory, where: str) -> list[Check]:
    """Tokens and concurrency of the pool against the plan.

    To the token where the pool's bytes are given; where the engine measures them itself, within
    what the plan says it may be off by.
    """
    return [
        _pool(
            "pool_tokens",
            "tokens",
            memory.kv_pool_tokens,
            log.pool_tokens,
            slack=_slack(subject, memory),
            where=where,
        ),
        _pool(
            "pool_concurrency",
            "requests of the longest length at a time",
            memory.max_concurrency,
            log.concurrency,
            slack=_slack(subject, memory),
            where=where,
        ),
    ]


def _slack(subject: Subject, memory: Memory) -> float | None:
    """The fraction that the plan may be off by; 0: it is exact; none: not known."""
    given = subject.resolved.settings.kv_cache_bytes is not None
    if (given or subject.compute_capability is None) and not memory.estimated:
        return 0.0
    if memory.uncertainty_bytes is None or not memory.kv_cache_bytes:
        return None
    return memory.uncertainty_bytes / memory.kv_cache_bytes


def _pool(
    check_id: str,
    unit: str,
    plan: float | None,
    said: Sequence[Said],
    *,
    slack: float | None,
    where: str,
) -> Check:
    observed = "; ".join(one.line for one in said)
    if plan is None:
        why = "the plan knows no pool for this model on this machine"
        return unseen(check_id, "what the plan says", why, observed=observed)
    # As the engine prints it: whole tokens, two decimals of a request.
    shown = f"{plan:,}" if isinstance(plan, int) else f"{plan:.2f}"
    expected = f"{shown} {unit}" if slack == 0 else f"about {shown} {unit}, an estimate"
    expected += f" ({where})"
    if not said:
        return unseen(check_id, expected, _NOT_THERE, fix=_LOOK)
    if slack == 0:
        wrong = [one.value for one in said if one.value.replace(",", "") != shown.replace(",", "")]
        why = f"the engine says {', '.join(wrong)}" if wrong else ""
        fix = (
            "model, settings or engine are not those that were planned: `roost plan`, deploy again"
        )
    else:
        least = min(float(one.value.replace(",", "")) for one in said)
        why, wrong = f"{abs(least / plan - 1):.1%} off the plan" if plan else "", []
        if slack is not None and least < plan * (1 - slack):
            wrong = [said[0].value]
            why += f", which allows for {slack:.1%} less"
        fix = "something else takes memory here, or the estimate is wrong; with kv_cache_bytes the "
        fix += "pool is what you say"
    return Check(
        id=check_id,
        ok=not wrong,
        expected=expected,
        observed=observed,
        why=why,
        fix=fix if wrong else "",
    )
