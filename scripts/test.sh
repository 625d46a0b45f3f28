#!/usr/bin/env bash
# All tests: the quick ones first, then those on a real lab, which needs root.
set -euo pipefail

# Some tests talk to an sshd of their own. The package would start one for everybody.
if [ "$(id -u)" -eq 0 ] && [ ! -x /usr/sbin/sshd ]; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openssh-server >/dev/null
    if [ -d /run/systemd/system ]; then systemctl disable --quiet --now ssh; fi
fi

# Others have an HAProxy of their own. Nor is this one to run for everybody.
if [ "$(id -u)" -eq 0 ] && [ ! -x /usr/sbin/haproxy ]; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends haproxy >/dev/null
    if [ -d /run/systemd/system ]; then systemctl disable --quiet --now haproxy; fi
fi

# The site is opened in a real browser.
if [ "$(id -u)" -eq 0 ] && ! command -v chromium-headless-shell chromium >/dev/null; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium-headless-shell >/dev/null
fi

# Style and types beside the quick tests; what they have to say comes when both have ended.
said=$(mktemp)
trap 'rm -f "$said"; kill $(jobs -p) 2>/dev/null || true' EXIT
make lint >"$said" 2>&1 &
failed=0
pytest -q -n 2 tests/unit || failed=1
wait $! || failed=1
cat "$said"
[ "$failed" -eq 0 ]

if [ "$(id -u)" -eq 0 ]; then
    # Said here, with progress, rather than silently inside the first test that needs it.
    roost lab build --install
fi
# Three at a time: half of what they do is waiting, and each of the three has a lab of its own.
# In the order of tests/conftest.py, where the longest come first.
pytest -q --durations=15 -n 3 --dist loadfile --no-loadscope-reorder tests --ignore=tests/unit
