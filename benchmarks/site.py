"""How long a site of many runs takes to build, how much memory, and how quickly its index answers.

Usage: python -m benchmarks.site [RUNS …] [--jobs N …]

Makes up that many kept runs (100, 1,000, 5,000 and 10,000 by default): ten hosts, each verified and
benchmarked every night, twelve points of forty prompts in three repetitions, with notebooks and raw
files. ``roost report`` then builds their site three times: from nothing, again with nothing new,
and after one more night. Headless Chromium opens the index as a phone of 390 pixels whose processor
is a quarter as fast as this one's. A line of JSON for each number of runs: seconds, MiB of the
largest process, KB, and milliseconds until tables answer, until charts are drawn, and of answers.
With ``--jobs`` it is instead built from nothing with each of these numbers of processes, in turn
and three times, and a line has the medians of seconds, and their ratios to the first number's.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.site import chromium
from tests.site.chromium import Page
from tests.unit.kept_runs import NOW, benchmark, html_output, keep, notebook

from roost.measure import charts, tables
from roost.measure.checks import Check, Figure
from roost.runs import RESULT

HOSTS = [f"spark-{at:02}" for at in range(1, 11)]
RECIPE = "ornith-1.0-35b-heretic-nvfp4-dflash"
#: What differs between runs of a kind beyond host and time: a dozen of each are made, then linked.
KINDS = 12
SLOWER = 4


def patterns(root: Path) -> tuple[list[Path], list[Path]]:
    """Verifications and benchmarks with all their files."""
    verified, measured = [], []
    for at in range(KINDS):
        checks = [
            Check(
                id=f"check_{n}",
                ok=n > 0 or at > 0,
                expected="200 within 30 s",
                observed="200",
                why="",
            )
            for n in range(28)
        ]
        how = "one request through the SSH tunnel; 12 prompts of roost's own; counters of /metrics"
        figures = {
            f"figure_{n}": Figure(title=f"Figure {n}", value=40.0 + n, unit="ms", source=how)
            for n in range(12)
        }
        table = "<table><thead><tr><th>check</th><th>observed</th></tr></thead><tbody>" + "".join(
            f"<tr><td>{check.id}</td><td>{check.observed}</td></tr>" for check in checks
        )
        verified.append(
            keep(root, f"verify-{at}", None, notebook(html_output(f"{table}</tbody></table>")),
                 notebook="verify", ok=at > 0, checks=checks, figures=figures, recipe=RECIPE)
        )  # fmt: skip
        found = benchmark(at, speed=60.0 + at / 4, categories=12, requests=40)
        executed = notebook(
            html_output(tables.points(found).data), html_output(charts.points(found).data)
        )
        measured.append(keep(root, f"benchmark-{at}", found, executed, recipe=RECIPE))
    return verified, measured


def fill(root: Path, first: int, count: int, made: tuple[list[Path], list[Path]]) -> None:
    """Runs from the ``first`` on, as nights go by."""
    for number in range(first, first + count):
        night, rest = divmod(number, 2 * len(HOSTS))
        host, kind = HOSTS[rest // 2], rest % 2
        source = made[kind][(night + rest) % KINDS]
        began = NOW + dt.timedelta(days=night, minutes=7 * rest)
        folder = root / f"{began:%Y%m%dT%H%M%SZ}-{host}-{RECIPE}"
        folder.mkdir(parents=True)
        for file in source.iterdir():
            if file.name != RESULT:
                (folder / file.name).hardlink_to(file)
        document = json.loads((source / RESULT).read_text())
        document |= {"host": host, "started": began.isoformat()}
        document["finished"] = (began + dt.timedelta(seconds=300 + rest)).isoformat()
        (folder / RESULT).write_text(json.dumps(document, indent=1))


def build(root: Path, site: Path, *options: str) -> tuple[float, float, float]:
    """Seconds, seconds of a processor, and MiB of the largest process of ``roost report``."""
    began = time.monotonic()
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("roost"),
            "report",
            str(root),
            "--out",
            str(site),
            *options,
        ],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def in_turn(root: Path, site: Path, jobs: list[int]) -> dict[str, float]:
    """Medians of building from nothing with so many processes."""
    took: dict[int, list[float]] = {number: [] for number in jobs}
    largest: dict[int, float] = {}
    ratios: dict[int, list[float]] = {number: [] for number in jobs}
    for _ in range(3):
        for number in jobs:
            seconds, _, largest[number] = build(root, site, "--jobs", str(number))
            took[number].append(seconds)
            ratios[number].append(seconds / took[jobs[0]][-1])
            shutil.rmtree(site)
    return {
        f"{number} jobs {what}": value
        for number in jobs
        for what, value in (
            ("s", statistics.median(took[number])),
            ("ratio", statistics.median(ratios[number])),
            ("MiB", largest[number]),
        )
    }


#: Until what was asked for has been drawn.
ANSWER = """new Promise((done) => {{
  const began = performance.now();
  {};
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
}})"""
TYPE = """(() => { const box = document.querySelector('input[type=search]');
  box.value = 'spark-07'; box.dispatchEvent(new Event('input')); })()"""
SORT = "document.querySelectorAll('#{} th button')[{}].click()"


def answers(page: Page, index: Path) -> dict[str, float]:
    """Milliseconds until tables can be used, charts are drawn, and answers are shown."""
    page.call("Emulation.setCPUThrottlingRate", rate=SLOWER)
    page.open(index.as_uri(), width=390)
    found = {
        "usable ms": page.run("performance.getEntriesByName('usable')[0].startTime"),
        "drawn ms": page.run("performance.getEntriesByType('navigation')[0].loadEventEnd"),
        "sort ms": page.run(ANSWER.format(SORT.format("runs", 2))),
        "sort points ms": page.run(ANSWER.format(SORT.format("points", 6))),
        "search ms": page.run(ANSWER.format(TYPE)),
    }
    page.call("Emulation.setCPUThrottlingRate", rate=1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, nargs="*", default=[100, 1_000, 5_000, 10_000])
    parser.add_argument("--jobs", type=int, nargs="+", help="compare so many processes instead")
    parser.add_argument("--in", dest="home", type=Path, help="where to work (default: /tmp)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.home, prefix="roost-site-") as work:
        home = Path(work)
        made = patterns(home / "patterns")
        for count in given.runs:
            root, site = home / "runs", home / "site"
            fill(root, 0, count, made)
            said: dict[str, float] = {"runs": count}
            if given.jobs:
                said |= in_turn(root, site, given.jobs)
                print(json.dumps({k: round(v, 3) for k, v in said.items()}), flush=True)
                shutil.rmtree(root)
                continue
            for name in ("built", "again", "a night more"):
                if name == "a night more":
                    fill(root, count, 2 * len(HOSTS), made)
                took, spent, most = build(root, site)
                said |= {f"{name} s": took, f"{name} CPU s": spent, f"{name} MiB": most}
            for file in ("index.html", "assets/index.js", "all.html"):
                if (site / file).exists():
                    said[f"{file} KB"] = (site / file).stat().st_size / 1000
            with chromium.browsing() as page:
                said |= answers(page, site / "index.html")
            print(json.dumps({key: round(value, 1) for key, value in said.items()}), flush=True)
            shutil.rmtree(root)
            shutil.rmtree(site)


if __name__ == "__main__":
    main()
