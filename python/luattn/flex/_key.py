"""What a mod is made of: a key that is equal for mods that trace alike, and the tensors that they capture."""

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor


class Unknown(Exception):
    """The mod holds something whose changes would not be noticed: it is traced in each call."""


def key_of(mods: tuple[Callable[..., Any] | None, ...], tensors: list[Tensor]) -> tuple[Any, ...] | None:
    """A key, or None where there is none. Appends the captured tensors, in an order that the key determines."""
    try:
        return tuple(_walk(mod, tensors, 0) for mod in mods)
    except Unknown:
        return None


def _walk(x: Any, tensors: list[Tensor], depth: int) -> Any:
    if depth > 20:
        raise Unknown
    if isinstance(x, Tensor):
        for i, known in enumerate(tensors):
            if known is x:
                return ("same", i)
        tensors.append(x)
        return ("tensor", x.dtype, x.shape, x.device.type, x.requires_grad)
    if x is None or isinstance(x, (bool, int, str, bytes)):
        return (type(x), x)
    if isinstance(x, float):
        return (float, x.hex())  # -0.0 is not 0.0
    if isinstance(x, (tuple, list)):
        return (type(x), *(_walk(y, tensors, depth + 1) for y in x))
    if isinstance(x, dict):
        return (dict, *((_walk(k, tensors, depth + 1), _walk(y, tensors, depth + 1)) for k, y in x.items()))
    if isinstance(x, types.FunctionType):
        return _walk_function(x, tensors, depth)
    if isinstance(x, functools.partial):
        return ("partial", *(_walk(y, tensors, depth + 1) for y in (x.func, x.args, x.keywords)))
    if isinstance(x, types.ModuleType) or isinstance(x, (type, types.BuiltinFunctionType)) or _is_of_torch(x):
        return ("id", id(x), _Kept(x))
    raise Unknown  # an object whose attributes may change, a bound method of one, ..


def _is_of_torch(x: Any) -> bool:
    return (getattr(x, "__module__", None) or type(x).__module__).partition(".")[0] == "torch"


class _Kept:
    """Keeps an object alive as long as a key, so that its id is no other's."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)


def _walk_function(f: types.FunctionType, tensors: list[Tensor], depth: int) -> Any:
    cells = []
    for cell in f.__closure__ or ():
        try:
            cells.append(_walk(cell.cell_contents, tensors, depth + 1))
        except ValueError:  # not assigned yet
            cells.append(("empty",))
    if _is_of_torch(f):
        names: list[Any] = []
    else:
        names = [
            (name, _walk(f.__globals__[name], tensors, depth + 1))
            for name in _names(f.__code__)
            if name in f.__globals__
        ]
    defaults = _walk((f.__defaults__, f.__kwdefaults__), tensors, depth + 1)
    return (f.__code__, tuple(cells), tuple(names), defaults)


def _names(code: types.CodeType) -> list[str]:
    """Names that a function or one inside of it may take from its module, and attributes, which do no harm."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return sorted(set(names))
