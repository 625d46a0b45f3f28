"""Rules by engine version."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from roost import catalog
from roost.errors import RoostError
from roost.plan.rules import KvPoolRows, rules_for


@pytest.mark.parametrize(
    ("version", "pads_gdn", "pads_attention", "window", "compared"),
    [
        ("0.23.0", False, False, "ignored", True),
        ("0.24.0", False, True, "ignored", True),
        ("v0.24.0", False, True, "ignored", True),
        ("0.24.1", False, True, "ignored", False),
        ("0.25.1", False, True, "smallest block", True),
        ("0.23.1rc1.dev968+g2c17d33f4", True, False, "attention block", False),
        ("0.23.1rc1.dev1000+g95ed0feaa", True, False, "attention block", True),
        # A build of main is no build of the release that was cut before it.
        ("0.24.1rc1.dev3+gabcdef012", True, False, "attention block", False),
        ("0.26.0", True, True, "smallest block", True),
        ("0.26.0rc1", True, True, "smallest block", False),
        ("0.26.1rc1.dev5", True, True, "smallest block", False),
        ("0.29.0", True, True, "smallest block", True),
        ("0.32.0", True, True, "attention block", True),
        ("0.32.0+cpu", True, True, "attention block", True),
        ("0.33.1rc1.dev7", True, True, "attention block", False),
        ("1.0.0", True, True, "attention block", False),
    ],
)
def test_what_a_version_can_do(
    version: str, pads_gdn: bool, pads_attention: bool, window: str, compared: bool
) -> None:
    rules = rules_for(version)
    assert rules.pads_gdn_page is pads_gdn
    assert rules.pads_attention_page is pads_attention
    assert rules.drafter_window == window
    assert rules.compared is compared
    assert rules.block_multiple == 16


@pytest.mark.parametrize(
    ("version", "field", "on_gpu", "on_cpu"),
    [
        ("0.23.0", "block_multiple", 16, 128),
        ("0.33.0", "block_multiple", 16, 128),
        ("0.24.0", "pads_attention_page", True, False),
        ("0.28.0", "pads_attention_page", True, False),
        ("0.29.0", "pads_attention_page", True, True),
        ("0.28.0", "smallest_block", 16, 16),
        ("0.29.0", "smallest_block", 16, 32),
        ("0.25.1", "batches_in_flight", 1, 1),
        ("0.26.0", "batches_in_flight", 2, 1),
        ("0.25.1", "mixed_drafter", False, False),
        ("0.26.0", "mixed_drafter", True, False),
        ("0.28.0", "drafter_groups", "one if hybrid", "one"),
        ("0.29.0", "drafter_groups", "any", "one"),
        ("0.28.0", "reserved_blocks", 0, 0),
        ("0.29.0", "reserved_blocks", 1, 1),
        ("0.32.0", "checkpoint_alignment", 0, 0),
        ("0.33.0", "checkpoint_alignment", 64, 0),
    ],
)
def test_what_a_device_changes(version: str, field: str, on_gpu: object, on_cpu: object) -> None:
    assert getattr(rules_for(version), field) == on_gpu
    assert getattr(rules_for(version, "cpu"), field) == on_cpu


def test_a_rule_names_the_source_of_its_last_change() -> None:
    assert "0.25.1" in rules_for("0.25.1").source
    assert "source 000" in rules_for("0.23.1rc1.dev1000").source


@pytest.mark.parametrize("version", ["0.22.1", "0.23.1rc1.dev967+gabc", "0.23.0.dev5"])
def test_versions_that_nobody_read(version: str) -> None:
    with pytest.raises(RoostError, match="nobody has read how it sizes its KV pool") as error:
        rules_for(version)
    assert error.value.why == (
        "known are releases from 0.23.0 and builds of main from 0.23.1rc1.dev968"
    )


@pytest.mark.parametrize("version", ["", "unknown", "latest", "0.24.x", "9" * 10_000])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(RoostError, match="none of vLLM's") as error:
        rules_for(version)
    assert "\n" not in error.value.what
    assert len(error.value.what) < 120


def rows(*more: dict[str, Any]) -> Any:
    known = catalog.builtin().engines["vllm"].kv_pool
    first = known[0].model_dump()
    return TypeAdapter(KvPoolRows).validate_python([first, *more])


def test_a_table_may_be_given() -> None:
    table = rows({"since": "0.30.0", "rules": {"reserved_blocks": 7}, "source": "made up"})
    assert rules_for("0.31.0", rows=table).reserved_blocks == 7
    assert rules_for("0.29.0", rows=table).reserved_blocks == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"since": "newer"}, "'newer' is no version"),
        ({"since": "0.23.0"}, "row since 0.23.0: does not come after the row before it"),
        ({"since": "0.30.0", "rules": {"pads": True}}, "row since 0.30.0: pads: Extra inputs"),
        ({"since": "0.30.0", "cpu": {"smallest_block": 0}}, "0.30.0: smallest_block: Input should"),
        ({"since": "0.30.0", "rules": {"drafter_window": "half"}}, "0.30.0: drafter_window: Input"),
        ({"since": "0.30.0", "rules": {"reserved_blocks": "1"}}, "0.30.0: reserved_blocks: Input"),
    ],
)
def test_a_bad_row(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        rows({"source": "made up", **row})


def test_a_first_row_that_leaves_something_open() -> None:
    with pytest.raises(
        ValidationError, match=r"row since 0\.23\.0: smallest_block: Field required"
    ):
        TypeAdapter(KvPoolRows).validate_python(
            [{"since": "0.23.0", "rules": {"block_multiple": 16}, "source": "made up"}]
        )
