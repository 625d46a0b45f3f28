"""Train a DFlash drafter for a small Llama model, on two CPU cores, in a few minutes.

usage: python train.py TARGET PROMPTS OUT

Run in a process of its own, by the engine's Python with the engine's packages. ``OUT/<revision>``
gets a drafter repository (``config.json``, ``model.safetensors``) for each of ``REVISIONS``, and
``OUT/report.json`` what was measured.

What a DFlash drafter is, as vLLM 0.32 runs it (``vllm/model_executor/models/qwen3_dflash.py``,
``vllm/v1/spec_decode/utils.py``):

- The target's hidden states behind the layers ``target_layer_ids``, concatenated, go through
  ``fc`` and ``hidden_norm``. Each drafter layer projects the result to keys and values at the
  positions of the context: the tokens that are verified.
- The queries are one block: the token that the target has just produced, then K mask tokens, at
  the positions that follow the context. They see the context and their whole block.
- The masks' outputs, through ``norm`` and the target's own head, are the K drafts, all at once.

The drafter learns to say what the target would say: it is trained on the target's own greedy
answers, with the context cut at random places of them.
"""

# The engine's packages are not in our own environment, so all that comes from them is Any.
# mypy: disable-error-code="import-not-found, misc, no-any-return, untyped-decorator"

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

SEED = 20
THREADS = 2

# Drafts at once. A block is one token more: the one that the target has just produced.
DRAFTS = 4
BLOCK = DRAFTS + 1

# Spread over the target's 30 layers; the last one sees almost what its head sees.
TARGET_LAYER_IDS = (1, 8, 15, 22, 28)
# A token that no answer contains.
MASK_TOKEN_ID = 0

# Name of the revision -> training steps after which it is written. The same run gives both.
REVISIONS = {"early": 240, "main": 450}

# Enough for the benchmark's answers; a later token is harder to draft than it is worth here.
ANSWER_TOKENS = 128
# All of them: a step of decoding takes the same time for many as for a few.
ANSWERS_AT_ONCE = 48

SEQUENCES_A_STEP = 4
BLOCKS_A_SEQUENCE = 16
PEAK_LEARNING_RATE = 2e-3
# A wrong draft makes all later ones of its block worthless.
WEIGHT_DECAY_A_DRAFT = 0.8
# Tokens beside those of the answers that a step's softmax runs over. All 49,152 would take most
# of the time.
NEGATIVE_TOKENS = 2048


@dataclass(frozen=True)
class Sequence:
    """A prompt and the target's answer.

    Attributes:
        tokens: Token ids, [length].
        answer_start: Index of the answer's first token.
        features: The target's hidden states of ``TARGET_LAYER_IDS``, [length, layers · hidden].
        held_out: Not trained on; only measured.
    """

    tokens: Tensor
    answer_start: int
    features: Tensor
    held_out: bool


@dataclass(frozen=True)
class Batch:
    """Blocks of some sequences, see :func:`make_batch`.

    ``batch`` sequences of at most ``context`` tokens, ``queries`` = blocks · BLOCK.

    Attributes:
        features: [batch, context, layers · hidden].
        queries: Token ids, [batch, queries].
        positions: Of the queries, [batch, queries].
        visible: What each query may see, of the context, then of the queries;
            [batch, queries, context + queries].
        answers: Token id each query should give, or -1 for none, [batch, queries].
    """

    features: Tensor
    queries: Tensor
    positions: Tensor
    visible: Tensor
    answers: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, states: Tensor) -> Tensor:
        """[..., size] to the same shape."""
        scale = torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return states * scale * self.weight


class Attention(nn.Module):
    """Queries of a block over the context's features and the block itself."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, self.heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(self.heads * size, hidden, bias=False)
        self.q_norm = RMSNorm(size, config.rms_norm_eps)
        self.k_norm = RMSNorm(size, config.rms_norm_eps)
        self.theta = config.rope_parameters["rope_theta"]

    def forward(self, block: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """[batch, queries, hidden] to the same shape; other shapes as in :class:`Batch`."""
        context_positions = torch.arange(context.shape[1])[None]
        query = self._rotated(self.q_norm(_by_head(self.q_proj(block), self.heads)), positions)
        keys, values = [], []
        for states, places in ((context, context_positions), (block, positions)):
            key = self.k_norm(_by_head(self.k_proj(states), self.kv_heads))
            keys.append(self._rotated(key, places))
            values.append(_by_head(self.v_proj(states), self.kv_heads))
        attended = functional.scaled_dot_product_attention(
            query,
            torch.cat(keys, dim=2),
            torch.cat(values, dim=2),
            attn_mask=visible[:, None],
            enable_gqa=True,
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _rotated(self, states: Tensor, positions: Tensor) -> Tensor:
        """Rotary position embedding of [batch, heads, length, size], in the "neox" layout."""
        size = states.shape[-1]
        frequencies = self.theta ** (-torch.arange(0, size, 2).float() / size)
        angles = positions[:, None, :, None] * frequencies
        first, second = states.chunk(2, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _by_head(states: Tensor, heads: int) -> Tensor:
    """[batch, length, heads · size] to [batch, heads, length, size]."""
    return states.unflatten(-1, (heads, -1)).transpose(1, 2)


class MLP(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., hidden] to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class Layer(nn.Module):
    """One drafter layer; attribute names are those of the checkpoint."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, block: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """[batch, queries, hidden] to the same shape."""
        normed = self.input_layernorm(block)
        block = block + self.self_attn(normed, context, positions, visible)
        return block + self.mlp(self.post_attention_layernorm(block))


class Drafter(nn.Module):
    """A DFlash drafter of one layer, which starts as the target's last one.

    Args:
        target: The target model; its embeddings and head are used, not owned.
    """

    def __init__(self, target: Any) -> None:
        super().__init__()
        config = target.config
        hidden = config.hidden_size
        self.fc = nn.Linear(hidden * len(TARGET_LAYER_IDS), hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config)])
        # Bare tensors in a list are no part of the state, so they are neither trained nor saved.
        self._embedding = [target.get_input_embeddings().weight.detach().float()]
        self._start_from(target)

    @torch.no_grad()
    def _start_from(self, target: Any) -> None:
        last = target.model.layers[-1].state_dict()
        # Only q_norm and k_norm, which the target has not, keep their ones.
        self.layers[0].load_state_dict(last, strict=False)
        self.norm.load_state_dict(target.model.norm.state_dict())
        # The context starts as the deepest of the features, with a trace of the others.
        nn.init.normal_(self.fc.weight, std=0.004)
        hidden = self.fc.out_features
        self.fc.weight[:, -hidden:] += torch.eye(hidden)

    def forward(self, batch: Batch) -> Tensor:
        """States to which the target's head gives the drafts, [batch, queries, hidden]."""
        context = self.hidden_norm(self.fc(batch.features))
        block = functional.embedding(batch.queries, self._embedding[0])
        for layer in self.layers:
            block = layer(block, context, batch.positions, batch.visible)
        return self.norm(block)


def read_prompts(path: Path) -> list[dict[str, str]]:
    """Lines of ``{"split": "train" | "held-out", "prompt": …}``."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@torch.inference_mode()
def greedy_answers(target: Any, tokenizer: Any, prompts: list[str]) -> list[tuple[Tensor, int]]:
    """The target's own answers at temperature 0, many at once.

    Returns:
        For each prompt the ids of prompt and answer, its end token included, and the answer's
        first index.
    """
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    encoded = tokenizer(
        rendered, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    generated = target.generate(**encoded, do_sample=False, max_new_tokens=ANSWER_TOKENS)
    prompt_end = encoded["input_ids"].shape[1]
    answers = []
    for ids, mask in zip(generated, encoded["attention_mask"], strict=True):
        # Behind an answer's end token the batch is padded, with the same token.
        ends = (ids[prompt_end:] == tokenizer.eos_token_id).nonzero()
        length = prompt_end + int(ends[0]) + 1 if len(ends) else len(ids)
        padding = int((mask == 0).sum())
        answers.append((ids[padding:length], prompt_end - padding))
    return answers


@torch.inference_mode()
def make_sequences(target: Any, tokenizer: Any, prompts: list[dict[str, str]]) -> list[Sequence]:
    """Answers and features of all prompts."""
    # Prompts of like length together: less padding.
    ordered = sorted(prompts, key=lambda entry: (entry["split"], len(entry["prompt"])))
    sequences = []
    for start in range(0, len(ordered), ANSWERS_AT_ONCE):
        chunk = ordered[start : start + ANSWERS_AT_ONCE]
        answers = greedy_answers(target, tokenizer, [entry["prompt"] for entry in chunk])
        for entry, (tokens, answer_start) in zip(chunk, answers, strict=True):
            states = target.model(tokens[None], output_hidden_states=True).hidden_states
            # hidden_states[0] is the embedding, so layer i's output is number i + 1.
            features = torch.cat([states[layer + 1][0] for layer in TARGET_LAYER_IDS], dim=-1)
            held_out = entry["split"] == "held-out"
            sequences.append(Sequence(tokens, answer_start, features.float(), held_out))
    return sequences


def make_batch(sequences: list[Sequence], starts: list[Tensor]) -> Batch:
    """Blocks of ``sequences`` that begin at ``starts``.

    A block at ``start`` has the tokens before it as its context, the token there as its first
    query, and masks behind, which should give the tokens that follow in the sequence.

    Args:
        sequences: The sequences.
        starts: For each the indices of its blocks, [blocks]; equally many for all.
    """
    context = max(len(sequence.tokens) for sequence in sequences)
    blocks = len(starts[0])
    shape = (len(sequences), blocks, BLOCK)
    features = torch.zeros(len(sequences), context, sequences[0].features.shape[-1])
    queries = torch.full(shape, MASK_TOKEN_ID)
    answers = torch.full(shape, -1)
    for row, (sequence, places) in enumerate(zip(sequences, starts, strict=True)):
        length = len(sequence.tokens)
        features[row, :length] = sequence.features
        queries[row, :, 0] = sequence.tokens[places]
        following = places[:, None] + torch.arange(1, BLOCK)
        known = sequence.tokens[following.clamp(max=length - 1)]
        answers[row, :, 1:] = known.where(following < length, torch.tensor(-1))
    begin = torch.stack(starts)
    positions = (begin[:, :, None] + torch.arange(BLOCK)).flatten(1)
    sees_context = torch.arange(context) < begin.repeat_interleave(BLOCK, dim=1)[:, :, None]
    block_of = torch.arange(blocks).repeat_interleave(BLOCK)
    sees_block = (block_of[:, None] == block_of).expand(len(sequences), -1, -1)
    visible = torch.cat((sees_context, sees_block), dim=2)
    return Batch(features, queries.flatten(1), positions, visible, answers.flatten(1))


def draft_loss(drafter: Drafter, batch: Batch, head: Tensor, answer_tokens: Tensor) -> Tensor:
    """Cross entropy of the drafts, earlier ones weighing more.

    Args:
        drafter: The drafter.
        batch: What to draft.
        head: The target's, [vocabulary, hidden].
        answer_tokens: Sorted ids of all tokens that answers hold, [tokens].
    """
    wanted = batch.answers >= 0
    weights = WEIGHT_DECAY_A_DRAFT ** (torch.arange(BLOCK).float() - 1)
    weights = weights.repeat(batch.answers.shape[1] // BLOCK).expand(wanted.shape)[wanted]
    negatives = torch.randint(len(head), (NEGATIVE_TOKENS,))
    negatives = negatives[~torch.isin(negatives, answer_tokens)].unique()
    candidates = torch.cat((answer_tokens, negatives))
    logits = drafter(batch)[wanted] @ head[candidates].T
    labels = torch.searchsorted(answer_tokens, batch.answers[wanted])
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (losses * weights).sum() / weights.sum()


@torch.inference_mode()
def accept_length(drafter: Drafter, sequences: list[Sequence], head: Tensor) -> float:
    """Tokens a step at temperature 0: the drafts that the target would accept, and its own one.

    The sequences are the target's greedy answers, so what speculation would do on them is known:
    from each place on, the drafts up to the first that differs are accepted.
    """
    steps = produced = 0
    for sequence in sequences:
        places = torch.arange(sequence.answer_start, len(sequence.tokens) - 1)
        batch = make_batch([sequence], [places])
        drafts = (drafter(batch)[0] @ head.T).argmax(-1).view(-1, BLOCK)[:, 1:]
        right = (drafts == batch.answers.view(-1, BLOCK)[:, 1:]).int()
        accepted = right.cumprod(dim=1).sum(dim=1).tolist()
        place = 0
        while place < len(accepted):
            steps += 1
            produced += accepted[place] + 1
            place += accepted[place] + 1
    return produced / steps


def drafter_config(target: Any) -> dict[str, Any]:
    """``config.json`` of the drafter, as vLLM reads it."""
    same = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "attention_bias",
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(target.config, name) for name in same},
        "num_hidden_layers": 1,
        "num_target_layers": target.config.num_hidden_layers,
        "rope_theta": target.config.rope_parameters["rope_theta"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "block_size": BLOCK,
        "dflash_config": {
            "mask_token_id": MASK_TOKEN_ID,
            "target_layer_ids": list(TARGET_LAYER_IDS),
        },
    }


def save(drafter: Drafter, target: Any, folder: Path) -> None:
    """Write the drafter as a repository."""
    folder.mkdir(parents=True)
    state = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(drafter_config(target), indent=2) + "\n")


def train(target_folder: Path, prompts_file: Path, out: Path) -> None:
    """Make answers, train on them, write the revisions and the report."""
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    started = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    # In float32 the answers are those of the engine in float32, token by token; in bfloat16 two
    # programs part at the first near tie.
    target = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
    sequences = make_sequences(target, tokenizer, read_prompts(prompts_file))
    seconds_answers = time.monotonic() - started
    trained_on = [sequence for sequence in sequences if not sequence.held_out]
    held_out = [sequence for sequence in sequences if sequence.held_out]
    answer_tokens = torch.cat([each.tokens[each.answer_start :] for each in trained_on]).unique()

    drafter = Drafter(target)
    head = target.get_output_embeddings().weight.detach().float()
    steps = max(REVISIONS.values())
    optimizer = torch.optim.AdamW(drafter.parameters(), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, steps)
    measured: dict[str, Any] = {}
    losses: list[float] = []
    for step in range(1, steps + 1):
        chosen = [trained_on[i] for i in torch.randint(len(trained_on), (SEQUENCES_A_STEP,))]
        starts = [
            torch.randint(each.answer_start, len(each.tokens) - 1, (BLOCKS_A_SEQUENCE,))
            for each in chosen
        ]
        loss = draft_loss(drafter, make_batch(chosen, starts), head, answer_tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        for revision, last in REVISIONS.items():
            if step == last:
                save(drafter, target, out / revision)
                measured[revision] = {
                    "steps": step,
                    "loss": round(sum(losses[-20:]) / len(losses[-20:]), 3),
                    "accept_length_trained": round(accept_length(drafter, trained_on, head), 2),
                    "accept_length_held_out": round(accept_length(drafter, held_out, head), 2),
                }
    report = {
        "revisions": measured,
        "prompts": len(trained_on),
        "prompts_held_out": len(held_out),
        "answer_tokens": sum(len(each.tokens) - each.answer_start for each in trained_on),
        "drafts": DRAFTS,
        "parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "seconds_answers": round(seconds_answers),
        "seconds": round(time.monotonic() - started),
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
