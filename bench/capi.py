"""capi.py: the ctypes structs of luattn's C API for benchmarks. They are the package's (python/luattn/_capi.py), loaded without
the package, which would look for a library of its own. Standard library only."""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "luattn"))
from _capi import (  # noqa: E402
    Args,
    BatchOptions,
    CompileReport,
    DLDataType,
    DLDevice,
    DLTensor,
    EngineOptions,
    Error,
    Input,
    SpecInfo,
    Target,
)

__all__ = [
    "Args",
    "BatchOptions",
    "CompileReport",
    "DLDataType",
    "DLDevice",
    "DLTensor",
    "EngineOptions",
    "Error",
    "Input",
    "SpecInfo",
    "Target",
]
