"""The report of a rollout: capacity, seconds, links and what stopped it."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

from tests.unit.rollouts import THEN, new_rollout

from roost.rollout import report
from roost.rollout.record import Rollout


def at(seconds: float) -> dt.datetime:
    return THEN + dt.timedelta(seconds=seconds)


def rollout() -> Rollout:
    """Four hosts: one is out for 10 s, then two for 10 and 20 s at once."""
    made = new_rollout(dict.fromkeys("abcd", "gb10"))
    made.hosts["a"].out = [(at(0), at(10))]
    made.hosts["b"].out = [(at(20), at(30))]
    made.hosts["c"].out = [(at(20), at(40))]
    made.finished = at(50)
    return made


def test_capacity_is_what_served_from_the_first_swap_to_the_last() -> None:
    found = report.capacity(rollout())
    assert found == report.Capacity(lowest=0.5, mean=1 - 40 / (40 * 4), seconds=40)


def test_a_host_that_stays_out_counts_to_the_end() -> None:
    made = rollout()
    made.hosts["c"].out = [(at(20), None)]
    assert report.capacity(made) == report.Capacity(0.5, 1 - 50 / (50 * 4), 50)
    assert report.out_seconds(made.hosts["c"], at(50)) == 30


def test_nothing_swapped() -> None:
    assert report.capacity(new_rollout({"a": "gb10"})) == report.Capacity(1, 1, 0)


def test_both_pages_have_verdicts_links_and_the_reason(tmp_path: Path) -> None:
    made = rollout()
    made.verdict, made.reason = "stopped", "b did not pass\nb: <script>alert(1)</script>"
    made.hosts["b"].runs = {"verify": "runs/b-verify"}
    made.hosts["b"].seconds = {"deploy": 12.4}
    report.write(tmp_path, made)
    html = (tmp_path / report.HTML).read_text()
    markdown = (tmp_path / report.MARKDOWN).read_text()
    for page in (html, markdown):
        assert "Stopped" in page
        assert "runs/b-verify/executed.ipynb" in page
        assert "deploy 12 s" in page
        assert "50% of the hosts served at the worst moment, 75% on average" in page
        assert "b did not pass" in page
    assert "<script>" not in html
    assert re.search(r"\| b \| gb10 \| waiting \| deploy 12 s \| 10 s \|", markdown)
