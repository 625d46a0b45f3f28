"""Convert a GGUF file to a sharded safetensors repository.

usage: python convert.py GGUF FOLDER

Run in a process of its own, by the engine's Python with the engine's packages and the tools.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

_SHARD_SIZE = "100MB"


def convert(gguf: Path, folder: Path) -> None:
    """Write model, tokenizer and generation defaults of ``gguf`` into ``folder``, in bfloat16."""
    place = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(**place)
    # The weights are plain tensors now; what still says GGUF would be written to the config.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.name_or_path = ""
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.save_pretrained(folder, max_shard_size=_SHARD_SIZE)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
