"""What an operation of PyTorch is of one element, in Lua."""

import math
from typing import Any

import torch
from torch import fx

from ._bends import STOPS as STOPS
from ._bends import Bends
from ._lua_text import kind, name_of

# Written as a call of the same name.
_CALLS = "abs exp exp2 expm1 log log2 log1p sqrt rsqrt tanh sigmoid relu silu erf sin cos floor ceil softplus minimum maximum pow".split()
_RENAMED = {"minimum": "min", "maximum": "max"}
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "remainder": "%", "ge": ">=", "gt": ">", "le": "<=", "lt": "<",
    "bitwise_left_shift": "<<", "bitwise_right_shift": ">>", "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
_LOGIC = {"bitwise_and": ("and", "&"), "bitwise_or": ("or", "|"), "logical_and": ("and", ""), "logical_or": ("or", ""),
          "__and__": ("and", "&"), "__or__": ("or", "|")}  # fmt: skip
_TO_INTEGER = "where({0} < 0, ceil({0}), floor({0}))"
_TOWARDS_0 = "where({0} < 0, -(floor(-{0}) + 0.0), floor({0}) + 0.0)"  # a real, which may be large
_OTHER_SIGNS = "(({0} < 0 and {1} > 0) or ({0} > 0 and {1} < 0))"
# Of numbers that have names, because they stand in it more than once.
_FORMULAS = {
    "square": "({0} * {0})", "tan": "(sin({0}) / cos({0}))", "sign": "where({0} > 0, 1, where({0} < 0, -1, 0))", "sgn": "where({0} > 0, 1, where({0} < 0, -1, 0))", "trunc": _TOWARDS_0,
    "log10": "(log({0}) * 0.4342944819032518)", "frac": f"({{0}} - {_TOWARDS_0})",
    "round": "where(eq({0} - floor({0}), 0.5), 2.0 * floor(({0} + 0.5) / 2), floor({0} + 0.5) + 0.0)",
    # A NaN loses against a number in max and min; a zero has a sign. One comparison each, because `and` and `or` make a spec branch.
    "isnan": "(max({0}, 1) < min({0}, 2))", "signbit": "(1.0 / max({0}, -1.0) < 0)", "isinf": "eq(abs({0}), math.huge)", "isposinf": "eq({0}, math.huge)",
    "isneginf": "eq({0}, -math.huge)",
    "fmod": f"where(ne({{0}} % {{1}}, 0) and {_OTHER_SIGNS}, {{0}} % {{1}} - {{1}}, {{0}} % {{1}})",
    "xlogy": "where(eq({0}, 0), where({1} <= 0, 0.0, {0} * log(min({1}, 1e38))), {0} * log({1}))",
    "gelu": f"(0.5 * {{0}} * (1 + tanh({math.sqrt(2 / math.pi)!r} * ({{0}} + 0.044715 * {{0}} * {{0}} * {{0}}))))",
}  # fmt: skip
_OF_WHOLE_NUMBERS = ("trunc", "floor", "ceil", "round")  # leave integers as they are
_CONSTANTS = {"zeros_like": 0, "new_zeros": 0, "zeros": 0, "ones_like": 1, "new_ones": 1, "ones": 1}
_FILLED = {"full_like": 1, "full": 1, "new_full": 2, "scalar_tensor": 0}  # and which argument is the number
# Themselves.
_OF_AXES = ("sum", "mean", "prod", "amax", "amin", "any", "all", "max", "min")  # of a value that has none: itself
SAME = ("clone", "alias", "lift_fresh_copy", "lift_fresh", "contiguous")
# Kernels compute in 32 bits but for i64, and take such integers of inputs as less than 2^24 from 0: a page times its size would not fit.
MOST_FACTOR = 1 << 20
_NARROW = (torch.uint8, torch.int8, torch.int16)
_WRAPPING = ("add", "sub", "rsub", "mul", "neg", "bitwise_not", "bitwise_left_shift", "pow")


_NOT = {"true": "false", "false": "true"}


def _joined(word: str, x: str, y: str) -> str:
    """x and y, or x or y."""
    decides = "false" if word == "and" else "true"
    if decides in (x, y):
        return decides
    return y if x in _NOT else x if y in _NOT else f"({x} {word} {y})"


class Elements(Bends):
    """Operations that go element by element."""

    def expression(self, node: fx.Node) -> str:
        """Of one element: self.where says which."""
        name, a, options = name_of(node), node.args, dict(node.kwargs)
        self.check_wraps(node, name)
        if name in _SIGNS or name == "rsub":
            return self.operator(node, name, a, options.get("alpha", 1))
        if name in _LOGIC:
            word, bits = _LOGIC[name]
            if bits and kind(node) != "bool":
                return f"({self.number(a[0])} {bits} {self.number(a[1])})"
            return _joined(word, self.test(a[0]), self.test(a[1]))
        if name in ("bitwise_not", "logical_not"):
            if kind(node) != "bool":
                return f"(~{self.number(a[0])})"
            test = self.test(a[0])
            return _NOT.get(test, f"(not {test})")
        if name in ("bitwise_xor", "logical_xor"):
            if kind(node) != "bool":
                return f"({self.number(a[0])} ~ {self.number(a[1])})"
            return f"ne(where({self.test(a[0])}, 1, 0), where({self.test(a[1])}, 1, 0))"
        if name in ("eq", "ne"):
            return f"{name}({self.number(a[0])}, {self.number(a[1])})"
        if name in ("where", "masked_fill"):
            decides, x, y = a if name == "where" else (a[1], a[2], a[0])
            as_text = self.value if kind(node) == "bool" else self.number
            condition = self.test(decides)
            if condition in _NOT:  # a spec says no reads of what is left out
                return as_text(x if condition == "true" else y)
            return f"where({condition}, {as_text(x)}, {as_text(y)})"
        if name in ("div", "floor_divide"):
            mode = "floor" if name == "floor_divide" else options.get("rounding_mode")
            return self.quotient(a[0], a[1], mode)
        if name in ("clamp", "clamp_min", "clamp_max", "clamp_between"):
            return self.clamped(name, a, options)
        if name in ("maximum", "minimum"):
            if kind(node) == "bool":
                return _joined("or" if name == "maximum" else "and", self.test(a[0]), self.test(a[1]))
            return self.extreme(name[:3], a[0], a[1])
        return self.formula(node, name, a, options)

    @staticmethod
    def check_wraps(node: fx.Node, name: str) -> None:
        """Refuses what PyTorch computes modulo 2^8 or 2^16."""
        dtype = node.meta["val"].dtype
        if dtype not in _NARROW:
            return
        source: Any = node.args[0]
        converts = name == "_to_copy" and isinstance(source, fx.Node) and source.meta["val"].dtype not in (dtype, torch.bool)
        if converts or name in _WRAPPING:
            raise ValueError(f"{name} of {str(dtype).partition('.')[2]}, which PyTorch cuts to its bits: compute with tensor.to(torch.int32)")

    def operator(self, node: fx.Node, name: str, a: Any, alpha: Any) -> str:
        x, y = (a[1], a[0]) if name == "rsub" else (a[0], a[1])
        if name in ("mul", "add") and kind(node) == "bool":  # of bools, PyTorch's sum is whether any is true
            return _joined("and" if name == "mul" else "or", self.test(x), self.test(y))
        if kind(node) == "int" and _SIGNS.get(name) in ("*", "<<"):
            return f"({self.factor(x)} {_SIGNS[name]} {self.number(y) if name != 'mul' else self.factor(y)})"
        factor = "" if alpha == 1 else f" * {self.value(alpha)}"
        return f"({self.number(x)} {'-' if name == 'rsub' else _SIGNS[name]} {self.number(y)}{factor})"

    def factor(self, x: Any) -> str:
        text = self.number(x)
        if x not in self.loaded or x.meta["val"].dtype == torch.int64:
            return text
        self.factors.append(x)
        return f"max(min({text}, {MOST_FACTOR}), -{MOST_FACTOR})"

    def formula(self, node: fx.Node, name: str, a: Any, options: dict[str, Any]) -> str:
        if name in _OF_WHOLE_NUMBERS and kind(node) == "int":
            return self.number(a[0])
        if name == "gelu" and options.get("approximate", "none") == "none":
            return f"gelu({self.number(a[0])})"
        if name == "pow" and kind(node) == "int" and isinstance(a[1], (int, float)) and a[1] < 0:
            raise ValueError("an integer to a negative power, which PyTorch does not compute: make it a float, as x.float()")
        if name == "pow" and a[1] == 2:
            name, a = "square", a[:1]
        if kind(a[0]) != "real" and (name.startswith("is") or name == "signbit"):
            return "false" if name != "signbit" else f"({self.number(a[0])} < 0)"
        if name in _FORMULAS:
            if options.get("decimals"):
                raise ValueError("round() with decimals: multiply before and divide after it")
            return _FORMULAS[name].format(*[self.named(x) for x in a])
        if name in _CALLS:
            if len(a) > 1 and name == "softplus":
                raise ValueError("softplus with a beta or a threshold of its own")
            return f"{_RENAMED.get(name, name)}({', '.join(self.number(x) for x in a)})"
        return self.simple(node, name, a)

    def simple(self, node: fx.Node, name: str, a: Any) -> str:
        if name == "neg":
            return f"(-{self.number(a[0])})"
        if name == "reciprocal":
            return f"(1.0 / {self.number(a[0])})"
        if name in SAME:
            return self.value(a[0])
        if name in _OF_AXES and len(node.all_input_nodes) == 1:
            return self.converted(a[0], kind(node))
        if name in STOPS:
            return f"stop_gradient({self.number(a[0])})" if kind(node) == "real" else self.value(a[0])
        if name == "_to_copy":
            return self.converted(a[0], kind(node))
        if name in _CONSTANTS:
            fill: Any = _CONSTANTS[name]
        elif name in _FILLED:
            fill = a[_FILLED[name]]
        else:
            raise ValueError(
                f"{node.target} has no counterpart in a spec: write it by functions of docs/language.md, or compute it outside of the mod, "
                "which may read the result as a tensor"
            )
        to: Any = {"bool": bool, "real": float, "int": int}[kind(node)]
        return self.value(to(fill))

    def converted(self, x: Any, to: str) -> str:
        if to == "bool":
            return self.test(x)
        if to == "real":
            return self.number(x) if kind(x) == "real" else f"({self.number(x)} + 0.0)"
        return _TO_INTEGER.format(self.named(x)) if kind(x) == "real" else self.number(x)

    def quotient(self, x: Any, y: Any, mode: Any) -> str:
        if mode is None:
            return f"({self.number(x)} / {self.number(y)})"
        whole = kind(x) != "real" and kind(y) != "real"
        if mode == "floor":
            n, d = self.number(x), self.number(y)
            return f"({n} // {d})" if whole else f"floor({n} / {d})"
        n, d = self.named(x), self.named(y)
        if not whole:
            return _TOWARDS_0.format(f"({n} / {d})")
        return f"({n} // {d} + where(ne({n} % {d}, 0) and {_OTHER_SIGNS.format(n, d)}, 1, 0))"

    def clamped(self, name: str, a: Any, options: dict[str, Any]) -> str:
        low = a[1] if name != "clamp_max" and len(a) > 1 else options.get("min")
        high = a[1] if name == "clamp_max" else a[2] if len(a) > 2 else options.get("max")
        by_numbers = name == "clamp_between" or not (isinstance(low, fx.Node) or isinstance(high, fx.Node))
        return self.bounded(a[0], low, high, by_numbers)
