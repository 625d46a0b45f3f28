"""How often is noise taken for a trend, and how often is a slow host seen? Simulated.

Each look is at twelve hosts and three figures of each that are independent of one another:
throughput (which a time per token follows), accept length and time to the first token. The runs of
a host differ by normal noise; a trend is over their order, so only a decline that takes its time
knows how they are spaced.

``python -m benchmarks.drift [--series N]``. The tables of docs/fleet.md come from it.
"""

from __future__ import annotations

import argparse
import math
import random
from functools import cache

from roost.measure import points
from roost.measure.compare import TOLERANCE
from roost.measure.fleet.drift import trend

#: Of one look: twelve hosts, three independent figures each.
SERIES = 12 * 3
NOISE = (0.015, 0.03)
DAY = 86400.0
SPACED: dict[str, list[float]] = {
    "6, one a night": [DAY * at for at in range(6)],
    "12, one a night": [DAY * at for at in range(12)],
    "5 back to back, one a month later": [0, 900, 1800, 2700, 3600, 30 * DAY],
    "3 back to back, 3 a month later": [at + 900 * n for at in (0, 30 * DAY) for n in range(3)],
}
FALL = 0.10
_SPEED = points.metric("output_throughput")


@cache
def share(shape: tuple[float, ...], fall: float, noise: float, series: int) -> float:
    """Of so many series with a decline of that shape, from 0 to 1, those with a trend downwards."""
    draw = random.Random(f"{shape}{fall}{noise}")  # noqa: S311
    found = 0
    for _ in range(series):
        logs = [math.log1p(-fall) * at + draw.gauss(0, noise) for at in shape]
        one = trend(_SPEED, logs)
        found += one.drifts(TOLERANCE) and one.change is not None and one.change < 1
    return found / series


def rows(series: int) -> list[str]:
    """A table in Markdown."""
    found = [
        "| runs | noise | false looks | found: 10 %, run by run | found: 10 %, in time |",
        "|---|---|---|---|---|",
    ]
    for name, times in SPACED.items():
        for noise in NOISE:
            by_run = tuple(at / (len(times) - 1) for at in range(len(times)))
            by_time = tuple(at / times[-1] for at in times)
            false = 1 - (1 - share(by_run, 0, noise, series)) ** SERIES
            seen = [share(shape, FALL, noise, series) for shape in (by_run, by_time)]
            figures = " | ".join(f"{100 * one:.2g} %" for one in (false, *seen))
            found.append(f"| {name} | {100 * noise:g} % | {figures} |")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", type=int, default=100_000, help="of each kind")
    print("\n".join(rows(parser.parse_args().series)))


if __name__ == "__main__":
    main()
