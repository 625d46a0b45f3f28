"""Runs inside an engine's image, with its GPUs: does CUDA start there?

Standard library of whatever Python the image has, sent to its standard input. Finds libcuda as the
engine will (LD_LIBRARY_PATH of the image included), makes a context on every GPU, and prints one
line of JSON: ``{"driver": 13000, "devices": [{"name", "free", "total"}]}`` in bytes, or
``{"call", "code", "name", "text"}`` of the call that failed.
"""

from __future__ import annotations

import ctypes
import json
import signal
from typing import Any

#: Seconds; a driver that hangs would keep a deploy for ever.
PATIENCE = 120


class CallError(Exception):
    """A call did not return CUDA_SUCCESS."""


def call(cuda: Any, function: str, *arguments: Any) -> None:
    """Call, or raise with what libcuda says of the error."""
    code = getattr(cuda, function)(*arguments)
    if code == 0:
        return
    words = []
    for ask in ("cuGetErrorName", "cuGetErrorString"):
        said = ctypes.c_char_p()
        known = getattr(cuda, ask)(code, ctypes.byref(said)) == 0
        words.append(said.value.decode() if known and said.value else "")
    raise CallError({"call": function, "code": code, "name": words[0], "text": words[1]})


def device(cuda: Any, index: int) -> dict[str, Any]:
    """Make a context on one GPU and ask it for its memory."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    call(cuda, "cuDeviceGet", ctypes.byref(handle), index)
    call(cuda, "cuDeviceGetName", name, 256, handle)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {"name": name.value.decode(), "free": free.value, "total": total.value}


def main() -> None:
    """Print what CUDA says.

    Every call is libcuda's own, so nothing here depends on what else the image has.
    """
    signal.alarm(PATIENCE)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count, version = ctypes.c_int(), ctypes.c_int()
        call(cuda, "cuInit", 0)
        call(cuda, "cuDriverGetVersion", ctypes.byref(version))
        call(cuda, "cuDeviceGetCount", ctypes.byref(count))
        devices = [device(cuda, index) for index in range(count.value)]
        found: dict[str, Any] = {"driver": version.value, "devices": devices}
    except OSError as error:
        found = {"call": "dlopen", "code": None, "name": "", "text": str(error)}
    except CallError as error:
        found = error.args[0]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
