"""That workers find the package imported."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.plugins import ROOT

PROGRAM = """
import sys
from tests.unit.plugins import load
load("callback", "preload")
before = {name for name in sys.modules if name.startswith("roost")}
filters = load("filter", "roost")
assert filters._missing is None, filters._missing
late = {name for name in sys.modules if name.startswith("roost")} - before
assert before and not late, late
"""


def test_the_filters_import_nothing_more_of_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
