"""merge(outs, lses): attention over all keys, of what was computed over parts of them."""

import ctypes
from collections.abc import Sequence
from typing import Any, TypeVar

from . import _capi as capi
from ._arguments import is_tensor, is_torch_dtype, mixed, take
from ._call import Fill, Tensors, is_numpy
from ._library import call
from ._spec import Spec
from .engine import engine_of
from .errors import InvalidError

T = TypeVar("T")  # torch.Tensor or numpy.ndarray


def merge(outs: Sequence[T], lses: Sequence[T], *, layout: str = "bhsd", dtype: Any = None) -> tuple[T, T]:
    """(o, lse) of the same queries and all keys, where part i gave outs[i] and lses[i] for some of them, as return_lse=True returns
    them. For softmax with any score_mod and mask; include/luattn/merge.h has the formulas. Attention.merge merges parts of other attentions.

    outs are [batch, heads, length, head_dim] (with layout="bshd" [batch, length, heads, head_dim]) with lses [batch, heads,
    length], or packed [all lengths, heads, head_dim] with lses [heads, all lengths]: up to 16 tensors of torch, whose gradients follow,
    or NumPy arrays. A part that keeps nothing of a row has lse = -inf there (+inf, as flash-attn says it, is the same), and no weight. dtype: of o, if it is to be another than the
    parts'; they may be in float32, for o in bfloat16.
    """
    of_parts, of_rows = check_parts(outs, lses, layout)
    dtype = check_dtype(dtype, is_tensor(outs[0]))
    o: Any
    lse: Any
    if is_numpy(outs[0]):
        o, lse = _merge_numpy(of_parts, of_rows, dtype)
    else:
        from . import _torch_merge

        o, lse = _torch_merge.merge(of_parts, of_rows, dtype)
    return (o.swapaxes(1, 2) if layout == "bshd" else o), lse


def check_parts(outs: Sequence[Any], lses: Sequence[Any], layout: str) -> tuple[list[Any], list[Any]]:
    """Both as lists, outs heads-first."""
    outs, lses = (take("merge", name, "parts", x) for name, x in (("outs", outs), ("lses", lses)))
    take("merge", "layout", "layout", layout)
    if len(outs) != len(lses):
        raise InvalidError(f"merge: lses: are {len(lses)}, and outs {len(outs)}: each part has both")
    if not 1 <= len(outs) <= capi.MERGE_MAX:
        raise InvalidError(f"merge: outs: are {len(outs)}, expected 1 to {capi.MERGE_MAX}: merge more parts in turn")
    _check_tensors(outs[0], outs=outs, lses=lses)
    for i, (o, lse) in enumerate(zip(outs, lses)):
        if o.ndim not in (3, 4) or lse.ndim != o.ndim - 1:
            raise InvalidError(f"merge: outs[{i}], lses[{i}]: have {o.ndim} and {lse.ndim} axes, expected 4 and 3, or packed 3 and 2")
    if layout == "bshd":
        outs = [o.swapaxes(1, 2) for o in outs]
    elif layout != "bhsd":
        raise InvalidError(f"merge: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
    return list(outs), list(lses)


def _check_tensors(first: Any, **lists: Sequence[Any]) -> None:
    """That all are of torch, or all of NumPy."""
    for name, tensors in lists.items():
        for i, x in enumerate(tensors):
            take("merge", f"{name}[{i}]", "tensor", x)
            if is_tensor(x) != is_tensor(first):
                raise InvalidError(mixed("merge", f"{name}[{i}]", x, "outs[0]", first))


def check_dtype(dtype: Any, of_torch: bool) -> Any:
    """Of o, as its library takes it."""
    dtype = take("merge", "dtype", "dtype?", dtype)
    if dtype is None:
        return None
    if of_torch:
        import torch

        return getattr(torch, str(getattr(dtype, "__name__", dtype)).removeprefix("torch."))
    if is_torch_dtype(dtype):
        raise InvalidError(f"merge: dtype: is {dtype}, and outs[0] a NumPy array: pass one of NumPy's")
    return dtype


def merge_states(spec: Spec, outs: Sequence[Any], lses: Sequence[Any], states: Sequence[Any], layout: str, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """o, lse, state and saved of parts by their state; `spec`: whose attention they are parts of."""
    outs, lses = check_parts(outs, lses, layout)
    dtype = check_dtype(dtype, is_tensor(outs[0]))
    states = take("merge", "states", "parts", states)
    if len(states) != len(outs):
        raise InvalidError(f"merge: states: are {len(states)}, and outs {len(outs)}: each part has one")
    _check_tensors(outs[0], states=states)
    for i, (lse, state) in enumerate(zip(lses, states)):
        if state.ndim != lse.ndim + 1:
            raise InvalidError(f"merge: states[{i}]: has {state.ndim} axes, and lses[{i}] {lse.ndim}: it has one more, of the numbers of a row")
    if is_numpy(outs[0]):
        o, *rest = _merge_numpy(outs, lses, dtype, spec, states)
    else:
        from . import _torch_merge

        o, *rest = _torch_merge.merge_states(spec, outs, lses, states, dtype)
    lse, state, saved = rest
    return (o.swapaxes(1, 2) if layout == "bshd" else o), lse, state, saved


def _merge_numpy(outs: list[Any], lses: list[Any], dtype: Any, spec: Spec | None = None, states: Sequence[Any] = ()) -> tuple[Any, ...]:
    import numpy as np

    from ._numpy import fill

    o = np.empty_like(outs[0], dtype=dtype)
    lse = np.empty_like(lses[0])
    made = MergeCall(fill, outs, lses)
    if spec is None:
        made.forward(o, lse, capi.CPU, None)
        return o, lse
    state, saved = (np.empty((n, *lse.shape), lse.dtype) for n in (spec.parts().num_saved, spec.merged_saved))
    made.set_states(spec.parts(), states, state, saved)
    made.forward(o, lse, capi.CPU, None)
    return o, lse, state, saved


class MergeCall:
    """luattn_merge_args of a call. Who makes one keeps the tensors until the call returns."""

    def __init__(self, fill: Fill, outs: Sequence[Any], lses: Sequence[Any]) -> None:
        n = len(outs)
        self._fill, self._used = fill, 0
        self._tensors = Tensors(5 * n + 4)
        self._parts = (capi.Part * n)()
        self._args = capi.MergeArgs(ctypes.sizeof(capi.MergeArgs), ctypes.addressof(self._parts), n)
        for part, o, lse in zip(self._parts, outs, lses):
            part.o, part.lse = self._put(o), self._put(lse)

    def _put(self, tensor: Any) -> int | None:
        if tensor is None:
            return None
        at = self._tensors.at[self._used]
        self._used += 1
        self._fill(tensor, at)
        return at

    def set_states(self, parts: Spec, states: Sequence[Any], state: Any, saved: Any) -> None:
        """Merges by state, and gives that of all parts, and what backward reads of it."""
        self._states = (ctypes.c_void_p * len(states))(*(self._put(t) for t in states))
        self._spec = parts  # which stays as long as the call
        self._args.spec, self._args.states = parts.pointer, ctypes.addressof(self._states)
        self._args.state, self._args.saved = self._put(state), self._put(saved if saved.shape[0] else None)

    def forward(self, o: Any, lse: Any, device: int, stream: int | None) -> None:
        self._args.o, self._args.lse = self._put(o), self._put(lse)
        call("luattn_merge", engine_of(device), ctypes.byref(self._args), stream)

    def backward(
        self, dout: Any, dlse: Any, d_outs: Sequence[Any], d_lses: Sequence[Any], device: int, stream: int | None
    ) -> None:
        """d_outs, d_lses: where gradients go; None: not wanted."""
        self._args.dout, self._args.dlse = self._put(dout), self._put(dlse)
        for part, d_o, d_lse in zip(self._parts, d_outs, d_lses):
            part.d_o, part.d_lse = self._put(d_o), self._put(d_lse)
        call("luattn_merge_backward", engine_of(device), ctypes.byref(self._args), stream)
