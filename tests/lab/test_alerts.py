"""The alerts for Prometheus: its own tool checks them, and they name what the catalogue names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from roost import catalog
from roost.lab import paths

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "prometheus"
RULES, TESTS = EXAMPLES / "roost-alerts.yml", EXAMPLES / "roost-alerts-test.yml"


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus's own tool, out of Debian's package; the server in it is not installed."""
    if found := shutil.which("promtool"):
        return found
    folder = paths.cache_dir() / "prometheus"
    tool = folder / "promtool"
    if not tool.exists():
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            assert os.environ.get("CI") != "true", "CI must be able to fetch promtool"
            pytest.skip("promtool is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-qq", "download", "prometheus"], cwd=folder, check=True)
        (package,) = folder.glob("prometheus_*.deb")
        unpack = f"dpkg-deb --fsys-tarfile {package.name} | tar -x --strip=3 ./usr/bin/promtool"
        subprocess.run(["sh", "-c", unpack], cwd=folder, check=True)
        package.unlink()
    return str(tool)


@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", TESTS)])
def test_prometheus_takes_them_and_they_fire_when_they_should(
    promtool: str, arguments: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [promtool, *arguments], capture_output=True, text=True, check=False, cwd=EXAMPLES
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_frozen_engine_is_told_by_the_series_that_the_watchdog_reads(engine: str) -> None:
    known = catalog.builtin().engines[engine]
    assert known.watch is not None
    rules = RULES.read_text(encoding="utf-8")
    assert [name for name in known.watch.progress if name not in rules] == []
    for name in known.busy_gauges:
        _, _, ending = name.partition(":num_")
        assert all(word in rules for word in ending.split("_")), name


def test_memory_is_short_above_the_floor() -> None:
    gpu = catalog.builtin().hardware["gb10"].gpu
    assert gpu is not None
    assert gpu.memory_floor_mib is not None
    assert gpu.memory_floor_mib * 1.5 == 6 * 1024
    assert "< 6 * 2^30" in RULES.read_text(encoding="utf-8")
