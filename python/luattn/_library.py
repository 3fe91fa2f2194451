"""Finds and loads libluattn.so, and declares the functions that the package calls."""

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from . import _capi as capi
from .errors import Error, error_of

__version__ = "0.1.0"

_HERE = os.path.dirname(os.path.abspath(__file__))
_P = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_INT = ctypes.c_int

# name: types of its arguments, less the luattn_error * at the end.
_FUNCTIONS: dict[str, list[Any]] = {
    "luattn_spec_load_text": [ctypes.c_char_p, ctypes.c_char_p, _SIZE, _P, _P],
    "luattn_engine_open": [_P, _P],
    "luattn_engine_kernel": [_P, _P, _INT, _P, _P],
    "luattn_engine_choice": [_P, _P, _INT, _P, _P, _SIZE],
    "luattn_engine_plan": [_P, _P, _INT, _P, _P],
    "luattn_engine_workspace_size": [_P, _P, _INT, _P, _P],
    "luattn_forward": [_P, _P, _P, _P],
    "luattn_forward_jvp": [_P, _P, _P, _P],
    "luattn_forward_jvp_workspace_size": [_P, _P, _P, _P],
    "luattn_backward_jvp": [_P, _P, _P, _P],
    "luattn_backward_jvp_workspace_size": [_P, _P, _P, _P],
    "luattn_backward": [_P, _P, _P, _P],
    "luattn_weights_workspace_size": [_P, _P, _P, _P],
    "luattn_weights": [_P, _P, _P, _P, _P],
    "luattn_spec_merges": [_P],
    "luattn_spec_parts": [_P, _P],
    "luattn_merge": [_P, _P, _P],
    "luattn_merge_backward": [_P, _P, _P],
    **{f"luattn_na_{name}": [_P, _P, _P] for name in ("qk", "qk_backward", "av", "av_backward")},
    "luattn_page_table": [_P, _P, _P, _P, _P],
    "luattn_prepare": [_P, _P, _SIZE, _INT, _P, _P],
    "luattn_prepare_calls": [_P, _P, _SIZE, _INT, _P, _P],
    "luattn_batch_open": [_P, _P],
    "luattn_batch_size": [_P, _P],
    "luattn_batch_prepare": [_P, _P, _INT, _P, _SIZE, _P],
    "luattn_append": [_P, _P, _P],
    "luattn_batch_tiles_size": [_P, _P, _P],
    "luattn_batch_prepare_tiles": [_P, _P, _P, _P, _SIZE, _P],
    "luattn_batch_mask_size": [_P, _P, _P],
    "luattn_batch_prepare_mask": [_P, _P, _P, _P, _SIZE, _P],
    "luattn_device_get_info": [_P, _INT, _P],
    "luattn_driver_version": [_P, _P],
    "luattn_engine_forget": [_P, _P],
    "luattn_compile": [_P, _P, _P, _P],
    "luattn_kernel_load": [_P, _INT, _P, _P],
    "luattn_plan_candidates": [_P, _P, _P, _INT, _P],
    "luattn_tuned_store": [_P, _P, ctypes.c_double, _P, _SIZE],
    "luattn_plan_box_pairs": [_P, _P, _P, _P, _INT, _P],
    "luattn_tuned_boxes_store": [_P, _P, _P, ctypes.c_double, _P, _SIZE],
    "luattn_workspace_size": [_P, _P, _P],
    "luattn_launch": [_P, _P, _P],
    "luattn_emit": [_P, _P, ctypes.c_char_p, _P],
    "luattn_synchronize": [_P, _INT, _P],
    "luattn_timer_open": [_P, _INT, _P],
    "luattn_timer_start": [_P, _P],
    "luattn_timer_stop": [_P, _P],
    "luattn_timer_read": [_P, _P],
    "luattn_mask_tiles": [_P, _P, _INT, _INT, _INT, _INT, _P],
    "luattn_mask_survey": [_P, _P, _P, _INT, _INT, _P],
    "luattn_mask_svg": [_P, _P],
    "luattn_mask_places_of": [_P, _P, _P],
    "luattn_mask_places_svg": [_P, _P, _P, _P],
    "luattn_linear_forward": [_P, _P, _P, _P],
    "luattn_linear_workspace_size": [_P, _P, _P, _P],
    "luattn_linear_kept_size": [_P, _P, _P, _P],
    "luattn_linear_backward": [_P, _P, _P, _P],
    "luattn_linear_backward_workspace_size": [_P, _P, _P, _P],
    "luattn_cpu_linear_forward": [_P, _P],
    "luattn_cpu_linear_backward": [_P, _P],
    "luattn_mask_chunks": [_P, _P, _INT, _P],
    "luattn_parallel_plan_new": [_P, _P],
    "luattn_emit": [_P, _P, ctypes.c_char_p, _P],
}


def _path() -> str:
    """$LUATTN_LIBRARY, else the library that was installed with the package."""
    named = os.environ.get("LUATTN_LIBRARY")
    return named if named else os.path.join(_HERE, "libluattn.so")


def _load() -> ctypes.CDLL:
    path = _path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(
            f"luattn: cannot load its library: {e}; install the package (pip install .), "
            "or set LUATTN_LIBRARY=/path/to/libluattn.so"
        ) from None
    lib.luattn_version.restype = ctypes.c_char_p
    found = lib.luattn_version().decode()
    if found.split(".")[:2] != __version__.split(".")[:2]:
        raise ImportError(
            f"luattn: {path} is version {found}, and this package is for {__version__}; install them together"
        )
    for name, types in _FUNCTIONS.items():
        if hasattr(lib, name):  # an older library, which benchmarks load beside this one, may lack some
            getattr(lib, name).argtypes = [*types, _P]
    lib.luattn_spec_get_info.argtypes = [_P, _P]
    lib.luattn_spec_get_info.restype = None
    lib.luattn_spec_draws.argtypes = [_P]
    lib.luattn_spec_draws.restype = ctypes.c_int
    lib.luattn_spec_reads_batch.argtypes = [_P]
    lib.luattn_spec_reads_batch.restype = ctypes.c_int
    lib.luattn_spec_row_passes.argtypes = [_P]
    lib.luattn_spec_row_passes.restype = ctypes.c_int
    if hasattr(lib, "luattn_spec_grid"):
        lib.luattn_spec_grid.argtypes = [_P, ctypes.POINTER(ctypes.POINTER(ctypes.c_char_p))]
        lib.luattn_spec_grid.restype = ctypes.c_int
    if hasattr(lib, "luattn_spec_form"):
        for name in ("luattn_spec_form", "luattn_spec_normalizes"):
            getattr(lib, name).argtypes, getattr(lib, name).restype = [_P], ctypes.c_int
        lib.luattn_spec_ring.argtypes, lib.luattn_spec_ring.restype = [_P, ctypes.c_int, _P, _P], None
    if hasattr(lib, "luattn_parallel_plan_new"):
        lib.luattn_parallel_plan_free.argtypes, lib.luattn_parallel_plan_free.restype = [_P], None
        lib.luattn_spec_parameter.argtypes, lib.luattn_spec_parameter.restype = [_P, _SIZE], ctypes.c_uint
        lib.luattn_spec_mask_differs.argtypes, lib.luattn_spec_mask_differs.restype = [_P], ctypes.c_uint
    lib.luattn_spec_wants.argtypes = [_P]
    lib.luattn_spec_wants.restype = ctypes.c_uint
    lib.luattn_engine_driver.argtypes = [_P]
    lib.luattn_engine_driver.restype = _P
    for name in ("luattn_batch_close", "luattn_image_free", "luattn_kernel_unload", "luattn_spec_free", "luattn_text_free", "luattn_timer_close"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [_P], None
    return lib


lib = _load()


def call(name: str, *args: Any) -> None:
    """Calls a function that takes a luattn_error * last. Raises what it reports, and passes its warning on."""
    err = capi.Error()
    status = getattr(lib, name)(*args, ctypes.byref(err))
    if status or thrown:
        raise_error(status, err)
    if err.message:
        warnings.warn(err.message.decode("utf-8", "replace"), RuntimeWarning, stacklevel=2)


# What callbacks raised while the library called them, by thread; None: of a thread that Python has not started.
thrown: dict[int | None, list[BaseException]] = {}


def guarded(callback: Callable[..., Any]) -> Callable[..., None]:
    """The callback for the library. ctypes would print what it raises, and drop it: here the call that it interrupts raises it."""

    def run(*args: Any) -> None:
        try:
            callback(*args)
        except BaseException as e:
            is_own = not isinstance(threading.current_thread(), threading._DummyThread)
            thrown.setdefault(threading.get_ident() if is_own else None, []).append(e)

    return run


def raise_error(status: int, err: capi.Error) -> None:
    """Raises what callbacks of this thread's call raised, and the library's error: the one in the context of the other."""
    errors: list[BaseException] = [message_of(status, err)] if status else []
    for e in (*thrown.pop(None, ()), *thrown.pop(threading.get_ident(), ())):
        if all(e is not other for other in errors):
            errors.append(e)
    for first, second in zip(errors, errors[1:]):
        second.__context__ = first
    if errors:
        raise errors[-1]


def message_of(status: int, err: capi.Error) -> Error:
    return error_of(status, err.message.decode("utf-8", "replace"))
