#!/usr/bin/env bash
# Makes the virtual environment that everything here runs in. Usage: scripts/setup.sh DIR
set -euo pipefail
venv=$1

say() { printf 'setup: %s\n' "$*"; }

# The first that is new enough and really runs (a version manager's shim may not).
python=
for candidate in python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(command -v "$candidate")
        break
    fi
done
if [ -z "$python" ]; then
    say "needs Python 3.11 or newer as python3" >&2
    exit 1
fi

# Debian ships Python without ensurepip; a half-made environment from an earlier try is made anew.
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "python3-venv is missing: install it and try again" >&2
        exit 1
    fi
    say "installing python3-venv"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
fi

say "making $venv with $("$python" --version)"
rm -f "$venv/.ready"
"$python" -m venv --clear "$venv"
"$venv/bin/pip" install -qq --disable-pip-version-check -e '.[dev]'
touch "$venv/.ready"
say "ready"
