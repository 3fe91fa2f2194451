"""The body of a hook in the making: lines of Lua, and what they call the values of a traced mod."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ._blame import length, marked


def kind(x: Any) -> str:
    """bool, int or real, as Lua tells them apart."""
    if isinstance(x, fx.Node):
        dtype = x.meta["val"].dtype
        return "bool" if dtype == torch.bool else "real" if dtype.is_floating_point else "int"
    return "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "real"


@dataclass
class Array:
    """A tensor with axes: what Lua writes for the element at some indices, themselves Lua."""

    shape: tuple[int, ...]
    at: Callable[[tuple[str, ...]], str]


class LuaText:
    """Lines, and the names of values in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.of_score = False  # whether it is no mask, which is known by its conditions
        self.count = 0  # of local variables
        self.loops = 0  # that the line in the making is inside of
        self.where: tuple[str, ...] = ()  # the element of arrays that is being written
        self.text: dict[fx.Node, str] = {}
        self.arrays: dict[fx.Node, Array] = {}
        self.at_least_0: set[fx.Node] = set()
        self.elements: dict[tuple[fx.Node, tuple[str, ...]], str] = {}  # names of elements in the loop that is being written
        self.slopes: dict[fx.Node, bool] = {}  # whether a gradient may go through
        self.constants: dict[fx.Node, bool] = {}  # whether a spec folds it to a number
        self.loaded: set[Any] = set()  # integers of captured tensors
        self.factors: list[Any] = []  # those of fewer than 64 bits that are multiplied
        self.marks = False  # whether each step is on lines of its own, which say where in Python it was made

    def marked(self, node: fx.Node, text: str) -> str:
        return marked(text, node.stack_trace) if self.marks and node.stack_trace else text

    def value(self, x: Any) -> str:
        if isinstance(x, fx.Node):
            if x in self.arrays:
                array = self.arrays[x]
                last = self.where[len(self.where) - len(array.shape) :]
                return array.at(tuple("0" if n == 1 else i for n, i in zip(array.shape, last)))
            return self.text[x]
        if isinstance(x, bool):
            return "true" if x else "false"
        if isinstance(x, int):
            return repr(x) if x >= 0 else f"({x})"
        if isinstance(x, float):
            if math.isnan(x):
                return "(0/0)"
            if math.isinf(x):
                return "math.huge" if x > 0 else "(-math.huge)"
            return repr(x) if x >= 0 else f"({x!r})"
        raise ValueError(f"{x!r} is no number")

    def number(self, x: Any) -> str:
        """A bool is a number in Python, and not in Lua."""
        return f"where({self.value(x)}, 1, 0)" if kind(x) == "bool" else self.value(x)

    def test(self, x: Any) -> str:
        """A number is a condition in Python, and another one in Lua."""
        return self.value(x) if kind(x) == "bool" else f"ne({self.value(x)}, 0)"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, fx.Node) and isinstance(x.meta.get("val"), Tensor) and x.meta["val"].dim() > 0

    def array_of(self, x: Any) -> Array:
        if x in self.arrays:
            return self.arrays[x]
        return Array((), lambda where: self.value(x))

    def found(self, node: fx.Node, array: Array) -> None:
        """What a node is, which is written at once where it has no axes."""
        if array.shape or not isinstance(node.meta["val"], Tensor):
            self.arrays[node] = array
        else:
            self.write(node, array.at(()))

    def write(self, node: fx.Node, text: str) -> None:
        """A line of its own, unless it is short and used once: a Lua function has 200 local variables at most."""
        self.text[node] = text = self.marked(node, text)
        if len(node.users) > 1 and self.of_score and kind(node) == "bool" and not text.isidentifier():
            self.text[node] = self.as_number(text)
        elif len(node.users) > 1 or length(text) > 60:
            self.named(node)

    def as_number(self, condition: str) -> str:
        """A condition that several ask, as a number of a name: Lua's own truth values would make the hook branch."""
        return f"ne({self.local(f'where({condition}, 1, 0)')}, 0)"

    def named(self, x: Any) -> str:
        """The number of x, which may be written several times."""
        text = self.number(x)
        if not isinstance(x, fx.Node) or text.isidentifier():
            return text
        if x in self.arrays or self.loops:  # another one for another element, and in another turn of a loop
            return self.local(text)
        self.text[x] = self.local(self.text[x])
        return self.number(x)

    def local(self, text: str) -> str:
        name = f"t{self.count}"
        self.count += 1
        self.lines.append(f"local {name} = {bare(text)}")
        return name


def bare(text: str) -> str:
    """Without the parentheses around all of it."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if text.startswith("(") and i == len(text) - 1 else text
    return text


def name_of(node: fx.Node) -> str:
    """add, of aten.add.Tensor."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def shape_of(x: Any) -> tuple[int, ...]:
    return tuple(x.meta["val"].shape) if isinstance(x, fx.Node) else ()


def linear(index: str, step: int, start: int) -> str:
    """index * step + start."""
    text = index if step == 1 else f"({index} * {step})"
    return text if start == 0 else f"({text} + {start})"
