"""Fixtures for all tests, in which order they run, and no word to a hub that no test started."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read by the hub's client when it is imported: whoever names no endpoint asks a closed port.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

# What a shell runs in the background ignores it, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile(
    "unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

pytest_plugins = ["roost.lab.fixtures"]

TESTS = Path(__file__).parent
#: Seconds that a test with real hosts may take: several times what the longest takes beside two
#: others on a small machine, so that only what hangs is ended.
LAB_LIMIT_S = 3600
#: Files that take minutes, the longest first: workers begin with them, so that they end together.
#: Those with the real engine, which takes all of a small machine, stand between others.
LONGEST = (
    "notebooks/test_compare.py",
    "playbooks/test_rollout.py",
    "playbooks/test_deploy.py",
    "playbooks/test_transaction.py",
    "playbooks/test_transaction_host.py",
    "notebooks/test_verify.py",
    "notebooks/test_tune.py",
    "playbooks/test_mirror.py",
    "notebooks/test_benchmark.py",
    "playbooks/test_gateway.py",
    "playbooks/test_weights.py",
    "playbooks/test_build.py",
    "playbooks/test_watchdog.py",
    "playbooks/test_weights_faults.py",
    "lab/test_kv_pool.py",
    "lab/test_lab.py",
    "lab/test_doctor.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.timeout(LAB_LIMIT_S))
