"""Interactive charts as data: what Plotly's JavaScript is given, and the words for who sees none.

Colours and type are the page's own and are put in by its script, which knows light from dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from roost.measure.checks import Figure
from roost.measure.kept import Kept
from roost.measure.points import Benchmark, CellPoints, Metric, metric
from roost.reportsite.rows import SHOWN

#: Pixels of a row in a chart with one row a point, and of what is around the rows.
_ROW, _AROUND = 26, 90
_HEIGHT = 340
#: Marks of a chart; of many more a phone makes itself a second's work.
_MARKS = 1500
_THINNED = " Of each span the lowest and the highest of many."


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        caption: Stands below it.
        alt: What it shows, in words.
        options: Figures by what they are called; with more than one the reader chooses.
    """

    caption: str
    alt: str
    options: dict[str, dict[str, Any]]
    height: int = _HEIGHT


def of_run(run: Kept) -> list[Chart]:
    """Every chart of a run's page; none for a kind that has nothing to draw."""
    charts: list[Chart] = []
    if run.benchmark is not None:
        charts += _of_benchmark(run.benchmark)
        charts += _gpu(run.gpu_samples())
    elif run.result is not None:
        charts += _positions(run.result.figures)
        charts += _search(run.result.figures)
        to = "the class's median" if run.kind == "fleet" else "the baseline"
        charts += _ratios(run.result.figures, to)
    return charts


def _of_benchmark(benchmark: Benchmark) -> list[Chart]:
    cells = [cell for cell in benchmark.cells if cell.clean]
    charts = [chart for key in SHOWN if (chart := _by_point(cells, metric(key)))]
    positions = [(cell.id, cell.per_position) for cell in cells if cell.per_position]
    if positions:
        charts.append(_acceptance(positions))
    lengths = [_lengths(cell, _MARKS // len(cells)) for cell in cells]
    if len({length for trace in lengths for length in trace["x"]}) > 1:
        all_of_them = sum(len(one.requests) for cell in cells for one in cell.clean)
        charts.append(
            Chart(
                "Every request that counts."
                if sum(len(trace["x"]) for trace in lengths) == all_of_them
                else f"Requests that count, {all_of_them:,}." + _THINNED,
                "Time to first token against the prompt's length, a dot a request: "
                + "; ".join(
                    f"{trace['name']} {min(trace['y']):.3g} to {max(trace['y']):.3g} ms"
                    for trace in lengths
                    if trace["y"]
                ),
                {
                    "Time to first token (ms) by prompt length": {
                        "data": lengths,
                        "layout": {
                            "showlegend": True,
                            "xaxis": {"title": {"text": "prompt tokens"}},
                            "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
                        },
                    }
                },
            )
        )
    return charts


def _by_point(cells: Sequence[CellPoints], shown: Metric) -> Chart | None:
    found = [(cell, estimate) for cell in cells if (estimate := shown.estimate(cell))]
    if not found:
        return None
    found.reverse()
    rows = [{"value": e.value, "low": e.low, "high": e.high} for _, e in found]
    ours = {
        **_errors("x", rows),
        "type": "scatter",
        "mode": "markers",
        "name": "this run",
        "x": [row["value"] for row in rows],
        "y": [_plain(cell.id) for cell, _ in found],
        "hovertemplate": "%{y}: %{x:.4g} " + shown.unit + "<extra></extra>",
    }
    theirs = [
        (cell.id, one) for cell, _ in found for one in cell.published if one.metric == shown.key
    ]
    published = {
        "type": "scatter",
        "mode": "markers",
        "name": "published",
        "marker": {"symbol": "diamond-open", "size": 10},
        "x": [one.value for _, one in theirs],
        "y": [_plain(at) for at, _ in theirs],
        "text": [_plain(f"{one.source}, {one.table}") for _, one in theirs],
        "hovertemplate": "%{y}: %{x:.4g}<br>%{text}<extra>published</extra>",
    }
    words = [
        f"{cell.id} {row['value']:.4g}"
        + (f" ({row['low']:.4g} to {row['high']:.4g})" if row["low"] is not None else "")
        for (cell, _), row in zip(found, rows, strict=True)
    ]
    return Chart(
        "Median and 95 % interval"
        + ("; diamonds are published figures, of other prompts." if theirs else "."),
        f"{shown.title} in {shown.unit}, a row a point: " + "; ".join(reversed(words)),
        {
            f"{shown.title} ({shown.unit})": {
                "data": [ours, *([published] if theirs else [])],
                "layout": {
                    "showlegend": bool(theirs),
                    "xaxis": {"rangemode": "tozero", "title": {"text": shown.unit}},
                    "yaxis": {"type": "category"},
                },
            }
        },
        height=_AROUND + 30 * bool(theirs) + _ROW * max(len(found), 3),
    )


def _acceptance(positions: Sequence[tuple[str, Sequence[float]]]) -> Chart:
    said = "; ".join(
        f"{name} {', '.join(f'{rate:.0%}' for rate in rates)}" for name, rates in positions
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": _plain(name),
            "x": list(range(1, len(rates) + 1)),
            "y": [rate * 100 for rate in rates],
            "hovertemplate": "position %{x}: %{y:.1f} %<extra>%{fullData.name}</extra>",
        }
        for name, rates in positions
    ]
    layout = {
        "showlegend": len(traces) > 1,
        "xaxis": {"title": {"text": "draft position"}, "dtick": 1},
        "yaxis": {"title": {"text": "% of drafts"}, "range": [0, 103]},
    }
    return Chart(
        "Of all drafts, how many had their token accepted at each position.",
        f"Share of drafts accepted by draft position: {said}",
        {"Accepted by draft position (%)": {"data": traces, "layout": layout}},
    )


def _lengths(cell: CellPoints, most: int) -> dict[str, Any]:
    asked = [request for one in cell.clean for request in one.requests]
    asked.sort(key=lambda request: request.prompt_tokens)
    requests = [asked[at] for at in _extremes([request.ttft for request in asked], most)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _plain(cell.id),
        "x": [request.prompt_tokens for request in requests],
        "y": [request.ttft * 1000 for request in requests],
        "text": [_plain(request.prompt) for request in requests],
        "hovertemplate": "%{text}: %{y:.4g} ms, %{x} tokens<extra>%{fullData.name}</extra>",
    }


def _gpu(samples: Sequence[dict[str, Any]]) -> list[Chart]:
    """Clock and temperature while there was load; repetitions stand one after the other."""
    if not samples:
        return []
    offset, before, at = 0.0, None, []
    for row in samples:
        key = (row["point"], row["repetition"])
        if before is not None and key != before:
            offset = at[-1]
        before = key
        at.append(offset + row["at"])
    options, said, thinned = {}, [], False
    gpus = sorted({row["gpu"] for row in samples})
    for column, title in (("clock", "GPU clock (MHz)"), ("temperature", "GPU temperature (°C)")):
        traces = []
        for gpu in gpus:
            mine = [
                (when, row)
                for when, row in zip(at, samples, strict=True)
                if row["gpu"] == gpu and row[column] is not None
            ]
            if not mine:
                continue
            values = [row[column] for _, row in mine]
            said.append(f"{title} of GPU {gpu} {min(values):.0f} to {max(values):.0f}")
            places = _extremes(values, _MARKS // len(gpus))
            thinned |= len(places) < len(values)
            mine = [mine[at] for at in places]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": _plain(f"GPU {gpu}"),
                    "x": [when for when, _ in mine],
                    "y": [row[column] for _, row in mine],
                    "text": [
                        _plain(f"{row['point']}, {row['slowed'] or 'not slowed'}")
                        for _, row in mine
                    ],
                    "hovertemplate": "%{y:.0f}, %{text}<extra>%{fullData.name}</extra>",
                }
            )
        if traces:
            options[title] = {
                "data": traces,
                "layout": {
                    "showlegend": len(traces) > 1,
                    "xaxis": {"title": {"text": "seconds of load"}},
                    "yaxis": {"rangemode": "tozero"},
                },
            }
    if not options:
        return []
    caption = "Sampled on the host beside the load." + (_THINNED if thinned else "")
    return [Chart(caption, "Through the run: " + "; ".join(said), options)]


def _positions(figures: dict[str, Figure]) -> list[Chart]:
    """What a verification saw of each draft position."""
    prefix = "accept_rate_position_"
    rates = [figure.value / 100 for key, figure in figures.items() if key.startswith(prefix)]
    return [_acceptance([("this run", rates)])] if rates else []


def _search(figures: dict[str, Figure]) -> list[Chart]:
    """What a search found: each point at a number of users, and those that nothing is better than.

    A figure's key tells which point it is of, and its title what the point is called.
    """
    found = [
        (figure, figures[one])
        for key, figure in figures.items()
        if key.endswith(".throughput")
        and (one := f"{key.removesuffix('throughput')}tpot") in figures
    ]
    if not found:
        return []
    called = [speed.title.partition(", ")[2] or speed.title for speed, _ in found]
    traces, said = [], []
    for name, front in (("nothing is better in both", True), ("others", False)):
        here = [
            (where, speed, tpot)
            for where, (speed, tpot) in zip(called, found, strict=True)
            if speed.source.endswith("on the front") == front
        ]
        here.sort(key=lambda one: one[2].value)
        said += [f"{at} {speed.value:.4g} at {tpot.value:.4g} ms" for at, speed, tpot in here]
        rows = [
            {"value": speed.value, "low": speed.low, "high": speed.high} for _, speed, _ in here
        ]
        traces.append(
            {
                **_errors("y", rows),
                "type": "scatter",
                "mode": "lines+markers" if front else "markers",
                "line": {"shape": "hv"},
                "name": name,
                "x": [tpot.value for _, _, tpot in here],
                "y": [speed.value for _, speed, _ in here],
                "text": [_plain(where) for where, _, _ in here],
                "hovertemplate": "%{text}: %{y:.4g} tokens/s at %{x:.4g} ms<extra></extra>",
            }
        )
    layout = {
        "showlegend": True,
        "xaxis": {"title": {"text": "ms a token, of one user (less is better)"}},
        "yaxis": {"title": {"text": "tokens/s of all users"}, "rangemode": "tozero"},
    }
    title = "Throughput against latency"
    return [
        Chart(
            "A dot is a point of the search at a number of users, with the 95 % interval of its "
            "throughput where there is one.",
            f"{title}, tokens/s of all users at ms a token of one: {'; '.join(said)}",
            {title: {"data": [one for one in traces if one["x"]], "layout": layout}},
        )
    ]


def _ratios(figures: dict[str, Figure], to: str) -> list[Chart]:
    """Figures that are ratios, a chart for each kind of figure and pair of runs."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures.values():
        if figure.unit == "times":
            kind = figure.title.partition(", ")[0]
            groups.setdefault((_pair(figure), kind), []).append(figure)
    # A gap of 2 % looks the same in each chart of the same runs, and no noise fills one.
    values: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    for (pair, _), found in groups.items():
        said = [end for f in found for end in (f.low, f.high) if end is not None]
        ends.setdefault(pair, []).extend(filter(math.isfinite, said))
        values.setdefault(pair, [0.94, 1.06]).extend(
            filter(math.isfinite, (f.value for f in found))
        )
    charts = []
    for (pair, kind), found in groups.items():
        low, high = min(values[pair]), max(values[pair])
        # Nor does an interval that says nothing: from two values it may reach a hundred times as
        # far, and is cut off.
        low, high = max(min([low, *ends[pair]]), low / 2), min(max([high, *ends[pair]]), high * 2)
        charts.append(_ratio(f"{kind}: {pair}" if pair else kind, found, to, (low, high)))
    return charts


def _pair(figure: Figure) -> str:
    """The runs that were divided, where its source says so."""
    return next((part for part in figure.source.split("; ") if " / " in part), "")


def _ratio(name: str, found: Sequence[Figure], to: str, ends: tuple[float, float]) -> Chart:
    """One chart; only a difference beyond noise has a colour, as in notebooks."""

    def row(figure: Figure) -> str:
        # An older roost's titles name the runs too.
        return _plain(figure.title.partition(", ")[2] or figure.title)

    traces = []
    for verdict, colour in (("worse", "--bad"), ("better", "--good"), ("", "--quiet")):
        here = [figure for figure in found if _verdict(figure) == verdict]
        rows = [{"value": f.value, "low": f.low, "high": f.high} for f in here]
        traces.append(
            {
                **_errors("x", rows),
                "type": "scatter",
                "mode": "markers",
                "name": verdict or "neither",
                # The page's script puts in what this colour is, in light or in dark.
                "meta": colour,
                "x": [one["value"] for one in rows],
                "y": [row(figure) for figure in here],
                "text": [_plain(figure.source) for figure in here],
                "hovertemplate": "%{x:.3f}<br>%{text}<extra></extra>",
            }
        )
    room = 0.05 * (ends[1] - ends[0])
    layout = {
        "showlegend": True,
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}],
        "xaxis": {
            "title": {"text": f"times {to}"},
            "range": [ends[0] - room, ends[1] + room],
        },
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(dict.fromkeys(row(figure) for figure in reversed(found))),
        },
    }
    said = "; ".join(f"{row(figure)} {figure.value:.3f}, {figure.source}" for figure in found)
    published = any("published" in figure.source.partition(";")[0] for figure in found)
    grey = "a ratio to a published figure, whose spread is unknown"
    return Chart(
        "Bars are intervals, where there are any; one that ends at the edge goes on. Grey is "
        f"{grey if published else 'no difference beyond noise'}.",
        f"{name}, ratios to {to}: {said}",
        {name: {"data": [one for one in traces if one["x"]], "layout": layout}},
        height=_AROUND + 30 + _ROW * max(len(found), 3),
    )


def _verdict(figure: Figure) -> str:
    """The first word of its source, where it is a verdict that has a colour."""
    word = figure.source.partition(";")[0]
    return word if word in {"worse", "better"} else ""


def _extremes(values: Sequence[float], most: int) -> list[int]:
    """Places of so many of the values: of each span of them the lowest's and the highest's."""
    if len(values) <= most:
        return list(range(len(values)))
    spans = max(1, most // 2)
    kept = set()
    for span in range(spans):
        places = range(span * len(values) // spans, (span + 1) * len(values) // spans)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(kept)


def _plain(text: str) -> str:
    """Text for Plotly, which takes some of HTML's tags for its own."""
    return html.escape(text, quote=False)


def _errors(axis: str, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Error bars from intervals; a value without one has none."""
    up, down = [], []
    for row in rows:
        low, high = row["low"], row["high"]
        up.append(high - row["value"] if low is not None and high is not None else 0)
        down.append(row["value"] - low if low is not None and high is not None else 0)
    return {f"error_{axis}": {"type": "data", "array": up, "arrayminus": down, "width": 3}}
