"""Writes FlexAttention's mods, which are Python over tensors of no dimensions, as the text of a spec: torch.fx traces, and each
node becomes a line of Lua."""

import inspect
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _capi as capi
from ..errors import Unsupported

aten = torch.ops.aten
Mod = Callable[..., Tensor]


class NotTranslatable(Unsupported):
    """A mod that a spec cannot say. The message starts with the file and the line of the user's Python."""


_INPUT_TYPES = {getattr(torch, name): name for name in capi.INPUT_DTYPES if name != "any"}
_INDICES = ("b", "h", "q_idx", "kv_idx")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(torch.__file__)

# Written as a call of the same name.
_CALLS = "abs exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid relu silu erf sin cos floor ceil softplus minimum maximum pow"
_RENAMED = {"minimum": "min", "maximum": "max"}
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "remainder": "%", "ge": ">=", "gt": ">", "le": "<=", "lt": "<",
    "bitwise_left_shift": "<<", "bitwise_right_shift": ">>", "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
_LOGIC = {"bitwise_and": ("and", "&"), "bitwise_or": ("or", "|"), "logical_and": ("and", ""), "logical_or": ("or", ""),
          "__and__": ("and", "&"), "__or__": ("or", "|")}  # fmt: skip
# Of a tensor of no dimensions: itself.
_SAME = (
    "detach",
    "clone",
    "alias",
    "lift_fresh_copy",
    "lift_fresh",
    "view",
    "squeeze",
    "unsqueeze",
    "expand",
    "contiguous",
)


def _kind(x: Any) -> str:
    """bool, int or real, as Lua tells them apart."""
    if isinstance(x, fx.Node):
        dtype = x.meta["val"].dtype
        return "bool" if dtype == torch.bool else "real" if dtype.is_floating_point else "int"
    return "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "real"


class _Writer:
    """The body of one hook."""

    def __init__(
        self, mod: Mod, dtype: torch.dtype | None, captured: list[Tensor], used: dict[int, str]
    ) -> None:
        graph, self.place = _trace(mod, dtype), _place_of(mod)
        parameters = _INDICES if dtype is None else ("score", *_INDICES)
        self.graph, self.captured, self.used = graph, captured, used
        self.parameters = iter(parameters)
        self.lines: list[str] = []
        self.count = 0  # of local variables
        self.text: dict[fx.Node, str] = {}
        self.tensors: dict[
            fx.Node, tuple[int, list[str]]
        ] = {}  # captured ones that have axes, and indices of the first of them
        self.at_least_0: set[fx.Node] = set()

    def value(self, x: Any) -> str:
        if isinstance(x, fx.Node):
            if x not in self.text:
                raise ValueError(
                    "a captured tensor, or a row of it, in arithmetic: a spec reads single elements, so do that before, or index all axes"
                )
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
            except (IndexError, KeyError, TypeError) as e:  # an op with other arguments than it has in mods
                raise NotTranslatable(
                    f"{node.stack_trace or self.place}: {node.target} with these arguments"
                ) from e
            if node.op == "output":
                result = node.args[0][0] if isinstance(node.args[0], (tuple, list)) else node.args[0]
                self.lines.append(f"return {_bare(self.test(result) if as_mask else self.number(result))}")
        return self.lines

    def visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.text[node] = next(self.parameters)
            if _kind(node) == "int":
                self.at_least_0.add(node)
        elif node.op == "get_attr":
            self.capture(node, getattr(self.graph, str(node.target)))
        elif node.op == "call_function":
            if _is_index(node):
                self.index(node)
            elif _name(node) in ("detach", "alias", "lift_fresh_copy") and node.args[0] in self.tensors:
                self.tensors[node] = self.tensors[node.args[0]]  # type: ignore[index]
            else:
                self.write(node, self.expression(node))
                if self.is_at_least_0(node):
                    self.at_least_0.add(node)

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
        name = f"t{self.count}"
        self.count += 1
        self.lines.append(f"local {name} = {_bare(self.text[x])}")
        self.text[x] = name
        return self.number(x)

    def capture(self, node: fx.Node, tensor: Tensor) -> None:
        i = next((i for i, known in enumerate(self.captured) if known is tensor), None)
        if i is None and tensor.numel() == 1:  # a constant that the mod itself makes
            self.text[node] = self.value(tensor.item())
            return
        if i is None:
            raise ValueError(
                "a tensor that the mod makes itself: make it outside, so that the mod captures it"
            )
        if tensor.dtype not in _INPUT_TYPES:
            raise ValueError(
                f"a captured tensor of type {tensor.dtype}; convert it to one of {', '.join(_INPUT_TYPES.values())}"
            )
        self.used.setdefault(i, f"x{i}")
        if tensor.dim() == 0:
            self.text[node] = f"x{i}"
        else:
            self.tensors[node] = i, []

    def index(self, node: fx.Node) -> None:
        """t[i, j], t[i][j] and t[i, 3]: an element, once there is an index for each axis."""
        if node.args[0] not in self.tensors:
            raise ValueError("only a captured tensor can be indexed")
        i, where = self.tensors[node.args[0]]  # type: ignore[index]
        tensor, where = self.captured[i], list(where)
        given: Any = node.args[1]
        if _name(node) == "select":
            if given != 0:
                raise ValueError(
                    "a captured tensor is indexed behind its first axis alone: index all of its axes at once"
                )
            given = [node.args[2]]
        if any(x is None for x in given):
            raise ValueError(
                "a captured tensor is indexed behind its first axis alone: index all of its axes at once"
            )
        if tensor.dim() > 4:
            raise ValueError(
                f"a captured tensor has {tensor.dim()} axes, and an input 4 at most: merge some of them"
            )
        for x in given:
            if _kind(x) != "int":
                raise ValueError("an index that is no integer")
            size = tensor.shape[len(where)]
            if isinstance(x, int):
                where.append(str(x % size))
            elif x in self.at_least_0:
                where.append(_bare(self.value(x)))
            else:  # counts from the end in torch, and is clamped to 0 in a spec
                text = self.named(x)
                where.append(f"where({text} < 0, {text} + {size}, {text})")
        if len(where) < tensor.dim():
            self.tensors[node] = i, where
        else:
            self.write(
                node, f"{self.used[i]}[{where[0] if len(where) == 1 else '{' + ', '.join(where) + '}'}]"
            )

    def is_at_least_0(self, node: fx.Node) -> bool:
        """Whether an integer is known not to be negative: an index is then written as it is."""

        def known(x: Any) -> bool:
            return x in self.at_least_0 if isinstance(x, fx.Node) else isinstance(x, int) and x >= 0

        name, args = _name(node), node.args
        if _kind(node) != "int":
            return False
        if name in (
            "add",
            "mul",
            "floor_divide",
            "div",
            "minimum",
            "bitwise_and",
            "bitwise_or",
            "where",
            *_SAME,
            "_to_copy",
        ):
            return all(known(x) for x in args if not (name == "where" and x is args[0]))
        if name == "remainder":
            return isinstance(args[1], int) and args[1] > 0
        return name == "abs" or (
            name in ("clamp", "clamp_min", "maximum") and len(args) > 1 and known(args[1])
        )

    def expression(self, node: fx.Node) -> str:
        name, a, options = _name(node), node.args, dict(node.kwargs)
        if name in _SIGNS or name == "rsub":
            x, y = (a[1], a[0]) if name == "rsub" else (a[0], a[1])
            if name == "mul" and _kind(node) == "bool":
                return f"({self.test(x)} and {self.test(y)})"
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
            if options.get("approximate", "none") != "none":
                raise ValueError("gelu by tanh: a spec has the exact one")
            return f"gelu({self.number(a[0])})"
        if name in _CALLS.split():
            if len(a) > 1 and name == "softplus":
                raise ValueError("softplus with a beta or a threshold of its own")
            return f"{_RENAMED.get(name, name)}({', '.join(self.number(x) for x in a)})"
        return self.simple(node, name, a, options)

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


def _is_index(node: fx.Node) -> bool:
    return (
        _name(node) in ("index", "select")
        or "mod_index" in str(node.target)
        or str(node.target).startswith("flex_lib.")
    )


def _is_users(file: str) -> bool:
    return not file.startswith((_TORCH, _HERE, "<"))


class _Lines(TorchDispatchMode):
    """Gives each node the line of the user's Python that made it. torch.fx keeps lines of functions named forward alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = inspect.currentframe()
        while frame is not None and not _is_users(frame.f_code.co_filename):
            frame = frame.f_back
        with fx.traceback.preserve_node_meta():
            fx.traceback.set_stack_trace([f"{frame.f_code.co_filename}:{frame.f_lineno}"] if frame else [])
            return func(*args, **(kwargs or {}))


def _place_of(mod: Mod) -> str:
    code = getattr(mod, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(mod, "__name__", "mod")


def _place_of_error(mod: Mod, error: BaseException) -> str:
    found, step = _place_of(mod), error.__traceback__
    inside = False  # of the call of the mod
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if inside and _is_users(file):
            found = f"{file}:{step.tb_lineno}"
        inside = inside or file == __file__
        step = step.tb_next
    return found


def _trace(mod: Mod, dtype: torch.dtype | None) -> fx.GraphModule:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def with_lines(*args: Tensor) -> Tensor:
        with _Lines():
            return mod(*args)

    args = [torch.zeros((), dtype=torch.int64) for _ in range(4)]
    if dtype is not None:
        args.insert(0, torch.zeros((), dtype=dtype))
    try:
        with torch.enable_grad(), TransformGetItemToIndex():
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


def translate(
    score_mod: Mod | None, mask_mod: Mod | None, dtype: torch.dtype, captured: list[Tensor]
) -> tuple[str, list[int]]:
    """The text of a spec, and which captured tensors its inputs x0, x1, .. are. captured: every tensor that the mods hold."""
    hooks, used = list[tuple[str, tuple[str, ...], list[str]]](), dict[int, str]()
    if score_mod is not None:
        body = _Writer(score_mod, dtype, captured, used).run(as_mask=False)
        hooks.append(("score_mod", ("score", *_INDICES), body))
    if mask_mod is not None:
        body = _Writer(mask_mod, None, captured, used).run(as_mask=True)
        hooks.append(("block_mask", _INDICES, body))
    lines = ["return attention {"]
    if used:
        lines.append("  inputs = {")
        for i in sorted(used):
            tensor = captured[i]
            axes = ", ".join(f'"x{i}_{axis}"' for axis in range(tensor.dim()))
            grad = ", grad = true" if tensor.requires_grad else ""
            lines.append(f'    x{i} = {{ axes = {{{axes}}}, dtype = "{_INPUT_TYPES[tensor.dtype]}"{grad} }},')
        lines.append("  },")
    for field, parameters, body in hooks:
        lines += [
            f"  {field} = function({', '.join(parameters)})",
            *(f"    {line}" for line in body),
            "  end,",
        ]
    return "\n".join([*lines, "}", ""]), sorted(used)
