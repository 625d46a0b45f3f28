#!/usr/bin/env bash
# All tests: the quick ones first, then those on a real lab, which needs root.
set -euo pipefail

pytest -q tests/unit
if [ "$(id -u)" -eq 0 ]; then
    # Said here, with progress, rather than silently inside the first test that needs it.
    roost lab build --install
fi
pytest -q tests --ignore=tests/unit
