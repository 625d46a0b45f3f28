"""Asking a host what it is, over an open connection."""

from __future__ import annotations

import time

from roost import hosts
from roost.doctor.system import Skew
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.inventory import Host
from roost.site import HostVars
from roost.ssh import Completed, Remote


def probe(remote: Remote, host: Host) -> Completed:
    """Run the probe; :func:`roost.hosts.parse` reads its output.

    Raises:
        SshError: The connection broke, or it took too long.
    """
    # The inventory may be half-written yet, so its other variables are not judged here.
    model_dir = host.variables.get("roost_model_dir", HostVars.model_fields["model_dir"].default)
    return remote.run(["sh", "-s", "--", str(model_dir)], input=hosts.probe_script())


def facts(remote: Remote, host: Host) -> HostFacts:
    """Probe a host.

    Raises:
        RoostError: The probe did not finish, or the connection broke.
    """
    done = probe(remote, host)
    try:
        return hosts.parse(done.out)
    except RoostError as error:
        if not done.err.strip():
            raise
        raise RoostError(error.what, why=done.err.strip()[-300:]) from None


def skew(remote: Remote) -> Skew | None:
    """How far the host's clock is ahead of ours; uncertain by half the round trip.

    None where the host's ``date`` prints no fractions of a second.

    Raises:
        SshError: The connection broke, or it took too long.
    """
    before = time.time()
    done = remote.run(["date", "+%s.%N"])
    after = time.time()
    try:
        theirs = float(done.out)
    except ValueError:
        # Without %N, as on small systems, it would be wrong by up to a second.
        return None
    return Skew(theirs - (before + after) / 2, (after - before) / 2)
