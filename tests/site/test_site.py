"""The site in a real browser: drawn, sorted, filtered, quiet, and deaf to what folders say."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.site import chromium
from tests.site.chromium import Page
from tests.unit.kept_runs import NOW, benchmark, html_output, keep, notebook
from tests.unit.test_reportsite import HOSTILE, index_of

from roost import html_templates, reportsite
from roost.measure import charts, store, tables
from roost.measure.checks import Check, Figure
from roost.reportsite import notebook as notebooks
from roost.reportsite import pages

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
    same = ratio.model_copy(
        update={"title": title.replace("Throughput of all users", "Accept length")}
    )
    keep(root, "3-compare", notebook="compare", figures={"b.x/a": ratio, "b.y/a": same})
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
    "runs/3-compare.html": 2,
    "runs/4-hostile.html": 6,
}
MARKS = "[...document.querySelectorAll('figure')].map((f) => f.querySelectorAll('.point, path.js-line').length)"  # noqa: E501
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
  const read = 'h1, td, th, a, button, label, .quiet, .mark, .plot text';
  const texts = [...document.querySelectorAll(read)]
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
    assert len(page.requests) == 3 + (name == "index.html")
    # Nothing is wider than the screen, and all of it can be read.
    assert page.run("document.documentElement.scrollWidth") == width
    widths = page.run("[...document.querySelectorAll('.plot')].map((p) => p.clientWidth)")
    assert min(widths) > 250
    assert page.run(CUT_OFF) == []
    # Of a chart most is the plot, however long the names beside it are.
    room = (
        "[...document.querySelectorAll('.plot')].map((p) => p._fullLayout._size.w / p.clientWidth)"
    )
    assert min(page.run(room)) > 0.45
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
    page.run("document.querySelectorAll('#points th button')[6].click()")
    speeds: list[str] = page.run(
        "[...document.querySelectorAll('#points tbody tr')]"
        ".map((r) => r.cells[6].firstChild.textContent)"
    )
    assert len(speeds) == 10
    assert speeds == sorted(speeds, key=float)
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


def say(text: str) -> str:
    """A script that types into the search."""
    return (
        "(() => { const box = document.querySelector('input[type=search]');"
        f"box.value = {text!r}; box.dispatchEvent(new Event('input')); }})()"
    )


def test_words_leave_what_has_them_all(page: Page, site: Path) -> None:
    page.open((site / "index.html").as_uri())
    page.run(say("SPARK-02 bench"))
    assert column(page, "#runs", 2) == ["spark-02"]
    assert column(page, "#points", 5) == ["coding-c1", "prose-c1", "kind2-c1"]
    # A point's own name leaves that point, of whatever run.
    page.run(say("prose"))
    assert column(page, "#runs", 2) == []
    assert set(column(page, "#points", 5)) == {"prose-c1"}
    # The chart follows, once typing stops.
    page.run(say("spark-03"))
    assert page.comes_to(TRACES, ["spark-03"].__eq__) == ["spark-03"]
    page.run(say("no such words"))
    assert page.comes_to(TRACES, [].__eq__) == []
    assert page.complaints == []


def test_a_run_is_found_by_its_name_and_by_each_failed_check(page: Page, tmp_path: Path) -> None:
    checks = [Check(id=f"check-{at}", ok=False, expected="", observed="") for at in range(7)]
    keep(tmp_path / "runs", "grünes Licht", notebook="verify", host="a", ok=False, checks=checks)
    # Bytes that are no text.
    keep(tmp_path / "runs", os.fsdecode(b"odd-\xff"), notebook="verify", host="b")
    reportsite.build(tmp_path / "runs", tmp_path / "site")
    page.open((tmp_path / "site" / "index.html").as_uri())
    for words, hosts in [("grünes licht", ["a"]), ("check-6", ["a"]), ("odd-", ["b"])]:
        page.run(say(words))
        assert column(page, "#runs", 2) == hosts
    assert column(page, "#runs", 4) == [""]
    page.run(say("check-0"))
    assert column(page, "#runs", 4) == ["check-0, check-1, check-2 and 4 more"]
    assert page.complaints == []


def test_of_what_was_only_tried_nothing_is_drawn_over_time(page: Page, tmp_path: Path) -> None:
    keep(tmp_path / "runs", "1", benchmark(1), trial=True, host="a")
    headings = "[...document.querySelectorAll('h2')].map((h) => h.textContent)"
    reportsite.build(tmp_path / "runs", tmp_path / "site")
    page.open((tmp_path / "site" / "index.html").as_uri())
    assert page.run(headings) == ["Runs", "Benchmarks"]
    page.run(say("coding"))
    assert column(page, "#points", 1) == ["a"]
    assert page.complaints == []
    keep(tmp_path / "runs", "2", benchmark(2), host="b")
    reportsite.build(tmp_path / "runs", tmp_path / "site")
    page.open((tmp_path / "site" / "index.html").as_uri())
    assert page.run(headings) == ["Runs", "Over time", "Benchmarks"]
    assert page.run(TRACES) == ["b"]


TRACES = "[...document.querySelectorAll('.plot .legendtext')].map((t) => t.textContent)"


def test_a_chart_answers(page: Page, site: Path) -> None:
    """Another figure is drawn when it is chosen, and values are told under the pointer."""
    page.open((site / "index.html").as_uri())
    choose = """(() => {{ const s = document.querySelectorAll('figure select')[{}];
        s.value = [...s.options].find((o) => {}).value;
        s.dispatchEvent(new Event('change')); }})()"""
    title = "document.querySelector('.plot .ytitle').textContent"
    said = "document.querySelector('.plot').ariaLabel"
    # What a folder says is text to the chart as well.
    page.run(choose.format(0, "o.text.startsWith('<script>')"))
    assert page.run(TRACES) == [HOSTILE]
    page.run(choose.format(0, "o.text.startsWith('smollm2')"))
    assert page.run(TRACES) == list(HOSTS)
    assert page.run(title) == "tokens/s"
    value = html_templates.number(store.read(site / "raw" / "1-spark-02").measured[0]["value"])
    assert f"spark-02 1 run, {value} to {value}, the newest {value}" in page.run(said)
    page.run(choose.format(1, "o.text === 'prose-c1'"))
    page.run(choose.format(2, "o.text === 'Accept length (tokens/step)'"))
    assert page.run(title) == "tokens/step"
    assert "prose-c1" in page.run(said)
    page.open((site / "runs" / "0-spark-01.html").as_uri())
    where: dict[str, Any] = page.run(
        "(() => { document.querySelector('.plot').scrollIntoView();"
        "const b = document.querySelector('.plot .point').getBoundingClientRect();"
        "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
    told = page.comes_to("document.querySelector('.hoverlayer').textContent", bool)
    assert told.startswith("kind2-c1: ")
    assert told.endswith(" tokens/s")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More runs than the index holds: seven nights, the newest of a host that is slow."""
    where = tmp_path_factory.mktemp("many")
    for night in range(7):
        began = NOW + dt.timedelta(days=night)
        keep(where / "runs", f"{night}-run", benchmark(night, speed=100.0 - 10 * (night == 6)),
             host=f"h{7 - night}", started=began, recipe="ornith-1.0-35b-heretic-nvfp4-dflash",
             finished=began + dt.timedelta(seconds=90))  # fmt: skip
    (where / "runs" / "8-killed").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE", 3)
        reportsite.build(where / "runs", where / "site")
    return where / "site"


def test_all_rows_are_reached_in_pages(page: Page, many: Path) -> None:
    page.open((many / "index.html").as_uri(), width=PHONE)
    go = "document.querySelector('[data-pages={}] [data-go={}]').click()"
    said = "document.querySelector('[data-pages={}] [role=status]').textContent"
    assert column(page, "#runs", 0)[0] == "8-killed"
    assert page.run(said.format("runs")) == "1 to 3 of 8"
    page.run(go.format("runs", "next"))
    assert column(page, "#runs", 2) == ["h3", "h4", "h5"]
    page.run(go.format("runs", "next"))
    page.run(go.format("runs", "next"))
    assert column(page, "#runs", 2) == ["h6", "h7"]
    assert page.run(said.format("runs")) == "7 to 8 of 8"
    page.run(go.format("runs", "previous"))
    page.run(go.format("runs", "first"))
    # A page's rows are whole rows: state, link, and what is not known.
    assert column(page, "#runs", 1) == ["unfinished", "✓ passed", "✓ passed"]
    link = "document.querySelectorAll('#runs tbody a')[1].getAttribute('href')"
    assert page.run(link) == "runs/6-run.html"
    assert column(page, "#runs", 10) == ["", "90", "90"]
    # Sorting and filtering are of all rows, not of those in sight.
    page.run(go.format("runs", "last"))
    page.run("document.querySelectorAll('#runs th button')[2].click()")
    page.run("document.querySelectorAll('#runs th button')[2].click()")
    assert column(page, "#runs", 2) == ["h7", "h6", "h5"]
    page.run("document.querySelectorAll('#points th button')[6].click()")
    assert column(page, "#points", 1)[0] == "h1"
    page.run(say("h4"))
    assert column(page, "#runs", 2) == ["h4"]
    assert page.run(said.format("runs")) == "1 to 1 of 1"
    assert column(page, "#points", 1) == ["h4"]
    page.run(say(""))
    # As it was sorted before.
    assert column(page, "#runs", 2) == ["h7", "h6", "h5"]
    assert page.complaints == []


def test_a_desktop_shows_whole_rows(page: Page, many: Path) -> None:
    page.open((many / "index.html").as_uri(), width=DESKTOP)
    over = "[...document.querySelectorAll('.wide')].map((w) => w.scrollWidth - w.clientWidth)"
    assert page.run(over) == [0, 0]


def test_a_phone_shows_the_first_figure_of_a_row(page: Page, many: Path) -> None:
    page.open((many / "index.html").as_uri(), width=PHONE)
    cell = "document.querySelector('#points tbody tr').cells[6]"
    assert page.run(f"{cell}.getBoundingClientRect().right") <= PHONE


def test_pages_turn_by_keyboard(page: Page, many: Path) -> None:
    """The focus stays where it is, also at the end."""
    page.open((many / "index.html").as_uri())
    page.run("document.querySelector('[data-pages=points] [data-go=next]').focus()")
    for hosts in (["h4", "h5", "h6"], ["h7"], ["h7"]):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                      windowsVirtualKeyCode=13, text="\r")  # fmt: skip
        assert column(page, "#points", 1) == hosts
        assert page.run("document.activeElement.dataset.go") == "next"
    assert page.run("document.activeElement.ariaDisabled") == "true"


def test_without_scripts_all_runs_are_a_page_away(page: Page, many: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open((many / "index.html").as_uri())
        assert column(page, "#runs", 0)[1:] == ["2026-12-05 16:00", "2026-12-04 16:00"]
        shown = "[...document.querySelectorAll('{}')].filter((e) => e.getClientRects().length)"
        # What acts only by script is not there.
        assert page.run(f"{shown.format('select, input, button, figure')}.length") == 0
        page.open(
            (many / page.run("document.querySelector('p > a').getAttribute('href')")).as_uri()
        )
        assert len(page.run(f"{shown.format('tbody a')}.map((a) => a.href)")) == 8
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_long_lines_keep_what_stands_out(page: Page, tmp_path: Path) -> None:
    """Of thousands of runs a line shows the lowest and the highest of each span, and the newest."""
    for at in range(2):
        keep(tmp_path / "runs", f"{at}", benchmark(at), started=NOW + dt.timedelta(days=at))
    reportsite.build(tmp_path / "runs", tmp_path / "site")
    script = tmp_path / "site" / "assets" / "index.js"
    said = index_of(tmp_path / "site")
    count = 3000
    for name, values in said["runs"].items():
        if isinstance(values, dict):
            values["at"] = [0] * count
        elif values:
            said["runs"][name] = [values[0]] * count
    days = [NOW + dt.timedelta(days=count - at) for at in range(count)]
    said["runs"]["started"] = [f"{day:%Y-%m-%d %H:%M:%S}" for day in days]
    said["points"] = {"run": list(range(count)), "point": {"texts": ["a"], "at": [0] * count}}
    for one in said["metrics"]:
        one |= {"value": [100.0] * count, "low": [None] * count, "high": [None] * count}
        one["value"][1700], one["value"][1701] = 40.0, 160.0
        # The newest is neither the lowest nor the highest of its span.
        one["value"][:3] = 100.5, 101.0, 99.0
    script.write_text(f"const INDEX = {json.dumps(said)};\n")
    page.open((tmp_path / "site" / "index.html").as_uri())
    drawn = page.run("document.querySelector('.plot').data[0].y")
    assert len(drawn) <= 1201
    assert (min(drawn), max(drawn), drawn[-1]) == (40.0, 160.0, 100.5)
    assert "3000 runs, 40.0 to 160, the newest 101" in page.run(
        "document.querySelector('.plot').ariaLabel"
    )
    assert "600 spans" in page.run("document.querySelector('figcaption').textContent")
    # Thirty hosts: no two lines look alike, and none takes more marks than they can have together.
    said["runs"]["host"] = {
        "texts": [f"h{at}" for at in range(28)],
        "at": [at % 28 for at in range(count)],
    }
    script.write_text(f"const INDEX = {json.dumps(said)};\n")
    page.open((tmp_path / "site" / "index.html").as_uri(), width=PHONE)
    looks = page.run(
        "document.querySelector('.plot')._fullData.map((t) => `${t.line.color} ${t.line.dash}`)"
    )
    assert len(set(looks)) == 28
    drawn = page.run("document.querySelector('.plot').data.map((t) => t.x.length)")
    assert sum(drawn) <= 1300
    assert page.run("document.querySelector('.plot')._fullLayout._size.h") > 150
    assert page.run(CUT_OFF) == []


def test_odd_names_and_hidden_plots_are_drawn(page: Page, tmp_path: Path) -> None:
    titles = ["", *(f"Throughput, {name}" for name in (" ", "\n", "two words that " * 9))]
    figures = {title: Figure(title=title, value=0.8, unit="times", source="x") for title in titles}
    keep(tmp_path / "runs", "1", notebook="compare", figures=figures)
    reportsite.build(tmp_path / "runs", tmp_path / "site")
    page.open((tmp_path / "site" / "runs" / "1.html").as_uri())
    assert page.run(MARKS) == [1, 3]
    page.run("document.querySelector('.charts').style.display = 'none'")
    for scheme in ("dark", "light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.call("Emulation.setEmulatedMedia", features=[feature])
        page.run("new Promise((done) => setTimeout(done, 100))")
    assert page.complaints == []


def test_a_chart_that_fails_leaves_the_others(page: Page, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    path = tmp_path / "site" / "runs" / "0-spark-01.html"
    data = '<script type="application/json">'
    path.write_text(path.read_text().replace(data, f"{data}[]</script>{data}", 1))
    page.open(path.as_uri())
    first, *others = page.run(MARKS)
    assert first == 0
    assert all(others)
    # And it is seen.
    (said,) = page.complaints
    assert "TypeError" in said


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
