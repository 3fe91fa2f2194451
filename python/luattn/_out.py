"""out=: where a call's result goes, checked as results are. What the library says of its `o` is said of `out`."""

import re
from collections.abc import Mapping
from typing import Any

from ._arguments import take, what
from ._call import is_numpy
from .errors import InvalidError


def check(name: str, out: Any, q: Any, v: Any, dtype: Any) -> None:
    """That o fits, of these q and v and of this type. Tensors may be fake."""
    take(name, "out", "tensor", out)
    if is_numpy(out) != is_numpy(q):
        raise InvalidError(f"{name}: out: is {what(out)}, and q {what(q)}: give one of the same library")
    want = (*q.shape[:-1], v.shape[-1])
    if tuple(out.shape) != want:
        raise InvalidError(f"{name}: out: has shape {list(out.shape)}, expected {list(want)}, as the result has")
    if out.dtype != dtype:
        raise InvalidError(f"{name}: out: has type {_word(out.dtype)}, expected {_word(dtype)}, as the result has")
    if not is_numpy(q) and out.device != q.device:
        raise InvalidError(f"{name}: out: is on {out.device}, and q on {q.device}: move one of them")
    if is_numpy(q) and not out.flags.writeable:
        raise InvalidError(f"{name}: out: is an array that may not be written to: pass a copy of it")


def check_apart(name: str, out: Any, others: Mapping[str, Any]) -> None:
    """That out is written to after these were read and is none of them, where it is copied to, and the library does not see it."""
    low, high = _extent(out)
    for other, t in others.items():
        if getattr(t, "shape", None) is None or low == high:
            continue
        first, end = _extent(t)
        if first < high and low < end:
            raise InvalidError(f"{name}: out: its memory, 0x{low:x} to 0x{high:x}, is shared with {other}, 0x{first:x} to 0x{end:x}; give what is written memory of its own")


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _extent(t: Any) -> tuple[int, int]:
    """Where it lies: the first byte, and the one behind the last."""
    if 0 in t.shape:
        return 0, 0
    try:
        first = t.ctypes.data if is_numpy(t) else t.data_ptr()
    except RuntimeError:  # in no memory
        return 0, 0
    size = t.dtype.itemsize
    strides = t.strides if is_numpy(t) else [size * stride for stride in t.stride()]
    reach = [(n - 1) * stride for n, stride in zip(t.shape, strides)]
    return first + sum(x for x in reach if x < 0), first + size + sum(x for x in reach if x > 0)


def renamed(message: str) -> str:
    return re.sub(r"^((?:[^:]*: )?)o: ", r"\1out: ", message)
