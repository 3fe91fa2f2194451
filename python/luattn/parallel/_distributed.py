"""The autograd function of a rank's rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._once import once
from .._signature import is_plain
from ._backward_pass import Backward
from ._forward_pass import Forward, whole_of
from ._passes import Job, side_of


def key_of(given: Sequence[Tensor | None]) -> Any:
    """What decides of such tensors, besides where they lie; None: a mode, a transform or a subclass stands between them and the kernels, or
    a tensor has no strides, as a sparse one."""
    if not is_plain(given):
        return None
    try:
        return torch.are_deterministic_algorithms_enabled(), *[t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in given]
    except RuntimeError:
        return None


def _of_runs(job: Job, q: Tensor, lses: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """What backward reads of each of its runs: lse, then saved, of those of forward's."""
    forward, backward = (one.runs for one in job.schedules)
    if forward == backward:
        return [*lses, *saved]
    whole = [whole_of(forward, lses, q, -torch.inf), whole_of(forward, saved, q, 0)]
    return [t[..., run.first : run.end].contiguous() if t.dim() > 1 else t for t in whole for run in backward]


class Distributed(torch.autograd.Function):
    """(o, lse) of a rank's rows. tensors: the inputs, `count` of them, then the scalars and the scale where these are tensors, or None."""

    @staticmethod
    def forward(ctx, job, q, k, v, count, *tensors):  # type: ignore[no-untyped-def]
        scale, inputs = tensors[-1] if job.scale is None else job.scale, tensors[:count]
        o, lses, saved = Forward(job, q, k, v, inputs, scale).run(key_of((q, k, v, *inputs)))
        ctx.job, ctx.count = job, count
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(q, k, v, o, *tensors, *_of_runs(job, q, lses, saved))
        ctx.set_materialize_grads(False)
        has_lse = job.wants_lse and job.spec.has_lse
        lse = whole_of(job.schedules[0].runs, lses, q, -torch.inf) if has_lse else q.new_empty(0)
        if not has_lse:
            ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, dout, dlse):  # type: ignore[no-untyped-def]
        job, count, needs = ctx.job, ctx.count, ctx.needs_input_grad
        runs = len(job.schedules[1].runs)
        q, k, v, o, *tensors = ctx.saved_tensors
        tensors, rows = tensors[: len(tensors) - 2 * runs], tensors[len(tensors) - 2 * runs :]
        if dout is None and dlse is None:
            return (None,) * len(needs)
        sources = dout, dlse, q, k, v, *tensors
        dout, dlse = torch.zeros_like(o) if dout is None else dout.resolve_neg(), None if dlse is None else dlse.resolve_neg()
        scale, inputs = tensors[-1] if job.scale is None else job.scale, tensors[:count]
        with torch.no_grad():
            key = key_of((q, k, v, o, dout, dlse, *inputs, *rows))
            dq, dk, dv, named = Backward(job, q, k, v, inputs, scale).run(key, o, [*zip(rows[:runs], rows[runs:])], dout, dlse)
            whole = {p.name for p in job.parameters if not side_of(p.axes)} | {"scale"}
            if job.sums:
                job.exchanges[1].add_up([d for name, d in named.items() if name in whole])
        found: list[Any] = [named.get(name) for name in (*(p.name for p in job.parameters), "scale")]
        found = [torch.zeros_like(t) if need and d is None else d for d, t, need in zip(found, tensors, needs[5:])]  # what nothing reads
        grads = [d.reshape(t.shape).to(t.device, t.dtype) if need else None for d, t, need in zip(found, tensors, needs[5:])]
        first = once(job.spec.said, (dq, dk.to(k.dtype), dv.to(v.dtype), *grads), sources)
        return None, *first[:3], None, *first[3:]
