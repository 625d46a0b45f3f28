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

pytest -q tests/unit
if [ "$(id -u)" -eq 0 ]; then
    # Said here, with progress, rather than silently inside the first test that needs it.
    roost lab build --install
fi
# Two at a time: half of what they do is waiting, and each of the two has a lab of its own.
pytest -q -n 2 --dist loadfile tests --ignore=tests/unit
