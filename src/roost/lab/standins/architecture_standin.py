"""Stand-in: Python on a lab host that plays another architecture says that one.

Loaded by a .pth file. Ansible takes its architecture facts from platform.machine(), which asks
os.uname() and so never sees the stand-in for the uname command.
"""

import os
from pathlib import Path

_real = os.uname


def _played() -> os.uname_result:
    machine = Path("/etc/roost-lab/architecture").read_text(encoding="ascii").strip()
    return os.uname_result((*_real()[:4], machine))


os.uname = _played
