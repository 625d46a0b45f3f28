"""The site in a real browser: drawn, sorted, filtered, quiet, and deaf to what folders say."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.site import chromium
from tests.site.chromium import Page
from tests.unit.kept_runs import NOW, benchmark, html_output, keep, notebook
from tests.unit.test_reportsite import HOSTILE

from roost import reportsite
from roost.measure import charts, tables
from roost.measure.checks import Check, Figure
from roost.reportsite import notebook as notebooks

DESKTOP, PHONE = 1280, 390
HOSTS = {"spark-01": 100.0, "spark-02": 81.0, "spark-03": 9.5}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if chromium.program() is None:
        why = "no Chromium here: apt-get install chromium-headless-shell"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    with chromium.browsing() as page:
        page.before_each("window.booms = []; window.boom = (n) => window.booms.push(n);")
        yield page


def runs(root: Path) -> Path:
    for at, (host, speed) in enumerate(HOSTS.items()):
        measured = benchmark(at, speed=speed, categories=3)
        executed = notebook(
            html_output(tables.points(measured).data),
            html_output(charts.points(measured).data),
        )
        began = NOW + dt.timedelta(days=at)
        keep(root, f"{at}-{host}", measured, executed, host=host, started=began,
             finished=began + dt.timedelta(seconds=9 + 91 * at))  # fmt: skip
    other, baseline = "20261130T160105Z-spark-02-ornith-1.0-35b", "20261129T160105Z-spark-01-ornith"
    title = f"Throughput of all users, coding-c1: {other} / {baseline}"
    ratio = Figure(title=title, value=0.85, unit="times", source="worse; x", low=0.8, high=0.9)
    keep(root, "3-compare", notebook="compare", figures={"b.x/a": ratio})
    words = dict.fromkeys(("notebook", "recipe", "hardware", "speculation"), HOSTILE)
    error = {"output_type": "error", "ename": "E", "evalue": HOSTILE, "traceback": [HOSTILE]}
    script = {"application/javascript": "boom(8)", "text/markdown": HOSTILE}
    display = {"output_type": "display_data", "data": script, "metadata": {}}
    keep(
        root, "4-hostile", benchmark(5), notebook(html_output(HOSTILE), error, display),
        host=HOSTILE, ok=False,
        checks=[Check(id=HOSTILE, ok=False, expected=HOSTILE, observed=HOSTILE, why=HOSTILE)],
        **words,
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("site")
    reportsite.build(runs(where / "runs"), where / "site")
    return where / "site"


#: Charts that a page has.
PAGES = {
    "index.html": 1,
    "runs/0-spark-01.html": 6,
    "runs/3-compare.html": 1,
    "runs/4-hostile.html": 6,
}
MARKS = "[...document.querySelectorAll('figure[data-chart]')].map((f) => f.querySelectorAll('.point, path.js-line').length)"  # noqa: E501
CUT_OFF = """
[...document.querySelectorAll('.plot')].flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('.ytick text, .xtick text, .titletext')].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1;
  }).map((text) => text.textContent);
})
"""
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll('h1, td, th, a, .quiet, .mark, .plot text')]
    // A notebook's drawings have a ground of their own.
    .filter((e) => e.textContent.trim() && e.getClientRects().length && !e.closest('.notebook svg'))
    .map((e) => e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return Math.min(...texts.map((colour) => ratio(light(colour), ground)));
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_drawn_and_ask_for_nothing(
    page: Page, site: Path, name: str, width: int, dark: bool
) -> None:
    page.open((site / name).as_uri(), width=width, dark=dark)
    marks = page.run(MARKS)
    assert len(marks) == PAGES[name]
    assert all(marks)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(site.as_uri())] == []
    assert len(page.requests) == 3
    # Nothing is wider than the screen, and all of it can be read.
    assert page.run("document.documentElement.scrollWidth") == width
    widths = page.run("[...document.querySelectorAll('.plot')].map((p) => p.clientWidth)")
    assert min(widths) > 250
    assert page.run(CUT_OFF) == []
    assert page.run(CONTRAST) >= 4.5
    assert page.run("window.booms") == []


def column(page: Page, table: str, at: int) -> list[str]:
    cells = f"[...document.querySelectorAll('{table} tbody tr')].filter((r) => !r.hidden)"
    found: list[str] = page.run(f"{cells}.map((r) => r.cells[{at}].textContent.trim())")
    return found


def test_tables_sort_both_ways(page: Page, site: Path) -> None:
    page.open((site / "index.html").as_uri())
    click = "document.querySelectorAll('#runs th button')[{}].click()"
    at = 10
    page.run(click.format(at))
    seconds = [text for text in column(page, "#runs", at) if text]
    assert seconds == sorted(seconds, key=float)
    assert seconds[0] == "9"
    page.run(click.format(at))
    assert [text for text in column(page, "#runs", at) if text] == seconds[::-1]
    heads = "[...document.querySelectorAll('#runs th')].map((h) => h.ariaSort)"
    assert [said for said in page.run(heads) if said] == ["descending"]
    page.run(click.format(2))
    hosts = column(page, "#runs", 2)
    assert [host for host in hosts if host in HOSTS] == ["spark-01", "spark-01", *list(HOSTS)[1:]]
    # As numbers, not as text: 9.5 before 81, and 3.38 before 3.4.
    page.run("document.querySelectorAll('#points th button')[7].click()")
    lengths: list[str] = page.run(
        "[...document.querySelectorAll('#points tbody tr')].map((r) => r.cells[7].dataset.value)"
    )
    assert len(lengths) == 10
    assert lengths == sorted(lengths, key=float)
    # A notebook's own tables sort too.
    page.open((site / "runs" / "0-spark-01.html").as_uri())
    page.run("document.querySelectorAll('.notebook th button')[0].click()")
    points = column(page, ".notebook table", 0)
    assert points == sorted(points)
    assert points[0] == "coding-c1"


def test_filters_leave_what_was_asked_for(page: Page, site: Path) -> None:
    page.open((site / "index.html").as_uri())
    choose = """(() => {{ const s = document.querySelector('[data-filter={}]');
        s.value = '{}'; s.dispatchEvent(new Event('change')); }})()"""
    page.run(choose.format("host", "spark-02"))
    assert column(page, "#runs", 2) == ["spark-02"]
    assert set(column(page, "#points", 1)) == {"spark-02"}
    assert page.run("document.querySelector('#shown').textContent") == "1 of 5 runs"
    page.run(choose.format("kind", "compare"))
    assert column(page, "#runs", 2) == []
    page.run(choose.format("host", ""))
    assert column(page, "#runs", 3) == ["compare"]


def test_a_chart_answers(page: Page, site: Path) -> None:
    """Another figure is drawn when it is chosen, and values are told under the pointer."""
    page.open((site / "index.html").as_uri())
    choose = """(() => {{ const s = document.querySelector('figure select');
        s.value = [...s.options].find((o) => {}).value;
        s.dispatchEvent(new Event('change')); }})()"""
    traces = "[...document.querySelectorAll('.plot .legendtext')].map((t) => t.textContent)"
    title = "document.querySelector('.plot .ytitle').textContent"
    # What a folder says is text to the chart as well.
    page.run(choose.format("o.text.startsWith('<script>')"))
    assert page.run(traces) == [HOSTILE]
    page.run(choose.format("o.text.startsWith('smollm2')"))
    assert page.run(traces) == list(HOSTS)
    assert page.run(title) == "tokens/s"
    page.run(choose.format("o.text.endsWith('accept length (tokens/step)')"))
    assert page.run(title) == "tokens/step"
    page.open((site / "runs" / "0-spark-01.html").as_uri())
    where: dict[str, Any] = page.run(
        "(() => { document.querySelector('.plot').scrollIntoView();"
        "const b = document.querySelector('.plot .point').getBoundingClientRect();"
        "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
    page.run("new Promise((done) => setTimeout(done, 300))")
    told = page.run("document.querySelector('.hoverlayer').textContent")
    assert told.startswith("kind2-c1: ")
    assert told.endswith(" tokens/s")


def test_only_a_difference_has_a_colour(page: Page, site: Path) -> None:
    colours = []
    for dark in (False, True):
        page.open((site / "runs" / "3-compare.html").as_uri(), dark=dark)
        mark = "getComputedStyle(document.querySelector('.plot .point')).fill"
        bad = (
            "(() => { const p = document.createElement('p'); p.style.color = 'var(--bad)';"
            "document.body.append(p); return getComputedStyle(p).color; })()"
        )
        assert page.run(mark) == page.run(bad)
        colours.append(page.run(bad))
    assert colours[0] != colours[1]


def test_the_policy_holds_where_cleaning_would_fail(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "clean", lambda html: html)
    reportsite.build(runs(tmp_path / "runs"), tmp_path / "site")
    hostile = tmp_path / "site" / "runs" / "4-hostile.html"
    assert "<script>boom" in hostile.read_text()
    page.open(hostile.as_uri())
    assert page.run("window.booms") == []
    # It is the policy that kept them from running.
    assert any("Content Security Policy" in said for said in page.complaints)
    assert [url for url in page.requests if "x.test" in url] == []
