"""Tensors with axes in a hook: views and indices say which element, reductions become loops."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ._elements import Elements
from ._lua_text import Array, bare, kind, linear, name_of, shape_of

# Elements of one tensor in another order.
VIEWS = "view _unsafe_view reshape squeeze squeeze_ unsqueeze unsqueeze_ expand permute transpose t select slice".split()
# Several tensors of one.
PARTS = ("unbind", "split", "split_with_sizes")
# From many elements to one: the start, and a step of Lua.
SUMS = {
    "sum": ("0", "{0} + {1}"), "mean": ("0", "{0} + {1}"), "prod": ("1", "{0} * {1}"), "any": ("false", "{0} or {1}"),
    "all": ("true", "{0} and {1}"), "amax": (None, "max({0}, {1})"), "amin": (None, "min({0}, {1})"),
    "max": (None, "max({0}, {1})"), "min": (None, "min({0}, {1})"),
}  # fmt: skip
_EXTREMES = ("amax", "amin", "max", "min")
PRODUCTS = ("dot", "vdot", "mv", "mm", "matmul")
_MOST = 512  # elements that a mod may go through for one score
_MOST_COUNTED = 128  # sorted numbers; of more of them halves are left out. Tiles are known by ranges where numbers are counted


class Arrays(Elements):
    """Operations on whole tensors."""

    def indexed(self, node: fx.Node) -> Array:
        """t[i, j], t[i][j], t[i, 3], t[i, :, j] and t[rows]."""
        source = self.array_of(node.args[0])
        given: Any = list(node.args[1])  # type: ignore[arg-type]
        given += [None] * (len(source.shape) - len(given))
        for x in given:
            if x is not None and kind(x) != "int":
                raise ValueError(
                    "an index that is no integer: a mask of bools selects as many elements as are true"
                )
        by = [axis for axis, x in enumerate(given) if x is not None]
        common = tuple(torch.broadcast_shapes(*(shape_of(given[axis]) for axis in by)))
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

        return Array(shape[:first] + common + shape[first:], at)

    def inside(self, x: Any, size: int) -> str:
        """An index as a spec has it: it counts from the end in torch, and is clamped to 0 in a spec."""
        if isinstance(x, int):
            return str(x % size)
        if x in self.at_least_0:
            return bare(self.value(x))
        text = self.named(x)
        return f"where({text} < 0, {text} + {size}, {text})"

    def viewed(self, node: fx.Node, name: str) -> Array:
        args: Any = node.args[1:]
        source, shape = self.array_of(node.args[0]), shape_of(node)
        old, n = source.shape, len(source.shape)
        if name == "select":
            axis, index = args[0] % n, args[1]
            text = self.inside(index, old[axis])
            return Array(shape, lambda w: source.at((*w[:axis], text, *w[axis:])))
        if name == "slice":
            axis = (args[0] if args else 0) % n
            start = args[1] if len(args) > 1 and args[1] is not None else 0
            step = args[3] if len(args) > 3 else 1
            start = max(0, min(old[axis], start + old[axis] if start < 0 else start))
            return Array(
                shape, lambda w: source.at((*w[:axis], linear(w[axis], step, start), *w[axis + 1 :]))
            )
        if name in ("permute", "transpose", "t"):
            order = list(range(n))
            if name == "permute":
                order = [axis % n for axis in args[0]]
            elif n > 1:
                a, b = (args[0] % n, args[1] % n) if args else (0, 1)
                order[a], order[b] = b, a
            return Array(shape, lambda w: source.at(tuple(w[order.index(axis)] for axis in range(n))))
        if name == "expand":
            return Array(
                shape,
                lambda w: source.at(tuple("0" if m == 1 else i for m, i in zip(old, w[len(shape) - n :]))),
            )
        return self.reshaped(source, shape)

    def one_of(self, node: fx.Node) -> Array:
        """Of several results."""
        several, k = node.args
        assert isinstance(several, fx.Node) and isinstance(k, int)
        name, args = name_of(several), several.args
        if name not in PARTS:
            if k != 0:  # the values of max(dim), which has indices too
                raise ValueError(f"the indices of {several.target}: a spec has its values alone")
            return self.array_of(several)
        source, given = self.array_of(args[0]), args[1:]
        axis: Any = several.kwargs.get("dim", given[-1] if len(given) == (1 if name == "unbind" else 2) else 0)
        axis %= len(source.shape)
        if name == "unbind":
            return Array(shape_of(node), lambda w: source.at((*w[:axis], str(k), *w[axis:])))
        sizes: Any = given[0]
        start = k * sizes if isinstance(sizes, int) else sum(sizes[:k])
        return Array(shape_of(node), lambda w: source.at((*w[:axis], linear(w[axis], 1, start), *w[axis + 1 :])))

    def joined(self, node: fx.Node, name: str) -> Array:
        """stack() and cat()."""
        parts: Any = node.args[0]
        shape = shape_of(node)
        axis: Any = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)  # type: ignore[operator]
        sizes = [1 if name == "stack" else shape_of(x)[axis] for x in parts]

        def at(where: tuple[str, ...]) -> str:
            text, start = "", shape[axis]
            for x, size in zip(reversed(parts), reversed(sizes)):
                start -= size
                inner = () if name == "stack" else (bare(f"({where[axis]} - {start})") if start else where[axis],)
                before, self.where = self.where, (*where[:axis], *inner, *where[axis + 1 :])
                one = self.number(x) if kind(node) != "bool" else self.test(x)
                self.where = before
                text = one if not text else f"where({where[axis]} < {start + size}, {one}, {text})"
            return text

        return Array(shape, at)

    def reshaped(self, source: Array, shape: tuple[int, ...]) -> Array:
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

        return Array(shape, at)

    def arange(self, node: fx.Node) -> Array:
        start, step = 0, 1
        numbers: Any = [x for x in node.args if isinstance(x, int)]
        if len(numbers) > 1:
            start, step = numbers[0], numbers[2] if len(numbers) > 2 else 1
        return Array(shape_of(node), lambda where: linear(where[0], step, start))

    def loop(
        self, sizes: tuple[int, ...], term: Callable[[tuple[str, ...]], str], start: str | None, step: str
    ) -> str:
        """Lua's name of what a loop over all indices makes of terms. start None: the first term."""
        if math.prod(sizes) > _MOST:
            raise ValueError(f"a reduction of {math.prod(sizes)} elements for each score: at most {_MOST}")
        if math.prod(sizes) == 0:
            if start is None:
                raise ValueError("the largest or smallest of no elements")
            return start
        if start is None:
            start = term(("0",) * len(sizes))
        total = self.local(start)
        names = tuple(f"i{self.loops + k}" for k in range(len(sizes)))
        outside, self.lines, elements, self.elements = self.lines, [], self.elements, {}
        self.loops += len(sizes)
        text = step.format(total, term(names))
        inside = [*self.lines, f"{total} = {text}"]
        self.lines, self.elements = outside, elements
        self.loops -= len(sizes)
        for depth, (name, size) in enumerate(zip(names, sizes)):
            self.lines.append("  " * depth + f"for {name} = 0, {size - 1} do")
        self.lines += ["  " * len(sizes) + line for line in inside]
        self.lines += ["  " * depth + "end" for depth in reversed(range(len(sizes)))]
        return total

    def reduced(self, node: fx.Node, name: str) -> Array:
        if name in PRODUCTS:
            return self.product(node)
        x: Any = node.args[0]
        source, start, step = self.array_of(x), *SUMS[name]
        axes, keep = self.axes_of(node, len(source.shape))
        sizes = tuple(source.shape[axis] for axis in axes)
        as_text = self.test if name in ("any", "all") else self.number
        if start in ("0", "1") and kind(node) == "real":
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

            if name in _EXTREMES and self.has_slope(x):
                return self.extreme_of(name, sizes, term)
            total = self.loop(sizes, term, start, step)
            return f"({total} / {math.prod(sizes)})" if name == "mean" else total

        shape = tuple(
            1 if axis in axes else size for axis, size in enumerate(source.shape) if keep or axis not in axes
        )
        return Array(shape, at)

    def extreme_of(self, name: str, sizes: tuple[int, ...], term: Callable[[tuple[str, ...]], str]) -> str:
        """The largest or smallest of several: amax and amin share the slope evenly among those that are equal, max and min give it to the
        first one."""
        if math.prod(sizes) <= 1 or name in ("max", "min"):
            # Each term is a line of its own, because it stands twice in a step.
            return self.loop(sizes, lambda where: self.local(term(where)), None, f"where({{0}} {'<' if name == 'max' else '>'} {{1}}, {{1}}, {{0}})")
        most = self.local(f"stop_gradient({self.loop(sizes, term, None, f'{name[1:]}({{0}}, {{1}})')})")
        count = self.loop(sizes, lambda where: f"where(eq({term(where)}, {most}), 1.0, 0.0)", "0.0", "{0} + {1}")

        def share(where: tuple[str, ...]) -> str:
            one = self.local(term(where))
            return f"where(eq({one}, {most}), {one} / {count}, 0.0)"

        return self.loop(sizes, share, "0.0", "{0} + {1}")

    @staticmethod
    def axes_of(node: fx.Node, n: int) -> tuple[list[int], bool]:
        """Which axes a reduction takes away, and whether they stay with a length of 1."""
        given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        keep = bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
        if given is None or given == []:
            return list(range(n)), keep
        return sorted(axis % n for axis in ([given] if isinstance(given, int) else given)), keep

    def norm(self, node: fx.Node) -> Array:
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

        def at(_: tuple[str, ...]) -> str:  # without a slope at 0, as in PyTorch
            squares = self.local(self.loop(source.shape, term, "0.0", "{0} + {1}"))
            return f"where(eq({squares}, 0), 0.0, sqrt({squares}))"

        return Array((), at)

    def product(self, node: fx.Node) -> Array:
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
        return Array(shape_of(node), at)

    def is_in(self, node: fx.Node) -> Array:
        x, among = node.args[:2]
        source, inverted = self.array_of(among), node.kwargs.get("invert", False)

        def at(where: tuple[str, ...]) -> str:
            before, self.where = self.where, where
            text = self.named(x)
            self.where = before
            found = self.loop(source.shape, lambda k: f"eq({source.at(k)}, {text})", "false", "{0} or {1}")
            return f"(not {found})" if inverted else found

        return Array(shape_of(x), at)

    def place_among(self, node: fx.Node, name: str) -> Array:
        """How many sorted numbers come before another one."""
        a: Any = node.args
        ends, x = (a[0], a[1]) if name == "searchsorted" else (a[1], a[0])
        after = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
        if node.kwargs.get("sorter") is not None or len(shape_of(ends)) != 1:
            raise ValueError(f"{name} in more than one row, or with a sorter: index the row before")
        source, (size,), sign = self.array_of(ends), shape_of(ends), "<=" if after else "<"

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
                found = self.local(f"where({source.at((bare(more + ' - 1'),))} {sign} {text}, {more}, {found})")
            return found

        return Array(shape_of(x), at)
