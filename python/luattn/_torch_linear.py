"""Linear attention of torch tensors, with autograd."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _capi as capi
from . import _linear_call, _tangents, _tensors
from ._arguments import what
from ._once import once
from ._spec import Spec
from ._tensors import mark_written
from .errors import InvalidError, Unsupported

_PLAIN = ("cu_seqlens", "state_indices")
_NO_TANGENTS = "detach what has a tangent, and take derivatives backwards, by torch.autograd"


def _rows_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype is torch.float64 else torch.float32


def _number(x: Any) -> float:
    return float(x.detach()) if isinstance(x, Tensor) else float(x)


def _list_there(spec: Spec, name: str, x: Any, q: Tensor) -> Tensor | None:
    """Integers as kernels read them."""
    if x is None:
        return None
    if not isinstance(x, Tensor) or x.dtype not in (torch.int32, torch.int64) or x.device != q.device:
        raise InvalidError(f"{spec.name}: {name}: is {what(x)}; give an int32 or int64 tensor on {q.device}, where q is")
    return x.to(torch.int32).contiguous()


def empty(q: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory where q lies."""
    return torch.empty(tuple(shape), dtype=dtype, device=q.device)


def _place(q: Tensor) -> _linear_call.Place | None:
    """Of a GPU; None: the CPU."""
    if _tensors.gpu_of(q) == capi.CPU:
        return None
    index, stream = _tensors.place(q)
    return _linear_call.Place(_tensors.engine_for(index, None), stream, lambda size: empty(q, (size,), torch.uint8))


def _run(spec: Spec, backward: bool, tensors: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
    """With copies of q, k, v and dout that kernels cannot read as they lie, which is looked at after the library has refused a call."""
    try:
        return _linear_call.run(spec, backward, _tensors.fill, tensors, *rest, **more)
    except InvalidError:
        moved = {name: t for name in ("q", "k", "v", "dout") if (t := tensors.get(name)) is not None and not _tensors.is_aligned(t)}
        if more["place"] is None or not moved:
            raise
        copies = {name: empty(t, t.shape, t.dtype).copy_(t) for name, t in moved.items()}
        return _linear_call.run(spec, backward, _tensors.fill, {**tensors, **copies}, *rest, **more)


class _Linear(torch.autograd.Function):
    """spec, numbers of the call, q, k, v, initial_state, then inputs and scalars."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, call: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, first: Tensor | None, *others: Any) -> Any:
        n = len(spec.inputs)
        inputs, scalars = others[:n], others[n:]
        place = _place(q)
        o = empty(q, v.shape, v.dtype)
        if place is None or call["arrays"]["cu_seqlens"] is not None:
            o.zero_()  # rows of no sequence stay 0
        final = call["final"]
        kind = first.dtype if first is not None else _rows_type(q)
        if call["shape"] is not None:
            final = empty(q, call["shape"], kind)
        between = call["between"]
        states = None if between is None else empty(q, between.shape, kind).zero_()
        tensors = {"q": q, "k": k, "v": v, "o": o, "initial_state": first, "final_state": final, "intermediate_states": states, **call["arrays"], **call["ring"]}
        every = 0 if between is None else between.every
        kept = _run(spec, False, tensors, inputs, [_number(x) for x in scalars], call["scale"], call["layout"], place=place, states_every=every, keeps=call["keeps"])
        if states is not None:
            ctx.mark_non_differentiable(states)
        ctx.spec, ctx.call, ctx.has = spec, call, first is not None
        ctx.numbers = [None if isinstance(x, Tensor) else x for x in scalars]
        ctx.save_for_backward(q, k, v, *([first] if first is not None else []), *inputs, *(x for x in scalars if isinstance(x, Tensor)), *call["arrays"].values(), kept)
        return o, None if call["shape"] is None else final, states

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal: Tensor | None, _: Tensor | None) -> Any:
        spec, call, saved = ctx.spec, ctx.call, list(ctx.saved_tensors)
        q, k, v = saved[:3]
        first = saved[3] if ctx.has else None
        at = 4 if ctx.has else 3
        n = len(spec.inputs)
        inputs, tensors_left = saved[at : at + n], iter(saved[at + n :])
        kept = saved.pop()
        arrays = dict(zip(_PLAIN, saved[-len(_PLAIN) :]))
        scalars = [next(tensors_left) if x is None else x for x in ctx.numbers]
        wanted = ctx.needs_input_grad
        _tangents.refuse(spec.said, (dout, dfinal), _NO_TANGENTS)
        dout, dfinal = (t if t is None else t.resolve_neg() for t in (dout, dfinal))
        place = _place(q)
        if place is not None:
            dout = empty(q, v.shape, v.dtype).zero_() if dout is None else _rows_there(dout)
        made = [empty(q, t.shape, t.dtype) if want else None for t, want in zip((q, k, v), wanted[2:5])]
        dfirst = empty(q, first.shape, first.dtype).zero_() if first is not None and wanted[5] else None
        grads = [empty(q, x.shape, _rows_type(q)) if want and info.grad else None for info, x, want in zip(spec.inputs, inputs, wanted[6:])]
        dscalars = empty(q, (len(scalars),), _rows_type(q)) if any(wanted[6 + n :]) else None
        tensors = {"q": q, "k": k, "v": v, "dout": dout, "initial_state": first, "dfinal_state": dfinal, "dinitial_state": dfirst,
                   "dq": made[0], "dk": made[1], "dv": made[2], "scalar_grads": dscalars, **arrays}  # fmt: skip
        _run(spec, True, tensors, inputs, [_number(x) for x in scalars], call["scale"], call["layout"], grads, place=place, kept=kept)
        of_inputs = [None if g is None else g.to(x.dtype) for g, x in zip(grads, inputs)]
        of_scalars = [
            dscalars[i].to(x.dtype).reshape(x.shape) if dscalars is not None and isinstance(x, Tensor) and wanted[6 + n + i] else None
            for i, x in enumerate(scalars)
        ]
        results = once(spec.said, (*made, dfirst, *of_inputs, *of_scalars), (dout, dfinal, *saved))
        return (None, None, *results)


def _rows_there(x: Tensor) -> Tensor:
    """Rows that TMA reads: each is contiguous, and no stride is 0 or negative."""
    steps = x.stride()
    return x if steps[3] == 1 and all(s > 0 and s * x.element_size() % 16 == 0 for s in steps[:3]) else x.contiguous()


def forward(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[Any],
    own: Mapping[str, Any],
    scale: float,
    layout: str | None,
    shape: Sequence[int] | None,
    final: Tensor | None,
    between: _linear_call.Between | None = None,
    keeps: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """o and the final state: a new one of this shape, or `final`, which gets no gradient; and states between tokens, which get none either. keeps: what
    backward would compute again, if a gradient is wanted."""
    first = own["initial_state"]
    every = [x for x in (q, k, v, first, *inputs, *scalars) if isinstance(x, Tensor)]
    ring = {name: x for name, x in own.items() if name.startswith("ring_")}
    _tangents.refuse(spec.said, (*every, final, *ring.values()), _NO_TANGENTS)
    if _tangents.is_transformed():
        raise Unsupported(f"{spec.said}: transforms of torch.func (grad, vjp, jvp, vmap) do not exist for linear attention yet: use torch.autograd")
    for info, x in zip(spec.inputs, inputs):
        if x.requires_grad and not info.grad and torch.is_grad_enabled():
            raise InvalidError(f"{spec.name}: input '{info.name}': requires a gradient, and the spec does not mark it; write grad = true there, or pass {info.name}.detach()")
    if ring and _tensors.gpu_of(q) == capi.CPU:
        raise Unsupported(f"{spec.name}: ring: q is on the CPU, and rings are of GPUs alone; leave it out, and the state is updated in place")
    if ring and torch.is_grad_enabled() and any(x.requires_grad for x in every):
        raise Unsupported(f"{spec.name}: ring: a gradient is wanted, and steps behind a ring have none; leave the ring out, or call under torch.no_grad()")
    if final is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (*every, final)):
        raise InvalidError(f"{spec.name}: final_state: is written in place, and a gradient is wanted; leave it out and take output_final_state=True, or call under torch.no_grad()")
    on_cpu = _tensors.gpu_of(q) == capi.CPU
    arrays = {name: own[name] if on_cpu else _list_there(spec, name, own[name], q) for name in _PLAIN}
    call = {"arrays": arrays, "ring": ring, "scale": scale, "layout": layout, "shape": shape, "final": final, "between": between}
    call["keeps"] = keeps and not on_cpu and torch.is_grad_enabled() and any(x.requires_grad for x in every)
    o, last, states = _Linear.apply(spec, call, q, k, v, first, *inputs, *scalars)
    for written in (final, *(x for name, x in ring.items() if name != "ring_used")):
        if written is not None:
            mark_written(written)
    return o, final if final is not None else last, states
