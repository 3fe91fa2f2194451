"""Inputs and scalars of a spec, as a call gives them: tensors where q is, and numbers that stand for some."""

from typing import Any

from ._arguments import is_compiling, is_tensor, mixed, take
from ._call import is_numpy
from ._spec import InputInfo
from .errors import InvalidError

ALIKE = set[tuple[type, type]]()  # types of inputs and of q that go together
_INTEGERS = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1), "int16": (-(2**15), 2**15 - 1), "uint8": (0, 255), "bool": (0, 1)}


def input_of(name: str, info: InputInfo, x: Any, q: Any) -> Any:
    """A tensor where q is, which may be a number, as the input without axes that it stands for. q None: a tensor anywhere."""
    torch_is_due = q is not None and is_tensor(q)
    if is_compiling() and not isinstance(x, (int, float)):
        return x
    if type(x).__module__ == "numpy" and not hasattr(x, "__setitem__") and hasattr(x, "item"):
        x = x.item()
    if not isinstance(x, (int, float)):
        take(name, f"input '{info.name}'", "input", x)
        if is_tensor(x) and x.is_meta and not (torch_is_due and q.is_meta):
            raise InvalidError(f"{name}: input '{info.name}': is on meta, without data, and the call's tensors have some: move one of them")
        if q is not None and is_tensor(x) != torch_is_due:
            if len(x.shape) or info.axes:
                raise InvalidError(mixed(name, f"input '{info.name}'", x, "q", q))
            x = _number_of(f"{name}: input '{info.name}'", x)  # in an array of another library
        else:
            ALIKE.add((type(x), type(q)))
            return x
    return _number_as_input(name, info, x, q)


def _number_of(said: str, x: Any) -> Any:
    if is_tensor(x):
        from ._tangents import refuse_in

        refuse_in(said, x)
    return x.item()


def _number_as_input(name: str, info: InputInfo, number: Any, q: Any) -> Any:
    if info.axes:
        raise InvalidError(
            f"{name}: input '{info.name}' is the number {number:g}, expected a tensor with the axes {', '.join(info.axes)}"
        )
    dtype = "float32" if info.dtype == "any" else info.dtype
    if isinstance(number, bool) and dtype != "bool":
        raise InvalidError(f"{name}: input '{info.name}' is the bool {number}, expected a number")
    if dtype in _INTEGERS:
        least, most = _INTEGERS[dtype]
        if not (least <= number <= most and number == int(number)):  # nan is not within them
            raise InvalidError(f"{name}: input '{info.name}' is the number {number!r}, which {dtype} does not hold")
    if q is not None and not is_numpy(q):
        import torch

        return torch.full((), number, dtype=getattr(torch, dtype), device=q.device)
    import numpy

    return numpy.full((), number, dtype)


def scalar_of(place: str, name: str, x: Any, q: Any) -> Any:
    """A number, or a tensor of one, with which a gradient goes."""
    if is_compiling():
        return x
    x = take(place, f"scalar '{name}'", "scale", x)
    if is_tensor(x) and q is not None and is_numpy(q):
        if x.numel() != 1:
            raise InvalidError(f"{place}: scalar '{name}': has shape {tuple(x.shape)}, expected one element, or a number")
        return float(_number_of(f"{place}: scalar '{name}'", x))
    return x
