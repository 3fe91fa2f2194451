"""Traces FlexAttention's mods by torch.fx, each node with the line of the user's Python that made it."""

import contextlib
import functools
import logging
import math
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import NotTranslatable as NotTranslatable
from ._functions import decompositions, slope_of

Mod = Callable[..., Tensor]


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(torch.__file__)


def _is_users(file: str) -> bool:
    return not file.startswith((_TORCH, _HERE, "<frozen", "<eval_with_key>", "<__array_function__"))


CALLERS = set[types.CodeType]()  # of mods: who called them is not to blame


def user_line() -> str | None:
    """file:line of the user's Python that runs inside of a mod."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = None if frame.f_code in CALLERS else frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else None


def in_function() -> bool:
    """Whether the forward of a torch.autograd.Function runs, where PyTorch turns gradients off."""
    forwards, kinds = set[Any](), [torch.autograd.Function]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        forwards.add(getattr(kind.forward, "__code__", None))
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in forwards:
        frame = frame.f_back
    return frame is not None


class Lines(TorchDispatchMode):
    """Gives each node the line of the user's Python that made it. torch.fx keeps lines of functions named forward alone."""

    given: str | None = None  # of what a graph replays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with fx.traceback.preserve_node_meta():
            place = Lines.given or user_line()
            fx.traceback.set_stack_trace([place] if place else [])
            return func(*args, **(kwargs or {}))


class _Indices(TorchFunctionMode):
    """Keeps t[i] with a tensor i of no dimensions from asking for its value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            return indexed(*args)
        return func(*args, **(kwargs or {}))


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 0 and x.dtype != torch.bool


def indexed(t: Tensor, index: Any) -> Tensor:
    """t[index], one step for each index that is a tensor of no dimensions."""
    steps = index if isinstance(index, tuple) else (index,)
    if not any(_is_number(x) for x in steps) or not all(
        x is None or x is Ellipsis or isinstance(x, (int, slice)) or _is_number(x) for x in steps
    ):
        return t[index]
    axis = 0
    for i, x in enumerate(steps):
        if x is Ellipsis:
            axis = t.dim() - sum(y is not None for y in steps[i + 1 :])
        elif _is_number(x):
            t = torch.ops.aten.index.Tensor(t, [None] * axis + [x])
        else:
            t = t[(slice(None),) * axis + (x,)]
            axis += not isinstance(x, int)
    return t


# A constant to backward. Traces drop detach() where nothing requires a gradient, and here nothing does.
_library = torch.library.Library("luattn", "FRAGMENT")
_library.define("stop_gradient(Tensor x) -> Tensor")
_library.impl("stop_gradient", torch.clone, "CompositeExplicitAutograd")
stop_gradient = torch.ops.luattn.stop_gradient.default
# A clamp by numbers that are arguments, whose slopes are not those of one by tensors.
_library.define("clamp_between(Tensor x, Tensor? low, Tensor? high) -> Tensor")
_library.impl("clamp_between", lambda x, low, high: torch.clamp(x, low, high), "CompositeExplicitAutograd")
clamp_between = torch.ops.luattn.clamp_between.default
DETACHING = (Tensor.detach, torch.detach, torch.ops.aten.detach.default, Tensor.data.__get__)  # type: ignore[attr-defined]


def place_of(mod: Any) -> str:
    code = code_of(mod)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(mod, "__name__", "mod")


def code_of(mod: Any, depth: int = 4) -> Any:
    """Of a function, or of what a partial, an object with __call__, a module or a function of PyTorch's (and_masks) calls: the user's if there is one."""
    mod = getattr(mod, "replayed", mod)
    if isinstance(mod, functools.partial):
        return code_of(mod.func, depth)
    code = getattr(mod, "__code__", None)
    if code is None:
        method = "forward" if isinstance(mod, torch.nn.Module) else "__call__"
        return getattr(getattr(type(mod), method, None), "__code__", None)
    if _is_users(code.co_filename) or depth == 0:
        return code
    held = [cell.cell_contents for cell in getattr(mod, "__closure__", None) or () if cell != _EMPTY]
    inner = [y for x in held for y in (x if isinstance(x, (tuple, list)) else (x,)) if callable(y) and not isinstance(y, type)]
    codes = [found for x in inner if (found := code_of(x, depth - 1)) is not None and _is_users(found.co_filename)]
    return codes[0] if codes else code


_EMPTY = types.CellType()  # of a variable that has no value yet


class _Quiet(threading.local):
    depth = 0


_quiet = _Quiet()
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda _: _quiet.depth == 0)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the tracebacks that PyTorch prints, in this thread, of what is refused in one line here."""
    _quiet.depth += 1
    try:
        yield
    finally:
        _quiet.depth -= 1


class ReturnLine:
    """Notes the line from which a function of the user's returned last."""

    place: str | None = None

    def __enter__(self) -> "ReturnLine":
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "return" and _is_users(frame.f_code.co_filename):
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"


def place_of_error(mod: Mod, error: BaseException) -> str:
    if Lines.given:
        return Lines.given
    found, step = place_of(mod), error.__traceback__
    inside = False  # of the call of the mod
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if inside and _is_users(file):
            found = f"{file}:{step.tb_lineno}"
        inside = inside or file.startswith(_HERE)
        step = step.tb_next
    return found


def is_of_transform(error: BaseException) -> bool:
    """Whether it comes from torch.func, which looks at what a value is to C++."""
    step = error.__traceback__
    while step is not None and "_functorch" not in step.tb_frame.f_code.co_filename:
        step = step.tb_next
    return step is not None


@functools.cache
def _decompositions() -> Any:
    """Functions that PyTorch writes by others, which have counterparts in a spec."""
    names = (
        "leaky_relu elu hardtanh hardsigmoid hardswish mish lerp addcmul addcdiv logaddexp logaddexp2 heaviside threshold softshrink "
        "hardshrink rad2deg deg2rad celu selu softsign float_power addmm smooth_l1_loss huber_loss mse_loss "
        "addmv _softmax _log_softmax native_layer_norm native_group_norm logsumexp"
    )
    aten = torch.ops.aten
    known = get_decompositions([getattr(aten, name) for name in names.split() if hasattr(aten, name)])
    known[aten.log_sigmoid_forward.default] = _log_sigmoid
    known |= {
        aten.hardtanh.default: _hardtanh, aten.hardsigmoid.default: _hardsigmoid, aten.hardswish.default: _hardswish,
        aten._softmax.default: _softmax, aten.logsumexp.default: _logsumexp, aten.logit.default: _logit,
    }  # fmt: skip
    known |= decompositions()
    return {**known, aten.var_mean.correction: _var_mean, aten.var.correction: lambda *a, **given: _var_mean(*a, **given)[0]}


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smooth at 0, where minima and magnitudes are not."""
    return -torch.nn.functional.softplus(-x), torch.zeros_like(x)


def _hardtanh(x: Tensor, low: Any = -1, high: Any = 1) -> Tensor:
    """Flat at the bounds, as relu6 and the next two are."""
    return torch.where(x <= low, low, torch.where(x >= high, high, x)).to(x.dtype)


def _hardsigmoid(x: Tensor) -> Tensor:
    return _hardtanh(x / 6 + 0.5, 0.0, 1.0)


def _hardswish(x: Tensor) -> Tensor:
    is_below = x < -3 if _bends_outside() else x <= -3
    return torch.where(is_below, 0.0, torch.where(x >= 3, x, x * (x / 6 + 0.5))).to(x.dtype)


@functools.cache
def _bends_outside() -> bool:
    """In early versions of PyTorch hardswish has the slope of what is between its bounds at the lower one."""
    return slope_of(torch.nn.functional.hardswish, -3.0) != 0


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    """PyTorch's own bounds x by -1 and 2 where it has no bounds, of which a spec would compute NaN."""
    if eps is not None:
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x)).to(x.dtype)
    return torch.log(x / (1 - x))


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The largest number takes part in no slope."""
    weights = torch.exp(x - stop_gradient(torch.amax(x, dim, keepdim=True)))
    return weights / weights.sum(dim, keepdim=True)


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    most = stop_gradient(torch.amax(x, dim, keepdim=True))
    most = torch.where(most.abs() == torch.inf, 0.0, most).to(x.dtype)
    found = torch.exp(x - most).sum(dim, keepdim=True).log() + most
    return found if keepdim else found.squeeze(dim if isinstance(dim, int) else tuple(dim))


def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axes = [*range(x.dim())] if dim is None else dim
    mean = x.mean(axes, keepdim=True)
    count = math.prod(x.shape[axis] for axis in axes)
    squares = (x - mean).square().sum(axes, keepdim=keepdim)
    return squares / (count - (1 if correction is None else correction)), mean if keepdim else x.mean(axes)


def trace(mod: Mod, dtype: torch.dtype | None, device: torch.device, writes: bool = False) -> fx.GraphModule:
    """writes: whether it, or what it calls, changes values in place."""

    def with_lines(*args: Tensor) -> Tensor:
        with Lines():
            return mod(*[x.clone() for x in args] if writes else args)

    args = [torch.zeros((), dtype=torch.int32, device=device) for _ in range(4)]
    if dtype is not None:
        args.insert(0, torch.zeros((), dtype=dtype, device=device))
    run: Any = torch.func.functionalize(with_lines, remove="mutations") if writes else with_lines
    try:
        with _Indices(), quietly():
            graph = make_fx(run, _decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    except NotTranslatable:
        raise
    except GuardOnDataDependentSymNode as e:
        raise NotTranslatable(
            f"{place_of_error(mod, e)}: a decision of Python on a value of the mod (if, and, or, not, int()): "
            "write torch.where, &, | or ~"
        ) from None
    except Exception as e:
        raise NotTranslatable(
            f"{place_of_error(mod, e)}: {type(e).__name__}: {str(e).partition(chr(10))[0]}"
        ) from e
    if not writes and any(_is_mutable(node.target) for node in graph.graph.nodes):
        return trace(mod, dtype, device, writes=True)
    graph.graph.eliminate_dead_code()
    return graph


def _is_mutable(op: Any) -> bool:
    """Other than to the shape alone."""
    if not isinstance(op, torch._ops.OpOverload) or op._schema.name in ("aten::squeeze_", "aten::unsqueeze_"):
        return False
    return op._schema.is_mutable
