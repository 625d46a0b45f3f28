"""Lines of a known rate."""

from __future__ import annotations

import time
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from starlette.responses import Response
from tests.unit.servers import serving

from roost.lab.pacing import Line, paced


def test_what_is_put_on_a_line_waits_for_what_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    line = Line(10)
    assert [line.take(5), line.take(10)] == [0.5, 1.5]
    now = 110.0  # it has been free for long, and saves nothing up
    assert line.take(20) == 2.0


def test_answers_come_at_its_rate_and_unaltered() -> None:
    body = bytes(range(256)) * 4096
    with serving(Response(body)) as url:
        address = urlsplit(url)
        assert address.hostname
        assert address.port
        with paced(address.hostname, address.port, 4 * len(body)) as port:
            begun = time.monotonic()
            with urlopen(f"http://{address.hostname}:{port}/") as answer:
                assert answer.read() == body
            assert time.monotonic() - begun > 0.2
