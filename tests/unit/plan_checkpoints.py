"""Checkpoints for the tests of the planner: real names and shapes, files full of holes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Data type and shape by name.
Tensors = dict[str, tuple[str, list[int]]]

_BITS = {"U8": 8, "F8_E4M3": 8, "BF16": 16, "F32": 32, "F4": 4}


def tensor_bytes(dtype: str, shape: list[int]) -> int:
    items = 1
    for size in shape:
        items *= size
    return items * _BITS[dtype] // 8


def header(tensors: Tensors) -> tuple[bytes, int]:
    """A shard's beginning, and the bytes of what follows it."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, end


def write_shard(path: Path, tensors: Tensors) -> None:
    """A file of the right size; where the weights would be there is nothing, and no disk used."""
    start, data = header(tensors)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + data)


def write_checkpoint(
    folder: Path, config: object, tensors: Tensors, shards: int = 2, *, index: bool = True
) -> Path:
    """A folder as transformers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        write_shard(folder / shard, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, shard)
    if index:
        text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def qwen35_35b_tensors(weights: str = "BF16") -> Tensors:
    """Qwen3.5-35B-A3B with vision, without MTP, as the modules of its public model class.

    ``F8_E4M3`` quantizes what source 001 says: the experts and full attention, one scale for each
    row. Every other weight stays in BF16.
    """
    tensors: Tensors = {}
    text = "model.language_model"

    def linear(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = (weights, [rows, columns])
        if weights != "BF16":
            tensors[f"{name}.weight_scale"] = ("BF16", [rows, 1])

    def plain(name: str, *shape: int) -> None:
        tensors[name] = ("BF16", list(shape))

    plain(f"{text}.embed_tokens.weight", 248_320, 2048)
    plain("lm_head.weight", 248_320, 2048)
    plain(f"{text}.norm.weight", 2048)
    for n in range(40):
        layer = f"{text}.layers.{n}"
        plain(f"{layer}.input_layernorm.weight", 2048)
        plain(f"{layer}.post_attention_layernorm.weight", 2048)
        if (n + 1) % 4:
            gdn = f"{layer}.linear_attn"
            plain(f"{gdn}.in_proj_qkv.weight", 8192, 2048)
            plain(f"{gdn}.in_proj_z.weight", 4096, 2048)
            plain(f"{gdn}.in_proj_a.weight", 32, 2048)
            plain(f"{gdn}.in_proj_b.weight", 32, 2048)
            plain(f"{gdn}.conv1d.weight", 8192, 1, 4)
            plain(f"{gdn}.A_log", 32)
            plain(f"{gdn}.dt_bias", 32)
            plain(f"{gdn}.norm.weight", 128)
            plain(f"{gdn}.out_proj.weight", 2048, 4096)
        else:
            attention = f"{layer}.self_attn"
            linear(f"{attention}.q_proj", 8192, 2048)  # with the output gate
            linear(f"{attention}.k_proj", 512, 2048)
            linear(f"{attention}.v_proj", 512, 2048)
            linear(f"{attention}.o_proj", 2048, 4096)
            plain(f"{attention}.q_norm.weight", 256)
            plain(f"{attention}.k_norm.weight", 256)
        plain(f"{layer}.mlp.gate.weight", 256, 2048)
        plain(f"{layer}.mlp.shared_expert_gate.weight", 1, 2048)
        experts = [f"{layer}.mlp.experts.{expert}" for expert in range(256)]
        for expert in [*experts, f"{layer}.mlp.shared_expert"]:
            linear(f"{expert}.gate_proj", 512, 2048)
            linear(f"{expert}.up_proj", 512, 2048)
            linear(f"{expert}.down_proj", 2048, 512)
    tensors.update((name, ("BF16", shape)) for name, shape in _vision())
    return tensors


def _vision() -> Iterator[tuple[str, list[int]]]:
    """The vision tower: 27 blocks of width 1152."""
    visual = "model.visual"
    yield from _with_bias(f"{visual}.patch_embed.proj", [1152, 3, 2, 16, 16])
    yield f"{visual}.pos_embed.weight", [2304, 1152]
    for n in range(27):
        block = f"{visual}.blocks.{n}"
        yield from _with_bias(f"{block}.norm1", [1152])
        yield from _with_bias(f"{block}.norm2", [1152])
        yield from _with_bias(f"{block}.attn.qkv", [3456, 1152])
        yield from _with_bias(f"{block}.attn.proj", [1152, 1152])
        yield from _with_bias(f"{block}.mlp.linear_fc1", [4304, 1152])
        yield from _with_bias(f"{block}.mlp.linear_fc2", [1152, 4304])
    yield from _with_bias(f"{visual}.merger.norm", [1152])
    yield from _with_bias(f"{visual}.merger.linear_fc1", [4608, 4608])
    yield from _with_bias(f"{visual}.merger.linear_fc2", [2048, 4608])


def _with_bias(name: str, shape: list[int]) -> Iterable[tuple[str, list[int]]]:
    return [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]
