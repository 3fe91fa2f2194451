"""Floating-point operations of the ops, for torch.utils.flop_counter: those of the scores that the mask keeps."""

import ctypes
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils.flop_counter import register_flop_formula

from . import _capi as capi
from ._call import FIXED_AXES, WHOLE, give_back, is_paged, take_frame
from ._library import call
from ._spec import Spec, spec_in_graph
from ._tensors import fill
from .errors import Error
from .mask import shape_only

_TILE = 64


def _count(spec: Spec, sizes: tuple[int, int, int, Any, Any], inputs: Sequence[Any], scalars: Sequence[float], given: Mapping[str, Any]) -> float:
    """Scores that the mask keeps, of batch, heads, heads_kv, q_len and kv_len, or their extents along a grid. Of large problems a sample is looked at."""
    b, h, hkv, n, m = sizes
    n, m = ((x,) if isinstance(x, int) else tuple(x) for x in (n, m))
    every: float = b * h * math.prod(n) * math.prod(m)
    if not (spec.has_mask and every):
        return every
    counts = capi.MaskCounts(struct_size=ctypes.sizeof(capi.MaskCounts))
    frame = take_frame(spec)
    try:
        frame.set(shape_only, ((b, h, *n, 8), (b, hkv, *m, 8), (b, hkv, *m, 8), None, None, None))
        frame.set_inputs(fill, inputs)
        frame.set_numbers(0.0, scalars)
        if given:
            frame.set_batch(fill, given)
        call("luattn_mask_survey", spec.pointer, None, frame.args, _TILE, _TILE, ctypes.byref(counts))
    finally:
        give_back(frame)
    return float(counts.kept)


def _lengths(x: str, given: Mapping[str, Any], whole: int) -> list[tuple[int, int]]:
    """Where each sequence begins, and its length; of a cache or pages the lengths alone count."""
    cu, used = given.get(f"cu_seqlens_{x}"), given.get(f"seqused_{x}")
    if cu is not None:
        first = cu.tolist()
        lengths = [end - start for start, end in zip(first, first[1:])]
        return list(zip(first, lengths if used is None else used.tolist()))
    return [(0, n) for n in used.tolist()] if used is not None else [(0, whole)]


def _of_sequence(spec: Spec, inputs: Sequence[Tensor], b: int, q: tuple[int, int], k: tuple[int, int], totals: Mapping[str, int]) -> list[Tensor]:
    """The inputs of one sequence as those of a batch of 1."""
    made = []
    for info, t in zip(spec.inputs, inputs):
        for axis, name in enumerate(info.axes):
            first, length = {"b": (b, 1), "q": q, "kv": k}.get(name, (0, 0))
            if name == "b" or (name in FIXED_AXES and length and t.shape[axis] == totals.get(name)):
                t = t.narrow(axis, first, length)
        made.append(t)
    return made


def kept_scores(spec: Spec, q: Tensor, k: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float], given: Mapping[str, Any]) -> float:
    """Scores that the mask keeps, of query heads. Tensors of `inputs` and `given` are on the CPU."""
    whole = list(given.get("whole") or [0] * len(WHOLE))
    is_packed, paged = given.get("cu_seqlens_q") is not None, is_paged(given)
    starts = [given.get(name) for name in ("q_offset", "kv_offset")]
    if not (is_packed or paged or any(x is not None for x in starts)):
        sizes = (q.shape[0], q.shape[1], k.shape[1], q.shape[2:-1], k.shape[2:-1])
        return _count(spec, sizes, inputs, scalars, {"whole": whole} if any(whole) else {})
    n, m = (q.shape[0], k.shape[0]) if is_packed else (q.shape[2], k.shape[2])
    queries = _lengths("q", given, n) if is_packed else [(0, n)] * (len(given["seqused_k"]) if paged else q.shape[0])
    keys = _lengths("k", given, m) if is_packed or paged else [(0, m)] * len(queries)
    totals = {"q": n, "kv": m} if is_packed and not paged else {}
    total = 0.0
    for b, (of_q, of_k) in enumerate(zip(queries, keys)):
        for i, x in enumerate(starts):
            if x is not None:
                whole[i] = int(x[b])
        own = _of_sequence(spec, inputs, b, of_q, of_k, totals)
        total += _count(spec, (1, q.shape[1], k.shape[1], of_q[1], of_k[1]), own, scalars, {"whole": whole} if any(whole) else {})
    return total


def _kept(text: str, q: Tensor, k: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float], learned: Any, given: Mapping[str, Any]) -> float:
    tensors = [t for t in (q, learned, *inputs, *given.values()) if isinstance(t, Tensor)]
    if any(t.is_meta or is_fake(t) for t in tensors):
        return _all(q, k, given)
    host = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in given.items() if name != "batch"}
    values = scalars if learned is None else learned.tolist()
    try:
        with torch._C._DisableTorchDispatch():
            return kept_scores(spec_in_graph(text), q, k, [t.detach().cpu() for t in inputs], values, host)
    except Error as e:
        warnings.warn(f"luattn: FLOPs: {e}; every score counts", RuntimeWarning, stacklevel=2)
        return _all(q, k, given)


def _all(q: Tensor, k: Tensor, given: Mapping[str, Any]) -> float:
    """Every score, where values are not known."""
    if q.dim() >= 4 and k.dim() == q.dim() and given.get("block_table") is None:
        return float(math.prod(q.shape[:-1]) * math.prod(k.shape[2:-1]))
    rows = q.shape[0] if q.dim() == 3 else q.shape[0] * q.shape[2]
    return float(q.shape[1] * rows * (given.get("max_seqlen_k") or (k.shape[0] if k.dim() == 3 else k.shape[2])))


def _forward(text, q, k, v, inputs, scalars, learned, scale, out_val=None, **given):  # type: ignore[no-untyped-def]
    return int(2 * (q.shape[-1] + v.shape[-1]) * _kept(text, q, k, inputs, scalars, learned, given))


def _weights(text, q, k, v, inputs, scalars, learned, scale, out_val=None, **given):  # type: ignore[no-untyped-def]
    return int(2 * q.shape[-1] * _kept(text, q, k, inputs, scalars, learned, given))


def _backward(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, out_val=None, wants=31, want_inputs=(), **given):  # type: ignore[no-untyped-def]
    """The scores again, dP, and of dq, dk and dv those that are wanted."""
    d, dv = q.shape[-1], v.shape[-1]
    each = d + dv + d * (bool(wants & capi.WANT_DQ) + bool(wants & capi.WANT_DK)) + dv * bool(wants & capi.WANT_DV)
    return int(2 * each * _kept(text, q, k, inputs, scalars, learned, given))


for _op, _formula in (("forward", _forward), ("backward", _backward), ("weights", _weights)):
    register_flop_formula(getattr(torch.ops.luattn, _op), get_raw=True)(_formula)
