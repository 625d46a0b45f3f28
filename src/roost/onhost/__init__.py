"""What runs on the host itself, carried there by Ansible as module_utils.

Standard library only, and Python 3.8 or newer: a host needs nothing of roost. Modules import these
as ``ansible.module_utils.roost.onhost.…`` (``module_utils`` in ansible.cfg), the package and its
tests as ``roost.onhost.…``; so what both need has one home.
"""

#: Docker's name of the container that serves, and systemd's of the unit that keeps it running.
NAME = "roost-llm"
#: systemd's name of the watchdog.
WATCHDOG = "roost-watchdog"
#: Where releases are kept on a host unless the roles are told otherwise, and the watchdog's state.
RELEASES = "/var/lib/roost/releases"
WATCHDOG_STATE = "/var/lib/roost/watchdog"
#: What does not outlive a reboot: locks and notes.
RUNTIME = "/run/roost"
#: Bytes that stay free where weights and images are put, so that logs and releases still have room.
DISK_HEADROOM_BYTES = 2**30
