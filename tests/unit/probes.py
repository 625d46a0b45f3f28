"""Builds probe output for tests: a healthy CPU host, with the sections a test cares about."""

from __future__ import annotations

Section = tuple[int, str]

_DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 9 9 104857600 9% /"


def probe_output(**sections: Section) -> str:
    """The text ``probe.sh`` would print; each section is (exit status, output)."""
    healthy: dict[str, Section] = {
        "machine": (0, "x86_64"),
        "kernel": (0, "6.1.0-18-amd64"),
        "meminfo": (0, "MemTotal:       32000000 kB\nMemAvailable:   30000000 kB"),
        "gpu": (127, ""),
        "runtime_hook": (1, ""),
        "docker": (0, '{"ServerVersion":"20.10.24","Driver":"overlay2","Runtimes":{"runc":{}}}'),
        "containers": (0, ""),
        "disk_models": (0, _DF),
        "disk_docker": (0, _DF),
        "tcp": (0, "  sl  local_address"),
        "tcp6": (0, "  sl  local_address"),
        "python": (0, "/usr/bin/python3"),
    }
    assert not set(sections) - set(healthy)
    return "".join(
        f"==> {name} {code}\n{output}\n" for name, (code, output) in {**healthy, **sections}.items()
    )
