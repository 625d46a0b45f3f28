"""The environment-configured image against the commands of source 004, variable by variable."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import figures_004, source_004
from tests.unit.published import Wanted, figure

from roost import catalog
from roost.catalog_schema import Speculation
from roost.errors import RefusedError, UsageError
from roost.launch import resolving
from roost.launch.container import KEY_PATH
from roost.launch.resolving import Resolved
from roost.settings import Settings

RECIPE = "qwen3.5-27b-aeon-nvfp4-dflash"

#: Variables whose value differs on purpose.
CHANGED_ENV = {
    "MODEL_PATH": ("/model", "roost's one place for the target"),
    "DFLASH_DRAFTER": ("/drafter", "a pinned, read-only directory instead of a name to download"),
}
LEFT_OUT_ENV = {"VLLM_API_KEY": "the key comes in a file; docker inspect shows every variable"}
ADDED_ENV = {
    "HF_HUB_OFFLINE": "weights are on disk and pinned; nothing may be fetched at start-up",
    "VLLM_NO_USAGE_STATS": "nothing is reported to anybody",
}
#: TurboQuant's command names nobody to serve under; the defaults of its table are spelled out.
ADDED_BY_TURBOQUANT = {"SERVED_MODEL_NAME", "TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS"}


def build(**changes: Any) -> Resolved:
    return resolving.resolve(catalog.builtin(), RECIPE, "gb10", **changes)


def wanted_env() -> dict[str, str]:
    want = {k: v for k, v in source_004.ENV.items() if k not in LEFT_OUT_ENV}
    return want | {name: value for name, (value, _) in CHANGED_ENV.items()}


def test_variables_are_the_author_s() -> None:
    env = build().spec.env
    assert {k: v for k, v in env.items() if k not in ADDED_ENV} == wanted_env()
    assert set(env) - set(source_004.ENV) == set(ADDED_ENV)


def test_container_is_the_author_s_plus_what_is_listed() -> None:
    resolved = build()
    spec = resolved.spec
    assert (resolved.image.repository, resolved.image.tag) == (source_004.IMAGE, source_004.TAG)
    assert (resolved.model.repo, resolved.drafter and resolved.drafter.repo) == (
        source_004.MODEL,
        source_004.DRAFTER,
    )
    assert spec.command == source_004.COMMAND
    assert (spec.gpus, spec.ipc, spec.ulimits) == (
        source_004.GPUS,
        source_004.IPC,
        source_004.ULIMITS,
    )
    # The author shares the host's network, so the endpoint is on every address; roost on loopback.
    assert [port.published for port in spec.ports] == ["127.0.0.1:8000:8000"]
    # The author mounts the target, and lets the image download the drafter.
    assert [mount.target for mount in spec.mounts] == ["/model", "/drafter", KEY_PATH]
    assert all(mount.read_only for mount in spec.mounts)
    # The author's entrypoint is the image's own, which gets the key as a variable; here it is the
    # last word of one that keeps the key from it.
    assert spec.entrypoint[0] == "sh"
    assert spec.entrypoint[-1] == "/usr/local/bin/dflash-entrypoint.sh"


@pytest.mark.parametrize(
    ("variant", "mode"),
    [
        ("turboquant-off", "off"),
        ("turboquant-capture-only", "capture_only"),
        ("turboquant-hybrid", "hybrid"),
        ("turboquant-full", "full_tq"),
    ],
)
def test_turboquant_is_the_author_s_command_on_an_image_built_here(variant: str, mode: str) -> None:
    resolved = build(variant=variant)
    env = resolved.spec.env
    want = {**wanted_env(), **source_004.TURBOQUANT_ENV, "TQ_MODE": mode}
    added = ADDED_BY_TURBOQUANT | set(ADDED_ENV)
    assert {k: v for k, v in env.items() if k not in added} == {
        k: v for k, v in want.items() if k not in added
    }
    assert added <= set(env)
    assert {k: env[k] for k in source_004.TURBOQUANT_DEFAULTS} == {
        **source_004.TURBOQUANT_DEFAULTS,
        "TQ_MODE": mode,
    }
    made = resolved.image.build
    assert made
    assert made.directory == source_004.TURBOQUANT_DIRECTORY
    assert source_004.TURBOQUANT_LICENCE in (made.licence or "")
    assert catalog.builtin().recipes[RECIPE].variant(variant).licence == "GPL-3.0"
    # docker build takes a Git repository over https only by this ending.
    assert resolved.spec.build
    assert f"{made.git}#{made.revision.commit}:turboquant" in resolved.spec.build
    assert made.git.endswith("/vllm-dflash.git")


def test_every_mode_is_a_variant() -> None:
    recipe = catalog.builtin().recipes[RECIPE]
    modes = [recipe.variant(name).env["TQ_MODE"] for name in recipe.variants]
    assert sorted(modes) == sorted(source_004.TURBOQUANT_MODES)


def test_the_image_s_defaults_are_the_author_s_table() -> None:
    engine = catalog.builtin().engines["aeon-vllm-dflash"]
    taken = {
        engine.variables[name]: defaults[0].value
        for name, defaults in engine.defaults.items()
        if name in engine.variables
    }
    assert taken == {k: v for k, v in source_004.DEFAULTS.items() if v is not None}
    assert "DFLASH_DRAFTER" in build().spec.env


def test_without_speculation_no_drafter_is_named_or_mounted() -> None:
    spec = build(speculation="none").spec
    assert spec.env["DFLASH_DRAFTER"] == "off"
    assert "DFLASH_NUM_SPEC_TOKENS" not in spec.env
    assert [mount.target for mount in spec.mounts] == ["/model", KEY_PATH]


def test_what_has_no_variable_is_handed_on() -> None:
    overrides = Settings(
        kv_cache_dtype="fp8",
        prefix_caching=False,
        language_model_only=True,
        max_model_len=1024,
        extra_args=["--limit-mm-per-prompt", '{"image":4}'],
    )
    env = build(overrides=overrides).spec.env
    assert env["MAX_MODEL_LEN"] == "1024"
    assert env["EXTRA_ARGS"] == (
        "--kv-cache-dtype fp8 --no-enable-prefix-caching --language-model-only "
        '--limit-mm-per-prompt {"image":4}'
    )


@pytest.mark.parametrize("word", ["", "two words", "tab\tbed", "new\nline", '{"a": 1}', "\x00"])
def test_a_word_that_would_not_arrive_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="cannot be handed on by AEON's DFlash image"):
        build(overrides=Settings(extra_args=["--flag", word]))


def test_what_the_image_has_no_way_to_say_is_refused() -> None:
    with pytest.raises(UsageError, match="no way to say: drafter_attention_backend"):
        build(overrides=Settings(drafter_attention_backend="TRITON_ATTN"))


def test_another_way_to_speculate_is_refused() -> None:
    known = catalog.builtin()
    recipe = known.recipes[RECIPE]
    mtp = Speculation(method="mtp", settings=Settings(num_speculative_tokens=1))
    changed = recipe.model_copy(update={"speculation": {**recipe.speculation, "mtp": mtp}})
    other = known.model_copy(update={"recipes": {RECIPE: changed}})
    with pytest.raises(UsageError, match="no variable for speculation method mtp"):
        resolving.resolve(other, RECIPE, "gb10", speculation="mtp")


def test_flags_are_the_other_engine_s_save_where_there_is_a_variable() -> None:
    known = catalog.builtin().engines
    flags, variables = known["aeon-vllm-dflash"].flags, known["aeon-vllm-dflash"].variables
    assert set(flags) == set(known["vllm"].flags) - set(variables)
    assert all(known["vllm"].flags[name] == flag for name, flag in flags.items())


def test_hopper_is_refused_for_the_image_s_sake() -> None:
    with pytest.raises(RefusedError, match=r"no kernels for compute capability 9\.0") as caught:
        resolving.resolve(catalog.builtin(), RECIPE, "h200")
    assert "says nothing of the weights" in str(caught.value)
    engine = catalog.builtin().engines["aeon-vllm-dflash"]
    (image,) = engine.images
    assert "9.0" in image.lacks_compute_capability


def test_a_machine_that_is_only_named_is_untested() -> None:
    assert catalog.builtin().recipes[RECIPE].support_on("rtx5090") == "untested"
    with pytest.raises(RefusedError, match="has never been run on rtx5090"):
        resolving.resolve(catalog.builtin(), RECIPE, "rtx5090")


def test_every_published_table_is_there_cell_by_cell() -> None:
    recipe = catalog.builtin().recipes[RECIPE]
    assert {t.id: len(t.figures()) for t in recipe.figures} == figures_004.TABLES


@pytest.mark.parametrize("wanted", figures_004.VALUES, ids=str)
def test_published_values(wanted: Wanted) -> None:
    assert figure(catalog.builtin().recipes[RECIPE], wanted).value == wanted.value
