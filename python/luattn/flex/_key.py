"""What a mod is made of: a key that is equal for mods that trace alike, and the tensors and numbers that they capture."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Unknown(Exception):
    """The mod holds something whose changes would not be noticed."""


class Walk:
    """Goes through mods, and what they hold, in an order that the key determines.

    Python's floats that a score_mod has in its closure are not a part of the key if `numbers` says so, but of `cells`.
    """

    def __init__(self, score_mod: Callable[..., Any] | None, mask_mod: Any, numbers: bool) -> None:
        self.tensors: list[Tensor] = []
        self.cells: list[types.CellType] = []
        self.depth = 0
        self.numbers = numbers
        first = self.walk(score_mod)
        self.numbers = (
            False  # a mask is looked at for what it leaves empty, which a number at run time would hide
        )
        self.key = (first, self.walk(mask_mod))

    def walk(self, x: Any, names: frozenset[str] = frozenset()) -> Any:
        """names: what the code that holds x says behind a dot."""
        if self.depth > 20:
            raise Unknown
        self.depth += 1
        try:
            return self.one(x, names)
        finally:
            self.depth -= 1

    def one(self, x: Any, names: frozenset[str]) -> Any:
        if isinstance(x, Tensor):
            for i, known in enumerate(self.tensors):
                if known is x:
                    return ("same", i)
            self.tensors.append(x)
            return ("tensor", x.dtype, x.shape, x.device.type, x.requires_grad)
        if x is None or isinstance(x, (bool, int, str, bytes)):
            return (type(x), x)
        if isinstance(x, float):
            return (float, x.hex())  # -0.0 is not 0.0
        if isinstance(x, (tuple, list)):
            return (type(x), *(self.walk(y, names) for y in x))
        if isinstance(x, dict):
            return (dict, *((self.walk(k), self.walk(y, names)) for k, y in x.items()))
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if isinstance(x, types.MethodType) and isinstance(x.__func__, types.FunctionType):
            return ("method", self.function(x.__func__), self.walk(x.__self__, _names(x.__func__.__code__)))
        if isinstance(x, functools.partial):
            return ("partial", *(self.walk(y) for y in (x.func, x.args, x.keywords)))
        if isinstance(x, (types.ModuleType, type, types.BuiltinFunctionType)) or _is_constant_of_torch(x):
            return ("id", id(x), _Kept(x))
        return self.thing(x, names)

    def function(self, f: types.FunctionType) -> Any:
        names = _names(f.__code__)
        cells = tuple(self.cell(cell, names) for cell in f.__closure__ or ())
        found: list[Any] = []
        if not _is_of_torch(f):
            found = [
                (name, self.walk(f.__globals__[name], names))
                for name in sorted(names)
                if name in f.__globals__
            ]
        defaults = self.walk((f.__defaults__, f.__kwdefaults__))
        return (f.__code__, cells, tuple(found), defaults)

    def cell(self, cell: types.CellType, names: frozenset[str]) -> Any:
        try:
            x = cell.cell_contents
        except ValueError:  # not assigned yet
            return ("empty",)
        if not self.numbers or type(x) is not float or not (x == 0 or 2**-126 <= abs(x) < 2**127):
            return self.walk(x, names)
        for i, known in enumerate(self.cells):
            if known is cell:
                return ("number", i)
        self.cells.append(cell)
        return ("number", len(self.cells) - 1)

    def thing(self, x: Any, names: frozenset[str]) -> Any:
        """An object: those attributes that the code names, and its callables."""
        if not hasattr(x, "__dict__"):
            raise Unknown
        held = dict(vars(x))
        if isinstance(x, nn.Module):
            held |= {**x._parameters, **x._buffers, **x._modules}
        found: list[Any] = []
        for name in sorted({*names, "__call__", "forward"}):
            if name in held:
                found.append((name, self.walk(held[name], names)))
                continue
            of_class = inspect.getattr_static(type(x), name, None)
            if isinstance(of_class, types.FunctionType) and not _is_of_torch(of_class):
                inner = _names(of_class.__code__)
                found.append((name, self.function(of_class), self.thing(x, inner) if inner - names else ()))
            elif isinstance(of_class, (bool, int, float, str, Tensor)):
                found.append((name, self.walk(of_class)))
            elif (
                isinstance(of_class, property)
                or hasattr(type(x), "__getattr__")
                and not isinstance(x, nn.Module)
            ):
                raise Unknown
        return (type(x), *found)


def _is_of_torch(x: Any) -> bool:
    return (getattr(x, "__module__", None) or type(x).__module__).partition(".")[0] == "torch"


def _is_constant_of_torch(x: Any) -> bool:
    """A type, a device, an op, ..: not an object that a user fills."""
    return _is_of_torch(x) and (not hasattr(x, "__dict__") or type(x).__module__ == "torch._ops")


class _Kept:
    """Keeps an object alive as long as a key, so that its id is no other's."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that a function or one inside of it may take from its module, and attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return frozenset(names)
