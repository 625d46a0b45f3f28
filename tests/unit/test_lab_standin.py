"""The stand-ins of engine and nvidia-smi: what they count and say, and the size of the jitter."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from roost.lab import profiles
from roost.lab.standins import engine_standin
from roost.measure import metrics, throttling
from roost.onhost import counters


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


@pytest.mark.parametrize("counts_as", ["vllm", "sglang"])
def test_its_counters_say_what_it_accepts(counts_as: str) -> None:
    words = ["serve", "/model", "--standin-accepted=2.4", f"--standin-counts-as={counts_as}"]
    engine = engine_standin.Engine(engine_standin.arguments(words))
    engine.answer({"prompt": "Tell me.", "max_tokens": 5})
    before = engine.metrics()
    for tokens in (1, 32, 7):
        engine.answer({"prompt": "Tell me.", "max_tokens": tokens})
    after = engine.metrics()
    assert f"{counts_as}:" in after
    assert counters.accept_length(before, after) == pytest.approx(3.4)
    change = metrics.delta(metrics.parse(before), metrics.parse(after))
    assert change.speculation
    assert change.speculation.accept_length == pytest.approx(3.4)
    assert (change.generated_tokens, change.prompt_tokens) == (40, 30)


def test_nvidia_smi_says_what_is_sampled_beside_a_load(tmp_path: Path) -> None:
    report = tmp_path / "gpus.json"
    report.write_text(profiles.load("gb10").gpu_report("host", None, None))
    source = Path(engine_standin.__file__).with_name("nvidia-smi-standin").read_text()
    script = source.replace("/etc/roost-lab/gpus.json", str(report))
    words = [sys.executable, "-c", script, *throttling._QUERY[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (sample,) = throttling.parse(done.stdout)
    assert (sample.gpu, sample.slowed) == ("0", ())
    assert sample.clock
