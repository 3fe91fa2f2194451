"""Does entries of a recording again: on fake tensors for their types and shapes, and in traces."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ._casts import check_cast
from ._signs import Entry, Kept, Sign
from ._trace import DETACHING, Lines, clamp_between, indexed, place_of, quietly, stop_gradient
from ._values import role_of, title

if TYPE_CHECKING:
    from ._recording import Recording


@dataclass(frozen=True)
class Meta:
    """Of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Several:
    """Of a function that returns several things."""

    kind: Any
    parts: tuple[Any, ...]


_lock = threading.RLock()  # PyTorch's fake tensors are not for several threads
_found: dict[Any, Any] = {}  # by an entry with metas in the place of signs
_MOST = 4096


def meta_of(recording: "Recording", at: int) -> Any:
    """Meta, Several, or what the entry gave that is no tensor."""
    metas = recording.metas
    while len(metas) <= at:
        metas.append(_find(recording, recording.entries[len(metas)]))
    return metas[at]


def _find(recording: "Recording", entry: Entry) -> Any:
    def replaced(x: Any) -> Any:
        if isinstance(x, Sign):
            if x.kind == "value":
                return recording.metas[x.index]
            if x.kind == "tensor":
                with torch._C.DisableTorchFunction():
                    t = recording.held.tensors[x.index]
                    return Meta(t.dtype, tuple(t.shape))
            return int if x.kind == "int" else float
        return tuple(map(replaced, x)) if type(x) is tuple else x

    func, args, named = entry
    key = (func, replaced(args), replaced(named), recording.device)
    try:
        return _found[key]
    except KeyError:
        pass
    with _lock:
        found = _ask(key)
        if len(_found) >= _MOST:
            _found.clear()
        _found[key] = found
    return found


def _ask(key: Any) -> Any:
    func, args, named, device = key
    with quietly():
        return _computed(func, args, named, device)


def _computed(func: Any, args: Any, named: Any, device: torch.device) -> Any:
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad(), FakeTensorMode():

        def stand_in(x: Any) -> Any:
            if isinstance(x, Meta):
                return torch.empty(x.shape, dtype=x.dtype, device=device)
            if isinstance(x, Several):
                return x.kind([stand_in(y) for y in x.parts])
            return 1 if x is int else 1.0 if x is float else _NONE

        return _meta(call(func, *_decoded(args, named, stand_in)))


def _meta(x: Any) -> Any:
    if isinstance(x, Tensor):
        return Meta(x.dtype, tuple(x.shape))
    if type(x) is torch.Size:
        return x
    if isinstance(x, (tuple, list)):
        return Several(type(x) if type(x) in (tuple, list) or type(x).__module__ == "torch.return_types" else tuple, tuple(map(_meta, x)))
    return x


_NONE = object()  # decode(): it stands for nothing


def _decoded(args: Any, named: Any, stand_in: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    return [decode(x, stand_in) for x in args], {k: decode(x, stand_in) for k, x in named}


def decode(x: Any, stand_in: Callable[[Any], Any]) -> Any:
    """What an entry's argument was. stand_in: of a sign; _NONE for what is none."""
    found = stand_in(x)
    if found is not _NONE:
        return found
    if type(x) is tuple:
        kind, *rest = x
        if kind is float:
            return float.fromhex(rest[0])
        if kind is int or kind is bool:
            return rest[0]
        parts = [decode(y, stand_in) for y in rest]
        return slice(*parts) if kind is slice else kind(parts)
    return x.x if isinstance(x, Kept) else x


# Python's operators by functions that can be traced.
_IN_PLACE = {
    getattr(Tensor, f"__{name}__"): getattr(Tensor, other)
    for name, other in {
        "iand": "bitwise_and_", "ior": "bitwise_or_", "ixor": "bitwise_xor_", "ilshift": "bitwise_left_shift_",
        "irshift": "bitwise_right_shift_",
    }.items()
}  # fmt: skip


def call(func: Any, args: list[Any], named: dict[str, Any], by_numbers: bool = False) -> Any:
    """A function of an entry. Some do not take tensors of no data, or tensors in the place of numbers. by_numbers: whether all of its
    arguments but the first were numbers, though they are tensors here."""
    if func is Tensor.__getitem__:
        return indexed(args[0], args[1])
    if func in DETACHING:
        return stop_gradient(args[0])
    func = _IN_PLACE.get(func, func)
    if func in (torch.tensor, torch.scalar_tensor) and isinstance(args[0], Tensor):
        return args[0].to(named.get("dtype") or args[0].dtype)
    if getattr(func, "__name__", "") in _CLAMPS and any(isinstance(x, Tensor) for x in (*args[1:], *named.values())):
        args[1:] = [_as_tensor(args[0], x) for x in args[1:]]  # then all have to be
        named = {k: _as_tensor(args[0], x) for k, x in named.items()}
        if by_numbers:
            return _clamped_by_numbers(func.__name__, args, named)
    found = func(*args, **named)
    if found is NotImplemented:
        kinds = " and ".join(type(x).__name__ for x in args if not isinstance(x, Tensor))
        raise TypeError(f"{getattr(func, '__name__', func)} of a value of the mod and an object of type {kinds}")
    return found


_CLAMPS = {x + end for x in ("clamp", "clip", "clamp_min", "clamp_max") for end in ("", "_")}


def _clamped_by_numbers(name: str, args: list[Any], named: dict[str, Any]) -> Tensor:
    bound = args[1] if len(args) > 1 else None
    low = named.get("min") if name.startswith("clamp_max") or bound is None else bound
    high = (args[2] if len(args) > 2 else named.get("max")) if not name.startswith("clamp_max") or bound is None else bound
    found: Tensor = clamp_between(args[0], low, high)
    return args[0].copy_(found) if name.endswith("_") else found


def _is_by_numbers(args: Any, named: Any) -> bool:
    return all(x.kind in ("int", "float") for x in (*args[1:], *[x for _, x in named]) if isinstance(x, Sign))


def _as_tensor(like: Tensor, x: Any) -> Any:
    return x if x is None or isinstance(x, Tensor) else torch.full((), x, device=like.device)


class Replay:
    """A recording as a function of scores and indices again."""

    def __init__(self, recording: "Recording", tensors: list[Tensor], numbers: list[Any], dtype: torch.dtype) -> None:
        """dtype: of the tensors of the call."""
        self.recording, self.tensors, self.numbers, self.dtype = recording, tensors, numbers, dtype
        self.replayed = recording.mod

    def __call__(self, *given: Tensor) -> Any:
        results: list[Any] = list(given)
        places = {"value": results, "tensor": self.tensors, "int": self.numbers, "float": self.numbers}

        def stand_in(x: Any) -> Any:
            return places[x.kind][x.index] if isinstance(x, Sign) else _NONE

        recording = self.recording
        lines = recording.lines or [place_of(recording.mod)] * len(recording.entries)
        for (func, args, named), line in zip(recording.entries[len(given) :], lines[len(given) :]):
            Lines.given = line
            given_args, given_named = _decoded(args, named, stand_in)
            results.append(call(func, given_args, given_named, _is_by_numbers(args, named)))
            if role_of(func).is_single and not isinstance(results[-1], Tensor):
                raise TypeError(f"{title(func)} of these arguments gives a {type(results[-1]).__name__}, expected a tensor")
            check_cast(func, given_args, given_named, results[-1], self.dtype, recording.device)
        found = decode(recording.result, stand_in)
        return found if isinstance(found, Tensor) else torch.full((), found, device=given[0].device)
