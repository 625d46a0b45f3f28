"""Sorting a checkpoint's tensors, and what it declares about its quantization."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plan_checkpoints import qwen35_35b_tensors, tensor_bytes

from roost.errors import RoostError
from roost.plan.contents import Contents, Part, Quantization, part_of


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.language_model.layers.39.mlp.experts.255.down_proj.weight_packed", "language"),
        ("model.language_model.norm.weight", "language"),
        ("layers.0.self_attn.q_proj.weight", "language"),  # a DFlash drafter
        ("fc.weight", "language"),
        ("hidden_norm.weight", "language"),
        ("model.language_model.embed_tokens.weight", "embedding"),
        ("lm_head.weight_scale", "embedding"),
        ("model.visual.blocks.26.attn.qkv.weight", "vision"),
        ("visual.merger.norm.bias", "vision"),
        ("vision_tower.vision_model.encoder.layers.40.mlp.fc1.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp"),
        ("mtp.pre_fc_norm_embedding.weight", "mtp"),
        ("model.mtp_layers.0.input_proj.weight", "mtp"),
        # One layer more than there are, as DeepSeek and GLM keep it; its embedding is its own.
        ("model.layers.40.eh_proj.weight", "mtp"),
        ("model.language_model.layers.40.embed_tokens.weight", "mtp"),
        ("model.layers.040x.weight", "language"),
        ("audio_tower.layers.99.fc1.weight", "language"),
        pytest.param(f"model.layers.{'9' * 5000}.weight", "language", id="endless"),
    ],
)
def test_each_name_has_one_part(name: str, part: str) -> None:
    assert part_of(name, 40) == part


def test_without_a_layer_count_no_layer_is_one_too_many() -> None:
    assert part_of("model.layers.40.eh_proj.weight") == "language"


def test_the_fp8_checkpoint_of_source_001() -> None:
    """Its index holds 62,546 tensors, 333 of them vision and none MTP; 37.7 GB to fetch."""
    tensors = qwen35_35b_tensors("F8_E4M3")
    held = Contents.of({name: tensor_bytes(*tensor) for name, tensor in tensors.items()}, 40)
    assert held.tensors == 62_546
    assert held.vision.tensors == 333
    assert held.embedding.tensors == 2
    assert held.mtp == Part(tensors=0, bytes=0)
    assert held.bytes is not None
    assert round(held.bytes / 1e9, 1) == 37.7
    assert held.embedding.bytes == 2 * 248_320 * 2048 * 2


def test_a_size_that_is_not_known_is_nobodys_zero() -> None:
    held = Contents.of({"model.layers.0.a": 3, "lm_head.weight": None, "model.norm.weight": 4})
    assert held.language == Part(tensors=2, bytes=7)
    assert held.embedding == Part(tensors=1)
    assert held.bytes is None


@given(st.dictionaries(st.text(), st.none() | st.integers(0, 2**60)), st.none() | st.integers())
def test_every_tensor_counts_once(tensors: dict[str, int | None], layers: int | None) -> None:
    held = Contents.of(tensors, layers)
    assert held.tensors == len(tensors)
    if None not in tensors.values():
        assert held.bytes == sum(size or 0 for size in tensors.values())


NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False}

# What exporters write, cut to one target each.
SOURCE_001 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"config_group_0": {"targets": ["Linear"], "weights": FP8}},
    "ignore": [
        "lm_head",
        "re:.*embed_tokens.*",
        "re:.*\\.mlp\\.gate$",
        "re:.*shared_expert_gate$",
        "re:.*linear_attn.*",
        "re:model\\.visual\\..*",
    ],
    "kv_cache_scheme": None,
}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "producer": {"name": "modelopt", "version": "0.37.0"},
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": NVFP4, "input_activations": NVFP4}
    },
    "ignore": ["lm_head", "model.visual*"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
}
MIXED = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "config_groups": {
        "group_0": {"weights": NVFP4, "format": "nvfp4-pack-quantized"},
        "group_1": {"weights": FP8, "format": "float-quantized"},
        "group_2": {"weights": None},
    },
}
MODELOPT_MIXED = {
    "quant_method": "modelopt_mixed",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.layers.1.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    },
}
BLOCK_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            SOURCE_001,
            Quantization(
                method="compressed-tensors",
                format="fp8",
                groups={"config_group_0": "fp8"},
                ignored=6,
            ),
        ),
        (
            MODELOPT,
            Quantization(
                method="modelopt",
                format="nvfp4",
                groups={"group_0": "nvfp4"},
                ignored=2,
                kv_cache="fp8",
            ),
        ),
        (
            MIXED,
            Quantization(
                method="compressed-tensors",
                format="mixed",
                groups={"group_0": "nvfp4", "group_1": "fp8"},
            ),
        ),
        (
            MODELOPT_MIXED,
            Quantization(
                method="modelopt",
                format="mixed",
                groups={"FP8": "fp8", "W4A16_NVFP4": "nvfp4"},
            ),
        ),
        (BLOCK_FP8, Quantization(method="fp8", format="fp8", ignored=1)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}
                },
            },
            Quantization(method="compressed-tensors", format="mxfp4", groups={"a": "mxfp4"}),
        ),
        ({"quant_method": "awq", "bits": 4}, Quantization(method="awq", format="int4")),
        ({"quant_method": "bitsandbytes"}, Quantization(method="bitsandbytes")),
    ],
)
def test_what_exporters_write(said: dict[str, Any], read: Quantization) -> None:
    assert Quantization.from_config({"quantization_config": said}) == read
    assert Quantization.from_config({"text_config": {"quantization_config": said}}) == read


def test_nothing_said_is_no_quantization() -> None:
    assert Quantization.from_config({"quantization_config": None, "text_config": 3}) is None


def test_modelopts_own_file() -> None:
    document = {
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ["lm_head"],
        },
    }
    assert Quantization.from_modelopt(document) == Quantization(
        method="modelopt", format="nvfp4", ignored=1, kv_cache="fp8"
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("nvfp4", "all of it"),
        ({}, "quant_method"),
        ({"quant_method": 4}, "quant_method"),
        ({"quant_method": "x", "ignore": "lm_head"}, "ignore"),
        ({"quant_method": "x", "config_groups": []}, "config_groups"),
        ({"quant_method": "x", "config_groups": {"a" * 999: {"weights": 8}}}, "config_groups.aaa"),
        ({"quant_method": "x", "config_groups": {"g": {"weights": {"num_bits": "8"}}}}, "num_bits"),
        ({"quant_method": "x", "quantized_layers": {"q": {}}}, "quant_algo"),
    ],
)
def test_what_cannot_be_read_is_one_line(said: object, message: str) -> None:
    with pytest.raises(RoostError, match=message) as caught:
        Quantization.from_config({"quantization_config": said}, "x/config.json")
    assert caught.value.what.startswith("x/config.json: quantization_config: ")
    assert len(caught.value.what) < 200
    assert "\n" not in caught.value.what


def test_a_file_of_modelopt_without_its_section() -> None:
    with pytest.raises(RoostError, match=r"hf_quant_config\.json: quantization: must be a mapping"):
        Quantization.from_modelopt({"quant_algo": "NVFP4"})
