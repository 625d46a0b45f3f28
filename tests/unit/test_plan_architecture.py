"""Reading configurations: real ones, odd ones, hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan_configs import dflash, qwen35_35b

from roost.errors import RoostError
from roost.plan.architecture import Architecture, Drafter, parse_config
from roost.plan.memory import kv_pool
from roost.plan.rules import rules_for

Change = Callable[[dict[str, Any]], object]


def test_the_public_35b_config() -> None:
    read = Architecture.from_config(qwen35_35b())
    assert read.model_dump() == {
        "attention": {"layers": 10, "query_heads": 16, "kv_heads": 2, "head_dim": 256},
        "gdn": {
            "layers": 30,
            "key_heads": 16,
            "value_heads": 32,
            "key_dim": 128,
            "value_dim": 128,
            "conv_kernel": 4,
            "state_dtype": "float32",
        },
        "dtype": "bfloat16",
        "context": 262_144,
        "mtp_layers": 1,
        "kv_cache_declared": None,
    }


def test_text_config_nested_or_not_is_the_same() -> None:
    nested = qwen35_35b()
    assert Architecture.from_config(nested["text_config"]) == Architecture.from_config(nested)


def test_dtype_may_stand_outside_of_text_config_and_under_its_old_name() -> None:
    config = qwen35_35b()
    del config["text_config"]["dtype"]
    config["torch_dtype"] = "torch.float16"
    assert Architecture.from_config(config).dtype == "float16"


def test_an_interval_says_what_the_list_would() -> None:
    config = qwen35_35b()
    del config["text_config"]["layer_types"]
    assert Architecture.from_config(config) == Architecture.from_config(qwen35_35b())


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def test_a_model_without_linear_attention_has_no_gdn() -> None:
    read = Architecture.from_config(LLAMA)
    assert read.gdn is None
    assert read.attention.layers == 30
    # transformers' LlamaConfig: the hidden size, shared by the heads.
    assert read.attention.head_dim == 64
    assert Architecture.from_config(LLAMA | {"head_dim": 128}).attention.head_dim == 128
    assert read.mtp_drafter() is None


def test_an_engine_may_be_told_the_dtype() -> None:
    """``--dtype``: then a configuration may say float32, or nothing."""
    assert Architecture.from_config(LLAMA, dtype="float32").dtype == "float32"
    for said in ("float32", None):
        config = LLAMA | {"dtype": said}
        assert Architecture.from_config(config, dtype="float16").dtype == "float16"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
    ],
)
def test_a_target_that_does_not_attend_to_everything(more: dict[str, Any], key: str) -> None:
    with pytest.raises(RoostError, match=f"{key}: the layers of this target do not attend"):
        Architecture.from_config(LLAMA | more)


def test_a_window_that_a_target_does_not_use() -> None:
    unused = {"sliding_window": 4096, "use_sliding_window": False}
    assert Architecture.from_config(LLAMA | unused) == Architecture.from_config(LLAMA)


def test_the_models_own_drafter_has_the_targets_shape() -> None:
    assert Architecture.from_config(qwen35_35b()).mtp_drafter() == Drafter(
        full_layers=1, kv_heads=2, head_dim=256
    )


@pytest.mark.parametrize(
    ("quantization", "declared"),
    [
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "kv_cache_quant_algo 'FP8'"),
        (
            {"quant_method": "modelopt", "quantization": {"kv_cache_scheme": {"num_bits": 8}}},
            "kv_cache_scheme a mapping",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
    ],
)
def test_kv_quantization_that_a_checkpoint_declares(
    quantization: dict[str, Any], declared: str | None
) -> None:
    config = qwen35_35b() | {"quantization_config": quantization}
    assert Architecture.from_config(config).kv_cache_declared == declared


@pytest.mark.parametrize(
    ("config", "full", "sliding", "window"),
    [
        (dflash(8, 4096), 0, 6, 4096),
        (dflash(4, None), 6, 0, None),
        (
            dflash(8, 4096) | {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
            *(1, 5, 4096),
        ),
        # transformers: Qwen3 slides only with use_sliding_window, and from max_window_layers on.
        (dflash(8, 4096) | {"layer_types": None}, 6, 0, None),
        (dflash(8, 4096) | {"layer_types": None, "max_window_layers": 2}, 2, 4, 4096),
        (
            dflash(8, 4096) | {"layer_types": None, "use_sliding_window": False},
            *(6, 0, None),
        ),
        # vLLM: use_swa slides every layer of a drafter that lists none as sliding.
        (
            dflash(4, None) | {"dflash_config": {"use_swa": True, "swa_window_size": 1024}},
            *(0, 6, 1024),
        ),
    ],
)
def test_which_layers_of_a_drafter_slide(
    config: dict[str, Any], full: int, sliding: int, window: int | None
) -> None:
    read = Drafter.from_config(config)
    assert (read.full_layers, read.sliding_layers, read.window) == (full, sliding, window)


def test_block_size_of_a_drafter_in_either_place() -> None:
    assert Drafter.from_config(dflash(4, None)).block_size == 16
    inside = dflash(4, None) | {"block_size": None, "dflash_config": {"block_size": 8}}
    assert Drafter.from_config(inside).block_size == 8


def _set(key: str, value: object) -> Change:
    return lambda text: text.update({key: value})


def _drop(key: str) -> Change:
    return lambda text: text.pop(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("num_key_value_heads"), "num_key_value_heads: is missing"),
        (_drop("head_dim"), "head_dim: is missing"),
        (_drop("dtype"), "dtype: is missing"),
        (_drop("linear_conv_kernel_dim"), "linear_conv_kernel_dim: is missing"),
        (_set("head_dim", None), "head_dim: is missing"),
        (_set("head_dim", "256"), "head_dim: must be a whole number, not '256'"),
        (_set("head_dim", 256.0), "head_dim: must be a whole number, not 256.0"),
        (_set("head_dim", True), "head_dim: must be a whole number, not true"),
        (_set("head_dim", [256]), "head_dim: must be a whole number, not a list"),
        (_set("head_dim", 0), "head_dim: must be from 1 to 65,536, not 0"),
        (_set("head_dim", -256), "head_dim: must be from 1 to 65,536, not -256"),
        (_set("head_dim", 10**5000), "not a number of 16,610 bits"),
        (_set("dtype", "float8"), "dtype: must be one of float32, bfloat16, float16"),
        (_set("dtype", "float32"), "dtype: is float32, which engines serve at a lower"),
        (_set("dtype", {}), "dtype: must be one of float32, bfloat16, float16, not a mapping"),
        (_set("layer_types", "full_attention"), "layer_types: must be a list"),
        (_set("layer_types", ["full_attention"]), "layer_types: lists 1 layers, but num_hidden"),
        (_set("layer_types", [["full"]]), "layer_types: must be of full_attention"),
        (_set("layer_types", ["sliding_attention"] * 40), "layer_types: must be of full_attention"),
        (_set("layer_types", ["linear_attention"] * 40), "layer_types: has no full_attention"),
        (_set("kv_lora_rank", 512), "its attention is latent"),
        (_set("mtp_num_hidden_layers", -1), "mtp_num_hidden_layers: must be from 0 to"),
        (_set("quantization_config", "fp8"), "quantization_config: must be a mapping, not 'fp8'"),
        (
            lambda text: (text.pop("layer_types"), text.pop("full_attention_interval")),
            "neither layer_types nor full_attention_interval",
        ),
    ],
)
def test_one_line_for_a_bad_target(change: Change, message: str) -> None:
    config = qwen35_35b()
    change(config["text_config"])
    with pytest.raises(RoostError) as error:
        Architecture.from_config(config, "org/name config.json")
    assert message in error.value.what
    assert error.value.what.startswith("org/name config.json: ")
    assert "\n" not in error.value.what


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing"),
        ({"layer_types": ["linear_attention"] * 6}, "layer_types: must be of full_attention"),
        ({"use_sliding_window": "yes"}, "use_sliding_window: must be true or false, not 'yes'"),
        ({"use_sliding_window": False}, "6 layers slide, but no window says how far"),
        ({"sliding_window": 0}, "sliding_window: must be from 1 to"),
        ({"dflash_config": []}, "dflash_config: must be a mapping, not a list"),
    ],
)
def test_one_line_for_a_bad_drafter(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RoostError) as error:
        Drafter.from_config(dflash(8, 4096) | changes)
    assert message in error.value.what
    assert "\n" not in error.value.what


@pytest.mark.parametrize("config", [None, [], "text", 7, True, 1.5])
def test_what_is_no_mapping(config: object) -> None:
    for reader in (Architecture.from_config, Drafter.from_config):
        with pytest.raises(RoostError, match="must be a mapping, not "):
            reader(config)


def test_a_text_config_that_is_no_mapping() -> None:
    with pytest.raises(RoostError, match=r"config\.json: text_config: must be a mapping, not 3"):
        Architecture.from_config({"text_config": 3})


def test_parse_config_reads_what_json_wrote() -> None:
    text = json.dumps(qwen35_35b())
    assert parse_config(text) == qwen35_35b()
    assert parse_config("\ufeff" + text + "\n") == qwen35_35b()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        ("<!doctype html>\n<title>Log in</title>", "is HTML or XML, not JSON"),
        ("", "is not JSON: line 1, column 1"),
        ('{"a": 1,\n "b": }', "is not JSON: line 2, column 7"),
        ("[1]", "must be a mapping, not a list"),
        ("null", "must be a mapping, not null"),
        ("[" * 200_000, "is not JSON that can be a configuration"),
        ('{"head_dim": ' + "9" * 10_000 + "}", "is not JSON that can be a configuration"),
    ],
)
def test_text_that_is_no_configuration(text: str, message: str) -> None:
    with pytest.raises(RoostError) as error:
        parse_config(text)
    assert message in error.value.what
    assert "\n" not in error.value.what


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**9), 10**9)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full_attention", "linear_attention", "float32", "torch.bfloat16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def _check(config: object, drafter: object) -> None:
    """Whatever is given: a pool that adds up, or one line."""
    try:
        target = Architecture.from_config(config)
        extra = Drafter.from_config(drafter)
        pool = kv_pool(
            target,
            extra,
            tensor_parallel=1,
            kv_dtype="fp8",
            mamba_cache_dtype="auto",
            num_speculative_tokens=4,
            max_model_len=131_072,
            max_num_batched_tokens=2048,
            kv_cache_bytes=2**40,
            prefix_caching=False,
            rules=rules_for("0.32.0"),
        )
    except RoostError as error:
        what = error.what
    else:
        layers = target.attention.layers + (target.gdn.layers if target.gdn else 0)
        added = extra.full_layers + extra.sliding_layers
        assert sum(kind.layers for kind in pool.kinds) == layers + added
        what = ""
    assert "\n" not in what
    assert len(what) < 400
    what.encode()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(qwen35_35b()["text_config"])), JSON)
def test_any_value_anywhere_in_a_target(key: str, value: object) -> None:
    config = qwen35_35b()
    config["text_config"][key] = value
    _check(config, dflash(8, 4096))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*dflash(8, 4096), "max_window_layers"]), JSON)
def test_any_value_anywhere_in_a_drafter(key: str, value: object) -> None:
    _check(qwen35_35b(), dflash(8, 4096) | {key: value})


@settings(max_examples=80, deadline=None)
@given(JSON, JSON)
def test_any_document(config: object, drafter: object) -> None:
    _check(config, drafter)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=40) | JSON.map(json.dumps))
def test_any_text(text: str) -> None:
    try:
        assert isinstance(parse_config(text), dict)
    except RoostError as error:
        what = error.what
        what.encode()
        assert "\n" not in what.removeprefix("config.json: ")
