"""luattn::merge and luattn::merge_backward, ops of torch, and their autograd."""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import _capi as capi
from . import _tangents
from ._spec import Spec, spec_in_graph
from ._tensors import fill, place
from ._torch import _lib
from .errors import InvalidError, Unsupported
from .merge import MergeCall

_lib.define("merge(Tensor[] outs, Tensor[] lses, ScalarType? dtype=None) -> (Tensor o, Tensor lse)")
# The gradients of outs, then of lses; an empty tensor where none is wanted.
_lib.define(
    "merge_backward(Tensor? dout, Tensor? dlse, Tensor[] outs, Tensor[] lses, bool[] want_outs, bool[] want_lses) -> Tensor[]"
)
# Of parts by their state; spec: of whose attention.
_lib.define("merge_states(str spec, Tensor[] outs, Tensor[] lses, Tensor[] states, ScalarType? dtype=None) -> (Tensor o, Tensor lse, Tensor state, Tensor saved)")
_merge = torch.ops.luattn.merge.default
_merge_states = torch.ops.luattn.merge_states.default
_merge_backward = torch.ops.luattn.merge_backward.default
_below_autograd = torch._C._AutoDispatchBelowAutograd


def _check_devices(outs: Sequence[Tensor], **others: Sequence[Tensor]) -> None:
    for name, tensors in {"outs": outs, **others}.items():
        for i, t in enumerate(tensors):
            if t.device != outs[0].device:
                raise InvalidError(f"merge: {name}[{i}]: is on {t.device}, and outs[0] on {outs[0].device}: move one of them")


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor], dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    _check_devices(outs, lses=lses)
    o, lse = _merge(outs, lses, dtype)
    return o, lse


def merge_states(
    spec: Spec, outs: Sequence[Tensor], lses: Sequence[Tensor], states: Sequence[Tensor], dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_devices(outs, lses=lses, states=states)
    o, lse, state, saved = _merge_states(spec.line, outs, lses, states, dtype)
    return o, lse, state, saved


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


def _state_results(text, outs, lses, dtype):  # type: ignore[no-untyped-def]
    spec, lse = spec_in_graph(text), lses[0]
    return (*_results(outs, lses, dtype), *(lse.new_empty((n, *lse.shape)) for n in (spec.parts().num_saved, spec.merged_saved)))


def _states_kernel(text, outs, lses, states, dtype=None):  # type: ignore[no-untyped-def]
    o, lse, state, saved = made = _state_results(text, outs, lses, dtype)
    outs = [_rows(t) for t in outs]
    call = MergeCall(fill, outs, lses)
    call.set_states(spec_in_graph(text).parts(), states, state, saved)
    call.forward(o, lse, *_where(o))
    return made


def merge_into(o: Tensor, outs: Sequence[Tensor], lses: Sequence[Tensor], by_state: tuple[Spec, Sequence[Tensor]] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Merges parts into o; their lse, state and what backward reads, without gradients. by_state: the spec and the states, else by lse."""
    lse = torch.empty_like(lses[0])
    state = saved = lse.new_empty(0)
    call = MergeCall(fill, [_rows(t) for t in outs], lses)
    if by_state is not None:
        spec, states = by_state
        state, saved = (lse.new_empty((n, *lse.shape)) for n in (spec.parts().num_saved, spec.merged_saved))
        call.set_states(spec.parts(), states, state, saved)
    call.forward(o, lse, *_where(o))
    return lse, state, saved


for _device in ("CPU", "CUDA"):
    _lib.impl("merge", _forward_kernel, _device)
    _lib.impl("merge_states", _states_kernel, _device)
    _lib.impl("merge_backward", _backward_kernel, _device)


@torch.library.register_fake("luattn::merge", lib=_lib)
def _(outs, lses, dtype=None):  # type: ignore[no-untyped-def]
    return _results(outs, lses, dtype)


@torch.library.register_fake("luattn::merge_states", lib=_lib)
def _(text, outs, lses, states, dtype=None):  # type: ignore[no-untyped-def]
    return _state_results(text, outs, lses, dtype)


@torch.library.register_fake("luattn::merge_backward", lib=_lib)
def _(dout, dlse, outs, lses, want_outs, want_lses):  # type: ignore[no-untyped-def]
    return _gradients(outs, lses, want_outs, want_lses)


# --- autograd ---


def _formula(
    dout: Tensor | None, dlse: Tensor | None, outs: Sequence[Tensor], lses: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients in ops of torch, which have gradients themselves."""
    real = lses[0].dtype
    packed = outs[0].dim() == 3
    rows = torch.stack([t.transpose(0, 1) if packed else t for t in lses])  # as the rows of o lie
    none = rows.isinf()  # of either sign: those of a part without keys
    rows = torch.where(none, -torch.inf, rows)
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


class _Rules:
    @staticmethod
    def forward(ctx, count, dtype, *tensors):  # type: ignore[no-untyped-def]
        with _tangents.below():
            o, lse = _merge(list(tensors[:count]), list(tensors[count:]), dtype)
        ctx.count = count
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, dout=None, dlse=None):  # type: ignore[no-untyped-def]
        n, wants = ctx.count, ctx.needs_input_grad[2:]
        tensors = ctx.saved_tensors
        if (dout is None and dlse is None) or not any(wants):
            return None, None, *[None] * len(wants)
        made = _merge_backward(dout, dlse, list(tensors[:n]), list(tensors[n:]), list(wants[:n]), list(wants[n:]))
        return None, None, *(t if want else None for t, want in zip(made, wants))


class _Merge(_Rules, torch.autograd.Function):
    pass


_MergeOfLevel = _tangents.of_level(_Rules)


def _merge_dual(outs: Sequence[Tensor], lses: Sequence[Tensor], dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """With tangents, in ops of torch: lse' = sum w_i lse_i', o' = sum w_i (o_i' + (lse_i' - lse') o_i), with weights w_i = exp(lse_i - lse)."""
    found, tangents = _tangents.split((*outs, *lses))
    primals = [t for t in found if t is not None]  # all are there
    n, real = len(outs), lses[0].dtype
    o, lse = _merge(primals[:n], primals[n:], dtype)
    packed = o.dim() == 3
    none = [t.isinf() for t in primals[n:]]  # of either sign: those of a part without keys
    weights = [torch.where(empty, 0.0, torch.exp(torch.where(empty, 0.0, t - lse))) for empty, t in zip(none, primals[n:])]
    of_lses = [torch.zeros_like(lse) if t is None else torch.where(empty, 0.0, t) for empty, t in zip(none, tangents[n:])]
    of_lse = sum((w * t for w, t in zip(weights, of_lses)), torch.zeros_like(lse))

    def along_rows(t: Tensor) -> Tensor:
        return (t.transpose(0, 1) if packed else t)[..., None]

    of_o = torch.zeros_like(o, dtype=real)
    for w, t, empty, part, along in zip(weights, of_lses, none, primals[:n], tangents[:n]):
        moved = along_rows(t - of_lse) * torch.where(along_rows(empty), 0.0, part.to(real))
        if along is not None:
            moved = moved + torch.where(along_rows(empty), 0.0, along.to(real))
        of_o = of_o + along_rows(w) * moved
    return _tangents.join(o, of_o.to(o.dtype)), _tangents.join(lse, of_lse)


def _refuse_transforms(tensors: Sequence[Tensor | None]) -> None:
    """Of what has neither gradients nor tangents."""
    if _tangents.is_transformed():
        raise Unsupported("merge: transforms of torch.func (grad, vjp, ..) do not exist for a merge by state: use torch.autograd")
    _tangents.refuse("merge by state", tensors, "detach what has a tangent")


def _needs_grad(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _merge_autograd(outs, lses, dtype=None):  # type: ignore[no-untyped-def]
    tensors = (*outs, *lses)
    if _tangents.have_tangents(tensors):
        return _merge_dual(outs, lses, dtype)
    if _needs_grad(tensors) or _tangents.is_transformed():
        return _tangents.apply("merge", _Merge, _MergeOfLevel, len(outs), dtype, *tensors)
    with _below_autograd():
        return _merge(outs, lses, dtype)


def _backward_autograd(dout, dlse, outs, lses, want_outs, want_lses):  # type: ignore[no-untyped-def]
    tensors = (dout, dlse, *outs, *lses)
    if _needs_grad(tensors) or _tangents.is_transformed() or _tangents.have_tangents(tensors):  # create_graph, and forward mode
        d_outs, d_lses = _formula(dout, dlse, outs, lses)
        wants = (*want_outs, *want_lses)
        return [t if want else t.new_empty(0) for t, want in zip((*d_outs, *d_lses), wants)]
    with _below_autograd():
        return _merge_backward(dout, dlse, outs, lses, want_outs, want_lses)


def _states_autograd(text, outs, lses, states, dtype=None):  # type: ignore[no-untyped-def]
    tensors = (*outs, *lses, *states)
    _refuse_transforms(tensors)
    if _needs_grad(tensors):
        raise Unsupported(
            f"{spec_in_graph(text).name}: merge: a merge by state has no gradient of its own: detach the parts, and call gradients() for each with o, lse and saved of "
            "the merge"
        )
    with _below_autograd():
        return _merge_states(text, outs, lses, states, dtype)


def _refuse_vmap(*_, **__):  # type: ignore[no-untyped-def]
    raise Unsupported("merge: torch.vmap: merges are not mapped yet: put the mapped dimension into the batch yourself")


for _name in ("merge", "merge_states", "merge_backward"):
    _lib.impl(_name, _refuse_vmap, "FuncTorchBatched")
_lib.impl("merge", _tangents.uncompiled(_merge_autograd), "Autograd")
_lib.impl("merge_states", _tangents.uncompiled(_states_autograd), "Autograd")
_lib.impl("merge_backward", _tangents.uncompiled(_backward_autograd), "Autograd")
