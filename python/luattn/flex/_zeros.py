"""Which divisors of a mod are 0 for some indices of a call, where PyTorch raises an error on the CPU and a GPU gives any number. What may be 0, and need not be, is
not looked at: such as torch.where(x == 0, 1, x)."""

from collections.abc import Callable

from torch import fx

from ._lua_text import name_of

# A place of a step whose range says whether a divisor is 0: where it has all integers of its range, or its ends alone for sure.
Zero = tuple[int, bool]
_SAME = ("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand", "_to_copy", "clone", "alias", "detach", "neg", "abs", "index", "select", "slice")
DIVIDES = ("div", "floor_divide", "remainder", "fmod")


def zeros_of(x: object, place: Callable[[fx.Node], int | None]) -> list[Zero]:
    """If any of these steps is 0 somewhere, so is x."""
    if not isinstance(x, fx.Node):
        return []
    name, args = ("", []) if x.op != "call_function" else (name_of(x), list(x.args))
    if name in ("mul", "square", "pow", "abs", "neg", "bitwise_left_shift", "floor_divide", "remainder"):
        factors = args[:2] if name == "mul" else args[:1]
        found = [zero for factor in factors for zero in zeros_of(factor, place)]
        if found or name not in _SAME:
            return found
    at, whole = place(x), _is_whole(x)
    return [] if at is None or whole is None else [(at, whole)]


def _is_whole(x: fx.Node) -> bool | None:
    """Whether a step has all integers of its range. None: nor its ends for sure."""
    if x.op == "placeholder":
        return True
    if x.op == "get_attr":
        return False
    name, args = name_of(x), list(x.args)
    if name in _SAME or "mod_index" in str(x.target):
        return _is_whole(args[0]) if isinstance(args[0], fx.Node) else None
    if name in ("add", "sub", "rsub") and not x.kwargs:
        nodes = [y for y in args[:2] if isinstance(y, fx.Node)]
        if len(nodes) == 1 and isinstance(args[1 - args.index(nodes[0])], int):
            return _is_whole(nodes[0])
        if name != "add" and all(y.op == "placeholder" for y in nodes):  # of two indices that may be equal
            return True
    return None


def is_zero(ranges: list[tuple[float, float]], zero: Zero) -> bool:
    low, high = ranges[zero[0]]
    return low <= 0 <= high if zero[1] else low == 0 or high == 0
