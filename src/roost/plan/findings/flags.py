"""Settings and flags against what this version of the engine takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from roost import versions
from roost.engines import spellings
from roost.plan.finding import Finding
from roost.plan.subject import Subject


def refused_values(s: Subject) -> Iterator[Finding]:
    """A value that one version takes and another refuses."""
    for refusal in s.resolved.engine.refuses:
        given = getattr(s.resolved.settings, refusal.setting, None)
        if given is None or str(given).lower() != refusal.value.lower():
            continue
        kind = s.target.model.weights if s.target.model else None
        if refusal.quantization is not None and refusal.quantization != kind:
            continue
        if versions.within(s.version, refusal.versions):
            yield Finding(
                id=f"{refusal.setting.replace('_', '-')}-refused",
                severity="error",
                summary=f"{s.resolved.engine.title} {s.version} refuses {refusal.setting} {given}"
                + (f" for {kind} weights" if refusal.quantization else ""),
                why=refusal.reason,
                fix=refusal.fix,
                source=refusal.source,
            )


def flags_of_version(s: Subject) -> Iterator[Finding]:
    """A flag that this version does not have, or has under another name."""
    words = {word.partition("=")[0] for word in s.resolved.spec.command if word.startswith("--")}
    words |= {
        word.partition("=")[0]
        for word in s.resolved.spec.env.get("EXTRA_ARGS", "").split()
        if word.startswith("--")
    }
    for known in s.resolved.engine.flag_history:
        if known.flag in words and versions.within(s.version, known.versions) is False:
            yield Finding(
                id="flag-not-in-version",
                severity="error",
                summary=f"{s.resolved.engine.title} {s.version} has no {known.flag}",
                why=f"versions that have it: {known.versions}",
                fix=f"write {known.instead}" if known.instead else f"leave {known.flag} out",
                source=known.source,
            )


def extra_args(s: Subject) -> Iterator[Finding]:
    """A flag given by hand that roost writes itself, has a setting for, or cannot plan with."""
    engine = s.resolved.engine
    style = spellings.reader(engine)
    settings = _flags_with_a_setting(s)
    own = spellings.OWN[style]
    for word in s.resolved.settings.extra_args or []:
        flag = spellings.flag_of(word, style, {*settings, *own, *spellings.SPREADING})
        if flag is None:
            continue
        said = word.partition("=")[0]
        named = said if said == flag else f"{said}, that is {flag}"
        if flag in own:
            # A single key is merged into what roost writes, and holds; a whole flag is lost, or
            # takes away what the rest of the launch goes by.
            yield Finding(
                id="flag-of-roost",
                severity="warning" if "." in said else "error",
                summary=f"extra_args says {named}, which roost writes itself",
                why="plan, checks and clients go by what it writes, and of a flag said twice the "
                "engine takes only one",
                fix=own[flag],
                source="roost.engines",
            )
        elif flag in settings:
            yield Finding(
                id="flag-has-a-setting",
                severity="warning",
                summary=f"extra_args says {named}, which is the setting {settings[flag]}",
                why="what stands in extra_args is not planned for, and of a flag said twice the "
                "engine takes the last",
                fix=f"{settings[flag]}=…",
                source="roost.settings",
            )
        else:
            yield Finding(
                id="flag-not-planned",
                severity="warning",
                summary=f"extra_args says {named}, which no plan counts",
                why="what is computed here is one engine whose layers tensor_parallel splits",
                fix="tensor_parallel=…, or count on the memory that the engine itself prints",
                source="roost.engines",
            )


def _flags_with_a_setting(s: Subject) -> dict[str, str]:
    """Settings by the flags that say them, those included that an image has a variable for."""
    engine = s.resolved.engine
    reads = s.catalog.engines[engine.flags_of] if engine.flags_of else engine
    found = {}
    for name, spelled in reads.flags.items():
        found[spelled.flag] = name
        if spelled.kind == "toggle":
            found[spelled.flag.replace("--", "--no-", 1)] = name
    return found


def choices(s: Subject) -> Iterator[Finding]:
    """Backends are names; a misspelt one is found by the engine only after the download."""
    flags = s.resolved.engine.flags
    for setting, spelled in (
        ("attention_backend", "attention_backend"),
        ("drafter_attention_backend", "attention_backend"),
        ("kv_cache_dtype", "kv_cache_dtype"),
        ("moe_backend", "moe_backend"),
        ("quantization", "quantization"),
    ):
        given = getattr(s.resolved.settings, setting)
        known = flags[spelled].choices if spelled in flags else []
        if given is None or not known or given.lower() in {name.lower() for name in known}:
            continue
        near = difflib.get_close_matches(given.lower(), [name.lower() for name in known], n=1)
        name = next((name for name in known if near and name.lower() == near[0]), None)
        # Images of other versions, and those with plugins, may have methods of their own.
        doubtful = (
            setting == "quantization"
            and spellings.reader(s.resolved.engine) == "vllm"
            and not versions.within(s.version, _METHODS_OF)
        )
        yield Finding(
            id="no-such-choice",
            severity="warning" if doubtful else "error",
            summary=f"{setting} {given} is unknown to {s.resolved.engine.title}",
            why="it takes: " + ", ".join(known),
            fix=f"{setting}={name}" if name else "",
            source=s.resolved.engine.source,
        )


#: Versions of vLLM whose lists of quantization methods were read.
_METHODS_OF = ">=0.23,<0.34"
#: What vLLM takes for a checkpoint besides the name of its own method. Methods that are not here
#: have rules of their own. Sources of vLLM 0.23 to 0.33.
_ALSO_TAKEN = {
    "compressed-tensors": {"humming"},
    "fp8": {"humming", "deepseek_v4_fp8"},
    "awq": {"humming", "auto_awq", "awq_marlin", "marlin", "moe_wna16"},
    "gptq": {"humming", "auto_gptq", "gptq_marlin", "marlin", "moe_wna16"},
    "modelopt": {"humming", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"},
}


def quantization(s: Subject) -> Iterator[Finding]:
    """A quantization that is not the checkpoint's, which vLLM refuses once it has been fetched."""
    given, method = s.resolved.settings.quantization, s.target.method
    flag = s.resolved.engine.flags.get("quantization")
    if spellings.reader(s.resolved.engine) != "vllm" or flag is None:
        return
    if given is None or given not in flag.choices or method not in _ALSO_TAKEN:
        return
    if given == method or given in _ALSO_TAKEN[method]:
        return
    # What ModelOpt wrote is known by its config, whatever the flag says.
    ignored = method == "modelopt"
    yield Finding(
        id="quantization-differs",
        severity="warning" if ignored else "error",
        summary=f"quantization {given}, but {s.target.weights.repo} is quantized by {method}",
        why=f"{s.resolved.engine.title} takes the checkpoint's own, so the setting does nothing"
        if ignored
        else f"{s.resolved.engine.title} refuses another method than the checkpoint's own",
        fix=f"quantization={method}, or leave it out",
        source=s.target.read_from
        if s.target.read_from != "catalogue" or s.target.model is None
        else s.target.model.source,
    )


CHECKS = (refused_values, flags_of_version, extra_args, choices, quantization)
