"""The field's cases: what goes wrong where people run these engines, and which tests hold each.

Names are those of the collection that the project began with: G for GPUs, D for Docker, M for
models, V for vLLM, Q for quoting, B for benchmarks, S for streams, C for clusters.
"""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise

import pytest

from roost import catalog
from roost.errors import RoostError
from roost.launch import resolving
from roost.launch.resolving import Resolved
from roost.measure import client
from roost.onhost import trial

DIAGNOSE = "test_diagnose::test_a_message_has_one_meaning"

CASES = {
    # [N/A] for the memory of a GB10, in every spelling; two cards are two budgets.
    "G1": ["test_hosts::test_g1_gb10_has_unified_memory_and_never_zero"],
    "G2": [
        "test_hosts::test_g2_every_spelling_of_absent",
        "test_doctor::test_g2_every_spelling_of_absent",
    ],
    "G3": ["test_hosts::test_g3_two_cards_are_two_budgets"],
    # nvidia-smi says what is wrong on standard output.
    "G5": ["test_hosts::test_g5_g7_g8_trouble_is_told_apart", DIAGNOSE],
    "G7": ["test_hosts::test_g5_g7_g8_trouble_is_told_apart", DIAGNOSE],
    "G8": ["test_hosts::test_g5_g7_g8_trouble_is_told_apart", DIAGNOSE],
    # Toolkit, CDI, architecture, rate limit, an entrypoint said twice, the group docker.
    "D1": [DIAGNOSE, "test_failures::test_the_root_cause_comes_first"],
    "D2": [DIAGNOSE],
    "D5": [DIAGNOSE, "test_pulls::test_a_digest_that_is_gone_is_told_apart_from_everything_else"],
    "D7": [DIAGNOSE, "test_pulls::test_a_digest_that_is_gone_is_told_apart_from_everything_else"],
    "D8": [DIAGNOSE, "test_field_cases::test_serve_is_said_only_where_the_entrypoint_does_not"],
    "D10": [DIAGNOSE, "test_preflight::test_one_fault_is_one_error"],
    # Pointers, missing shards, stale parts, refusals, disks, commits, missing MTP weights.
    "M1": [DIAGNOSE, "test_hf_snapshot_faults::test_something_else_in_place_of_weights"],
    "M2": [
        DIAGNOSE,
        "test_hf_snapshot::test_a_repository_that_is_broken_on_the_hub_never_becomes_visible",
    ],
    "M4": [DIAGNOSE, "test_hf_snapshot_faults::test_a_stale_part_is_fetched_anew"],
    "M5": [DIAGNOSE, "test_hf_snapshot_faults::test_a_refusal_is_final_and_says_what_to_do"],
    "M6": [
        DIAGNOSE,
        "test_hf_snapshot_faults::test_a_disk_that_would_fill_up_is_refused_before_the_first_byte",
    ],
    "M9": [
        "test_settings::test_a_revision_on_the_command_line_stays_text",
        "test_settings::test_a_revision_that_yaml_made_a_number_of_is_to_be_quoted",
    ],
    "M11": [
        DIAGNOSE,
        "test_plan_findings::test_a_finding_is_raised_as_severe_as_the_page_says",
        "test_failures::test_the_root_cause_comes_first",
    ],
    # What vLLM says, and the figures in it.
    "V1": [DIAGNOSE],
    "V4": [DIAGNOSE],
    "V12": [DIAGNOSE],
    "V13": [DIAGNOSE, "test_diagnose::test_settings_decide_what_to_raise"],
    "V15": [DIAGNOSE, "test_commandline::test_spellings_that_engines_take"],
    "V17": ["test_diagnose_logs::test_the_last_words_alone_are_no_answer"],
    # JSON in commands.
    "Q1": [
        "test_diagnose::test_json_is_mended",
        "test_settings::test_json_that_is_none_is_refused_before_an_engine_sees_it",
        "test_field_cases::test_the_json_of_every_recipe_is_some",
    ],
    "Q3": ["playbooks/test_deploy::test_the_container_is_the_launch_that_was_computed"],
    # Counters by their whole names and as differences; anchors; prompts as they are.
    "B1": [
        "test_onhost_gate::test_a_counter_is_its_name_whole_summed_over_labels",
        "test_measure_metrics::test_numbers_in_scientific_notation",
    ],
    "B3": ["test_measure_metrics::test_a_restart_in_between_is_an_error"],
    "B5": ["test_sglang::test_a_block_counts_the_token_it_starts_from"],
    "B6": ["test_measure_harness::test_commands_send_the_prompts_as_they_are_to_completions"],
    # Health that generates; reasoning under two names; a last chunk without choices.
    "S1": ["test_field_cases::test_health_may_generate_a_token"],
    "S3": [
        "test_measure_client::test_reasoning_under_both_names_and_tool_calls_count_as_first_token"
    ],
    "S4": ["test_measure_client::test_a_real_stream_under_speculation"],
    # sudo and host keys.
    "C6": [DIAGNOSE],
    "C8": [DIAGNOSE, "test_releases_cli::test_status_names_causes_and_its_json_holds_no_logs"],
}


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_its_tests(case: str) -> None:
    for place in CASES[case]:
        module, _, name = place.partition("::")
        folder, _, module = module.rpartition("/")
        assert hasattr(import_module(f"tests.{folder or 'unit'}.{module}"), name), place


def resolved() -> list[Resolved]:
    """Every choice of every recipe on the hardware that it runs on, as far as it is pinned."""
    known = catalog.builtin()
    found = []
    for recipe in known.recipes.values():
        for hardware in recipe.hardware:
            for choice in recipe.speculation:
                try:
                    found.append(resolving.resolve(known, recipe.id, hardware, speculation=choice))
                except RoostError:
                    continue  # refused, with its reason
    assert len(found) > 10
    return found


def test_the_json_of_every_recipe_is_some() -> None:
    said = [
        value
        for one in resolved()
        for flag, value in pairwise(one.spec.command)
        if flag in {"--speculative-config", "--hf-overrides", "--compilation-config"}
    ]
    assert said
    for value in said:
        assert isinstance(json.loads(value), dict)


def test_serve_is_said_only_where_the_entrypoint_does_not() -> None:
    for one in resolved():
        words = [*(one.spec.entrypoint or []), *one.spec.command]
        assert words.count("serve") <= 1, words
        if one.engine.id == "vllm":
            assert words[:2] == ["vllm", "serve"]


def test_health_may_generate_a_token() -> None:
    # SGLang gives itself 20 s for it.
    assert trial.HEALTH_TIMEOUT > 20
    assert client.TIMEOUT_S > 20
