"""A fleet side by side: who stands out, who drifts, what differs, and how often that is noise."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.deployments import deployment, write_lock
from tests.unit.kept_runs import NOW, benchmark, host_json, keep

from roost import notebooks_cli, runs
from roost.errors import RoostError, UsageError
from roost.hosts import HostFacts
from roost.inventory import Connection, Host, Inventory
from roost.measure import points
from roost.measure.checks import Check
from roost.measure.fleet import drift, judging, looking, outliers, rows
from roost.measure.fleet.looking import Fleet
from roost.runs import Pins

SPEED = points.metric("output_throughput")
TIME = points.metric("tpot")
HOSTS = [f"spark-{at:02}" for at in range(1, 7)]
ROOT = Path(__file__).parents[2]


def ratios(seed: int, hosts: int, change: float = 1.0, spread: float = 0.015) -> dict[str, float]:
    draw = random.Random(seed)  # noqa: S311
    found = {f"h{at}": draw.lognormvariate(0, spread) for at in range(hosts)}
    return {**found, "h0": found["h0"] * change}


@pytest.mark.parametrize(("hosts", "found"), [(5, 0.95), (6, 0.98), (12, 0.99)])
def test_a_slow_host_is_found_and_noise_is_not(hosts: int, found: float) -> None:
    """500 classes each, with 1.5 % between hosts."""
    slow = [outliers.judge(ratios(seed, hosts, 0.85), SPEED) for seed in range(500)]
    assert sum(one["h0"] == "worse" for one in slow) >= found * 500
    quiet = [outliers.judge(ratios(seed, hosts), SPEED) for seed in range(500)]
    assert sum(set(one.values()) != {"as its class"} for one in quiet) <= 0.01 * 500


def test_four_hosts_are_no_class() -> None:
    assert set(outliers.judge(ratios(1, 4, 0.5), SPEED).values()) == {"too few hosts"}


def test_which_way_is_worse_and_what_is_too_little() -> None:
    assert outliers.judge(ratios(1, 8, 1.2), SPEED)["h0"] == "better"
    assert outliers.judge(ratios(1, 8, 1.2), TIME)["h0"] == "worse"
    alike = dict.fromkeys("abcdefg", 1.0)
    # Beyond any spread, and still not worth a word.
    assert outliers.judge({**alike, "x": 0.96}, SPEED)["x"] == "as its class"
    assert outliers.judge({**alike, "x": 0.94}, SPEED)["x"] == "worse"


def test_the_median_is_of_what_several_measured() -> None:
    found = outliers.to_median(
        {"a": {"p": 10.0, "q": 20.0}, "b": {"p": 20.0, "q": 20.0}, "c": {"p": 30.0, "r": 1.0}}
    )
    assert found == {"a": pytest.approx(0.75), "b": 1.0, "c": 1.5}
    assert outliers.to_median({"a": {"p": 1.0}}) == {}


@pytest.mark.parametrize(
    ("series", "p"),
    [
        # By hand, from the number of orders: 2 of 24; 2 of 120; 2 * (1 + 4) of 120; all.
        ([1, 2, 3, 4], 2 / 24),
        ([5, 4, 3, 2, 1], 2 / 120),
        ([1, 2, 3, 5, 4], 10 / 120),
        ([1, 1, 1, 1, 1], 1.0),
    ],
)
def test_probabilities_of_an_order(series: list[float], p: float) -> None:
    assert drift.mann_kendall(series) == pytest.approx(p)


def test_as_often_as_orders_themselves_say() -> None:
    orders = list(itertools.permutations(range(6)))
    significant = sum(drift.mann_kendall(order) < 0.05 for order in orders)
    # Tables of Kendall's S for six values: |S| >= 13 has p = 0.0167, |S| >= 11 has 0.0556.
    assert significant == round(0.016667 * len(orders))


@pytest.mark.parametrize("runs_of", [5, 6, 9, 30])
def test_a_change_is_never_larger_than_what_was_seen(runs_of: int) -> None:
    """Nor made by two odd runs: of noise, of a step and of a decline alike."""
    draw = random.Random(runs_of)  # noqa: S311
    for fall in (0.0, -0.02):
        for step in (0.0, -0.1):
            for _ in range(100):
                logs = [
                    fall * at + step * (at >= runs_of // 2) + draw.gauss(0, 0.015)
                    for at in range(runs_of)
                ]
                change = drift.trend(SPEED, logs).change
                assert change is not None
                assert abs(math.log(change)) <= max(logs) - min(logs)
    odd = [0.0] * (runs_of - 1) + [-0.5]
    assert drift.trend(SPEED, odd).change == 1.0
    steady = [-0.02 * at for at in range(runs_of)]
    said = drift.trend(SPEED, steady).change
    assert said is not None
    assert 0.6 <= math.log(said) / steady[-1] <= 1
    # A step of 10 % is told as one, and not as what its slope would come to.
    step_of = [0.0] * (runs_of // 2) + [-0.1] * (runs_of - runs_of // 2)
    told = drift.trend(SPEED, step_of).change
    assert told is not None
    assert math.log(told) == pytest.approx(-0.1)


def test_noise_is_rarely_a_trend() -> None:
    """4,000 series of six runs with 1.5 % each: by the slope alone, some five would be."""
    draw = random.Random(7)  # noqa: S311
    found = [drift.trend(SPEED, [draw.gauss(0, 0.015) for _ in range(6)]) for _ in range(4000)]
    assert sum(one.drifts(0.05) for one in found) <= 2


def test_a_year_of_daily_runs_is_no_longer_to_wait_for() -> None:
    """Beyond forty runs the normal distribution takes over, and says what counting would."""
    draw = random.Random(5)  # noqa: S311
    for n in (8, 30, 40):
        values = [at / n + draw.gauss(0, 1) for at in range(n)]
        counted = drift.mann_kendall(values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drift, "_COUNTED", 7)
            assert drift.mann_kendall(values) == pytest.approx(
                counted, abs=0.02 if n == 8 else 0.002
            )
    began = time.thread_time()  # not what a busy machine does meanwhile
    assert drift.mann_kendall([draw.random() for _ in range(365)]) > 0.001
    assert time.thread_time() - began < 10


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory of six hosts, which are this machine; Ansible is not asked to read it."""
    write_lock(tmp_path / "lock.yml")
    variables = {
        "ansible_connection": "local",
        "roost_hardware": "cpu",
        "roost_recipe": "smollm2-135m",
        "roost_lock_file": str(tmp_path / "lock.yml"),
    }
    inventory = {"all": {"vars": variables, "hosts": {name: {} for name in HOSTS}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (tmp_path / "runs").mkdir()
    hosts = {name: Host(name, variables, Connection("127.0.0.1", local=True)) for name in HOSTS}
    monkeypatch.setattr(
        looking.inventories,
        "load",
        lambda path: Inventory(looking.inventories.resolve_path(path), hosts),
    )
    return tmp_path


def measure(
    site: Path,
    host: str,
    day: int = 0,
    *,
    speed: float = 100.0,
    question: str = "",
    thinking: bool | None = None,
    after: dt.timedelta | None = None,
    **changes: object,
) -> Path:
    seed = HOSTS.index(host) * 100 + day
    kwargs = None if thinking is None else {"enable_thinking": thinking}
    made = benchmark(seed, speed=speed, categories=3).model_copy(
        update={"question": question, "chat_template_kwargs": kwargs}
    )
    return keep(
        site / "runs", f"{day:02}-{host}", made,
        host=host, hardware="cpu",
        started=NOW + (dt.timedelta(days=day) if after is None else after), **changes,
    )  # fmt: skip


def look(site: Path, **changes: object) -> tuple[Fleet, dict[str, Check]]:
    begun = looking.start(str(site / "hosts.yml"), runs_dir=str(site / "runs"), **changes)
    evidence = judging.check(begun)
    begun.finish(evidence)
    return begun, {check.id: check for check in evidence.checks}


CLASS = "cpu, smollm2-135m, dflash"


def test_a_fleet_that_is_well(site: Path) -> None:
    for host in HOSTS:
        measure(site, host)
    begun, checks = look(site)
    assert [one.why for one in checks.values() if not one.ok] == []
    assert checks["outliers spec-bench"].observed == "none among 6 hosts"
    assert checks["same driver"].observed == "580.95.05"
    result = runs.read(begun.folder)
    assert (result.notebook, result.recipe, result.host) == ("fleet", "smollm2-135m", "hosts")
    assert result.lock.drafter == "d@2"
    key = f"spark-01.spec-bench.output_throughput/{CLASS}"
    assert result.figures[key].value == pytest.approx(1, abs=0.05)
    assert "00-spark-01 against the median of 6 hosts" in result.figures[key].source
    (row, *_) = rows.of_hosts(begun)
    assert row["benchmarked"] == "2026-11-29, passed"
    assert row["verified"] == "never"
    # The made-up pins of the runs are not the made-up pins of the lock.
    assert row["runs are of"] == "another model and drafter"


def test_an_outlier_a_mixed_class_and_a_host_without_runs(site: Path) -> None:
    for host in HOSTS[:5]:
        slow = host == "spark-03"
        folder = measure(
            site, host, speed=82.0 if slow else 100.0,
            **({"lock": Pins(file="l", image="mirror/i@sha256:6", model="m@1")} if slow else {}),
        )  # fmt: skip
        if slow:
            (folder / "host.json").write_text(host_json(driver="570.86"))
    _, checks = look(site)
    check = checks["outliers spec-bench"]
    assert not check.ok
    assert "spark-03 throughput of all users -1" in check.observed
    assert "spark-01" not in check.observed
    image = checks["same image"]
    assert not image.ok
    assert image.observed.endswith("sha256:6: spark-03")
    driver = checks["same driver"]
    assert driver.ok
    assert "570.86: spark-03" in driver.observed
    assert driver.why == "it differs, which may explain an outlier"
    assert not checks["runs spark-06"].ok
    assert checks["runs spark-06"].why == "never measured"


def test_the_same_digest_from_a_mirror_is_the_same_image(site: Path) -> None:
    for at, host in enumerate(HOSTS):
        pins = Pins(file="l", image=f"mirror-{at}:5000/i@sha256:5", model="m@1")
        measure(site, host, lock=pins)
    assert look(site)[1]["same image"].ok


def test_classes_are_told_apart(site: Path) -> None:
    for host in HOSTS:
        measure(site, host, speed=100.0 if host < "spark-04" else 20.0,
                **({} if host < "spark-04" else {"speculation": "none"}))  # fmt: skip
    checks = look(site)[1]
    for speculation in ("dflash", "none"):
        one = checks[f"outliers spec-bench (cpu, smollm2-135m, {speculation})"]
        assert one.ok
        assert one.why.startswith("3 of the 5 hosts")


def test_too_few_hosts_are_shown_and_not_judged(site: Path) -> None:
    for host, speed in zip(HOSTS[:4], (100, 100, 100, 50), strict=True):
        measure(site, host, speed=speed)
    begun, checks = look(site)
    check = checks["outliers spec-bench"]
    # Nothing is shown of four hosts, least of all that none of them is slow.
    assert check.verdict == "not seen"
    assert check.observed.startswith("furthest behind: spark-04 t")
    assert check.why == "4 of the 5 hosts that an outlier needs; no verdict"
    assert {one.verdict for one in outliers.standings(begun)} == {"too few hosts"}


def test_a_slow_decline_and_a_sudden_one_are_found(site: Path) -> None:
    for day in range(6):
        measure(site, "spark-01", day, speed=100 * 0.975**day)
        measure(site, "spark-02", day)
    for day in range(3):
        folder = measure(site, "spark-03", day, speed=80.0 if day == 2 else 100.0)
    (folder / "host.json").write_text(host_json(driver="590.1"))
    _, checks = look(site)
    slow = checks["drift spark-01 spec-bench"]
    assert not slow.ok
    # Of 12 % from the first run to the last, what the last two are beside the first two.
    assert "throughput of all users -9 % over 6 runs" in slow.observed
    assert checks["drift spark-02 spec-bench"].ok
    sudden = checks["drift spark-03 spec-bench"]
    assert not sudden.ok
    assert "since the run before: throughput of all users -2" in sudden.observed
    assert "worse at 3 of 3 points" in sudden.observed
    # Of requests too, which are read again for it.
    assert "time per token after the first +" in sudden.observed
    assert sudden.why == "changed meanwhile: driver; 3 runs; a trend needs 5"


#: Minutes after the first run: some in a row and one a month or a year later, two a week, all in
#: one moment.
UNEVEN = {
    "a month later": [0, 10, 20, 30, 43200],
    "a year later": [0, 1, 2, 3, 525600],
    "two a week": [0, 10, 10080, 10090, 20160, 20170],
    "at once": [0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("spacing", UNEVEN)
def test_a_trend_is_over_runs_and_not_over_the_time_between_them(site: Path, spacing: str) -> None:
    """What a month makes of ten minutes' change is nothing that was seen."""
    for day, minutes in enumerate(UNEVEN[spacing]):
        after = dt.timedelta(minutes=minutes)
        measure(site, "spark-01", day, speed=100 * 0.997**day, after=after)
        measure(site, "spark-02", day, speed=100 * 0.97**day, after=after)
    begun, checks = look(site)
    assert checks["drift spark-01 spec-bench"].ok
    told = checks["drift spark-02 spec-bench"]
    assert not told.ok
    match = re.match(r"throughput of all users -(\d+) % over \d runs", told.observed)
    assert match is not None
    seen = 100 * (1 - 0.97 ** (len(UNEVEN[spacing]) - 1))
    assert 0.6 * seen < int(match[1]) < seen + 1
    shown = rows.of_standings(begun, outliers.standings(begun))
    assert all(re.search(r"^[-+]\d{1,2}\.\d %", row["trend"]) for row in shown)


def test_a_step_within_the_tolerance_is_none(site: Path) -> None:
    for day in range(2):
        measure(site, "spark-01", day, speed=100 - 15 * day)
    assert not look(site)[1]["drift spark-01 spec-bench"].ok
    assert look(site, tolerance=0.3)[1]["drift spark-01 spec-bench"].ok


def test_runs_that_an_older_roost_kept_have_a_step_too(site: Path) -> None:
    for day in range(2):
        folder = measure(site, "spark-01", day, speed=100 - 15 * day)
        kept = json.loads((folder / "result.json").read_text())
        del kept["finished"], kept["lock"]["file"]
        (folder / "result.json").write_text(json.dumps(kept))
    assert not look(site)[1]["drift spark-01 spec-bench"].ok


def test_what_was_only_tried_is_no_run_of_the_host(site: Path) -> None:
    """Points of a search and comparisons of old runs say nothing of what a host serves."""
    pins = Pins(file="roost.lock.yml", image="i@sha256:" + "6" * 64, model="m@0", drafter="d@0")
    for host in HOSTS:
        measure(site, host)
    measure(site, "spark-01", 1, speed=50.0, trial=True, lock=pins)
    keep(site / "runs", "z", notebook="compare", started=NOW + dt.timedelta(days=2), lock=pins)
    begun, checks = look(site)
    assert [key for key, one in checks.items() if not one.ok] == []
    assert len(begun.of("spark-01")) == 1


def test_another_command_is_another_thing(site: Path) -> None:
    for host in HOSTS:
        depth = "8" if host == "spark-02" else "4"
        command = ["vllm", "serve", "/model", "--max-num-seqs", depth]
        measure(site, host, command=command)
    check = look(site)[1]["same command"]
    assert not check.ok
    assert check.observed == ("4: spark-01, spark-03, spark-04, spark-05, spark-06; 8: spark-02")


def test_another_environment_is_another_thing(site: Path) -> None:
    """Some images take all their settings from it, and no word of the command says them."""
    for host in HOSTS:
        depth = "8" if host == "spark-02" else "15"
        env = {} if host == "spark-03" else {"MODEL_PATH": "/model", "K": depth}
        measure(site, host, command=["sh", "-c", "entry"], env=env)
    checks = look(site)[1]
    assert checks["same command"].ok
    assert not checks["same env"].ok
    # Of a run from before it was kept nothing is known.
    assert (
        checks["same env"].observed == "K=15: spark-01, spark-04, spark-05, spark-06; K=8: spark-02"
    )
    assert checks["outliers spec-bench"].why == "measured with another env: spark-02"
    measure(
        site, "spark-02", 1, command=["sh", "-c", "entry"], env={"MODEL_PATH": "/model", "K": "15"}
    )
    checks = look(site)[1]
    assert checks["same env"].ok
    assert checks["drift spark-02 spec-bench"].why.startswith("changed meanwhile: env; ")


def test_runs_of_another_environment_are_not_what_the_inventory_means(site: Path) -> None:
    now = deployment(site)
    weights = [f"{one.repo}@{one.revision}" for one in now.weights]
    pins = Pins(file="l", image=f"i@{now.image_digest}", model=weights[0], drafter=weights[1])
    command = [*now.spec.entrypoint, *now.spec.command]

    def said(day: int, env: dict[str, str]) -> str:
        measure(site, "spark-01", day, lock=pins, command=command, env=env)
        return rows.of_hosts(look(site)[0])[0]["runs are of"]

    assert said(0, now.spec.env) == "what the inventory means now"
    assert said(1, {**now.spec.env, "MAX_NUM_SEQS": "4"}) == "another env"
    assert said(2, {}) == "what the inventory means now"


def test_a_host_that_is_throttled_all_the_time_is_not_passed_over(site: Path) -> None:
    """None of its repetitions counts, so it has no figures and stands beside nobody."""
    for host in HOSTS:
        measure(site, host)
    slow = benchmark(7, categories=3)
    mark = "the GPU was slowed down (sw thermal slowdown, 97 °C)"
    cells = [
        cell.model_copy(
            update={
                "repetitions": [
                    one.model_copy(update={"marks": [mark]}) for one in cell.repetitions
                ]
            }
        )
        for cell in slow.cells
    ]
    keep(
        site / "runs", "01-spark-03", slow.model_copy(update={"cells": cells}), ok=False,
        host="spark-03", hardware="cpu", started=NOW + dt.timedelta(days=1),
        checks=[Check(id="coding-c1", ok=False, expected="3 that count", why=mark)],
    )  # fmt: skip
    _, checks = look(site)
    assert checks["outliers spec-bench"].observed == "none among 5 hosts"
    assert not checks["runs spark-03"].ok
    assert checks["runs spark-03"].why == f"did not hold: spec-bench coding-c1 ({mark})"
    measure(site, "spark-03", 2)
    assert look(site)[1]["runs spark-03"].ok


def test_a_benchmark_from_before_a_deploy_is_told(site: Path) -> None:
    """The newest run of each host has the same command; what is compared has not."""
    command = ["vllm", "serve", "/model", "--max-num-seqs"]
    for host in HOSTS:
        old = host == "spark-02"
        measure(site, host, speed=80.0 if old else 100.0, command=[*command, "8" if old else "4"])
    keep(site / "runs", "v", notebook="verify", host="spark-02", hardware="cpu",
         started=NOW + dt.timedelta(days=1), command=[*command, "4"])  # fmt: skip
    checks = look(site)[1]
    assert checks["same command"].ok
    assert not checks["outliers spec-bench"].ok
    assert checks["outliers spec-bench"].why == "measured with another command: spark-02"


def test_what_a_host_was_in_a_class_that_it_left_is_not_judged(site: Path) -> None:
    for host in HOSTS:
        slow = host == "spark-02"
        measure(site, host, speed=50.0 if slow else 100.0)
    measure(site, "spark-02", 1, speculation="none")
    checks = look(site)[1]
    assert [key for key, one in checks.items() if not one.ok] == []
    assert checks[f"outliers spec-bench ({CLASS})"].observed == "none among 5 hosts"


def test_who_was_asked_otherwise_is_named(site: Path) -> None:
    """One host measured with a newer suite, and the rest of the class is beside nobody."""
    for host in HOSTS:
        measure(site, host, question="spec-bench-old")
    measure(site, "spark-01", 1, question="spec-bench-new")
    check = look(site)[1]["outliers spec-bench"]
    assert check.verdict == "not seen"
    assert "left out, asked otherwise than the newest run: spark-02, spark-03" in check.why


def test_runs_that_share_no_point_have_no_trend(site: Path) -> None:
    for day, name in enumerate(("coding-c1", "prose-c1")):
        one = benchmark(day, categories=2)
        one = one.model_copy(update={"cells": [cell for cell in one.cells if cell.id == name]})
        keep(site / "runs", f"{day}", one, hardware="cpu", started=NOW + dt.timedelta(days=day))
    keep(site / "runs", "9", benchmark(9, categories=2), host="spark-02", hardware="cpu")
    begun, _ = look(site)
    found = rows.of_standings(begun, outliers.standings(begun))
    assert {row["trend"] for row in found if row["host"] == "spark-01"} == {
        "its runs share no point"
    }


def test_what_asked_something_else_is_beside_nobody(site: Path) -> None:
    """Other prompts of the same suite: half as fast, and no fault of the host."""
    for host in HOSTS:
        measure(site, host, question="spec-bench-new")
        if host == "spark-01":
            measure(site, host, 1, question="spec-bench-new")
    measure(site, "spark-01", -1, speed=50.0, question="spec-bench-old")
    checks = look(site)[1]
    assert [key for key, one in checks.items() if not one.ok] == []
    assert checks["drift spark-01 spec-bench"].observed == "none over 2 runs"


def test_a_host_that_was_asked_to_think_is_beside_nobody(site: Path) -> None:
    for host in HOSTS:
        slow = host == "spark-02"
        measure(site, host, speed=50.0 if slow else 100.0, thinking=slow)
    measure(site, "spark-01", 1, thinking=False)
    check = look(site)[1]["outliers spec-bench"]
    assert check.verdict == "pass"
    assert check.why == "left out, asked otherwise than the newest run: spark-02"


def test_drift_is_rarely_noise(site: Path) -> None:
    """The made runs differ by 1 % from repetition to repetition and by nothing else."""
    for day in range(8):
        for host in HOSTS:
            measure(site, host, day)
    drifts = [one for key, one in look(site)[1].items() if key.startswith("drift")]
    assert len(drifts) == 6
    assert all(one.ok for one in drifts)


def test_a_failed_verification_counts_until_a_later_one_holds(site: Path) -> None:
    health = Check(id="health", ok=False, expected="200")
    keep(site / "runs", "a", notebook="verify", host="spark-01", ok=False, checks=[health])
    why = look(site)[1]["runs spark-01"]
    assert not why.ok
    assert why.why == "did not hold: health"
    keep(site / "runs", "b", notebook="verify", host="spark-01",
         started=NOW + dt.timedelta(days=1))  # fmt: skip
    assert look(site)[1]["runs spark-01"].ok


def test_a_benchmark_without_a_document_counts_until_a_later_one_has_one(site: Path) -> None:
    suite = Check(id="suite", ok=False, expected="points")
    keep(site / "runs", "a", host="spark-01", hardware="cpu", ok=False, checks=[suite])
    why = look(site)[1]["runs spark-01"]
    assert (why.ok, why.why) == (False, "did not hold: benchmark suite ()")
    measure(site, "spark-01", 1)
    assert look(site)[1]["runs spark-01"].ok


def test_broken_folders_are_said_and_other_hosts_left_out(site: Path) -> None:
    measure(site, "spark-01")
    keep(site / "runs", "z", host="elsewhere")
    (site / "runs" / "half").mkdir()
    kept = look(site)[1]["kept runs"]
    assert kept.observed == "1"
    assert "half: no result.json" in kept.why


def test_hosts_are_asked_only_when_they_should_be(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(site, "spark-01")
    asked = looking.asking.facts
    monkeypatch.setattr(looking.asking, "facts", lambda *_: pytest.fail("asked"))
    look(site)

    def facts(remote: object, host: Host) -> HostFacts:
        if host.name == "spark-06":
            raise RoostError("spark-06: cannot connect", why="no route to host")
        return asked(remote, host)  # type: ignore[arg-type]

    monkeypatch.setattr(looking.asking, "facts", facts)
    begun, checks = look(site, live=True)
    assert checks["reached spark-01"].ok
    assert "kernel" in rows.of_hosts(begun)[0]["now"]
    assert not checks["reached spark-06"].ok
    assert checks["reached spark-06"].observed == "not reached: spark-06: cannot connect"
    assert checks["reached spark-06"].why == "no route to host"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"live": "yes"}, "live is 'yes', which is neither"),
        ({"tolerance": "5%"}, "tolerance is '5%', which is no number"),
        ({"tolerance": 5}, "a fraction from 0 to below 1"),
        ({"runs_dir": "nowhere"}, "nowhere: no such folder"),
        ({"inventory": ...}, "inventory is not set"),
        ({"inventory": "nowhere"}, "no such inventory"),
    ],
)
def test_wrong_parameters(given: dict[str, object], message: str, site: Path) -> None:
    parameters = {"inventory": str(site / "hosts.yml"), "runs_dir": str(site / "runs"), **given}
    with pytest.raises(UsageError, match=message):
        looking.start(**parameters)  # type: ignore[arg-type]
    assert not list((site / "runs").iterdir())


def test_the_notebook_from_the_verb_and_from_papermill(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for host in HOSTS:
        measure(site, host, speed=70.0 if host == "spark-02" else 100.0)
    arguments = ["-i", str(site / "hosts.yml"), "--runs", str(site / "runs"), "--json"]
    done = CliRunner().invoke(notebooks_cli.fleet, arguments)
    assert done.exit_code == 1, done.output
    (outcome,) = json.loads(done.stdout)
    failed = [check["id"] for check in outcome["result"]["checks"] if not check["ok"]]
    assert failed == ["outliers spec-bench"]
    executed = Path(outcome["run"], "executed.ipynb").read_text()
    assert re.search(r"spark-02 throughput of all users 0\.[67]\d+ of its class, worse", executed)

    program = Path(sys.executable).with_name("papermill")
    command = [program, "notebooks/fleet.ipynb", site / "out.ipynb", "--no-progress-bar"]
    wrong = subprocess.run(
        [*command, "-p", "inventroy", "x"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "did you mean inventory?" in wrong.stderr


def test_where_nothing_was_run_yet_it_is_said_what_to_run(site: Path) -> None:
    missing = site / "nothing"
    arguments = ["-i", str(site / "hosts.yml"), "--runs", str(missing)]
    done = CliRunner().invoke(notebooks_cli.fleet, arguments)
    assert isinstance(done.exception, UsageError)
    assert f"roost verify -i INVENTORY --runs {missing}" in done.exception.fix
