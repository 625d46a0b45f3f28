"""How far downloads on a host have come, in one line for people."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

#: Seconds over which a rate is taken: long enough to smooth shards, short enough to see a stall.
WINDOW = 30.0
DAY = 86_400


class Download(BaseModel):
    """A background job on a host that fetches something.

    Attributes:
        name: What people call it.
        job: Path of the job's record on the host.
        path: What the module ``download_facts`` looks at.
        bytes: How much is to come, where that is known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    job: str
    path: str
    bytes: int | None = None


class Watch:
    """Downloads of one host, as they were seen over time.

    Args:
        downloads: In the order in which :meth:`saw` gets what was seen of them.
    """

    def __init__(self, downloads: Sequence[Download]) -> None:
        self._downloads = downloads
        self._seen: list[collections.deque[tuple[float, int]]] = [
            collections.deque() for _ in downloads
        ]
        self._now: list[Mapping[str, Any]] = [{} for _ in downloads]

    def saw(self, looked: Sequence[Mapping[str, Any]], at: float) -> None:
        """Take what the module returned into account.

        Args:
            looked: ``{done, stage, result}`` of each download.
            at: When, in seconds of a monotonic clock.
        """
        for number, one in enumerate(looked):
            self._now[number] = one
            if one["done"] is None:
                continue
            seen = self._seen[number]
            seen.append((at, one["done"]))
            while len(seen) > 2 and at - seen[1][0] >= WINDOW:
                seen.popleft()

    def line(self) -> str:
        """All of them: ``image 4.1 of 11.2 GB, 37 %, 92 MB/s, 1:17 left; …``."""
        return "; ".join(map(self._one, range(len(self._downloads))))

    def _one(self, number: int) -> str:
        download, now, seen = self._downloads[number], self._now[number], self._seen[number]
        if (result := now.get("result")) is not None:
            return f"{download.name} {'failed' if result.get('failed') else 'done'}"
        stage = now.get("stage", "begins")
        if not seen or stage != "fetching":
            return f"{download.name} {stage}"
        done, rate = seen[-1][1], _rate(seen)
        words = [f"{download.name} {_size(done)}"]
        if download.bytes:
            share = min(100, 100 * done // download.bytes)
            words = [f"{download.name} {_size(done)} of {_size(download.bytes)}", f"{share} %"]
        if rate is not None:
            words.append(f"{_size(rate)}/s" if rate else f"no byte for {WINDOW:.0f} s")
        if rate and download.bytes and done < download.bytes:
            words.append(f"{_clock((download.bytes - done) / rate)} left")
        return ", ".join(words)


def failures(
    downloads: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any] | None]
) -> str:
    """Why weights did not come, for people; empty where none has failed.

    Args:
        downloads: As the action ``await_downloads`` takes them.
        results: What it returned of each.
    """
    lines = []
    for download, result in zip(downloads, results, strict=True):
        if result and result.get("failed"):
            said = str(result.get("msg", "no reason given"))
            # One that was killed has left no reason of its own.
            lines.append(
                said
                if "reason" in result
                else f"{download['name']}: {said}. What arrived is kept; deploy again to go on "
                "from it (if memory was short, `dmesg` on the host says so)"
            )
    return "\n".join(lines)


def _rate(seen: Sequence[tuple[float, int]]) -> float | None:
    """Bytes a second over the window; none before there is enough to tell."""
    (begun, first), (ended, last) = seen[0], seen[-1]
    if ended - begun < 1 or (last <= first and ended - begun < WINDOW):
        return None
    return max(0.0, (last - first) / (ended - begun))


def _size(count: float) -> str:
    """Bytes with a decimal unit, as hubs and registries write them."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _clock(seconds: float) -> str:
    """``0:42``, ``12:05``, ``1:02:10``, ``3 days``."""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.0f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
