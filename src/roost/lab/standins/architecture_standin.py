"""Stand-in: Python on a lab host that plays another architecture says that one.

Loaded by a .pth file. Ansible takes its architecture facts from platform.machine(), which asks
os.uname() and so never sees the stand-in for the uname command.
"""

import os

_real = os.uname


def _played():
    with open("/etc/roost-lab/architecture", encoding="ascii") as file:
        return os.uname_result((*_real()[:4], file.read().strip()))


os.uname = _played
