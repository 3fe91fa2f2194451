"""Slopes where functions bend: at ties and bounds gradients are those that PyTorch's autograd gives, which differ by its version.

A spec says a slope by the branch that it takes: where(x <= low, low, x) has none at the bound, where(x < low, low, x) has that of x, and
0.5 * x + 0.5 * low is halves of both. Masks and integers have no gradient, and keep minima and maxima, whose ranges are known."""

import functools
from typing import Any

import torch
from torch import Tensor, fx

from ._functions import slope_of
from ._lua_text import LuaText, kind, name_of

_MADE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zeros", "ones", "full", "scalar_tensor", "empty_like")


@functools.cache
def slope_at_bound() -> float:
    """Of clamp() at a bound that is a number: 1 in PyTorch 2.11, 0 in 2.15."""
    return slope_of(lambda x: torch.clamp(x, min=0.0), 0.0)


@functools.cache
def slope_at_tie() -> float:
    """Of clamp() where it equals a bound that is a tensor: 1 in PyTorch 2.11, a half in 2.15."""
    return slope_of(lambda x: torch.clamp(x, min=x.detach()), 0.0)


STOPS = ("stop_gradient", "detach")


class Bends(LuaText):
    """Clamps, and the larger and smaller of two."""

    def note_slope(self, node: fx.Node) -> None:
        """Notes of each node, in their order, whether a gradient may go through it: it depends on the score, or on a captured tensor that
        requires one; and whether a spec folds it to a number, so that the slope of a maximum beside it is not PyTorch's."""
        if node.op == "call_function":
            inputs, is_made = node.all_input_nodes, name_of(node) in _MADE
            self.slopes[node] = not is_made and name_of(node) not in STOPS and any(self.slopes.get(x, False) for x in inputs)
            self.constants[node] = is_made or all(self.constants.get(x, False) for x in inputs)
        else:
            is_number = isinstance(node.meta.get("val"), Tensor) and kind(node) == "real"
            self.slopes[node] = is_number and (node.op == "placeholder" or self.learns(node))
            self.constants[node] = node.op == "get_attr" and node not in self.arrays and not self.text[node].isidentifier()

    def has_slope(self, x: Any) -> bool:
        return isinstance(x, fx.Node) and kind(x) == "real" and self.slopes[x]

    def is_constant(self, x: Any) -> bool:
        return not isinstance(x, fx.Node) or self.constants[x]

    def learns(self, node: fx.Node) -> bool:
        """Whether a captured tensor requires a gradient."""
        raise NotImplementedError

    def extreme(self, name: str, a: Any, b: Any) -> str:
        """maximum and minimum of two: at a tie each has half of the slope."""
        if not (self.has_slope(a) or self.has_slope(b)) or not (self.is_constant(a) or self.is_constant(b)):
            return f"{name}({self.number(a)}, {self.number(b)})"
        x, y = self.named(a), self.named(b)
        return f"where(eq({x}, {y}), 0.5 * {x} + 0.5 * {y}, {name}({x}, {y}))"

    def bounded(self, x: Any, low: Any, high: Any, by_numbers: bool) -> str:
        """clamp(x, low, high), of which one bound may be None."""
        if not any(map(self.has_slope, (x, low, high))):
            text = self.number(x)
            if low is not None:
                text = f"max({text}, {self.number(low)})"
            return text if high is None else f"min({text}, {self.number(high)})"
        of_x, of_low, of_high = (None if y is None else self.named(y) for y in (x, low, high))
        assert of_x is not None
        return self.between_numbers(of_x, of_low, of_high) if by_numbers else self.between(of_x, of_low, of_high)

    @staticmethod
    def between_numbers(x: str, low: str | None, high: str | None) -> str:
        """Without a slope at a bound, or with that of x. A spec knows the range of minima and maxima, which have the latter beside constants."""
        ends = ("<=", ">=") if slope_at_bound() == 0 else ("<", ">")
        text = x
        if slope_at_bound() == 0 or any(bound is not None and bound.isidentifier() for bound in (low, high)):
            text = text if high is None else f"where({x} {ends[1]} {high}, {high}, {text})"
            least = low if high is None else f"min({low}, {high})"
            text = text if low is None else f"where({x} {ends[0]} {least}, {least}, {text})"
            if slope_at_bound() != 0:
                return text
        text = text if low is None else f"max({text}, {low})"
        return text if high is None else f"min({text}, {high})"

    @staticmethod
    def between(x: str, low: str | None, high: str | None) -> str:
        """By tensors, which may have gradients too."""
        text, halves = x, slope_at_tie() != 1
        for bound, other, sign in ((high, low, ">"), (low, high, "<")):
            if bound is None:
                continue
            if halves:
                both = f"0.5 * {x} + 0.5 * {bound}"
                text = f"where(eq({x}, {bound}), {both if other is None else f'where(eq({low}, {high}), {x}, {both})'}, {text})"
            # Before it halved ties, PyTorch gave a lower bound that equals the upper one no gradient.
            given = f"where(eq({low}, {high}), stop_gradient({bound}), {bound})" if not halves and sign == "<" and other is not None else bound
            text = f"where({x} {sign} {bound}, {given}, {text})"
        return text if low is None or high is None else f"where({low} > {high}, {high}, {text})"
