"""Writes a traced mod as the body of a hook: each node of its graph becomes a line of Lua."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from .. import _capi as capi
from .._spec import Spec
from ._trace import Mod, NotTranslatable, place_of, trace

INPUT_TYPES = {getattr(torch, name): name for name in capi.INPUT_DTYPES if name != "any"}
INDICES = ("b", "h", "q_idx", "kv_idx")

# Written as a call of the same name.
_CALLS = "abs exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid relu silu erf sin cos floor ceil softplus minimum maximum pow"
_RENAMED = {"minimum": "min", "maximum": "max"}
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "remainder": "%", "ge": ">=", "gt": ">", "le": "<=", "lt": "<",
    "bitwise_left_shift": "<<", "bitwise_right_shift": ">>", "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
_LOGIC = {"bitwise_and": ("and", "&"), "bitwise_or": ("or", "|"), "logical_and": ("and", ""), "logical_or": ("or", ""),
          "__and__": ("and", "&"), "__or__": ("or", "|")}  # fmt: skip
# Themselves.
_SAME = ("clone", "alias", "lift_fresh_copy", "lift_fresh", "contiguous")
_STOPS = ("stop_gradient", "detach")
# Elements of one tensor in another order.
_VIEWS = "view _unsafe_view reshape squeeze unsqueeze expand permute transpose t select slice".split()
# Several tensors of one.
_PARTS = ("unbind", "split", "split_with_sizes")
# From many elements to one: the start, and a step of Lua.
_SUMS = {
    "sum": ("0", "{0} + {1}"), "mean": ("0", "{0} + {1}"), "prod": ("1", "{0} * {1}"), "any": ("false", "{0} or {1}"),
    "all": ("true", "{0} and {1}"), "amax": (None, "max({0}, {1})"), "amin": (None, "min({0}, {1})"),
    "max": (None, "max({0}, {1})"), "min": (None, "min({0}, {1})"),
}  # fmt: skip
_PRODUCTS = ("dot", "vdot", "mv", "mm", "matmul")
_MOST = 512  # elements that a mod may go through for one score
_MOST_COUNTED = 128  # sorted numbers; of more of them halves are left out. Tiles are known by ranges where numbers are counted
# Kernels compute in 32 bits, and take integers of inputs as less than 2^24 from 0: a page times its size would not fit.
_FACTOR = 1 << 20


def _kind(x: Any) -> str:
    """bool, int or real, as Lua tells them apart."""
    if isinstance(x, fx.Node):
        dtype = x.meta["val"].dtype
        return "bool" if dtype == torch.bool else "real" if dtype.is_floating_point else "int"
    return "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "real"


@dataclass
class _Array:
    """A tensor with axes: what Lua writes for the element at some indices, themselves Lua."""

    shape: tuple[int, ...]
    at: Callable[[tuple[str, ...]], str]


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


class Writer:
    """The body of one hook."""

    def __init__(self, mod: Mod, dtype: torch.dtype | None, captured: Captured, device: torch.device) -> None:
        self.graph, self.place = trace(mod, dtype, device, getattr(mod, "writes", False)), place_of(mod)
        self.captured = captured
        self.parameters = iter(INDICES if dtype is None else ("score", *INDICES))
        self.lines: list[str] = []
        self.count = 0  # of local variables
        self.loops = 0  # that the line in the making is inside of
        self.where: tuple[str, ...] = ()  # the element of arrays that is being written
        self.text: dict[fx.Node, str] = {}
        self.arrays: dict[fx.Node, _Array] = {}
        self.at_least_0: set[fx.Node] = set()
        self.loaded: set[Any] = set()  # integers of captured tensors

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
        return f"where({self.value(x)}, 1, 0)" if _kind(x) == "bool" else self.value(x)

    def test(self, x: Any) -> str:
        """A number is a condition in Python, and another one in Lua."""
        return self.value(x) if _kind(x) == "bool" else f"ne({self.value(x)}, 0)"

    def run(self, as_mask: bool) -> list[str]:
        for node in self.graph.graph.nodes:
            try:
                self.visit(node)
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
                        f"{self.place}: returns a tensor of {size} elements, expected one of no dimensions"
                    )
                self.lines.append(f"return {_bare(self.test(result) if as_mask else self.number(result))}")
        return self.lines

    def visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.text[node] = next(self.parameters)
            if _kind(node) == "int":
                self.at_least_0.add(node)
        elif node.op == "get_attr":
            tensor = getattr(self.graph, str(node.target))
            node.meta.setdefault("val", tensor)  # which torch 2.6 does not set
            self.capture(node, tensor)
        elif node.op == "call_function":
            self.compute(node)
            if _name(node) == "index" or _name(node) in (*_SAME, *_STOPS, "_to_copy") and node.args[0] in self.loaded:
                self.loaded.add(node)
            if self.is_at_least_0(node):
                self.at_least_0.add(node)

    def compute(self, node: fx.Node) -> None:
        name = _name(node)
        if name in _PARTS:
            pass  # each of them is a node
        elif name == "getitem":
            self.found(node, self.one_of(node))
        elif name == "index" or "mod_index" in str(node.target):
            self.found(node, self.indexed(node))
        elif name in _VIEWS:
            self.found(node, self.viewed(node, name))
        elif name in _PRODUCTS or name in _SUMS and self.is_array(node.args[0]) and not self.is_binary(node):
            self.found(node, self.reduced(node, name))
        elif name == "linalg_vector_norm":
            self.found(node, self.norm(node))
        elif name == "arange":
            self.arrays[node] = self.arange(node)
        elif name in ("stack", "cat"):
            self.found(node, self.joined(node, name))
        elif name in ("searchsorted", "bucketize"):
            self.found(node, self.place_among(node, name))
        elif self.is_array(node):
            self.arrays[node] = _Array(_shape(node), lambda where: self.element(node, where))
        else:
            self.write(node, self.expression(node))

    def is_array(self, x: Any) -> bool:
        return isinstance(x, fx.Node) and isinstance(x.meta.get("val"), Tensor) and x.meta["val"].dim() > 0

    @staticmethod
    def is_binary(node: fx.Node) -> bool:
        """max(a, b), which has the name of a reduction."""
        return len(node.args) > 1 and isinstance(node.args[1], fx.Node)

    def array_of(self, x: Any) -> _Array:
        if x in self.arrays:
            return self.arrays[x]
        return _Array((), lambda where: self.value(x))

    def found(self, node: fx.Node, array: _Array) -> None:
        """What a node is, which is written at once where it has no axes."""
        if array.shape or not isinstance(node.meta["val"], Tensor):
            self.arrays[node] = array
        else:
            self.write(node, array.at(()))

    def element(self, node: fx.Node, where: tuple[str, ...]) -> str:
        before, self.where = self.where, where
        try:
            return self.expression(node)
        finally:
            self.where = before

    def write(self, node: fx.Node, text: str) -> None:
        """A line of its own, unless it is short and used once: a Lua function has 200 local variables at most."""
        self.text[node] = text
        if len(node.users) > 1 or len(text) > 60:
            self.named(node)

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
        self.lines.append(f"local {name} = {_bare(text)}")
        return name

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
        if tensor.dim() == 0:
            self.text[node] = name
            return

        def at(where: tuple[str, ...]) -> str:
            return f"{name}[{where[0] if len(where) == 1 else '{' + ', '.join(where) + '}'}]"

        self.arrays[node] = _Array(tuple(tensor.shape), at)

    def indexed(self, node: fx.Node) -> _Array:
        """t[i, j], t[i][j], t[i, 3], t[i, :, j] and t[rows]."""
        source = self.array_of(node.args[0])
        given: Any = list(node.args[1])  # type: ignore[arg-type]
        given += [None] * (len(source.shape) - len(given))
        for x in given:
            if x is not None and _kind(x) != "int":
                raise ValueError(
                    "an index that is no integer: a mask of bools selects as many elements as are true"
                )
        by = [axis for axis, x in enumerate(given) if x is not None]
        common = tuple(torch.broadcast_shapes(*(_shape(given[axis]) for axis in by)))
        kept = [axis for axis, x in enumerate(given) if x is None]
        # The axes of the indices stand where these are, and in front where something is between them.
        first = by[0] if by == list(range(by[0], by[-1] + 1)) else 0
        shape = tuple(source.shape[axis] for axis in kept)

        def at(where: tuple[str, ...]) -> str:
            rest = where[:first] + where[first + len(common) :]
            full = dict(zip(kept, rest))
            before, self.where = self.where, where[first : first + len(common)]
            for axis in by:
                full[axis] = self.inside(given[axis], source.shape[axis])
            self.where = before
            return source.at(tuple(full[axis] for axis in range(len(given))))

        return _Array(shape[:first] + common + shape[first:], at)

    def inside(self, x: Any, size: int) -> str:
        """An index as a spec has it: it counts from the end in torch, and is clamped to 0 in a spec."""
        if isinstance(x, int):
            return str(x % size)
        if x in self.at_least_0:
            return _bare(self.value(x))
        text = self.named(x)
        return f"where({text} < 0, {text} + {size}, {text})"

    def viewed(self, node: fx.Node, name: str) -> _Array:
        args: Any = node.args[1:]
        source, shape = self.array_of(node.args[0]), _shape(node)
        old, n = source.shape, len(source.shape)
        if name == "select":
            axis, index = args[0] % n, args[1]
            text = self.inside(index, old[axis])
            return _Array(shape, lambda w: source.at((*w[:axis], text, *w[axis:])))
        if name == "slice":
            axis = (args[0] if args else 0) % n
            start = args[1] if len(args) > 1 and args[1] is not None else 0
            step = args[3] if len(args) > 3 else 1
            start = max(0, min(old[axis], start + old[axis] if start < 0 else start))
            return _Array(
                shape, lambda w: source.at((*w[:axis], _linear(w[axis], step, start), *w[axis + 1 :]))
            )
        if name in ("permute", "transpose", "t"):
            order = list(range(n))
            if name == "permute":
                order = [axis % n for axis in args[0]]
            elif n > 1:
                a, b = (args[0] % n, args[1] % n) if args else (0, 1)
                order[a], order[b] = b, a
            return _Array(shape, lambda w: source.at(tuple(w[order.index(axis)] for axis in range(n))))
        if name == "expand":
            return _Array(
                shape,
                lambda w: source.at(tuple("0" if m == 1 else i for m, i in zip(old, w[len(shape) - n :]))),
            )
        return self.reshaped(source, shape)

    def one_of(self, node: fx.Node) -> _Array:
        """Of several results."""
        several, k = node.args
        assert isinstance(several, fx.Node) and isinstance(k, int)
        name, args = _name(several), several.args
        if name not in _PARTS:
            if k != 0:  # the values of max(dim), which has indices too
                raise ValueError(f"the indices of {several.target}: a spec has its values alone")
            return self.array_of(several)
        source, given = self.array_of(args[0]), args[1:]
        axis: Any = several.kwargs.get("dim", given[-1] if len(given) == (1 if name == "unbind" else 2) else 0)
        axis %= len(source.shape)
        if name == "unbind":
            return _Array(_shape(node), lambda w: source.at((*w[:axis], str(k), *w[axis:])))
        sizes: Any = given[0]
        start = k * sizes if isinstance(sizes, int) else sum(sizes[:k])
        return _Array(_shape(node), lambda w: source.at((*w[:axis], _linear(w[axis], 1, start), *w[axis + 1 :])))

    def joined(self, node: fx.Node, name: str) -> _Array:
        """stack() and cat()."""
        parts: Any = node.args[0]
        shape = _shape(node)
        axis: Any = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)  # type: ignore[operator]
        sizes = [1 if name == "stack" else _shape(x)[axis] for x in parts]

        def at(where: tuple[str, ...]) -> str:
            text, start = "", shape[axis]
            for x, size in zip(reversed(parts), reversed(sizes)):
                start -= size
                inner = () if name == "stack" else (_bare(f"({where[axis]} - {start})") if start else where[axis],)
                before, self.where = self.where, (*where[:axis], *inner, *where[axis + 1 :])
                one = self.number(x) if _kind(node) != "bool" else self.test(x)
                self.where = before
                text = one if not text else f"where({where[axis]} < {start + size}, {one}, {text})"
            return text

        return _Array(shape, at)

    def reshaped(self, source: _Array, shape: tuple[int, ...]) -> _Array:
        def at(where: tuple[str, ...]) -> str:
            if tuple(m for m in source.shape if m > 1) == tuple(m for m in shape if m > 1):
                kept = iter(i for i, m in zip(where, shape) if m > 1)
                return source.at(tuple("0" if m == 1 else next(kept) for m in source.shape))
            flat = "0"
            for i, m in zip(where, shape):
                flat = i if flat == "0" else f"({flat} * {m} + {i})"
            found, size = list[str](), 1
            for m in reversed(source.shape):
                found.insert(0, f"({flat} // {size} % {m})")
                size *= m
            return source.at(tuple(found))

        return _Array(shape, at)

    def arange(self, node: fx.Node) -> _Array:
        start, step = 0, 1
        numbers: Any = [x for x in node.args if isinstance(x, int)]
        if len(numbers) > 1:
            start, step = numbers[0], numbers[2] if len(numbers) > 2 else 1
        return _Array(_shape(node), lambda where: _linear(where[0], step, start))

    def loop(
        self, sizes: tuple[int, ...], term: Callable[[tuple[str, ...]], str], start: str | None, step: str
    ) -> str:
        """Lua's name of what a loop over all indices makes of terms. start None: the first term."""
        if math.prod(sizes) > _MOST:
            raise ValueError(f"a reduction of {math.prod(sizes)} elements for each score: at most {_MOST}")
        if math.prod(sizes) == 0:
            raise ValueError("a reduction of no elements")
        if start is None:
            start = term(("0",) * len(sizes))
        total = self.local(start)
        names = tuple(f"i{self.loops + k}" for k in range(len(sizes)))
        outside, self.lines = self.lines, []
        self.loops += len(sizes)
        text = step.format(total, term(names))
        inside = [*self.lines, f"{total} = {text}"]
        self.lines = outside
        self.loops -= len(sizes)
        for depth, (name, size) in enumerate(zip(names, sizes)):
            self.lines.append("  " * depth + f"for {name} = 0, {size - 1} do")
        self.lines += ["  " * len(sizes) + line for line in inside]
        self.lines += ["  " * depth + "end" for depth in reversed(range(len(sizes)))]
        return total

    def reduced(self, node: fx.Node, name: str) -> _Array:
        if name in _PRODUCTS:
            return self.product(node)
        x: Any = node.args[0]
        source, start, step = self.array_of(x), *_SUMS[name]
        axes, keep = self.axes_of(node, len(source.shape))
        sizes = tuple(source.shape[axis] for axis in axes)
        as_text = self.test if name in ("any", "all") else self.number
        if start in ("0", "1") and _kind(node) == "real":
            start += ".0"

        def at(where: tuple[str, ...]) -> str:
            def term(loops: tuple[str, ...]) -> str:
                full, rest = dict(zip(axes, loops)), iter(where)
                for axis in range(len(source.shape)):
                    if axis not in axes:
                        full[axis] = next(rest)
                    elif keep:
                        next(rest)
                before, self.where = self.where, tuple(full[axis] for axis in range(len(source.shape)))
                text = as_text(x)
                self.where = before
                return text

            total = self.loop(sizes, term, start, step)
            return f"({total} / {math.prod(sizes)})" if name == "mean" else total

        shape = tuple(
            1 if axis in axes else size for axis, size in enumerate(source.shape) if keep or axis not in axes
        )
        return _Array(shape, at)

    @staticmethod
    def axes_of(node: fx.Node, n: int) -> tuple[list[int], bool]:
        """Which axes a reduction takes away, and whether they stay with a length of 1."""
        given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        keep = bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
        if given is None or given == []:
            return list(range(n)), keep
        return sorted(axis % n for axis in ([given] if isinstance(given, int) else given)), keep

    def norm(self, node: fx.Node) -> _Array:
        x: Any = node.args[0]
        if len(node.args) > 1 and node.args[1] != 2:
            raise ValueError("a norm of another order than 2")
        source = self.array_of(x)
        given: Any = node.args[2] if len(node.args) > 2 else None
        axes = range(len(source.shape)) if given is None else [axis % len(source.shape) for axis in given]
        if list(axes) != list(range(len(source.shape))):
            raise ValueError("a norm over some of the axes: index the others before")

        def term(where: tuple[str, ...]) -> str:
            one = self.local(source.at(where))
            return f"{one} * {one}"

        return _Array((), lambda where: f"sqrt({self.loop(source.shape, term, '0.0', '{0} + {1}')})")

    def product(self, node: fx.Node) -> _Array:
        a, b = self.array_of(node.args[0]), self.array_of(node.args[1])
        size = a.shape[-1]
        rows = len(a.shape) - 1  # 0 or 1 axes of the result are a's

        def at(where: tuple[str, ...]) -> str:
            left, right = where[:rows], where[rows:]
            return self.loop(
                (size,), lambda k: f"{a.at((*left, *k))} * {b.at((*k, *right))}", "0.0", "{0} + {1}"
            )

        if rows > 1 or len(b.shape) > 2:
            raise ValueError("a product of more than two axes: index the first of them before")
        return _Array(_shape(node), at)

    def place_among(self, node: fx.Node, name: str) -> _Array:
        """How many sorted numbers come before another one."""
        a: Any = node.args
        ends, x = (a[0], a[1]) if name == "searchsorted" else (a[1], a[0])
        after = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
        if node.kwargs.get("sorter") is not None or len(_shape(ends)) != 1:
            raise ValueError(f"{name} in more than one row, or with a sorter: index the row before")
        source, (size,), sign = self.array_of(ends), _shape(ends), "<=" if after else "<"

        def at(where: tuple[str, ...]) -> str:
            before, self.where = self.where, where
            text = self.named(x)
            self.where = before
            if size <= _MOST_COUNTED:
                if size == 0:
                    return "0"
                return self.loop((size,), lambda k: f"where({source.at(k)} {sign} {text}, 1, 0)", "0", "{0} + {1}")
            found = "0"
            for bit in reversed(range(size.bit_length())):  # the largest number of them that still come before
                more = self.local(f"min({found} + {1 << bit}, {size})")
                found = self.local(f"where({source.at((_bare(more + ' - 1'),))} {sign} {text}, {more}, {found})")
            return found

        return _Array(_shape(x), at)

    def is_at_least_0(self, node: fx.Node) -> bool:
        """Whether an integer is known not to be negative: an index is then written as it is."""

        def known(x: Any) -> bool:
            return x in self.at_least_0 if isinstance(x, fx.Node) else isinstance(x, int) and x >= 0

        name, args = _name(node), node.args
        if not isinstance(node.meta.get("val"), Tensor) or _kind(node) != "int":
            return False
        if name in (*_SAME, *_VIEWS, *_STOPS, "_to_copy"):
            return known(args[0])
        if name in ("add", "mul", "floor_divide", "div", "minimum", "bitwise_and", "bitwise_or", "where"):
            return known(node.kwargs.get("alpha", 1)) and all(known(x) for x in args[name == "where" :])
        if name == "remainder":
            return isinstance(args[1], int) and args[1] > 0
        return name in ("abs", "searchsorted", "bucketize") or (
            name in ("clamp", "clamp_min", "maximum") and len(args) > 1 and known(args[1])
        )

    def expression(self, node: fx.Node) -> str:
        """Of one element: self.where says which."""
        name, a, options = _name(node), node.args, dict(node.kwargs)
        if name in _SIGNS or name == "rsub":
            x, y = (a[1], a[0]) if name == "rsub" else (a[0], a[1])
            if name == "mul" and _kind(node) == "bool":
                return f"({self.test(x)} and {self.test(y)})"
            if _kind(node) == "int" and _SIGNS.get(name) in ("*", "<<"):
                return (
                    f"({self.factor(x)} {_SIGNS[name]} {self.number(y) if name != 'mul' else self.factor(y)})"
                )
            alpha = options.get("alpha", 1)
            factor = "" if alpha == 1 else f" * {self.value(alpha)}"
            sign = "-" if name == "rsub" else _SIGNS[name]
            return f"({self.number(x)} {sign} {self.number(y)}{factor})"
        if name in _LOGIC:
            word, bits = _LOGIC[name]
            if bits and _kind(node) != "bool":
                return f"({self.number(a[0])} {bits} {self.number(a[1])})"
            return f"({self.test(a[0])} {word} {self.test(a[1])})"
        if name in ("bitwise_not", "logical_not"):
            return f"(not {self.test(a[0])})" if _kind(node) == "bool" else f"(~{self.number(a[0])})"
        if name in ("bitwise_xor", "logical_xor"):
            if _kind(node) != "bool":
                return f"({self.number(a[0])} ~ {self.number(a[1])})"
            return f"ne({self.as_number(self.test(a[0]))}, {self.as_number(self.test(a[1]))})"
        if name in ("eq", "ne"):
            return f"{name}({self.number(a[0])}, {self.number(a[1])})"
        if name == "where":
            as_text = self.value if _kind(node) == "bool" else self.number
            return f"where({self.test(a[0])}, {as_text(a[1])}, {as_text(a[2])})"
        if name == "masked_fill":
            as_text = self.value if _kind(node) == "bool" else self.number
            return f"where({self.test(a[1])}, {as_text(a[2])}, {as_text(a[0])})"
        if name in ("div", "floor_divide"):
            return self.quotient(
                a[0], a[1], "floor" if name == "floor_divide" else options.get("rounding_mode")
            )
        if name in ("clamp", "clamp_min", "clamp_max"):
            return self.clamped(name, a, options)
        if name == "pow" and a[1] == 2 or name == "square":
            x = self.named(a[0])
            return f"({x} * {x})"
        if name == "gelu":
            if options.get("approximate", "none") == "none":
                return f"gelu({self.number(a[0])})"
            x = self.named(a[0])
            return (
                f"(0.5 * {x} * (1 + tanh({math.sqrt(2 / math.pi)!r} * ({x} + 0.044715 * {x} * {x} * {x}))))"
            )
        if name == "tan":
            x = self.named(a[0])
            return f"(sin({x}) / cos({x}))"
        if name == "sign":
            x = self.named(a[0])
            return f"where({x} > 0, 1, where({x} < 0, -1, 0))"
        if name in _CALLS.split():
            if len(a) > 1 and name == "softplus":
                raise ValueError("softplus with a beta or a threshold of its own")
            return f"{_RENAMED.get(name, name)}({', '.join(self.number(x) for x in a)})"
        return self.simple(node, name, a, options)

    def factor(self, x: Any) -> str:
        text = self.number(x)
        return f"max(min({text}, {_FACTOR}), -{_FACTOR})" if x in self.loaded else text

    @staticmethod
    def as_number(test: str) -> str:
        return f"where({test}, 1, 0)"

    def simple(self, node: fx.Node, name: str, a: Any, options: dict[str, Any]) -> str:
        if name == "neg":
            return f"(-{self.number(a[0])})"
        if name == "reciprocal":
            return f"(1.0 / {self.number(a[0])})"
        if name in _SAME:
            return self.value(a[0])
        if name in _STOPS:
            return f"stop_gradient({self.number(a[0])})" if _kind(node) == "real" else self.value(a[0])
        if name == "_to_copy":
            kind = _kind(node)
            if kind == "bool":
                return self.test(a[0])
            if kind == "real":
                return self.number(a[0]) if _kind(a[0]) == "real" else f"({self.number(a[0])} + 0.0)"
            if _kind(a[0]) == "real":  # towards 0
                x = self.named(a[0])
                return f"where({x} < 0, ceil({x}), floor({x}))"
            return self.number(a[0])
        constants = {"zeros_like": 0, "new_zeros": 0, "zeros": 0, "ones_like": 1, "new_ones": 1, "ones": 1}
        if name in constants:
            fill: Any = constants[name]
        elif name in ("full_like", "full", "new_full", "scalar_tensor"):
            fill = a[{"full_like": 1, "full": 1, "new_full": 2, "scalar_tensor": 0}[name]]
        else:
            raise ValueError(f"{node.target} has no counterpart in a spec")
        kind = _kind(node)
        return self.value(bool(fill) if kind == "bool" else float(fill) if kind == "real" else int(fill))

    def quotient(self, x: Any, y: Any, mode: Any) -> str:
        n, d = self.number(x), self.number(y)
        if mode is None:
            return f"({n} / {d})"
        if mode == "floor":
            return f"({n} // {d})" if _kind(x) != "real" and _kind(y) != "real" else f"floor({n} / {d})"
        raise ValueError(f"a division with rounding_mode={mode!r}: write a // b, or torch.floor(a / b)")

    def clamped(self, name: str, a: Any, options: dict[str, Any]) -> str:
        low = a[1] if name != "clamp_max" and len(a) > 1 else options.get("min")
        high = a[1] if name == "clamp_max" else a[2] if len(a) > 2 else options.get("max")
        text = self.number(a[0])
        if low is not None:
            text = f"max({text}, {self.number(low)})"
        return text if high is None else f"min({text}, {self.number(high)})"


def _bare(text: str) -> str:
    """Without the parentheses around all of it."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if text.startswith("(") and i == len(text) - 1 else text
    return text


def _name(node: fx.Node) -> str:
    """add, of aten.add.Tensor."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.meta["val"].shape) if isinstance(x, fx.Node) else ()


def _linear(index: str, step: int, start: int) -> str:
    """index * step + start."""
    text = index if step == 1 else f"({index} * {step})"
    return text if start == 0 else f"({text} + {start})"
