"""Traces FlexAttention's mods by torch.fx, each node with the line of the user's Python that made it."""

import contextlib
import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Unsupported

Mod = Callable[..., Tensor]


class NotTranslatable(Unsupported):
    """A mod that a spec cannot say. The message starts with the file and the line of the user's Python."""


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(torch.__file__)


def _is_users(file: str) -> bool:
    return not file.startswith((_TORCH, _HERE, "<"))


class Lines(TorchDispatchMode):
    """Gives each node the line of the user's Python that made it. torch.fx keeps lines of functions named forward alone."""

    given: str | None = None  # of what a graph replays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = inspect.currentframe()
        while frame is not None and not _is_users(frame.f_code.co_filename):
            frame = frame.f_back
        with fx.traceback.preserve_node_meta():
            place = Lines.given or (f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "")
            fx.traceback.set_stack_trace([place] if place else [])
            return func(*args, **(kwargs or {}))


class _Indices(TorchFunctionMode):
    """Keeps t[i] with a tensor i of no dimensions from asking for its value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(_is_number(x) for x in index) and all(
                x is None or x is Ellipsis or isinstance(x, (int, slice)) or _is_number(x) for x in index
            ):
                return _step_by_step(args[0], index)
        return func(*args, **(kwargs or {}))


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 0 and x.dtype != torch.bool


def _step_by_step(t: Tensor, index: tuple[Any, ...]) -> Tensor:
    axis = 0
    for i, x in enumerate(index):
        if x is Ellipsis:
            axis = t.dim() - sum(y is not None for y in index[i + 1 :])
        elif _is_number(x):
            t = torch.ops.aten.index.Tensor(t, [None] * axis + [x])
        else:
            t = t[(slice(None),) * axis + (x,)]
            axis += not isinstance(x, int)
    return t


def place_of(mod: Mod) -> str:
    code = getattr(mod, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(mod, "__name__", "mod")


def _place_of_error(mod: Mod, error: BaseException) -> str:
    if Lines.given:
        return Lines.given
    found, step = place_of(mod), error.__traceback__
    inside = False  # of the call of the mod
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if inside and _is_users(file):
            found = f"{file}:{step.tb_lineno}"
        inside = inside or file == __file__
        step = step.tb_next
    return found


def with_tensors(mod: Any, cells: list[types.CellType], numbers: list[Tensor]) -> Any:
    """The mod with tensors in the place of numbers that it captures, so that they stay apart in its trace."""
    made: dict[int, types.CellType] = {id(cell): types.CellType(x) for cell, x in zip(cells, numbers)}

    def copied(f: Any) -> Any:
        if not isinstance(f, types.FunctionType) or not f.__closure__:
            return f
        closure = tuple(cell_of(cell) for cell in f.__closure__)
        if all(a is b for a, b in zip(closure, f.__closure__)):
            return f
        copy = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, closure)
        copy.__kwdefaults__ = f.__kwdefaults__
        return copy

    def cell_of(cell: types.CellType) -> types.CellType:
        if id(cell) not in made:
            made[id(cell)] = cell  # a function that holds itself
            with contextlib.suppress(ValueError):  # not assigned yet
                function = copied(cell.cell_contents)
                if function is not cell.cell_contents:
                    made[id(cell)] = types.CellType(function)
        return made[id(cell)]

    return copied(mod) if cells else mod


def trace(mod: Mod, dtype: torch.dtype | None, device: torch.device) -> fx.GraphModule:
    def with_lines(*args: Tensor) -> Tensor:
        with Lines():
            return mod(*args)

    args = [torch.zeros((), dtype=torch.int32, device=device) for _ in range(4)]
    if dtype is not None:
        args.insert(0, torch.zeros((), dtype=dtype, device=device))
    try:
        with torch.enable_grad(), _Indices():
            graph = make_fx(with_lines, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    except GuardOnDataDependentSymNode as e:
        raise NotTranslatable(
            f"{_place_of_error(mod, e)}: a decision of Python on a value of the mod (if, and, or, not, int()): "
            "write torch.where, &, | or ~"
        ) from None
    except Exception as e:
        raise NotTranslatable(
            f"{_place_of_error(mod, e)}: {type(e).__name__}: {str(e).partition(chr(10))[0]}"
        ) from e
    graph.graph.eliminate_dead_code()
    return graph
