"""One engine for each device: it keeps the kernels of all specs, and compiles them when they are first needed."""

import ctypes
import functools
import logging
import os
import sys

from . import _capi as capi
from ._library import call, guarded


def nvrtc_path() -> bytes | None:
    """The NVRTC of NVIDIA's wheel (the extras cu12 and cu13). None: libluattn looks for one in the system."""
    if os.environ.get("LUATTN_NVRTC"):
        return None
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception:  # not installed, or without an NVRTC: each version has exceptions of its own
        return None
    return path.encode() if path else None


_log = logging.getLogger("luattn")


@capi.LOG  # type: ignore[untyped-decorator]
@guarded
def _tell(_: int | None, line: bytes) -> None:
    """Called by the library for each kernel that it compiled or loaded."""
    _log.info("%s", line.decode("utf-8", "replace"))


def engine_of(device: int, deterministic: bool = False, family: int = 0) -> int:
    """The address of the luattn_engine of a GPU, or of the CPU (device = capi.CPU). Opened on first use, and kept. family: a
    luattn_family for all of its kernels; 0: plans choose."""
    return _open(device, deterministic, family)


def wants_deterministic() -> bool:
    """Whether torch, where it is loaded, is to be deterministic."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.are_deterministic_algorithms_enabled())


opened: dict[int, int] = {}  # the device of each engine


@functools.cache  # tells f(0) from f(0, False), so that all arguments are given
def _open(device: int, deterministic: bool, family: int) -> int:
    options = capi.EngineOptions(
        struct_size=ctypes.sizeof(capi.EngineOptions),
        device=device,
        deterministic=int(deterministic),
        family=family,
        nvrtc=None if device == capi.CPU else nvrtc_path(),
        log=_tell,
    )
    engine = ctypes.c_void_p()
    call("luattn_engine_open", ctypes.byref(options), ctypes.byref(engine))
    assert engine.value
    opened[engine.value] = device
    return engine.value
