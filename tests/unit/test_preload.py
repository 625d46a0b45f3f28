"""That workers find the package imported, and the catalogue read."""

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

from roost import catalog
assert catalog.builtin.cache_info().currsize == 1
"""


def test_the_filters_import_nothing_more_of_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
