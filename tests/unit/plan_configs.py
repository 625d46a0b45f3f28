"""Public configurations for the tests of the planner, cut to what memory depends on."""

from __future__ import annotations

from typing import Any


def qwen35_35b(layers: int = 40) -> dict[str, Any]:
    """Qwen3.5/3.6-35B-A3B, the text model as it stands nested in its ``config.json``."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "dtype": "bfloat16",
            "num_hidden_layers": layers,
            "layer_types": [
                "linear_attention" if (n + 1) % 4 else "full_attention" for n in range(layers)
            ],
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "mtp_num_hidden_layers": 1,
        },
    }


def dflash(kv_heads: int, window: int | None) -> dict[str, Any]:
    """z-lab/Qwen3.6-35B-A3B-DFlash: 8 KV heads and a window now, 4 and none at 31977fbe13a8."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention" if window else "full_attention"] * 6,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 248070},
    }
