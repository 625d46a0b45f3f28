"""The stand-in engine's jitter: none unless it is asked for, and then of the size asked for."""

from __future__ import annotations

import math
import statistics

import pytest

from roost.lab.standins import engine_standin


@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_requests_differ_by_the_jitter(jitter: float) -> None:
    words = ["serve", "/model", "--standin-accepted=2.4", f"--standin-jitter={jitter}"]
    engine = engine_standin.Engine(engine_standin.arguments(words))
    lengths = []
    for _ in range(400):
        before = engine.drafts
        answered = engine.answer({"prompt": "Tell me.", "max_tokens": 32})
        lengths.append(math.log(len(answered) / (engine.drafts - before)))
    paces = [math.log(engine.pause()) for _ in range(400)]
    for found, middle in ((lengths, math.log(3.4)), (paces, math.log(1 / 400))):
        assert statistics.fmean(found) == pytest.approx(middle, abs=0.01)
        assert statistics.pstdev(found) == pytest.approx(jitter, rel=0.2, abs=1e-6)
