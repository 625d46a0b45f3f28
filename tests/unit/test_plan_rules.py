"""Rules by engine version."""

from __future__ import annotations

import pytest

from roost.errors import RoostError
from roost.plan.rules import rules_for


@pytest.mark.parametrize(
    ("version", "pads_gdn", "pads_attention", "window", "compared"),
    [
        ("0.23.0", False, False, False, False),
        ("0.24.0", False, False, False, True),
        ("v0.24.0", False, False, False, True),
        ("0.25.1", False, False, False, False),
        ("0.23.1rc1.dev968+g2c17d33f4", True, False, True, True),
        ("0.23.1rc1.dev1000+g95ed0feaa", True, False, True, True),
        ("0.24.1rc1.dev3+gabcdef012", True, False, True, True),
        ("0.26.0", True, False, True, False),
        ("0.32.0", True, True, True, False),
        ("0.33.0", True, True, True, False),
        ("0.33.1rc1.dev7", True, True, True, False),
        ("1.0.0", True, True, True, False),
    ],
)
def test_what_a_version_can_do(
    version: str, pads_gdn: bool, pads_attention: bool, window: bool, compared: bool
) -> None:
    rules = rules_for(version)
    assert rules.pads_gdn_page is pads_gdn
    assert rules.pads_attention_page is pads_attention
    assert rules.honours_drafter_window is window
    assert rules.compared is compared
    assert rules.block_multiple == 16


def test_the_cpu_engine_takes_larger_blocks() -> None:
    rules = rules_for("0.32.0", "cpu")
    assert rules.block_multiple == 256
    assert rules.pads_gdn_page


@pytest.mark.parametrize("version", ["0.22.1", "0.23.1rc1.dev967+gabc", "0.23.0.dev5"])
def test_versions_that_nobody_read(version: str) -> None:
    with pytest.raises(RoostError, match="nobody has read how it sizes its KV pool"):
        rules_for(version)


@pytest.mark.parametrize("version", ["", "unknown", "latest", "0.24", "0.24.0\n", "9" * 10_000])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(RoostError, match="none of vLLM's") as error:
        rules_for(version)
    assert "\n" not in error.value.what
    assert len(error.value.what) < 120
