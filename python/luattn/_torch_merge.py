"""luattn::merge and luattn::merge_backward, ops of torch, and their autograd."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _capi as capi
from ._tensors import fill, place
from ._torch import _lib
from .errors import InvalidError
from .merge import MergeCall

_lib.define("merge(Tensor[] outs, Tensor[] lses, ScalarType? dtype=None) -> (Tensor o, Tensor lse)")
# The gradients of outs, then of lses; an empty tensor where none is wanted.
_lib.define(
    "merge_backward(Tensor? dout, Tensor? dlse, Tensor[] outs, Tensor[] lses, bool[] want_outs, bool[] want_lses) -> Tensor[]"
)
_merge = torch.ops.luattn.merge.default
_merge_backward = torch.ops.luattn.merge_backward.default


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor], dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    for name, tensors in (("outs", outs), ("lses", lses)):
        for i, t in enumerate(tensors):
            if t.device != outs[0].device:
                raise InvalidError(f"merge: {name}[{i}]: is on {t.device}, and outs[0] on {outs[0].device}: move one of them")
    o, lse = _merge(outs, lses, dtype)
    return o, lse


def _rows(t: Tensor) -> Tensor:
    """As kernels read it: with contiguous rows."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _where(t: Tensor) -> tuple[int, int | None]:
    return place(t) if t.is_cuda else (capi.CPU, None)


def _results(outs: Sequence[Tensor], lses: Sequence[Tensor], dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outs[0], dtype=dtype), torch.empty_like(lses[0])


def _gradients(
    outs: Sequence[Tensor], lses: Sequence[Tensor], want_outs: Sequence[bool], want_lses: Sequence[bool]
) -> list[Tensor]:
    return [torch.empty_like(t) if want else t.new_empty(0) for t, want in zip((*outs, *lses), (*want_outs, *want_lses))]


def _forward_kernel(outs, lses, dtype=None):  # type: ignore[no-untyped-def]
    o, lse = _results(outs, lses, dtype)
    outs = [_rows(t) for t in outs]
    MergeCall(fill, outs, lses).forward(o, lse, *_where(o))
    return o, lse


def _backward_kernel(dout, dlse, outs, lses, want_outs, want_lses):  # type: ignore[no-untyped-def]
    made = _gradients(outs, lses, want_outs, want_lses)
    n = len(outs)
    outs = [_rows(t) for t in outs]
    dout = None if dout is None else _rows(dout)
    d_outs = [t if want else None for t, want in zip(made, want_outs)]
    d_lses = [t if want else None for t, want in zip(made[n:], want_lses)]
    MergeCall(fill, outs, lses).backward(dout, dlse, d_outs, d_lses, *_where(outs[0]))
    return made


for _device in ("CPU", "CUDA"):
    _lib.impl("merge", _forward_kernel, _device)
    _lib.impl("merge_backward", _backward_kernel, _device)


@torch.library.register_fake("luattn::merge", lib=_lib)
def _(outs, lses, dtype=None):  # type: ignore[no-untyped-def]
    return _results(outs, lses, dtype)


@torch.library.register_fake("luattn::merge_backward", lib=_lib)
def _(dout, dlse, outs, lses, want_outs, want_lses):  # type: ignore[no-untyped-def]
    return _gradients(outs, lses, want_outs, want_lses)


# --- autograd ---


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    outs, lses, _ = inputs
    ctx.count = len(outs)
    ctx.wants = [t.requires_grad for t in (*outs, *lses)]
    ctx.save_for_backward(*outs, *lses)
    ctx.set_materialize_grads(False)


def _formula(
    dout: Tensor | None, dlse: Tensor | None, outs: Sequence[Tensor], lses: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients in ops of torch, which have gradients themselves."""
    real = lses[0].dtype
    packed = outs[0].dim() == 3
    rows = torch.stack([t.transpose(0, 1) if packed else t for t in lses])  # as the rows of o lie
    none = rows == -torch.inf
    weights = torch.where(none, 0.0, torch.softmax(torch.where(none.all(0), 0.0, rows), 0))
    dots = torch.zeros_like(rows)
    d_outs = [torch.zeros_like(t) for t in outs]
    if dout is not None:
        clean = [torch.where(none[i, ..., None], 0.0, t.to(real)) for i, t in enumerate(outs)]
        dots = torch.stack([(dout.to(real) * t).sum(-1) for t in clean])
        d_outs = [(weights[i, ..., None] * dout.to(real)).to(t.dtype) for i, t in enumerate(outs)]
    mean = (weights * dots).sum(0)
    if dlse is not None:
        mean = mean - (dlse.transpose(0, 1) if packed else dlse)
    d_lses = [w * (dot - mean) for w, dot in zip(weights, dots)]
    return d_outs, [t.transpose(0, 1) if packed else t for t in d_lses]


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
    n, saved = ctx.count, ctx.saved_tensors
    outs, lses, wants = list(saved[:n]), list(saved[n:]), ctx.wants
    if (dout is None and dlse is None) or not any(wants):
        return [None] * n, [None] * n, None
    if torch.is_grad_enabled():  # create_graph
        d_outs, d_lses = _formula(dout, dlse, outs, lses)
    else:
        made = _merge_backward(dout, dlse, outs, lses, wants[:n], wants[n:])
        d_outs, d_lses = made[:n], made[n:]
    return (
        [t if want else None for t, want in zip(d_outs, wants)],
        [t if want else None for t, want in zip(d_lses, wants[n:])],
        None,
    )


torch.library.register_autograd("luattn::merge", _backward, setup_context=_setup, lib=_lib)
