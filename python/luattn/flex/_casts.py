"""Conversions that a mod asks for and a spec has not: to the bits of another type, to half precision, to another device."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import NotTranslatable
from ._trace import Lines
from ._values import title, writes

_HALVES = (torch.float16, torch.bfloat16)
_OF_FIRST = ("to", "type_as")  # convert their first argument to the type of another


def check_cast(func: Any, args: Any, named: dict[str, Any], found: Any, dtype: torch.dtype, device: torch.device) -> None:
    """found: what a step of a mod gave, of these arguments. dtype, device: of the tensors of the call. A score of half precision is float32 in a
    kernel, as in one of torch.compile, and so is what is converted to its type."""
    if not isinstance(found, Tensor) or not args:
        return
    name, first, to = title(func), args[0], _title(found.dtype)
    moved = {t.device.type for t in _tensors(args[:1] if name in _OF_FIRST else args)}
    if found.device.type != device.type and moved == {device.type}:
        what = f"moves a value of the mod to {found.device.type}, and the tensors of the call are on {device.type}: leave it out"
    elif name == "view" and found.dtype != first.dtype:
        what = f"reads the bits of {_title(first.dtype)} as {to}, which no spec does: x.to(torch.{to}) converts the number"
    elif found.dtype in _HALVES and found.dtype != dtype and _rounds(func, args, named, found.dtype):
        what = f"rounds to {to}, and kernels compute in float32 or float64: leave it out, or convert captured tensors outside of the mod"
    else:
        return
    raise NotTranslatable(f"{Lines.given or 'a mod'}: {name} {what}")


def _rounds(func: Any, args: Any, named: dict[str, Any], to: torch.dtype) -> bool:
    """Whether it is asked to, other than by arithmetic of half precision."""
    others = [t.dtype for t in _tensors((*args, *named.values())) if t.dtype not in (to, torch.bool)]
    if title(func) in _OF_FIRST:
        return isinstance(args[0], Tensor) and args[0].dtype not in (to, torch.bool)
    if writes(func) or named.get("out") is not None:
        return any(x.is_floating_point for x in others)
    return len(others) > 0 and all(t.dtype != to for t in _tensors((*args, *named.values())))


def _tensors(args: Iterable[Any]) -> Iterable[Tensor]:
    for x in args:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors(x)


def _title(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]
