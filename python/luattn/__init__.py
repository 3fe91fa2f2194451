"""luattn: attention variants from a small Lua file, for torch tensors and NumPy arrays.

    gemma2 = luattn.attention("gemma2.lua")
    o = gemma2(q, k, v, cap=50.0)

Importing starts nothing of CUDA, and does not load torch. Where torch is loaded already, its ops luattn::forward,
luattn::backward and luattn::merge are there from then on, as graphs of torch.export need them; else from the first call with its tensors.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._examples import examples
from ._library import __version__
from ._prepare import prepare
from .attention import Attention, attention
from .batch import Batch
from .errors import CompileError, CudaError, Error, FileError, InvalidError, NotTranslatable, OutOfMemory, SpecError, Unsupported
from .jvp import jvp
from .linear import LinearAttention, linear_attention
from .mask import GridMask, Mask
from .merge import merge
from .pages import page_table

if TYPE_CHECKING:
    from .explanation import Explanation
    from .plots import plot_weights

__all__ = [
    "Attention",
    "Batch",
    "CompileError",
    "CudaError",
    "Error",
    "Explanation",
    "FileError",
    "GridMask",
    "InvalidError",
    "LinearAttention",
    "Mask",
    "NotTranslatable",
    "OutOfMemory",
    "SpecError",
    "Unsupported",
    "__version__",
    "attention",
    "examples",
    "jvp",
    "linear_attention",
    "merge",
    "page_table",
    "plot_weights",
    "prepare",
]

if "torch" in sys.modules:
    from . import _torch as _torch
    from . import _torch_merge as _torch_merge


_LATER = {"Explanation": "explanation", "plot_weights": "plots"}


def __getattr__(name: str) -> Any:
    """These modules load torch or JAX, or take milliseconds, so they are imported when somebody asks for them."""
    if name in _LATER:
        return getattr(importlib.import_module(f"luattn.{_LATER[name]}"), name)
    if name in ("fla", "flash_attn", "flex", "jax", "natten", "parallel", "transformers", "vllm"):
        return importlib.import_module(f"luattn.{name}")
    raise AttributeError(f"module 'luattn' has no attribute '{name}'")
