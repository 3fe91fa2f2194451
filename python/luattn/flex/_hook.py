"""Writes a traced mod as the body of a hook: each node of its graph becomes a line of Lua."""

import collections
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from .. import _capi as capi
from .._spec import Spec
from ._arrays import PARTS, PRODUCTS, SUMS, VIEWS, Arrays
from ._elements import SAME, STOPS
from ._ranges import Limits, limits_of
from ._lua_text import Array, bare, kind, name_of, shape_of
from ._trace import Mod, NotTranslatable, place_of, trace

INPUT_TYPES = {getattr(torch, name): name for name in capi.INPUT_DTYPES if name != "any"}
INDICES = ("b", "h", "q_idx", "kv_idx")


@dataclass
class Captured:
    """What mods hold, as stand-ins without data: tensors, and numbers that a spec has as scalars."""

    tensors: list[Tensor] = field(default_factory=list)
    grads: list[bool] = field(default_factory=list)  # whether they require one
    numbers: list[Tensor] = field(default_factory=list)
    values: list[float] = field(default_factory=list)  # of the numbers
    # What the text in the making has used of them: names by index.
    used: dict[int, str] = field(default_factory=dict)
    used_numbers: dict[int, str] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)  # of integers that may leave 32 bits
    factors: dict[int, str] = field(default_factory=dict)  # tensors of fewer than 64 bits whose integers are multiplied, and where
    marks: bool = False  # whether the text says where in Python its steps were made
    text: str = ""  # of the spec, once it is written
    places: dict[str, str] = field(default_factory=dict)  # where inputs are read first, by their names

    def hold(self, t: Tensor) -> None:
        one = torch.zeros((), dtype=t.dtype, device=t.device)  # of no size, whatever its shape
        self.tensors.append(one.expand(tuple(map(int, t.shape))))
        self.grads.append(t.requires_grad)

    def order(self, spec: Spec) -> tuple[list[int | str], list[int]]:
        """Which tensors and numbers a spec's inputs and scalars are. A name: one of Extras."""
        tensors = {name: i for i, name in self.used.items()}
        numbers = {name: i for i, name in self.used_numbers.items()}
        names = (info.name for info in spec.inputs)
        return [tensors.get(name, name) for name in names], [numbers[name] for name in spec.scalars]


class Writer(Arrays):
    """The body of one hook."""

    def __init__(self, mod: Mod, dtype: torch.dtype | None, captured: Captured, device: torch.device) -> None:
        super().__init__()
        self.graph, self.place = trace(mod, dtype, device), place_of(mod)
        self.captured, self.of_score, self.marks = captured, dtype is not None, captured.marks
        self.device = device
        self.parameters = iter(INDICES if dtype is None else ("score", *INDICES))

    def run(self, as_mask: bool) -> list[str]:
        for node in self.graph.graph.nodes:
            try:
                self.visit(node)
                self.note_slope(node)
            except ValueError as e:
                raise NotTranslatable(f"{node.stack_trace or self.place}: {e}") from None
            except (
                AttributeError,
                IndexError,
                KeyError,
                TypeError,
            ) as e:  # an op with other arguments than it has in mods
                raise NotTranslatable(
                    f"{node.stack_trace or self.place}: {node.target} with these arguments"
                ) from e
            if node.op == "output":
                result = node.args[0][0] if isinstance(node.args[0], (tuple, list)) else node.args[0]
                if result in self.arrays:
                    size = "x".join(map(str, self.arrays[result].shape))
                    raise NotTranslatable(
                        f"{self.place_of_axes(result)}: returns a tensor of {size} elements, expected one of no dimensions"
                    )
                text = bare(self.test(result) if as_mask else self.number(result))
                self.lines.append(f"return {self.marked(result, text)}")
        for node in self.factors:
            self.note_factor(node)
        limits = limits_of(self.graph, self.captured.tensors, self.of_score)
        if limits is not None:
            self.captured.limits.append(limits)
        return _needed(self.lines)

    def place_of_axes(self, node: fx.Node) -> str:
        """Where the axes of a tensor come from: the first step that has some."""
        place = self.place
        while node.op == "call_function":
            place = node.stack_trace or place
            with_axes = [x for x in node.all_input_nodes if x in self.arrays]
            if not with_axes:
                break
            node = with_axes[0]
        return place

    def learns(self, node: fx.Node) -> bool:
        tensor = getattr(self.graph, str(node.target))
        return any(known is tensor and grad for known, grad in zip(self.captured.tensors, self.captured.grads))

    def note_factor(self, node: fx.Node) -> None:
        place, root = node.stack_trace or self.place, node
        while root.op == "call_function":
            root = root.args[0]  # type: ignore[assignment]  # of what is read at an index
        tensor = getattr(self.graph, str(root.target))
        for i, known in enumerate(self.captured.tensors):
            if known is tensor:
                self.captured.factors.setdefault(i, place)

    def visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.text[node] = next(self.parameters)
            if kind(node) == "int":
                self.at_least_0.add(node)
        elif node.op == "get_attr":
            tensor = getattr(self.graph, str(node.target))
            node.meta.setdefault("val", tensor)  # which torch 2.6 does not set
            self.capture(node, tensor)
        elif node.op == "call_function":
            self.compute(node)
            if name_of(node) == "index" or name_of(node) in (*SAME, *STOPS, "_to_copy") and node.args[0] in self.loaded:
                self.loaded.add(node)
            if self.is_at_least_0(node):
                self.at_least_0.add(node)

    def compute(self, node: fx.Node) -> None:
        name = name_of(node)
        if name in PARTS:
            pass  # each of them is a node
        elif name == "getitem":
            self.found(node, self.one_of(node))
        elif name == "index" or "mod_index" in str(node.target):
            self.found(node, self.indexed(node))
        elif name in VIEWS:
            self.found(node, self.viewed(node, name))
        elif name in PRODUCTS or name in SUMS and self.is_array(node.args[0]) and not self.is_binary(node):
            self.found(node, self.reduced(node, name))
        elif name == "linalg_vector_norm":
            self.found(node, self.norm(node))
        elif name == "arange":
            self.arrays[node] = self.arange(node)
        elif name in ("stack", "cat"):
            self.found(node, self.joined(node, name))
        elif name == "isin":
            self.found(node, self.is_in(node))
        elif name in ("searchsorted", "bucketize"):
            self.found(node, self.place_among(node, name))
        elif self.is_array(node):
            self.arrays[node] = Array(shape_of(node), lambda where: self.element(node, where))
        else:
            self.write(node, self.expression(node))

    @staticmethod
    def is_binary(node: fx.Node) -> bool:
        """max(a, b), which has the name of a reduction."""
        return len(node.args) > 1 and isinstance(node.args[1], fx.Node)

    def element(self, node: fx.Node, where: tuple[str, ...]) -> str:
        """Once in a loop where several read it."""
        if (node, where) in self.elements:
            return self.elements[node, where]
        before, self.where = self.where, where
        try:
            text = self.marked(node, self.expression(node))
        finally:
            self.where = before
        if len(node.users) > 1 and not text.isidentifier():
            is_condition = self.of_score and kind(node) == "bool"
            text = self.elements[node, where] = self.as_number(text) if is_condition else self.local(text)
        return text

    def capture(self, node: fx.Node, tensor: Tensor) -> None:
        for k, number in enumerate(self.captured.numbers):
            if number is tensor:
                self.text[node] = self.captured.used_numbers.setdefault(k, f"c{k}")
                return
        i = next((i for i, known in enumerate(self.captured.tensors) if known is tensor), None)
        if i is None and tensor.numel() == 1:  # a constant that the mod itself makes
            self.text[node] = self.value(tensor.item())
            return
        if i is None:
            raise ValueError(
                "a tensor that the mod makes itself: make it outside, so that the mod captures it"
            )
        if tensor.dtype not in INPUT_TYPES:
            raise ValueError(
                f"a captured tensor of type {tensor.dtype}; convert it to one of {', '.join(INPUT_TYPES.values())}"
            )
        if tensor.dim() > 4:
            raise ValueError(
                f"a captured tensor has {tensor.dim()} axes, and an input 4 at most: merge some of them"
            )
        name = self.captured.used.setdefault(i, f"x{i}")
        readers = (x.stack_trace for x in node.users)
        self.captured.places.setdefault(name, next((x for x in readers if x), self.place))
        if tensor.dim() == 0:
            self.text[node] = name
            return

        def at(where: tuple[str, ...]) -> str:
            return f"{name}[{where[0] if len(where) == 1 else '{' + ', '.join(where) + '}'}]"

        self.arrays[node] = Array(tuple(tensor.shape), at)

    def is_at_least_0(self, node: fx.Node) -> bool:
        """Whether an integer is known not to be negative: an index is then written as it is."""

        def known(x: Any) -> bool:
            return x in self.at_least_0 if isinstance(x, fx.Node) else isinstance(x, int) and x >= 0

        name, args = name_of(node), node.args
        if not isinstance(node.meta.get("val"), Tensor) or kind(node) != "int":
            return False
        if name in (*SAME, *VIEWS, *STOPS, "_to_copy"):
            return known(args[0])
        if name in ("add", "mul", "floor_divide", "div", "minimum", "bitwise_and", "bitwise_or", "where"):
            return known(node.kwargs.get("alpha", 1)) and all(known(x) for x in args[name == "where" :])
        if name == "remainder":
            return isinstance(args[1], int) and args[1] > 0
        return name in ("abs", "searchsorted", "bucketize") or (
            name in ("clamp", "clamp_min", "maximum") and len(args) > 1 and known(args[1])
        )


def _needed(lines: list[str]) -> list[str]:
    """Without local variables that nothing reads."""
    while True:
        words = collections.Counter(re.findall(r"\w+", "\n".join(lines)))
        kept = [x for x in lines if not (x.lstrip().startswith("local ") and words[x.split()[1]] == 1)]
        if len(kept) == len(lines):
            return lines
        lines = kept
