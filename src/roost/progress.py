"""How far runs on hosts are, for whoever waits at a terminal or reads a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text


class Lines:
    """Lines of progress on standard error, one after the other: for files and pipes."""

    #: Seconds between two lines of :meth:`pass_by`.
    pause = 10.0

    def __init__(self) -> None:
        self._passed = time.monotonic()

    def pass_by(self, host: str, line: str) -> None:
        """A line that the next one makes worthless: one now and then, and none of a short work."""
        if (now := time.monotonic()) - self._passed > self.pause:
            self._passed = now
            self.say(host, line)

    def say(self, host: str, line: str) -> None:
        """The newest line of a host."""
        click.echo(f"{host}: {line}", err=True)

    @contextmanager
    def aside(self, host: str) -> Iterator[None]:  # noqa: ARG002  # others show hosts under way
        """Within it the progress is hidden, so that something else can be said of a host."""
        yield


class Display(Lines):
    """A line for each host under way, written anew where it stands: for terminals."""

    pause = 0.2

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._newest: dict[str, str] = {}
        self.live = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def say(self, host: str, line: str) -> None:
        self._newest[host] = line
        self._draw()

    @contextmanager
    def aside(self, host: str) -> Iterator[None]:
        self._newest.pop(host, None)
        self.live.stop()
        yield
        self.live.start()
        self._draw()

    def _draw(self) -> None:
        lines = [f"{host}: {line}" for host, line in self._newest.items()]
        self.live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)


@contextmanager
def shown() -> Iterator[Lines]:
    """Progress on standard error, as a terminal or a file can show it."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines()
        return
    display = Display(console)
    with display.live:
        yield display
