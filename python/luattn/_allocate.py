"""Memory for what a call makes: shapes of its results, for fake tensors too, and tensors of these shapes past PyTorch's dispatcher."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _capi as capi
from ._spec import Spec

def rows_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype is torch.float64 else torch.float32


def type_of(q: Tensor, is_f32: bool) -> torch.dtype:
    """That of o, or of a gradient of q, k or v. is_f32: float32 where these are of a half type."""
    return torch.float32 if is_f32 and q.dtype.itemsize == 2 else q.dtype


def fake_results(spec: Spec, q: Tensor, v: Tensor, want_lse: bool = True, out_f32: bool = False) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What results() returns, where q may be fake."""
    dtype = type_of(q, out_f32)
    d, shape = v.shape[-1], q.shape[:-1]
    rows = (shape[1], shape[0]) if len(shape) == 2 else shape  # packed: [heads, total_q]
    if q.is_contiguous() and d == q.shape[-1]:
        o = torch.empty_like(q, dtype=dtype)
    elif len(shape) >= 3:  # in the order that q has in memory, such as [B, S, H, D]
        strides, axes = q.stride(), range(len(shape))
        order = sorted(axes, key=lambda i: -strides[i])
        o = q.new_empty((*(shape[i] for i in order), d), dtype=dtype).permute(*(order.index(i) for i in axes), len(shape))
    else:
        o = q.new_empty((*shape, d), dtype=dtype)
    lse = q.new_empty(rows, dtype=rows_type(q)) if spec.has_lse and want_lse else None
    saved = q.new_empty((spec.num_saved, *rows), dtype=rows_type(q)) if spec.num_saved else None
    return o, lse, saved


def fake_gradients(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    wants: int,
    want_inputs: Sequence[bool],
    grad_f32: bool = False,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """What gradients() returns, where tensors may be fake."""
    dtype = type_of(q, grad_f32)
    dq = torch.empty_like(q, dtype=dtype) if wants & capi.WANT_DQ else None
    dk = torch.empty_like(k, dtype=dtype) if wants & capi.WANT_DK else None
    dv = torch.empty_like(v, dtype=dtype) if wants & capi.WANT_DV else None
    dscalars = None
    if wants & capi.WANT_SCALARS and spec.scalars:
        dscalars = q.new_empty((len(spec.scalars),), dtype=rows_type(q))
    dinputs = [
        q.new_empty(t.shape, dtype=rows_type(q)) if want else None for t, want in zip(inputs, want_inputs)
    ]
    return dq, dk, dv, dscalars, dinputs


# --- memory ---

# Makes a tensor of a shape, strides and a type. A torch.Size is not the tuple that it takes.
New = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
# How Inductor allocates: past the dispatcher, in a third of the time.
_NEW: dict[str, New] = {
    device: made
    for device in ("cpu", "cuda")
    if (made := getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)) is not None
}


def new_where(q: Tensor) -> New:
    """What makes tensors where q is."""
    if q.is_cuda:
        if "cuda" in _NEW and q.get_device() == torch._C._cuda_getDevice():  # the one in which it allocates
            return _NEW["cuda"]
    elif "cpu" in _NEW:
        return _NEW["cpu"]
    device = q.device
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def memory(q: Tensor, size: int) -> Tensor:
    """Bytes for kernels, where q is: 512-byte aligned."""
    return new_where(q)((size,), (1,), torch.uint8)


# Shape, strides and type of what a call makes, by what decides them. PyTorch takes longer to find out than to allocate.
_LAYOUTS: dict[Any, Any] = {}


def layout_of(t: Tensor | None) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None:
    return None if t is None else (tuple(t.shape), t.stride(), t.dtype)


def _remember(key: Any, layout: Any) -> None:
    if len(_LAYOUTS) >= 4096:
        _LAYOUTS.clear()
    _LAYOUTS[key] = layout


def results(
    spec: Spec, q: Tensor, v: Tensor, want_lse: bool = True, out: Tensor | None = None, out_f32: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """o, lse and saved; None for what the spec does not have, or nobody wants. out: memory for o."""
    key = spec.saves, q.shape, q.stride(), q.dtype, v.size(-1), want_lse, out_f32
    known = _LAYOUTS.get(key)
    if known is None:
        made = fake_results(spec, q, v, want_lse, out_f32)
        _remember(key, tuple(map(layout_of, made)))
        return made if out is None else (out, *made[1:])
    new, (o, lse, saved) = new_where(q), known
    return new(*o) if out is None else out, None if lse is None else new(*lse), None if saved is None else new(*saved)


def _like(t: Tensor, new: New, dtype: torch.dtype) -> Tensor:
    """torch.empty_like."""
    key = t.shape, t.stride(), t.dtype, dtype
    known = _LAYOUTS.get(key)
    if known is None:
        made = torch.empty_like(t, dtype=dtype)
        _remember(key, layout_of(made))
        return made
    return new(*known)


def gradients(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    wants: int,
    want_inputs: Sequence[bool],
    grad_f32: bool = False,
    out: Sequence[Tensor | None] = (None, None, None),
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor | None]]:
    """dq, dk, dv, those of scalars and those of inputs; None for what nobody wants. out: memory for dq, dk and dv."""
    new, dtype = new_where(q), type_of(q, grad_f32)
    dq, dk, dv = (
        None if not wants & want else _like(t, new, dtype) if to is None else to
        for want, t, to in zip((capi.WANT_DQ, capi.WANT_DK, capi.WANT_DV), (q, k, v), out)
    )
    if not inputs and not wants & capi.WANT_SCALARS:
        return dq, dk, dv, None, ()
    *_, dscalars, dinputs = fake_gradients(spec, q, k, v, inputs, wants & capi.WANT_SCALARS, want_inputs)
    return dq, dk, dv, dscalars, dinputs
