"""The site: everything traceable, nothing hostile, repeatable, and put in place in one step."""

from __future__ import annotations

import datetime as dt
import errno
import gc
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from tests.unit.disks import full_disk
from tests.unit.kept_runs import DIGEST, NOW, benchmark, html_output, keep, notebook

from roost import measure, progress, report_cli, reportsite, runs
from roost.errors import RoostError, UsageError
from roost.measure import charts as notebook_charts
from roost.measure import store, throttling
from roost.measure.checks import Check, Figure
from roost.measure.kept import Kept
from roost.measure.throttling import Sample, Watch
from roost.parquet import Table
from roost.reportsite import charts, making, pages, publish, reuse
from roost.reportsite import notebook as notebooks
from roost.runs import Origin, Pins

#: Whatever of this runs, is fetched or reaches out of its place would be a hole.
HOSTILE = (
    "<script>boom(1)</script><img src=x onerror=boom(2)><svg onload=boom(3)><a xlink:href="
    '"javascript:boom(4)"><text>t</text></a><animate onbegin=boom(5)></animate><foreignObject>'
    '<iframe srcdoc="<script>boom(6)</script>"></iframe></foreignObject></svg>'
    '<a href="javascript:boom(7)">a</a><style>@import url(https://x.test/a);</style>'
    '<p style="background:url(https://x.test/b);position:fixed">p</p></script><!--<script>'
    '<form action="https://x.test"><input name=parentNode><base href="https://x.test/">'
    "\"'&{{ 7*7 }}<link rel=stylesheet href=https://x.test/c><math><mtext></mtext></math>"
)


_NAMES = ("1-spark-01", "2-spark-02")
_PAGES = tuple(f"runs/{name}.html" for name in _NAMES)


class Html(HTMLParser):
    """Tags with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        return [given[attribute] for name, given in self.tags if name == tag and attribute in given]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "runs"
    measured = benchmark(1, categories=2)
    executed = notebook(html_output(notebook_charts.points(measured).data))
    command = ["vllm", "serve", "/model", "--max-num-seqs", "8"]
    keep(made, "1-spark-01", measured, executed, command=command, env={"VLLM_X": "1"})
    keep(made, "2-spark-02", notebook="verify", host="spark-02", ok=False, recipe="other",
         checks=[Check(id="health", ok=False, expected="200", observed="", why="dead")],
         started=NOW + dt.timedelta(days=1))  # fmt: skip
    return made


def build(root: Path) -> Path:
    reportsite.build(root, root.parent / "site")
    return root.parent / "site"


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_link_leads_somewhere_within_the_site(root: Path) -> None:
    keep(root, "3-group/#1 50%?ü", benchmark(3), notebook())
    site = build(root)
    for page in site.rglob("*.html"):
        if "raw" in page.relative_to(site).parts:
            continue
        html = Html(page.read_text())
        links = [*html.values("a", "href"), *html.values("script", "src")]
        assert links
        for link in links:
            if not link.startswith("#"):
                # As a browser reads it: what follows a # or a ? is no part of the path.
                target = (page.parent / unquote(urlsplit(link).path)).resolve()
                assert target.is_file(), link
                assert target.is_relative_to(site), link


def test_each_figure_can_be_traced(root: Path) -> None:
    site = build(root)
    html = Html((site / "runs" / "1-spark-01.html").read_text())
    for fact in (
        "spec-bench: one user, 20 warm-ups", '{"enable_thinking": false}',  # protocol
        f"i@{DIGEST}", "m@1", "d@2", "roost.lock.yml",  # lock
        "0.24.0", "NVIDIA GB10, driver 580.95.05", "6.14.0-1015-nvidia",  # engine and host
        "vllm serve /model --max-num-seqs 8", "VLLM_X=1",  # settings
        "3 repetitions",
    ):  # fmt: skip
        assert fact in html.text
    assert "../raw/1-spark-01/harness_coding-c1_2.json" in html.values("a", "href")
    raw = site / "raw" / "1-spark-01" / "harness_coding-c1_2.json"
    assert raw.read_bytes() == (root / "1-spark-01" / raw.name).read_bytes()


def test_figures_of_a_comparison_lead_to_the_runs(root: Path) -> None:
    source = "worse; 2-spark-02 / 1-spark-01; belongs to the hardware"
    figure = Figure(title="Accept length, x", value=0.8, unit="times", source=source)
    keep(root, "3-compare", notebook="compare", figures={"x": figure})
    page = Html((build(root) / "runs" / "3-compare.html").read_text())
    assert {"1-spark-01.html", "2-spark-02.html"} <= {
        link.rpartition("/")[2] for link in page.values("a", "href")
    }
    # Of a comparison nothing of a machine could be recorded.
    assert "not recorded" not in page.text


def test_a_comparison_shows_what_each_of_its_runs_was(root: Path) -> None:
    origins = [
        Origin(
            run=run,
            started=NOW,
            recipe="r",
            host="spark-01",
            hardware="gb10",
            speculation=speculation,
            lock=Pins(file="roost.lock.yml", image=image, model="m@1"),
            command=["serve", f"--{speculation}"],
            env={},
        )
        for run, speculation, image in (("1-spark-01", "none", "i@1"), ("x", "mtp", "i@2"))
    ]
    keep(root, "3-compare", notebook="compare", compared=origins)
    page = Html((build(root) / "runs" / "3-compare.html").read_text())
    text = "".join(page.text.split())
    for said in (
        "Run1-spark-01r,none,gb10,spark-01Imageof1-spark-01i@1",
        "Runxr,mtp,gb10,spark-01Imageofxi@2Modelofxm@1",
        "Commandofxserve--mtp",
    ):
        assert said in text
    # Those of all together would be the pins of none.
    assert f"i@{DIGEST}" not in text


def test_every_chart_has_words_with_its_values(root: Path) -> None:
    site = build(root)
    html = Html((site / "runs" / "1-spark-01.html").read_text())
    said = [given["aria-label"] for _, given in html.tags if "plot" in given.get("class", "")]
    assert len(said) == len(html.values("figure", "data-chart")) == 6
    found = store.read(root / "1-spark-01").measured[0]
    assert f"coding-c1 {found['value']:.4g} ({found['low']:.4g} to" in said[0]
    assert "coding-c1 80%, 64%" in said[4]
    assert "GPU clock (MHz) of GPU 0 2361 to 2400" in said[5]


def test_what_a_folder_says_is_text(root: Path) -> None:
    words = dict.fromkeys(("notebook", "recipe", "host", "hardware", "speculation"), HOSTILE)
    keep(
        root, "3-hostile", benchmark(2),
        notebook(html_output(HOSTILE), source=HOSTILE) + "\n", ok=False,
        checks=[Check(id=HOSTILE, ok=False, expected=HOSTILE, observed=HOSTILE, why=HOSTILE)],
        figures={"x": Figure(title=HOSTILE, value=1.0, unit="times", source=HOSTILE)},
        **words,
    )  # fmt: skip
    odd = {"ok": True, "notebook": HOSTILE, "started": "2026-11-30T00:00:00Z", HOSTILE: HOSTILE}
    (root / "4-odd").mkdir()
    (root / "4-odd" / "result.json").write_text(json.dumps(odd))
    (root / "4-odd" / "evil.html").write_text(HOSTILE)
    (root / "4-odd" / "evil.svg").write_text(HOSTILE)
    (root / "4-odd" / "link.txt").symlink_to("/etc/passwd")
    (root / "5-broken").mkdir()
    (root / "5-broken" / "result.json").write_text('{"' + HOSTILE.replace('"', "") + "\\ud800")
    site = build(root)
    for page in [site / "index.html", *(site / "runs").rglob("*.html")]:
        html = Html(page.read_text())
        for tag, given in html.tags:
            assert tag not in {"iframe", "form", "base", "link", "style", "object", "embed"} or (
                tag == "style" and html.tags[:8].count((tag, given)) == 1
            )
            assert not [name for name in given if name.startswith("on")]
            assert "url(" not in given.get("style", "")
            assert "position" not in given.get("style", "")
            assert "javascript:" not in given.get("href", "") + given.get("xlink:href", "")
        policy = html.values("meta", "content")[1]
        nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
        assert nonce
        for _, given in [one for one in html.tags if one[0] == "script"]:
            assert given.get("nonce") == nonce[1] or given["type"] == "application/json"
    copies = {path.name for path in (site / "raw" / "4-odd").iterdir()}
    assert copies == {"result.json", "evil.html.txt", "evil.svg.txt"}


@pytest.mark.parametrize(
    "kept",
    ["<b>bold</b>",
     '<table><tbody><tr><td colspan="2">x</td></tr></tbody></table>',
     '<svg viewBox="0 0 1 1"><clipPath></clipPath>',
     '<img alt="x" src="data:image/png;base64,AAAA">',
     '<span style="color: red;">x</span>'],
)  # fmt: skip
def test_what_a_notebook_draws_is_kept(kept: str) -> None:
    assert notebooks.clean(kept).startswith(kept.removesuffix(">"))


def test_a_drawings_ids_are_none_of_the_pages() -> None:
    """A browser makes a variable of each, and the page's script would take it for its own."""
    drawn = (
        '<svg id="INDEX"><defs><clipPath id="a"><rect></rect></clipPath></defs>'
        '<use href="#a"></use><use xlink:href="#a"></use><g clip-path="url(#a)">'
        '<path style="fill: url(\'#a\');"></path></g></svg><a href="#a">to it</a>'
    )
    html = Html(notebooks.clean(drawn))
    assert html.values("svg", "id") == ["notebook-INDEX"]
    assert html.values("clippath", "id") == ["notebook-a"]
    assert html.values("use", "href") == ["#notebook-a", "#notebook-a"]
    assert html.values("a", "href") == ["#notebook-a"]
    assert html.values("g", "clip-path") == ["url(#notebook-a)"]
    (style,) = html.values("path", "style")
    assert "'#a'" not in style
    # Whatever has been in it before.
    for tag in ("svg", "g", "use", "text"):
        said = notebooks.clean(f"<svg><{tag} ID=INDEX></{tag}></svg>")
        assert not re.search(r'id="(?!notebook-)', said)


@pytest.mark.parametrize(
    "gone",
    ['<img src="https://x.test/a.png">', '<img src="data:image/svg+xml;base64,AAAA">',
     '<a href="http://x.test">', '<use href="https://x.test/#a">', '<div id="runs">',
     '<div style="position: fixed;">', "<!-- x -->", "<style>a</style>", "<title>a</title>"],
)  # fmt: skip
def test_what_reaches_out_is_not(gone: str) -> None:
    cleaned = notebooks.clean(gone)
    assert not re.search(r"x\.test|svg\+xml|runs|fixed|<!|>a<", cleaned)


@pytest.mark.parametrize("tag", ["style", "SCRIPT", "metadata", "title"])
def test_what_no_reader_sees_goes_with_its_content(tag: str) -> None:
    end = tag.swapcase()
    html = f"a<{tag} x='<{tag}>'>gone<{tag}>gone</{end}\n>b<p>c</p><{tag}>gone</{tag}>d"
    assert notebooks.clean(html) == "ab<p>c</p>d"
    # Of another element's end nothing is an end.
    assert notebooks.clean(f"a<{tag}>gone</x></{tag}x>gone</{tag}>b") == "ab"


def test_begins_without_an_end_take_no_time_to_look_for() -> None:
    """Looking for an end from each of them took 19 s for 16,000, and four times that for double."""
    begins = "".join(f"<{tag} " for tag in ("style", "title")) * 200_000
    started = time.process_time()
    assert notebooks._readable(begins) == begins
    assert notebooks._readable(f"{begins}</title>x") == "<style x"
    assert time.process_time() - started < 10


def test_a_notebook_that_takes_too_long_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / _NAMES[0] / runs.EXECUTED
    assert notebooks.render(path)

    def for_ever(_: str) -> str:
        while True:
            pass

    monkeypatch.setattr(notebooks, "clean", for_ever)
    monkeypatch.setattr(notebooks, "LONGEST", 0.5)
    handler = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(RoostError, match="no notebook that can be shown") as caught:
        notebooks.render(path)
    assert "more than 0.5 s of the processor's time" in caught.value.why
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is handler


def test_a_notebook_that_is_too_large_is_told_and_the_page_is_made(root: Path) -> None:
    with (root / _NAMES[0] / runs.EXECUTED).open("r+b") as sparse:
        sparse.truncate(2**30)
    built = reportsite.build(root, root.parent / "site")
    assert built.problems == [
        f"{_NAMES[0]}/executed.ipynb: cannot be read (1,024 MiB, 16 at the most)"
    ]
    assert "1,024 MiB, 16 at the most" in built.pages[_NAMES[0]].read_text()


def test_a_page_without_what_it_cannot_draw(root: Path) -> None:
    """Samples of another shape are a message; a figure that is no number spoils no other chart."""
    folder = keep(root, "3-odd", benchmark(2))
    (folder / "gpu.parquet").write_bytes(Table({"a": int}, [{"a": 1}]).encode())
    compared = keep(root, "4-nan", notebook="compare")
    kept = json.loads((compared / "result.json").read_text())
    figure = {"title": "x", "value": math.nan, "unit": "times", "source": "worse"}
    kept["figures"] = {"a": figure, "b": {**figure, "value": 2.0}}
    (compared / "result.json").write_text(json.dumps(kept))
    site = build(root)
    assert "gpu.parquet: another table" in Html((site / "runs" / "3-odd.html").read_text()).text
    page = (site / "runs" / "4-nan.html").read_text()
    drawn = re.search(r'<script type="application/json">(.*?)</script>', page)
    assert drawn
    (chart,) = json.loads(drawn[1], parse_constant=pytest.fail)
    assert chart["data"][0]["x"] == [None, 2.0]


def test_a_nonce_is_the_pages_own_and_the_same_again(root: Path) -> None:
    one = files(build(root))
    assert files(build(root)) == one
    pages_of = [text for name, text in one.items() if name in {"index.html", *_PAGES}]
    nonces = {found[1] for text in pages_of if (found := re.search(rb"nonce-([^']+)", text))}
    assert len(nonces) == 3


def test_an_unknown_kind_and_a_killed_run_have_pages(root: Path) -> None:
    (root / "3-odd").mkdir()
    odd = {"ok": True, "notebook": "barbecue", "started": "2026-11-30T00:00:00Z", "meat": [1, 2]}
    (root / "3-odd" / "result.json").write_text(json.dumps(odd))
    (root / "4-killed").mkdir()
    (root / "4-killed" / "executed.ipynb").write_text(notebook(html_output("<b>so far</b>")))
    (root / "5-garbled").mkdir()
    (root / "5-garbled" / "executed.ipynb").write_text('{"cells": 7}')
    built = reportsite.build(root, root.parent / "site")
    assert len(built.problems) == 2
    odd_page = built.pages["3-odd"].read_text()
    assert "barbecue" in odd_page
    assert "meat" in odd_page
    assert "so far" in built.pages["4-killed"].read_text()
    assert "no notebook that can be shown" in built.pages["5-garbled"].read_text()
    # Where they are on this machine is told to who builds, not to who reads.
    assert str(root) in store.read_all(root)[-1].problem
    assert str(root) not in built.index.read_text()


def test_verdicts_between_pass_and_fail_are_said(root: Path) -> None:
    folder = keep(root, "3-verify", notebook="verify")
    document = json.loads((folder / "result.json").read_text())
    document["checks"] = [
        {"id": "a", "ok": True, "expected": "", "verdict": "not seen", "why": "no reference"},
        {"id": "b", "ok": False, "expected": "x", "verdict": "fail", "fix": "deploy again"},
    ]
    (folder / "result.json").write_text(json.dumps(document))
    html = Html((build(root) / "runs" / "3-verify.html").read_text())
    text = " ".join(html.text.split())
    assert "b✗ failed x fix: deploy again" in text
    assert "anot seen no reference" in text
    document["checks"][1] |= {"ok": True, "verdict": "pass"}
    document["ok"] = True
    (folder / "result.json").write_text(json.dumps(document))
    html = Html((build(root) / "runs" / "3-verify.html").read_text())
    assert "All 2 checks hold; of them 1 not seen." in " ".join(html.text.split())
    assert list(measure.load_runs(folder).checks["outcome"]) == ["not seen", "passed"]


def test_a_folder_with_executed_notebooks_becomes_pages(tmp_path: Path) -> None:
    """What a rollout keeps: notebooks by host, whatever they are called."""
    rollout = tmp_path / "rollout"
    for host in ("spark-01", "spark-02"):
        (rollout / host).mkdir(parents=True)
        (rollout / host / "verify.ipynb").write_text(notebook(html_output(f"<b>{host}</b>")))
    built = reportsite.build(rollout, rollout / "site", title="Rollout of Monday")
    assert set(built.pages) == {"spark-01", "spark-02"}
    assert "<b>spark-01</b>" in built.pages["spark-01"].read_text()
    assert "<h1>Rollout of Monday</h1>" in built.index.read_text()
    # Within the runs, and none of them.
    assert set(reportsite.build(rollout, rollout / "site").pages) == {"spark-01", "spark-02"}


def test_a_rollout_has_a_page_above_its_hosts_runs(tmp_path: Path) -> None:
    rollout = tmp_path / "runs" / "1-rollout"
    keep(rollout, "runs/verify-spark-01", notebook="verify")
    said = {"inventory": "/site/inventory/spark", "verdict": "stopped", "reason": "<b>slower</b>",
            "started": "2026-11-30T00:00:00Z", "finished": "2026-11-30T00:01:00Z"}  # fmt: skip
    (rollout / "rollout.json").write_text(json.dumps(said))
    going = tmp_path / "runs" / "2-rollout"
    going.mkdir()
    (going / "rollout.json").write_text(json.dumps({**said, "verdict": "running"}))
    built = reportsite.build(tmp_path / "runs", tmp_path / "site")
    assert built.problems == [
        "2-rollout/rollout.json: no verdict (the rollout goes on, or was interrupted)"
    ]
    page = Html(built.pages["1-rollout"].read_text())
    assert "rollout of spark" in page.text
    assert "Failed" in page.text
    assert "<b>slower</b>" in page.text
    assert "../runs/1-rollout/runs/verify-spark-01.html" in page.values("a", "href")
    assert [one.state for one in store.read_all(tmp_path / "runs")] == [
        "failed", "passed", "unfinished",
    ]  # fmt: skip


@pytest.mark.parametrize("exchange", [True, False])
def test_a_site_is_replaced_and_nothing_else_is(
    root: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(publish, "_exchange", lambda *_: Path("/nowhere").stat())
    site = build(root)
    stale = site / "runs" / "stale.html"
    stale.touch()
    inode = site.stat().st_ino
    build(root)
    assert site.stat().st_ino != inode
    assert not stale.exists()
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "site"]
    mine = root.parent / "mine"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    for place in (mine, root, root.parent, mine / "thesis.tex"):
        with pytest.raises(UsageError, match="no site that roost made"):
            reportsite.build(root, place)
    assert (mine / "thesis.tex").exists()


def test_what_somebody_put_into_a_site_is_not_taken_away(root: Path) -> None:
    site = build(root)
    (site / "CNAME").touch()
    (site / ".git").mkdir()
    with pytest.raises(UsageError, match=r"roost did not make: \.git, CNAME"):
        build(root)
    assert (site / "CNAME").exists()
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "site"]


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are found from now on, as they are."""
    seen: list[Path] = []
    find = store.find

    def noted(root: Path) -> Iterator[Path]:
        for folder in find(root):
            seen.append(folder)
            yield folder

    monkeypatch.setattr(store, "find", noted)
    return seen


def test_a_place_of_other_things_is_refused_before_all_of_it_is_seen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = looked_at(monkeypatch)
    monkeypatch.setattr(publish, "_STRANGERS", 5)
    etc = root.parent / "etc"
    for at in range(20):
        (etc / f"{at:02}" / "inner").mkdir(parents=True)
    with pytest.raises(UsageError, match="etc: is no folder of runs"):
        reportsite.build(etc, root.parent / "site")
    assert len(seen) == 6
    # Where it would be written to is looked at first.
    seen.clear()
    with pytest.raises(UsageError, match="no site that roost made"):
        reportsite.build(etc, etc)
    assert seen == []
    # Few may lie among the runs; without any run they are none.
    monkeypatch.setattr(publish, "_STRANGERS", 20)
    with pytest.raises(RoostError, match="no run in it"):
        reportsite.build(etc, root.parent / "site")
    assert not (root.parent / "site").exists()
    (root / "3-empty").mkdir()
    assert len(reportsite.build(root, root.parent / "site").pages) == 3


def test_many_runs_without_a_result_are_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_STRANGERS", 1)
    for at in range(3):
        (tmp_path / "runs" / f"20261129T16000{at}Z-spark-01-killed").mkdir(parents=True)
    assert len(reportsite.build(tmp_path / "runs", tmp_path / "site").pages) == 3


def test_several_processes_make_the_same_site(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(root, "3-rollout", notebook="rollout")
    keep(root / "3-rollout", "a", notebook="verify", figures={})
    (root / "4-killed").mkdir()
    alone = files(build(root))
    monkeypatch.setattr(making, "ENOUGH", 2)
    told: list[str] = []
    done: list[tuple[int, int]] = []
    several = root.parent / "several"
    built = reportsite.build(
        root, several, jobs=2, say=told.append, progress=lambda *seen: done.append(seen)
    )
    assert files(several) == alone
    assert done == [(at, 5) for at in range(1, 6)]
    assert len(told) == len(built.problems) == 1
    # Nothing of this process could be seen elsewhere: the pages were made there.
    monkeypatch.setattr(making, "page_of", None)
    reportsite.build(root, root.parent / "again", jobs=2)


def test_a_process_that_ends_is_one_message(root: Path) -> None:
    class Pool:
        def submit(self, *_: object) -> Future[Any]:
            lost: Future[Any] = Future()
            lost.set_exception(BrokenProcessPool())
            return lost

    made = making.Makers(making.Site(root, root.parent, set()), 2)
    made._pool = cast(ProcessPoolExecutor, Pool())
    made.begin(making.Task(root / _NAMES[0], "", {}, [], []))
    with pytest.raises(RoostError, match="a process that makes pages") as caught:
        list(made.finished(wait=True))
    assert "--jobs 1" in caught.value.fix


def test_two_that_build_the_first_site_at_a_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = publish.put

    def late(fresh: Path, place: Path) -> None:
        if not place.exists():
            monkeypatch.setattr(publish, "put", put)
            build(root)
            monkeypatch.setattr(Path, "exists", lambda _: False)
        put(fresh, place)
        monkeypatch.undo()

    monkeypatch.setattr(publish, "put", late)
    build(root)
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "site"]


def test_a_file_that_nobody_may_read_is_told_and_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, who may read all.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "engine.log")
    built = reportsite.build(root, root.parent / "site")
    assert built.problems == [f"{name}/engine.log: cannot be read" for name in _NAMES]
    assert not list((root.parent / "site").rglob("engine.log"))
    assert "engine.log: cannot be read" in (root.parent / "site" / _PAGES[0]).read_text()


def test_a_folder_that_is_closed_to_us_is_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what a container wrote as root, with mode 700."""
    inner = root / _NAMES[0] / "raw"
    inner.mkdir()
    stat = os.stat

    def closed(path: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int) and Path(path).parent == inner:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", closed)
    assert (build(root) / _PAGES[0]).is_file()


def test_a_path_that_is_too_long_for_the_site_is_told(root: Path) -> None:
    """Below the site's own folder it is longer than it is in the run's."""
    run = root / _NAMES[0]
    room = 4080 - len(os.fsencode(run))
    here = os.open(run, os.O_RDONLY)
    for _ in range(room // 41):
        os.mkdir("d" * 40, dir_fd=here)
        inner = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("note.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    built = reportsite.build(root, root.parent / ("site" * 20))
    (problem,) = built.problems
    assert problem.startswith(f"{_NAMES[0]}/ddd")
    assert problem.endswith("/note.txt: its path would be too long in the site")
    assert built.index.is_file()


def test_documents_that_are_deep_have_pages(root: Path) -> None:
    """What is read may be deeper than what can be written again."""
    deep = "[" * 400 + "]" * 400
    for name, file in zip(_NAMES, ("host.json", "result.json"), strict=True):
        (root / name / file).write_text(f'{{"facts": {{"x": {deep}}}}}')
    built = reportsite.build(root, root.parent / "site")
    assert len(built.problems) == 2
    assert all("levels deep" in problem for problem in built.problems)


def test_a_run_that_goes_away_meanwhile_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path.hardlink_to

    def vanish(target: Path, source: Path) -> None:
        if source.name == "engine.log":
            source.unlink()
        link(target, source)

    monkeypatch.setattr(Path, "hardlink_to", vanish)
    built = reportsite.build(root, root.parent / "site")
    assert built.problems == [f"{name}/engine.log: cannot be read" for name in _NAMES]


def test_what_a_link_leads_to_is_not_in_the_site(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "config.json"
    secret.write_text('{"auths": {"registry.test": {"auth": "c2VjcmV0"}}}')
    (root / "3-hostile").mkdir()
    (root / "3-hostile" / "result.json").symlink_to(secret)
    built = reportsite.build(root, root.parent / "site")
    assert len(built.problems) == 1
    assert "result.json: cannot be read (a link" in built.problems[0]
    for name, text in files(root.parent / "site").items():
        assert b"c2VjcmV0" not in text, name


def test_no_page_lies_in_the_way_of_another(root: Path) -> None:
    long = "n" * 255
    names = ["x", "x.html/y", "x.html~/y", f"{long}/y", f"{long[1:]}m"]
    for name in names:
        keep(root, name, notebook="verify", host=f"of {name}")
    (root / "x" / long).write_text("kept")
    built = reportsite.build(root, root.parent / "site")
    assert built.problems == []
    for name in names:
        assert f"on of {name}</h1>" in built.pages[name].read_text()
    assert built.pages["x"].name == "x.html"
    (copy,) = (root.parent / "site" / "raw" / "x").glob("nnn*.txt")
    assert copy.read_text() == "kept"


def test_files_that_would_have_one_name_in_the_site_are_all_there(root: Path) -> None:
    """A name with .txt behind it may be another file's own, or a folder's, also a run's."""
    folder = root / _NAMES[0]
    own = {
        "notes": "kept\n", "notes.txt": "other\n", "notes.2.txt": "third\n",
        "a.html": "page\n", "a.html.txt/b.log": "within\n", "c": "above\n",
    }  # fmt: skip
    for name, text in own.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    keep(folder, "c.txt", notebook="verify")
    site = build(root)
    assert {name: (folder / name).read_text() for name in own} == own
    raw = site / "raw" / _NAMES[0]
    shown = {"notes": "notes.3.txt", "a.html": "a.html.2.txt", "c": "c.2.txt"}
    for name, text in own.items():
        assert (raw / shown.get(name, name)).read_text() == text
        href = f'href="../raw/{_NAMES[0]}/{shown.get(name, name)}"'
        assert href in (site / _PAGES[0]).read_text()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_no_file_can_be_linked_it_is_copied(
    root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path, source: Path) -> None:
        raise OSError(code, os.strerror(code), str(source), None, str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    site = build(root)
    for name in _NAMES:
        assert (site / "raw" / name / "engine.log").read_text() == (
            root / name / "engine.log"
        ).read_text()


def test_a_copy_is_never_written_over_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there may be a run's own file by a second name."""
    source, target, own = (tmp_path / name for name in ("source", "target", "own"))
    source.write_text("other\n")
    own.write_text("evidence\n")
    target.hardlink_to(own)

    def refuse(target: Path, source: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(FileExistsError):
        publish._link(source, target)
    assert own.read_text() == "evidence\n"


def test_a_full_disk_leaves_the_site_that_was_there(root: Path) -> None:
    before = files(build(root))
    with full_disk(100_000), pytest.raises(RoostError, match="the site cannot be written"):
        build(root)
    assert files(root.parent / "site") == before
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "site"]


def test_a_comparison_and_a_verification_have_charts(tmp_path: Path) -> None:
    figures = {}
    for at, (verdict, value, low, high) in enumerate(
        (("worse", 0.85, 0.8, 0.9), ("no difference", 0.95, None, None))
    ):
        source = f"{verdict}; b / a; belongs to the hardware"
        for title, name in (("Throughput of all users", "speed"), ("Accept length", "length")):
            figures[f"b.p{at}-c1.{name}/a"] = Figure(
                title=f"{title}, p{at}-c1", value=value, unit="times", source=source,
                low=low, high=high,
            )  # fmt: skip
    keep(tmp_path, "1", notebook="compare", figures=figures)
    rates = {
        f"accept_rate_position_{at}": Figure(title="t", value=value, unit="%", source="s")
        for at, value in enumerate((60.0, 30.0))
    }
    keep(tmp_path, "2", notebook="verify", figures=rates)
    one, other = store.read_all(tmp_path)
    chart, lengths = charts.of_run(one)
    assert "p0-c1 0.850, worse" in chart.alt
    assert "Accept length: b / a, ratios to the baseline" in lengths.alt
    # The runs' names stand in the heading, once.
    drawn = chart.options["Throughput of all users: b / a"]
    worse, other_one = drawn["data"]
    assert (worse["meta"], worse["y"]) == ("--bad", ["p0-c1"])
    assert worse["error_x"]["array"] == [pytest.approx(0.05)]
    assert (other_one["meta"], other_one["y"]) == ("--quiet", ["p1-c1"])
    low, high = drawn["layout"]["xaxis"]["range"]
    assert low < 0.8 < 1 < high
    # An interval that reaches everywhere leaves the values apart.
    wide = Figure(title="Throughput, p", value=1.2, unit="times", source="x", low=0.001, high=220)
    keep(tmp_path, "3", notebook="compare", figures={"x": wide})
    (chart,) = charts.of_run(store.read(tmp_path / "3"))
    low, high = chart.options["Throughput"]["layout"]["xaxis"]["range"]
    assert 0.3 < low < 0.5
    assert 2.4 < high < 2.6
    source = "below published (spread unknown); b / source 000, gb10"
    far = Figure(title="Throughput, p", value=0.5, unit="times", source=source, low=0.4, high=0.6)
    keep(tmp_path, "4", notebook="compare", figures={"x": far})
    (chart,) = charts.of_run(store.read(tmp_path / "4"))
    (only,) = chart.options["Throughput: b / source 000, gb10"]["data"]
    assert only["meta"] == "--quiet"
    assert chart.caption.endswith("Grey is a ratio to a published figure, whose spread is unknown.")
    (chart,) = charts.of_run(other)
    assert chart.alt.endswith("this run 60%, 30%")


def test_a_search_has_a_chart_of_its_points(tmp_path: Path) -> None:
    figures = {}
    for users, speed, tpot, front in (
        (1, 800.0, 1.2, True),
        (4, 2800.0, 1.3, True),
        (8, 2500.0, 1.5, False),
    ):
        source = "run 1-a" + "; on the front" * front
        for key, title, value in (
            ("throughput", "Throughput", speed),
            ("tpot", "Time per token", tpot),
            ("ttft", "Time to first", 3.0),
        ):
            figures[f"present.c{users}.{key}"] = Figure(
                title=f"{title}, present, {users} users", value=value, unit="x", source=source
            )
    keep(tmp_path, "1", notebook="tune", figures=figures)
    (chart,) = charts.of_run(store.read(tmp_path / "1"))
    front, other = chart.options["Throughput against latency"]["data"]
    assert (front["x"], front["y"]) == ([1.2, 1.3], [800.0, 2800.0])
    assert (other["x"], other["y"], other["text"]) == ([1.5], [2500.0], ["present, 8 users"])
    assert "present, 8 users 2500 at 1.5 ms" in chart.alt


def test_a_chart_of_many_marks_keeps_what_stands_out(tmp_path: Path) -> None:
    measured = benchmark(1, requests=900)
    slow = measured.cells[0].repetitions[1].requests[450]
    varied = [
        one.model_copy(update={"prompt_tokens": 20 + at, "ttft": 0.1 + 7 * (one is slow)})
        for at, one in enumerate(measured.cells[0].repetitions[1].requests)
    ]
    measured.cells[0].repetitions[1].requests[:] = varied
    folder = keep(tmp_path, "1", measured)
    samples = [
        Sample("0", 2400.0 - 900 * (at == 1234), 38.0, 60.0, (), at * 2.0) for at in range(4000)
    ]
    (folder / throttling.FILE).write_bytes(
        throttling.table({("coding-c1", 1): Watch(samples)}).encode()
    )
    *_, lengths, gpu = charts.of_run(store.read(folder))
    (dots,) = lengths.options["Time to first token (ms) by prompt length"]["data"]
    assert 700 < len(dots["x"]) <= 1500
    assert max(dots["y"]) == pytest.approx(7100)
    assert lengths.caption.startswith("Requests that count, 2,700. Of each span")
    (line,) = gpu.options["GPU clock (MHz)"]["data"]
    assert len(line["x"]) <= 1500
    at = line["y"].index(1500.0)
    assert line["x"][at] == 2468.0
    assert "Of each span" in gpu.caption


def made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of runs whose page is made when the site is built again.

    The site then is what it would be had there been none.
    """
    made = set()
    run = pages.run

    def noted(kept: Kept, *rest: Any) -> tuple[str, list[str]]:
        made.add(kept.name)
        return run(kept, *rest)

    monkeypatch.setattr(pages, "run", noted)
    again = files(build(root))
    monkeypatch.setattr(pages, "run", run)
    new = root.parent / "new"
    reportsite.build(root, new)
    assert again == files(new)
    shutil.rmtree(new)
    return made


def test_a_page_is_kept_while_its_run_is_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root)
    assert made_again(root, monkeypatch) == set()
    keep(root, "3-new", notebook="verify")
    assert made_again(root, monkeypatch) == {"3-new"}
    # Without its run a page goes.
    shutil.rmtree(root / "3-new")
    assert made_again(root, monkeypatch) == set()
    # What could not be read may be readable now.
    (root / "4-killed").mkdir()
    build(root)
    assert made_again(root, monkeypatch) == {"4-killed"}


@pytest.mark.parametrize("file", [runs.EXECUTED, throttling.FILE])
def test_what_a_page_could_not_show_is_told_and_read_again(
    root: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may fail once; neither page nor index keeps its message."""

    def broken(path: Path, *_: Any) -> Any:
        raise RoostError(f"{path}: cannot be read", why="Input/output error")

    told: list[str] = []
    with monkeypatch.context() as patch:
        reader = "measure.kept.read_parquet"
        if file == runs.EXECUTED:
            reader = "reportsite.notebook.render"
        patch.setattr(f"roost.{reader}", broken)
        built = reportsite.build(root, root.parent / "site", say=told.append)
    problem = f"1-spark-01/{file}: cannot be read (Input/output error)"
    assert built.problems == told == [problem]
    for page in (built.index, built.pages["1-spark-01"]):
        assert problem in Html(page.read_text()).text
    assert made_again(root, monkeypatch) == {"1-spark-01"}
    for page in (built.index, built.pages["1-spark-01"]):
        assert "cannot be read" not in page.read_text()


def _same_size_and_time(folder: Path) -> None:
    log, other = folder / "engine.log", folder / "other"
    other.write_bytes(log.read_bytes()[::-1])
    os.utime(other, ns=(log.stat().st_atime_ns, log.stat().st_mtime_ns))
    other.rename(log)


def _within(folder: Path) -> None:
    keep(folder, "in-it/a", notebook="verify", ok=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "engine.log").write_text("other\n"),
        lambda folder: (folder / "engine.log").unlink(),
        lambda folder: (folder / "new.log").touch(),
        lambda folder: os.utime(folder / "result.json"),
        _same_size_and_time,
        _within,
    ],
    ids=["changed", "gone", "new", "touched", "replaced", "a run within"],
)
def test_a_page_is_made_again_for_another_run(
    root: Path, change: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root)
    change(root / _NAMES[0])
    assert made_again(root, monkeypatch) - {f"{_NAMES[0]}/in-it/a"} == {_NAMES[0]}


def test_pages_are_made_again_by_another_roost(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(root)
    home = tmp_path / "roost"
    shutil.copytree(Path(reuse.roost.__file__).parent / "templates", home / "templates")
    (home / "__init__.py").touch()
    monkeypatch.setattr(reuse.roost, "__file__", str(home / "__init__.py"))
    for change in (home / "__init__.py", home / "templates" / "site" / "site.css"):
        change.write_text("/* other */")
        reuse._maker.cache_clear()
        assert made_again(root, monkeypatch) == set(_NAMES)
    version = reuse.metadata.version
    monkeypatch.setattr(reuse.metadata, "version", lambda name: f"{version(name)}.1")
    reuse._maker.cache_clear()
    assert made_again(root, monkeypatch) == set(_NAMES)
    reuse._maker.cache_clear()


@pytest.mark.parametrize(
    "mark", ["", "{}", "[]", '{"pages": [{"key": 1}]}', '{"pages": 7}', "\xff"]
)
def test_a_site_that_says_nothing_of_its_pages_is_made_again(
    root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build(root)
    (site / store.SITE_MARK).write_text(mark, encoding="latin-1")
    assert made_again(root, monkeypatch) == set(_NAMES)


def test_a_page_that_is_cut_short_or_gone_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build(root)
    one, other = (site / name for name in _PAGES)
    one.write_text("")
    other.unlink()
    assert made_again(root, monkeypatch) == set(_NAMES)


def test_a_page_is_made_again_when_a_run_that_it_names_comes_or_goes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "worse; 0-late / 1-spark-01; belongs to the hardware"
    figure = Figure(title="Accept length, x", value=0.8, unit="times", source=source)
    keep(root, "3-compare", notebook="compare", figures={"x": figure})
    build(root)
    keep(root, "0-late", notebook="verify")
    assert made_again(root, monkeypatch) == {"0-late", "3-compare"}
    assert "0-late.html" in (root.parent / "site" / "runs" / "3-compare.html").read_text()
    shutil.rmtree(root / "0-late")
    assert made_again(root, monkeypatch) == {"3-compare"}


def test_a_page_is_made_again_when_a_run_within_ends_otherwise(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its page says of such a run counts, and nothing else of it."""
    inner = keep(root / _NAMES[0], "a", notebook="verify")
    build(root)
    for recipe, outer in [("smollm2-135m", {_NAMES[0]}), ("other", set())]:
        shutil.rmtree(inner)
        keep(root / _NAMES[0], "a", notebook="verify", ok=False, recipe=recipe)
        assert made_again(root, monkeypatch) == {f"{_NAMES[0]}/a"} | outer


def test_one_run_at_a_time_is_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(root, "3-more", benchmark(3))
    alive: list[weakref.ref[Kept]] = []
    read = store.read

    def noted(*given: Any) -> Kept:
        gc.collect()
        # The one before may still have a name.
        assert sum(ref() is not None for ref in alive) <= 1
        kept = read(*given)
        alive.append(weakref.ref(kept))
        return kept

    monkeypatch.setattr(store, "read", noted)
    build(root)
    assert len(alive) == 3


def index_of(site: Path) -> dict[str, Any]:
    """The rows beside the index, decoded."""
    text = (site / "assets" / "index.js").read_text()
    found: dict[str, Any] = json.loads(text.removeprefix("const INDEX = ").removesuffix(";\n"))
    return found


def test_an_index_has_the_newest_runs_and_the_others_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 2)
    keep(root, "0-later", benchmark(7), host="spark-03", started=NOW + dt.timedelta(days=2))
    keep(root, "9-earlier", benchmark(8), host="spark-03", started=NOW - dt.timedelta(days=2))
    keep(root, "8-tried", benchmark(9), host="spark-03", trial=True,
         started=dt.datetime.fromisoformat("2026-11-29T23:00:05+09:00"))  # fmt: skip
    killed = "20261201T160004Z-killed"
    (root / killed).mkdir()
    site = build(root)
    index = (site / "index.html").read_text()
    html = Html(index)
    # Where a run without a result stands in time is in its folder's name.
    newest = ["runs/0-later.html", f"runs/{killed}.html"]
    measured = ["runs/0-later.html", "runs/1-spark-01.html"]
    assert html.values("a", "href") == [*newest, "all.html", *measured]
    every = Html((site / "all.html").read_text()).values("a", "href")
    said = index_of(site)
    by_time = ["2-spark-02", "1-spark-01", "8-tried", "9-earlier"]
    assert said["runs"]["href"] == [*newest, *(f"runs/{name}.html" for name in by_time)]
    assert every == ["index.html", *said["runs"]["href"]]
    assert said["runs"]["started"][4] == "2026-11-29 14:00:05"
    assert said["runs"]["tried"] == [4]
    assert said["runs"]["called"][:2] == ["2026-12-01 16:00", killed]
    assert said["runs"]["host"]["texts"] == ["spark-03", "", "spark-02", "spark-01"]
    points = said["points"]
    assert points["run"] == [0, 3, 3, 4, 5]
    found = store.read(root / "1-spark-01").measured
    values = [row["value"] for row in found if row["metric"] == "output_throughput"]
    assert said["metrics"][0]["value"][1:3] == pytest.approx(values, rel=1e-4)
    assert "All 6 runs on one page" in index


def test_the_verb(root: Path) -> None:
    (root / "3-empty").mkdir()
    runner = CliRunner()
    done = runner.invoke(report_cli.report, [str(root), "--out", str(root.parent / "s"), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert Path(document["index"]).is_file()
    assert f"{root}/3-empty: no result.json" in done.stderr
    for given, message in [
        (root / "none", "no such folder"),
        (root / "3-empty" / "x", "no such folder"),
    ]:
        failed = runner.invoke(report_cli.report, [str(given), "--out", str(root.parent / "t")])
        assert isinstance(failed.exception, UsageError)
        assert message in str(failed.exception)
    nothing = root.parent / "nothing"
    nothing.mkdir()
    failed = runner.invoke(report_cli.report, [str(nothing), "--out", str(root.parent / "t")])
    assert isinstance(failed.exception, RoostError)
    assert "no run in it" in str(failed.exception)
    assert not (root.parent / "t").exists()


def test_a_polite_kill_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    words = [str(root), "--out", str(root.parent / "s")]
    assert CliRunner().invoke(report_cli.report, words).exit_code == 143
    assert [path.name for path in root.parent.iterdir()] == ["runs"]


def test_the_verb_says_how_far_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is told every few seconds, and nothing of what is done at once."""
    clock = itertools.count(step=11)
    words = [str(root), "--out", str(root.parent / "s")]
    assert "1 of 2" not in CliRunner().invoke(report_cli.report, words).stderr
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    done = CliRunner().invoke(report_cli.report, words)
    assert done.stderr == "report: 1 of 2 runs\nreport: 2 of 2 runs\n"


def test_a_size_is_said_shortly() -> None:
    assert [pages._size(size) for size in (10, 2048, 3 << 20)] == ["10 B", "2 KB", "3.0 MB"]
