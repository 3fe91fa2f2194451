"""Conversions that a mod asks for and a spec has not: to the bits of another type, to half precision, to another device."""

from typing import Any

import torch
from torch import Tensor

from ._trace import Lines, NotTranslatable

CASTS = frozenset("to type type_as half bfloat16 view cuda cpu xpu".split())
_HALVES = (torch.float16, torch.bfloat16)


def check_cast(name: str, source: Any, found: Any, dtype: torch.dtype, device: torch.device) -> None:
    """dtype, device: of the tensors of the call. A score of half precision is float32 in a kernel, as in one of torch.compile, and so is what is
    converted to its type."""
    if not (isinstance(source, Tensor) and isinstance(found, Tensor)):
        return
    to = str(found.dtype).partition(".")[2]
    if found.device.type != device.type:
        what = f"moves a value of the mod to {found.device.type}, and the tensors of the call are on {device.type}: leave it out"
    elif name == "view" and found.dtype != source.dtype:
        what = f"reads the bits of {str(source.dtype).partition('.')[2]} as {to}, which no spec does: x.to(torch.{to}) converts the number"
    elif found.dtype in _HALVES and source.dtype not in (found.dtype, torch.bool) and found.dtype != dtype:
        what = f"rounds to {to}, and kernels compute in float32 or float64: leave it out, or convert captured tensors outside of the mod"
    else:
        return
    raise NotTranslatable(f"{Lines.given or 'a mod'}: {name} {what}")
