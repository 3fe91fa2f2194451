"""libluattn_jax.so, whose functions XLA calls: loads it beside libluattn.so, and tells JAX of them."""

import ctypes
import os
from typing import Any

import jax

from . import _library
from .engine import nvrtc_path

_NAME = "libluattn_jax.so"
_PLATFORMS = {"cpu": "cpu", "CUDA": "cuda"}


def _path() -> str:
    """Beside libluattn.so, with which it was built."""
    return os.path.join(os.path.dirname(os.path.realpath(_library._path())), _NAME)


def register() -> None:
    """Makes luattn_forward and luattn_backward targets of jax.ffi.ffi_call, and of programs that jax.export wrote."""
    path = _path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(
            f"luattn.jax: cannot load its library: {e}; install the package (pip install .), or build {_NAME} beside libluattn.so"
        ) from None
    lib.luattn_jax_start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    from . import _capi as capi

    err = capi.Error()
    status = lib.luattn_jax_start(os.fsencode(_library._path()), nvrtc_path(), ctypes.byref(err))
    if status:
        raise _library.message_of(status, err)
    for platform, suffix in _PLATFORMS.items():
        for name in ("forward", "backward"):
            handler: Any = getattr(lib, f"luattn_jax_{name}_{suffix}")
            jax.ffi.register_ffi_target(f"luattn_{name}", jax.ffi.pycapsule(handler), platform=platform)
