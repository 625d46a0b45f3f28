#!/usr/bin/env bash
# The main job from nothing: a lab of two hosts, deployed and verified. Any failing step ends it.
set -euo pipefail

step() { printf '\n== %s\n' "$*"; }

if [ "$(id -u)" -ne 0 ]; then
    echo "demo: needs root: the lab makes network namespaces and starts systemd hosts" >&2
    exit 1
fi
started=$SECONDS

step "roost lab up: two hosts with their own network, sshd and dockerd, a registry and a hub"
roost lab up --install

step "ansible-playbook deploy.yml -i inventory/lab"
ansible-playbook deploy.yml -i inventory/lab

step "roost verify -i inventory/lab: the verify notebook on each host"
roost verify -i inventory/lab

step "done in $((SECONDS - started)) s"
cat <<'END'
Both servers are running. To look around:
  roost lab status                       hosts, addresses, how to log in
  roost deploy -i inventory/lab          the same deploy again: nothing changes
  papermill notebooks/verify.ipynb OUT.ipynb -p inventory inventory/lab -p host lab-01
  roost lab down                         end everything
(with .venv/bin on PATH: . .venv/bin/activate)
END
