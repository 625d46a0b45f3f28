"""Builds probe output for tests: a healthy CPU host, with the sections a test cares about."""

from __future__ import annotations

Section = tuple[int, str]

_DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 9 9 104857600 9% /"
_SHM = "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 9 9 16777216 0% /dev/shm"
_MEMINFO = (
    "MemTotal:       32000000 kB\nMemAvailable:   30000000 kB\nMemFree:        29000000 kB\n"
    "SwapTotal:       2000000 kB\nSwapFree:        2000000 kB"
)
_ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
)


def probe_output(**sections: Section) -> str:
    """The text ``probe.sh`` would print; each section is (exit status, output)."""
    healthy: dict[str, Section] = {
        "machine": (0, "x86_64"),
        "kernel": (0, "6.1.0-18-amd64"),
        "meminfo": (0, _MEMINFO),
        "gpu": (127, ""),
        "runtime_hook": (1, ""),
        "docker": (0, '{"ServerVersion":"20.10.24","Driver":"overlay2","Runtimes":{"runc":{}}}'),
        "docker_unit": (0, "enabled"),
        "container_modules": (0, ""),
        "containers": (0, ""),
        "disk_models": (0, _DF),
        "disk_docker": (0, _DF),
        "disk_root": (0, _DF),
        "gpu_state": (127, ""),
        "gpu_peers": (127, ""),
        "driver_module": (1, "cat: /sys/module/nvidia/version: No such file or directory"),
        "toolkit": (127, "sh: 1: nvidia-ctk: not found"),
        "cdi": (0, ""),
        "docker_group": (0, "ops\nops docker\ndocker:x:998:ops"),
        "daemon_limits": (0, "Max open files            1048576      1048576      files"),
        "shared_memory": (0, _SHM),
        "shared_memory_owners": (0, "0"),
        "remove_ipc": (0, "b true"),
        "time_sync": (0, ""),
        "interfaces": (0, "eth0 up 1500\nlo unknown 65536\ndocker0 down 1500"),
        "routes": (0, _ROUTES),
        "tcp": (0, "  sl  local_address"),
        "tcp6": (0, "  sl  local_address"),
        "watchdog": (1, "cat: /var/lib/roost/watchdog/state.json: No such file or directory"),
        "watchdog_unit": (3, "inactive"),
        "watchdog_at_boot": (1, "Failed to get unit file state for roost-watchdog.service"),
        "units": (0, ""),
        "rollout": (2, "sh: 1: cd: can't cd to /var/lib/roost/releases"),
        "program": (1, "find: '/usr/local/lib/roost/onhost': No such file or directory"),
        "image": (0, '{"Id":"sha256:1","Config":{"Labels":{}}}'),
        "python": (0, "/usr/bin/python3"),
    }
    assert not set(sections) - set(healthy)
    return "".join(
        f"==> {name} {code}\n{output}\n" for name, (code, output) in {**healthy, **sections}.items()
    )
