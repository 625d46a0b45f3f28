"""SGLang's spelling: every neutral setting, and how deep it is told to draft."""

from __future__ import annotations

import pytest
from tests.unit.source_000 import flags

from roost import catalog, engines
from roost.catalog_schema import Speculation
from roost.errors import UsageError
from roost.pins import Repository, Revision
from roost.settings import Settings

ENGINE = catalog.builtin().engines["sglang"]
DRAFTER = Repository(repo="a/drafter", revision=Revision(branch="main"))
DFLASH = Speculation(method="dflash", drafter=DRAFTER)
MTP = Speculation(method="mtp")
NONE = Speculation()


def spell(speculation: Speculation, **settings: object) -> dict[str, str | None]:
    place = engines.Place("/model", "/drafter" if speculation.drafter else None, "name")
    spelled = engines.spell(ENGINE, Settings.model_validate(settings), speculation, place)
    assert spelled.env == {}
    assert spelled.command[0] == "serve"
    return flags(spelled.command[1:])


PLAIN = spell(NONE)


def added(speculation: Speculation, **settings: object) -> dict[str, str | None]:
    got = spell(speculation, **settings)
    assert PLAIN.items() <= got.items()
    return {flag: value for flag, value in got.items() if flag not in PLAIN}


def test_the_container_can_be_reached_and_measured() -> None:
    assert PLAIN == {
        "--model-path": "/model",
        "--served-model-name": "name",
        "--host": "0.0.0.0",
        "--port": "30000",
        "--enable-metrics": None,
    }


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("max_model_len", 131072, {"--context-length": "131072"}),
        ("max_num_seqs", 8, {"--max-running-requests": "8"}),
        ("max_num_batched_tokens", 4096, {"--chunked-prefill-size": "4096"}),
        ("gpu_memory_utilization", 0.8, {"--mem-fraction-static": "0.8"}),
        ("kv_cache_dtype", "fp8_e4m3", {"--kv-cache-dtype": "fp8_e4m3"}),
        ("attention_backend", "flashinfer", {"--attention-backend": "flashinfer"}),
        ("moe_backend", "marlin", {"--moe-runner-backend": "marlin"}),
        ("quantization", "modelopt_fp4", {"--quantization": "modelopt_fp4"}),
        ("tensor_parallel", 2, {"--tp-size": "2"}),
        ("mamba_cache_dtype", "bfloat16", {"--mamba-ssm-dtype": "bfloat16"}),
        ("enforce_eager", True, {"--disable-cuda-graph": None}),
        ("enforce_eager", False, {}),
        ("prefix_caching", False, {"--disable-radix-cache": None}),
        ("prefix_caching", True, {}),
        ("language_model_only", True, {"--language-model-only": None}),
        ("extra_args", ["--skip-server-warmup"], {"--skip-server-warmup": None}),
    ],
)
def test_setting_is_spelled(setting: str, value: object, words: dict[str, str | None]) -> None:
    assert added(NONE, **{setting: value}) == words


def test_a_pool_in_bytes_cannot_be_said() -> None:
    with pytest.raises(UsageError, match="SGLang has no way to say: kv_cache_bytes"):
        spell(NONE, kv_cache_bytes=3_200_000_000)


@pytest.mark.parametrize("proposals", [1, 9, 15])
def test_a_block_counts_the_token_it_starts_from(proposals: int) -> None:
    assert added(DFLASH, num_speculative_tokens=proposals) == {
        "--speculative-algorithm": "DFLASH",
        "--speculative-draft-model-path": "/drafter",
        "--speculative-num-draft-tokens": str(proposals + 1),
    }
    assert added(MTP, num_speculative_tokens=proposals) == {
        "--speculative-algorithm": "NEXTN",
        "--speculative-num-steps": str(proposals),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": str(proposals + 1),
    }


def test_depth_is_the_engine_s_own_where_nothing_is_said() -> None:
    assert added(MTP) == {"--speculative-algorithm": "NEXTN"}


def test_drafter_backend_follows_the_target_unless_said() -> None:
    flag = "--speculative-draft-attention-backend"
    assert spell(DFLASH, attention_backend="flashinfer")[flag] == "flashinfer"
    both = spell(DFLASH, attention_backend="flashinfer", drafter_attention_backend="triton")
    assert (both["--attention-backend"], both[flag]) == ("flashinfer", "triton")
    assert flag not in spell(MTP, attention_backend="flashinfer")
    assert spell(MTP, drafter_attention_backend="triton")[flag] == "triton"


def test_options_of_a_choice_are_flags() -> None:
    options = {"draft_window_size": 4096, "adaptive": True, "use_rejection_sampling": False}
    assert added(MTP.model_copy(update={"options": options})) == {
        "--speculative-algorithm": "NEXTN",
        "--speculative-draft-window-size": "4096",
        "--speculative-adaptive": None,
    }


def test_what_the_user_adds_comes_last() -> None:
    """Of a flag said twice, argparse takes the last."""
    place = engines.Place("/model", "/drafter", "name")
    override = ["--speculative-num-draft-tokens", "4"]
    settings = Settings(num_speculative_tokens=9, extra_args=override)
    assert engines.spell(ENGINE, settings, DFLASH, place).command[-2:] == override


def test_a_method_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="speculation method ngram is not spelled for SGLang"):
        spell(Speculation(method="ngram"))
