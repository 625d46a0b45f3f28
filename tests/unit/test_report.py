"""The report: complete, and safe with whatever an engine answered."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from roost import report

HOSTILE = '<script>alert(1)</script><img src=x onerror="x">\'"&{{ 7*7 }}'


def result(**changes: Any) -> dict[str, Any]:
    return {
        "ok": True,
        "notebook": "verify",
        "recipe": "smollm2-135m",
        "host": "spark-01",
        "hardware": "cpu",
        "speculation": "dflash",
        "lock": {"file": "roost.lock.yml", "image": "i@sha256:1", "model": "m@1", "drafter": None},
        "started": "2026-11-29T16:00:05Z",
        "finished": "2026-11-29T16:00:12Z",
        "checks": [
            {"id": "health", "ok": True, "expected": "200", "observed": "200", "why": ""},
        ],
        "figures": {
            "accept_length": {
                "title": "Accept length",
                "value": 2.5,
                "unit": "tokens/step",
                "source": "counters before and after",
            }
        },
        **changes,
    }


class Page(HTMLParser):
    """Tags, attributes and text of a document."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_value_is_escaped_and_nothing_is_fetched() -> None:
    check = {"id": HOSTILE, "ok": False, "expected": HOSTILE, "observed": HOSTILE, "why": HOSTILE}
    figure = {"title": HOSTILE, "value": 1.0, "unit": HOSTILE, "source": HOSTILE}
    lock = dict.fromkeys(("file", "image", "model", "drafter"), HOSTILE)
    hostile = dict.fromkeys(("notebook", "recipe", "host", "hardware", "speculation"), HOSTILE)
    told = ("id", "title", "severity", "evidence", "why", "fix", "source")
    cause = {**dict.fromkeys(told, HOSTILE), "line": 3}
    shown = {"checks": [check], "figures": {"x": figure}, "diagnosis": [cause]}
    page = Page(report.render(result(ok=False, **shown, lock=lock, **hostile)))
    assert {"script", "img"}.isdisjoint(page.tags)
    assert {"src", "onerror"}.isdisjoint(page.attributes)
    assert all(link.startswith("#") for link in page.attributes["href"])
    assert page.text.count(HOSTILE) > 10
    assert "default-src 'none'" in page.attributes["content"][-1]


def test_a_failed_run_says_what_it_comes_from() -> None:
    cause = {
        "id": "port-in-use",
        "title": "port 8000 is taken",
        "severity": "error",
        "evidence": "OSError: [Errno 98]",
        "line": 12,
        "why": "another program",
        "fix": "stop it",
    }
    page = Page(report.render(result(ok=False, diagnosis=[cause])))
    text = " ".join(page.text.split())
    assert "What it comes from" in text
    assert "port 8000 is taken (port-in-use) line 12: OSError: [Errno 98] another program" in text
    assert "Fix: stop it" in text
    assert "What it comes from" not in report.render(result(diagnosis=[]))


def test_a_figure_shows_its_interval_where_it_has_one() -> None:
    figure = {"title": "X", "value": 100.0, "unit": "tokens/s", "source": "s"}
    page = Page(report.render(result(figures={"x": {**figure, "low": 97.5, "high": 102.4}})))
    assert "100 tokens/s97.5 to 102" in page.text
    for without in (figure, {**figure, "low": None, "high": None}):
        assert (
            " to "
            not in Page(report.render(result(figures={"x": without})))
            .text.partition("Beside")[0]
            .partition("Figures")[2]
        )


def test_outcome_is_said_in_words_and_failed_checks_come_first() -> None:
    checks = [
        {"id": "health", "ok": True, "expected": "200", "observed": "200", "why": ""},
        {"id": "sum", "ok": False, "expected": "4", "observed": "x " * 300, "why": "a\n  fix: b"},
    ]
    page = Page(report.render(result(ok=False, checks=checks)))
    assert "1 of 2 checks do not hold" in " ".join(page.text.split())
    assert page.text.index("✗ failed") < page.text.index("✓ passed")
    # What failed is not folded away.
    assert "details" not in page.tags
    assert "a\n  fix: b" in page.text
    assert "as expected" in page.text


def test_each_figure_says_what_produced_it() -> None:
    text = " ".join(Page(report.render(result())).text.split())
    assert "Accept length 2.50 tokens/step counters before and after" in text
    assert "took\xa07\xa0s" in text or "took 7 s" in text
