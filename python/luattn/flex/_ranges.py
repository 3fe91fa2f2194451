"""Which integers of a mod may leave 32 bits, where PyTorch wraps and a spec does not, or are divided by zero: bounds of what is computed, for the sizes and tensors of
a call.

A trace has the types: what PyTorch computes in int32 is bounded, and what it computes in int64 is not looked at."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ._elements import SAME, STOPS
from ._lua_text import name_of
from ._zeros import DIVIDES, Zero, is_zero, zeros_of

Range = tuple[float, float]
_ALL: Range = (-(2.0**31), 2.0**31 - 1)
_SMALL: Range = (-(2.0**24), 2.0**24)  # integers that reals are cut to, which a spec counts as such
_KEPT = (*SAME, *STOPS, "view", "_unsafe_view", "reshape", "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "expand", "permute", "transpose", "t", "select",
         "slice", "index", "unbind", "split", "split_with_sizes", "getitem", "amax", "amin", "max", "min", "aminmax", "trunc", "floor", "ceil", "round")  # fmt: skip


@dataclass
class Limits:
    """The steps of a mod's integers. A step is a function of the ranges of earlier ones, by their places."""

    steps: list[tuple[Callable[..., Range], tuple[int, ...]]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)  # of parameters: which of b, h, q_idx, kv_idx a step is
    tensors: dict[int, int] = field(default_factory=dict)  # of captured tensors: which one
    checks: list[tuple[int, str, str]] = field(default_factory=list)  # a step that wraps, what it is, and where
    divisors: list[tuple[list[Zero], str, str]] = field(default_factory=list)  # where one is 0, what divides by it, and where

    def find(self, sizes: Sequence[int], of_tensor: Callable[[int], Range]) -> tuple[str, str] | None:
        """What leaves 32 bits, or is divided by zero: its place, and what is wrong."""
        ranges: list[Range] = []
        for at, (step, places) in enumerate(self.steps):
            if at in self.sizes:
                ranges.append((0, max(0, sizes[self.sizes[at]] - 1)))
            elif at in self.tensors:
                ranges.append(of_tensor(self.tensors[at]))
            else:
                ranges.append(step(*[ranges[i] for i in places]))
        for at, name, place in self.checks:
            low, high = ranges[at]
            if low < _ALL[0] or high > _ALL[1]:
                return place, (
                    f"{name} of int32 may reach {high if high > _ALL[1] else low:.0f}, and PyTorch wraps it at 2^31, which kernels do not: compute with integers of "
                    "64 bits, x.long(), or with floats"
                )
        for zeros, name, place in self.divisors:
            if any(is_zero(ranges, zero) for zero in zeros):
                return place, (
                    f"{name}: an integer is divided by zero, at which PyTorch raises an error on the CPU, and a GPU gives any number: divide by what is never 0, "
                    "as x.clamp(min=1) or torch.where(x == 0, 1, x)"
                )
        return None


def limits_of(graph: fx.GraphModule, captured: Sequence[Tensor], has_score: bool) -> Limits | None:
    """None: nothing in it may leave 32 bits, whatever a call has."""
    made, places = Limits(), dict[Any, int]()
    parameters, low_bits = iter(range(-has_score, 4)), _keeping_low_bits(graph)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            index = next(parameters)
            if index >= 0:
                made.sizes[len(made.steps)] = index
                _add(made, places, node, _unknown, ())
        elif node.op == "get_attr":
            tensor = getattr(graph, str(node.target))
            known = next((i for i, t in enumerate(captured) if t is tensor), None)
            if not _is_integer(tensor):
                continue
            if known is not None:
                made.tensors[len(made.steps)] = known
            value = float(tensor.item()) if known is None and tensor.numel() == 1 else None
            _add(made, places, node, _unknown if value is None else _constant(value), ())
        elif node.op == "call_function" and isinstance(node.meta.get("val"), (Tensor, tuple, list)):
            _compute(made, places, node, low_bits)
    ends = [(float(x.min), float(x.max)) for x in (torch.iinfo(t.dtype) for t in captured if _is_integer(t) and t.dtype != torch.bool)]
    worst = made.find([1 << 24] * 4, lambda _: _union(*ends) if ends else _ALL) if made.checks else None
    return made if worst is not None or made.divisors else None


def _is_integer(t: Any) -> bool:
    return isinstance(t, Tensor) and not (t.is_floating_point() or t.is_complex())


def _add(made: Limits, places: dict[Any, int], node: Any, step: Callable[..., Range], args: tuple[int, ...]) -> int:
    made.steps.append((step, args))
    places[node] = len(made.steps) - 1
    return places[node]


def _unknown(*_: Range) -> Range:
    return _ALL


def _unbounded(*_: Range) -> Range:
    return -math.inf, math.inf


def _constant(x: float) -> Callable[..., Range]:
    return lambda *_: (x, x)


def _compute(made: Limits, places: dict[Any, int], node: fx.Node, low_bits: set[fx.Node]) -> None:
    value = node.meta["val"]
    if isinstance(value, Tensor) and not _is_integer(value):
        return
    name = "index" if "mod_index" in str(node.target) else name_of(node)
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        _add(made, places, node, lambda *_: (0, 1), ())
        return

    def place(x: Any) -> int:
        if isinstance(x, fx.Node):
            if x in places:
                return places[x]
            return _add(made, places, object(), lambda *_: _SMALL, ())  # a real
        return _add(made, places, object(), _constant(float(x)) if isinstance(x, (bool, int, float)) else _unknown, ())

    args: list[Any] = list(node.args)
    step, given = _step(name, args, dict(node.kwargs), node)
    if step is _unknown and not (isinstance(value, Tensor) and value.dtype != torch.int64):
        step = _unbounded
    at = _add(made, places, node, step, tuple(map(place, given)))
    if isinstance(value, Tensor) and value.dtype == torch.int32 and name in _WRAPPING and node not in low_bits:
        if name != "_to_copy" or _is_integer(args[0].meta["val"]):
            made.checks.append((at, name, node.stack_trace or ""))
    if name in DIVIDES and len(args) > 1:
        zeros = zeros_of(args[1], places.get)
        if zeros:
            made.divisors.append((zeros, name, node.stack_trace or ""))


def _keeping_low_bits(graph: fx.GraphModule) -> set[fx.Node]:
    """Of which all that reads a result keeps its low bits, as a hash does: these are the same wrapped or not."""
    found = set[fx.Node]()

    def keeps(user: fx.Node) -> bool:
        name, number = name_of(user), user.args[1] if len(user.args) > 1 else None
        if name == "bitwise_and":
            return any(isinstance(x, int) and x >= 0 for x in user.args)
        if name == "remainder":
            return isinstance(number, int) and number > 0 and number & (number - 1) == 0
        return name in ("add", "sub", "rsub", "mul", "neg") and user in found

    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and node.users and all(map(keeps, node.users)):
            found.add(node)
    return found


_WRAPPING = ("add", "sub", "rsub", "mul", "neg", "abs", "square", "pow", "bitwise_left_shift", "__lshift__", "_to_copy", "addcmul")


def _step(name: str, args: list[Any], options: dict[str, Any], node: fx.Node) -> tuple[Callable[..., Range], Iterable[Any]]:
    """The range of a result from those of some of its arguments."""
    alpha = float(options.get("alpha", 1)) if isinstance(options.get("alpha", 1), (int, float)) else math.inf
    if name in ("add", "sub", "rsub"):
        first, second = (args[1], args[0]) if name == "rsub" else (args[0], args[1])
        sign = alpha if name == "add" else -alpha
        if name == "rsub" and alpha != 1:
            return _unknown, ()
        return lambda a, b: _sum(a, _product(b, (sign, sign))), (first, second)
    if name in ("mul", "bitwise_left_shift", "__lshift__"):
        return (_product if name == "mul" else lambda a, b: _product(a, (2.0 ** max(b[0], 0), 2.0 ** min(max(b[1], 0), 64)))), args[:2]
    if name == "neg":
        return lambda a: (-a[1], -a[0]), args[:1]
    if name in ("abs", "square"):
        return (lambda a: _around(a, name == "square")), args[:1]
    if name == "pow":
        return _power, args[:2]
    if name == "bitwise_not":
        return lambda a: (-a[1] - 1, -a[0] - 1), args[:1]
    if name in ("maximum", "minimum"):
        pick = max if name == "maximum" else min
        return lambda a, b: (pick(a[0], b[0]), pick(a[1], b[1])), args[:2]
    if name in ("clamp", "clamp_min", "clamp_max", "clamp_between"):
        low = args[1] if name != "clamp_max" and len(args) > 1 else options.get("min")
        high = args[1] if name == "clamp_max" else args[2] if len(args) > 2 else options.get("max")
        return _clamped, (args[0], -math.inf if low is None else low, math.inf if high is None else high)
    if name in ("where", "masked_fill"):
        return _union, args[1:3] if name == "where" else (args[0], args[2])
    if name in ("stack", "cat"):
        return _union, args[0]
    if name in ("remainder", "fmod"):
        return _remainder, args[:2]
    if name in ("div", "floor_divide"):
        return _quotient, args[:2]
    if name in ("sign", "sgn"):
        return lambda *_: (-1, 1), ()
    if name in ("searchsorted", "bucketize"):
        ends = args[0] if name == "searchsorted" else args[1]
        return _constant_range(0, float(ends.meta["val"].numel())), ()
    if name == "bitwise_and":
        return _bits_of_and, args[:2]
    if name in ("bitwise_or", "bitwise_xor"):
        return _bits_of_or, args[:2]
    if name in ("bitwise_right_shift", "__rshift__"):
        return lambda a, _: (min(a[0], 0.0), max(a[1], 0.0)), args[:2]
    if name == "arange":
        ends = [float(x) for x in args if isinstance(x, (int, float))]
        return _constant_range(min(0.0, *ends) if ends else 0.0, max(0.0, *ends) if ends else 0.0), ()
    if name in ("full", "full_like", "new_full", "scalar_tensor"):
        return _union, [x for x in args if isinstance(x, (int, float, fx.Node)) and not (isinstance(x, fx.Node) and x is args[0] and name != "full")] or [0]
    if name in ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"):
        return _constant_range(0, 1), ()
    if name == "_to_copy" or name in _KEPT:
        return (lambda a: a), args[:1]
    return _unknown, ()


def _constant_range(low: float, high: float) -> Callable[..., Range]:
    return lambda *_: (low, high)


def _sum(a: Range, b: Range) -> Range:
    return a[0] + b[0], a[1] + b[1]


def _product(a: Range, b: Range) -> Range:
    ends = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(ends), max(ends)


def _around(a: Range, squares: bool) -> Range:
    most, least = max(-a[0], a[1]), 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return (least * least, most * most) if squares else (least, most)


def _power(a: Range, n: Range) -> Range:
    most = max(-a[0], a[1], 1.0)
    end = most ** min(max(n[1], 0.0), 64.0) if most < 1e6 or n[1] <= 4 else math.inf
    return (-end if a[0] < 0 else 0.0), end


def _clamped(a: Range, low: Range, high: Range) -> Range:
    ends = [min(max(x, y), z) for x, y, z in ((a[0], low[0], high[0]), (a[1], low[1], high[1]))]
    return ends[0], ends[1]


def _union(*ranges: Range) -> Range:
    return min(x[0] for x in ranges), max(x[1] for x in ranges)


def _remainder(a: Range, b: Range) -> Range:
    most = max(abs(b[0]), abs(b[1]), 1.0) - 1
    return (0.0 if b[0] > 0 and a[0] >= 0 else -most), (min(most, a[1]) if a[0] >= 0 and b[0] > 0 else most)


def _quotient(a: Range, b: Range) -> Range:
    most = max(-a[0], a[1])
    if b[0] > 0:
        return min(0.0, a[0] / b[0] - 1), max(0.0, a[1] / b[0])
    return -most - 1, most


def _bits_of_or(a: Range, b: Range) -> Range:
    """Of as many bits as the longer one has."""
    most = max(-a[0] - 1, a[1], -b[0] - 1, b[1])
    end = 2.0 ** math.frexp(most)[1] if math.isfinite(most) else most
    return (0.0 if a[0] >= 0 and b[0] >= 0 else -end), end - 1


def _bits_of_and(a: Range, b: Range) -> Range:
    """Of two, of which one that is not negative bounds the other."""
    bounds = [x[1] for x in (a, b) if x[0] >= 0]
    return (0.0, min(bounds)) if bounds else _ALL
