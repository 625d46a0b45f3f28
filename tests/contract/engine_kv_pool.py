"""Runs in an engine's Python, not in ours: the KV pools that vLLM's own functions lay out.

Reads a JSON list of cases from standard input and prints one JSON line, a list of answers. What
an engine does between reading configurations and printing its pool is done here by the engine's
own code: which layers slide, what each layer keeps, states and their types, block alignment, KV
layout, page sizes, groups, blocks, concurrency, the check that one request fits, and whether a
drafter's groups are accepted. Written here is only what needs weights or a device:

- the layers are built without their constructors, with the attributes that describe their cache;
- the attention backend is given: Triton's (a GPU) or the CPU engine's;
- asynchronous scheduling is on for a GPU and off for a CPU, as the engines decide it for DFlash
  and MTP; Triton counts as present on a GPU, as the choice of the model runner asks;
- the text model is taken for Qwen3-Next, whose state shapes Qwen3.5 shares, because the class of
  the latter imports torchvision.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, Qwen3Config
from vllm.config import CacheConfig, SpeculativeConfig, VllmConfig, set_current_vllm_config
from vllm.config import vllm as config_module
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.models import ModelRegistry, qwen3_dflash
from vllm.model_executor.models.config import (
    MambaModelConfig,
    Qwen3_5ForConditionalGenerationConfig,
)
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

try:  # since 0.33
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:
    planning = kv_cache_utils

Case = dict[str, Any]


def bare(cls: type, **attributes: Any) -> Any:
    """An object of the engine's class without the checks and devices of its constructor."""
    made = object.__new__(cls)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def engine_config(case: Case) -> Any:
    """The engine's configuration, as far as KV pools depend on it."""
    cpu = case["device"] == "cpu"
    hf = AutoConfig.for_model(**case["target"])
    hybrid = "linear_attention" in (getattr(hf, "layer_types", None) or [])
    tp = case["tensor_parallel"]

    def kv_heads(_: Any = None) -> int:
        return max(1, hf.num_key_value_heads // tp)

    model = SimpleNamespace(
        hf_config=hf,
        hf_text_config=hf,
        model="drawn",
        dtype=getattr(torch, case["dtype"]),
        architecture="Qwen3NextForCausalLM" if hybrid else "LlamaForCausalLM",
        architectures=["Qwen3NextForCausalLM" if hybrid else "LlamaForCausalLM"],
        runner_type="generate",
        max_model_len=case["max_model_len"],
        original_max_model_len=case["max_model_len"],
        is_hybrid=hybrid,
        is_attention_free=False,
        is_diffusion=False,
        is_moe=False,
        is_quantized=False,
        has_inner_state=hybrid,
        use_mla=False,
        supports_mamba_prefix_caching=False,
        supports_kv_cache_grouping=False,
        get_num_kv_heads=kv_heads,
        get_num_attention_heads=lambda _: hf.num_attention_heads // tp,
        get_head_size=lambda: hf.head_dim,
        get_total_num_kv_heads=lambda: hf.num_key_value_heads,
    )
    cache = CacheConfig(
        cache_dtype=case["kv_dtype"],
        enable_prefix_caching=case["prefix_caching"],
        mamba_cache_dtype=case["mamba_cache_dtype"],
    )
    if cpu:
        # CpuPlatform.check_and_update_config, where no block size was given.
        cache.block_size = 128
    speculative = None
    if case["num_speculative_tokens"]:
        draft = case["drafter"]
        draft_config = None if draft is None else Qwen3Config(**draft)
        speculative = bare(
            SpeculativeConfig,
            method="dflash" if draft else "mtp" if case["mtp"] else "ngram",
            num_speculative_tokens=case["num_speculative_tokens"],
            draft_model_config=SimpleNamespace(
                hf_config=draft_config, architectures=["DFlashDraftModel"]
            ),
            parallel_drafting=bool(draft),
            disable_padded_drafter_batch=False,
            num_speculative_tokens_per_batch_size=None,
            enable_adaptive_verification=False,
            use_heterogeneous_vocab=False,
        )
    config_module.HAS_TRITON = not cpu
    config = bare(
        VllmConfig,
        model_config=model,
        cache_config=cache,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_dbo=False,
            use_ubatching=False,
            enable_elastic_ep=False,
            distributed_executor_backend="mp",
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=case["max_num_batched_tokens"],
            async_scheduling=not cpu,
            disable_hybrid_kv_cache_manager=False,
            enable_chunked_prefill=True,
        ),
        speculative_config=speculative,
        attention_config=SimpleNamespace(hisparse_config=None),
        compilation_config=SimpleNamespace(
            static_forward_context={},
            mode=0,
            pass_config=SimpleNamespace(enable_sp=False),
            custom_op_log_check=lambda: None,
        ),
        device_config=SimpleNamespace(device_type="cpu" if cpu else "cuda"),
        kv_transfer_config=None,
        ec_transfer_config=None,
        lora_config=None,
        diffusion_config=None,
        additional_config={},
        kv_events_config=None,
    )
    # Features that a model runner lacks are none of ours; what they are asked for needs the rest
    # of the configuration.
    object.__setattr__(config, "_get_v2_model_runner_unsupported_features", list)
    if hybrid:
        MambaModelConfig.verify_and_update_config(config)
        Qwen3_5ForConditionalGenerationConfig.verify_and_update_config(config)
    return config


def add_layers(config: Any, case: Case) -> list[str]:
    """Give the configuration its layers, the target's first; the names of the drafter's."""
    layers = config.compilation_config.static_forward_context
    backend = CPUAttentionBackend if case["device"] == "cpu" else TritonAttentionBackend
    tp = case["tensor_parallel"]
    target = config.model_config.hf_text_config
    names = []

    def attention(name: str, heads: int, size: int, window: int | None) -> None:
        dtype = config.cache_config.cache_dtype
        layers[name] = bare(
            Attention,
            attn_type=AttentionType.DECODER,
            attn_backend=backend,
            num_kv_heads=max(1, heads // tp),
            head_size=size,
            head_size_v=size,
            sliding_window=window,
            kv_cache_dtype=dtype,
            kv_cache_torch_dtype=kv_cache_dtype_str_to_dtype(dtype, config.model_config),
            kv_sharing_target_layer_name=None,
            is_draft_layer=name.startswith("draft"),
        )

    kinds = getattr(target, "layer_types", None) or ["full_attention"] * target.num_hidden_layers
    for n, kind in enumerate(kinds):
        if kind == "full_attention":
            attention(f"model.layers.{n}", target.num_key_value_heads, target.head_dim, None)
            continue
        layers[f"model.layers.{n}"] = bare(
            QwenGatedDeltaNetAttention,
            tp_size=tp,
            num_k_heads=target.linear_num_key_heads,
            num_v_heads=target.linear_num_value_heads,
            head_k_dim=target.linear_key_head_dim,
            head_v_dim=target.linear_value_head_dim,
            conv_kernel_size=target.linear_conv_kernel_dim,
            num_spec=case["num_speculative_tokens"],
            model_config=config.model_config,
            cache_config=config.cache_config,
            vllm_config=config,
            # With prefix caching FlashInfer's prefill hands out states (0.33), on the GPUs and
            # for the key dimension that it serves.
            _checkpoint_alignment=(
                64
                if case["device"] == "gpu"
                and case["prefix_caching"]
                and target.linear_key_head_dim == 128
                else None
            ),
            is_draft_layer=False,
        )
    if case["mtp"]:
        for n in range(case["mtp"]):
            names.append(f"draft.mtp.{n}")
            attention(names[-1], target.num_key_value_heads, target.head_dim, None)
    if case["drafter"]:
        draft = config.speculative_config.draft_model_config.hf_config
        # Before 0.25 the drafter's attention is told of no window.
        resolve = getattr(
            qwen3_dflash, "_resolve_layer_attention", lambda _config, _n: (None, None)
        )
        for n in range(draft.num_hidden_layers):
            with set_current_vllm_config(config):
                window, _causal = resolve(draft, n)
            names.append(f"draft.layers.{n}")
            attention(names[-1], draft.num_key_value_heads, draft.head_dim, window)
    return names


def lay_out(case: Case) -> dict[str, Any]:
    """What the engine's functions make of one case, or the error that they end in."""
    config = engine_config(case)
    try:
        drafting = add_layers(config, case)
    except NotImplementedError as error:
        return {"dies": "drafter", "says": str(error)}
    platform = CpuPlatform if case["device"] == "cpu" else Platform
    platform.update_block_size_for_backend(config)
    specs = get_kv_cache_spec(config)
    if hasattr(backend_utils, "resolve_kv_cache_layout"):  # since 0.29
        backends = [layer.attn_backend for layer in attention_layers(config)]
        names = [
            layout.name
            for layout in backend_utils.get_supported_kv_cache_layouts(dict.fromkeys(backends))
        ]
        backend_utils.resolve_kv_cache_layout(config, [names], specs.values())
    state = next((spec for spec in specs.values() if isinstance(spec, MambaSpec)), None)
    answer: dict[str, Any] = {
        "block": config.cache_config.block_size,
        "state": None if state is None else bare_bytes(state),
    }
    try:
        # A copy: the function may change what it is given.
        groups = planning.get_kv_cache_groups(config, dict(specs))
    except (AssertionError, NotImplementedError) as error:
        return {"dies": "page size", "says": f"{type(error).__name__}: {error}"[:200]}
    pool = planning.get_kv_cache_config_from_groups(config, groups, case["kv_cache_bytes"])
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, pool)
    answer |= {
        "groups": [describe(group) for group in groups],
        "blocks": pool.num_blocks,
        "per_request": sum(
            -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
            for spec in (group.kv_cache_spec for group in groups)
        ),
        "concurrency": concurrency,
        "tokens": int(concurrency * case["max_model_len"]),
        "fits": True,
        "splits_drafter": False,
    }
    grouped = [] if planning is kv_cache_utils else [groups]
    try:
        planning.get_kv_cache_configs(config, [specs], [case["kv_cache_bytes"]], *grouped)
    except ValueError as error:
        answer["fits"] = False
        answer["says"] = str(error)[:300]
    if drafting and not config.use_v2_model_runner:
        try:
            SpecDecodeBaseProposer.validate_same_kv_cache_group(
                SimpleNamespace(_draft_attn_layer_names=drafting), pool
            )
        except AssertionError:
            answer["splits_drafter"] = True
    return answer


def attention_layers(config: Any) -> list[Any]:
    layers = config.compilation_config.static_forward_context.values()
    return [layer for layer in layers if isinstance(layer, Attention)]


def bare_bytes(spec: MambaSpec) -> int:
    """Bytes of a state without its padding."""
    return sum(
        torch.Size(shape).numel() * dtype.itemsize
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    )


def describe(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    layers = getattr(spec, "kv_cache_specs", None) or dict.fromkeys(group.layer_names, spec)
    return {
        "layers": len(group.layer_names),
        "drafter": sum(name.startswith("draft") for name in group.layer_names),
        "kind": type(spec).__name__,
        "block": spec.block_size,
        "pages": [int(layer.page_size_bytes) for layer in layers.values()],
    }


def main() -> None:
    ModelRegistry.resolve_model_cls = lambda *_args, **_kwargs: (Qwen3NextForCausalLM, "")
    answers = [lay_out(case) for case in json.load(sys.stdin)]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
