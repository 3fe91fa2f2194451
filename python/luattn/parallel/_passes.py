"""Forward and backward of one rank: calls of parts as their keys arrive, merges, and gradients that go back to the keys' owners.

Backward of a part reads o, lse and what is saved of whole rows, so nothing of a merge is differentiated. What a parameter gets from scores is
added up over the parts of a run; what it gets once a row is whole in each part, and is taken of the first (include/luattn/merge.h)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _capi as capi
from .._allocate import rows_type, type_of
from .._attend import attend_state, gradients_of
from .._spec import Spec
from .._torch_merge import merge_into
from ._exchange import Exchange, Rows, rows_first, wait
from ._stages import Call, Schedule, Stage
from .rank_plan import Plan


class Parameter(NamedTuple):
    """An input or a scalar: whether the mask reads it, and where its gradient arises."""

    name: str
    axes: tuple[str, ...]
    masks: bool
    of_rows: bool
    of_scores: bool


@dataclass
class Job:
    """What a call is but for its tensors. axes: of the inputs."""

    spec: Spec
    schedule: Schedule
    plan: Plan
    exchange: Exchange
    parameters: Sequence[Parameter]
    axes: Sequence[tuple[str, ...]]
    scalars: Sequence[float]
    scale: float | None
    seed: Tensor | None
    by_lse: bool
    out_f32: bool
    swapped: bool
    sums: bool  # gradients of what is whole on all ranks are summed over them


def side_of(axes: Sequence[str]) -> str:
    """Along which axis an input lies on the ranks: that of queries, of keys, or "" """
    return "q" if "q" in axes else "kv" if "kv" in axes else ""


class _Part(NamedTuple):
    o: Tensor
    lse: Tensor
    state: Tensor


class _Pass:
    """One pass of a call on this rank. keys: k, v, and inputs that lie along the keys."""

    def __init__(self, job: Job, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], scale: Any) -> None:
        self.job, self.q, self.inputs, self.scale = job, q, inputs, scale
        self.of_keys = [i for i, axes in enumerate(job.axes) if side_of(axes) == "kv"]
        self.dims = [2, 2, *(job.axes[i].index("kv") for i in self.of_keys)]
        self.keys = [k, v, *(inputs[i] for i in self.of_keys)]
        places = {c: i * job.plan.chunk_rows for i, c in enumerate(job.schedule.own)}
        self.own = Rows([rows_first(t, dim) for t, dim in zip(self.keys, self.dims)], places)
        self.stage_of = {t: i for i, stage in enumerate(job.schedule.stages) for t in stage.rounds}
        self.works: list[list[dist.Work]] = []  # of the rounds that have begun
        self.buffers: dict[int, Rows] = {}  # of stages

    def _begin(self, end: int) -> None:
        """Begins the rounds before `end` that are left, in the order that all ranks have."""
        rounds = self.job.schedule.rounds
        for t in range(len(self.works), end):
            received = self._buffer(self.stage_of[t]) if rounds[t].received else None
            self.works.append(self.job.exchange.keys(rounds[t], self.own, received))

    def _buffer(self, i: int) -> Rows:
        """Memory for a stage's keys, with the rank's own chunks among them."""
        if i in self.buffers:
            return self.buffers[i]
        stage, size = self.job.schedule.stages[i], self.job.plan.chunk_rows
        new = torch.Tensor.new_zeros if stage.gaps else torch.Tensor.new_empty
        tensors = [new(t, (stage.rows, *t.shape[1:])) for t in self.own.tensors]
        for c, at in stage.place.items():
            if c in self.own.place:
                for to, t in zip(tensors, self.own.tensors):
                    to[at : at + size].copy_(t[self.own.place[c] : self.own.place[c] + size])
        self.buffers[i] = Rows(tensors, stage.place)
        return self.buffers[i]

    def arrive(self, i: int) -> list[Tensor]:
        """The keys of a stage, with their axes as the call has them. Those of the next one are on their way from then on: keys of two stages are there."""
        stages = self.job.schedule.stages
        self.buffers.pop(i - 1, None)
        self._begin(max((max(stage.rounds, default=-1) + 1 for stage in stages[i : i + 2]), default=0))
        if stages[i].own:
            return self.keys
        rows = self._buffer(i)
        for t in stages[i].rounds:
            wait(self.works[t])
        return [t.movedim(0, dim) for t, dim in zip(rows.tensors, self.dims)]

    def finish(self) -> None:
        """Until nothing reads the rank's keys any more."""
        self.buffers.clear()
        self._begin(len(self.job.schedule.rounds))
        for works in self.works:
            wait(works)

    def arguments(self, call: Call, keys: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor], dict[str, Any]]:
        """q, k, v, the inputs and the options of a part."""
        run, plan = self.job.schedule.runs[call.run], self.job.plan
        k, v, *rows = (t.narrow(dim, call.first, call.length) for t, dim in zip(keys, self.dims))
        inputs = list(self.inputs)
        for i, t in zip(self.of_keys, rows):
            inputs[i] = t
        for i, axes in enumerate(self.job.axes):
            if side_of(axes) == "q":
                inputs[i] = self.columns(axes, self.of_run(axes, inputs[i], call.run), call)
        options: dict[str, Any] = {"whole": [run.position, call.position, plan.q_len, plan.q_len, 0, 0, 0]}
        if self.job.seed is not None:
            options["seed"] = self.job.seed
        return self.q[:, :, run.first : run.end], k, v, inputs, options

    def of_run(self, axes: Sequence[str], t: Tensor, run: int) -> Tensor:
        """The rows of a run, of a tensor along q."""
        one = self.job.schedule.runs[run]
        return t.narrow(axes.index("q"), one.first, one.end - one.first)

    def columns(self, axes: Sequence[str], t: Tensor, call: Call) -> Tensor:
        """The keys of a call, of a pair of axes."""
        return t.narrow(axes.index("kv"), call.position, call.length) if "kv" in axes else t


# --- forward ---


class _Forward(_Pass):
    def run(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """o, and lse and what is saved of each run."""
        job = self.job
        b, h, n, _ = self.q.shape
        dim_v, dtype = self.keys[1].shape[-1], type_of(self.q, job.out_f32)
        self.o = self.q.new_empty((b, n, h, dim_v), dtype=dtype).transpose(1, 2) if job.swapped else self.q.new_empty((b, h, n, dim_v), dtype=dtype)
        runs = range(len(job.schedule.runs))
        self.done: list[tuple[Tensor, Tensor]] = [(self.q.new_empty(0), self.q.new_empty(0))] * len(runs)
        self.parts: list[list[_Part]] = [[] for _ in runs]
        self.left = list(job.schedule.parts)
        for i, stage in enumerate(job.schedule.stages):
            keys = self.arrive(i)
            for call in stage.calls:
                self._add(call, self._part(call, keys))
            self._merge_stage()
        self.finish()
        for i in runs:
            if not job.schedule.parts[i]:
                self._leave_empty(i)
        self._clear_padding()
        return self.o, [lse for lse, _ in self.done], [saved for _, saved in self.done]

    def _part(self, call: Call, keys: Sequence[Tensor]) -> _Part:
        job, q_k_v_inputs = self.job, self.arguments(call, keys)
        q, k, v, inputs, options = q_k_v_inputs
        whole = job.schedule.parts[call.run] == 1
        if (job.out_f32 or not whole) and q.dtype.itemsize == 2:
            options["out_f32"] = True
        spec = job.spec if whole or job.by_lse else job.spec.parts()
        return _Part(*attend_state(spec, q, k, v, inputs, job.scalars, self.scale, options))

    def _add(self, call: Call, part: _Part) -> None:
        i = call.run
        self.left[i] -= 1
        if self.job.schedule.parts[i] == 1:
            self._rows(i).copy_(part.o)
            self.done[i] = part.lse, part.state
            return
        self.parts[i].append(part)
        if len(self.parts[i]) == capi.MERGE_MAX:
            self._merge(i)

    def _merge_stage(self) -> None:
        for i, parts in enumerate(self.parts):
            if len(parts) > 1 or (parts and not self.left[i]):
                self._merge(i)

    def _merge(self, i: int) -> None:
        """Of the parts of run i that there are; of all of them into o."""
        job, parts = self.job, self.parts[i]
        o = torch.empty_like(parts[0].o) if self.left[i] else self._rows(i)
        lse, state, saved = merge_into(o, [p.o for p in parts], [p.lse for p in parts], None if job.by_lse else (job.spec, [p.state for p in parts]))
        self.parts[i] = [_Part(o, lse, state)] if self.left[i] else []
        if not self.left[i]:
            self.done[i] = lse, saved

    def _rows(self, i: int) -> Tensor:
        run = self.job.schedule.runs[i]
        return self.o[:, :, run.first : run.end]

    def _leave_empty(self, i: int) -> None:
        """Rows that keep nothing."""
        run, real = self.job.schedule.runs[i], rows_type(self.q)
        self._rows(i).zero_()
        lse = torch.full((*self.q.shape[:2], run.end - run.first), -torch.inf, dtype=real, device=self.q.device)
        self.done[i] = lse, lse.new_empty(0)

    def _clear_padding(self) -> None:
        ends = [run.first for run in self.job.schedule.runs[1:]] + [self.q.shape[2]]
        for run, end in zip(self.job.schedule.runs, ends):
            self.o[:, :, run.end : end].zero_()

    def whole_lse(self) -> Tensor:
        """Of all rows: -inf where there is none."""
        lse = torch.full(self.q.shape[:3], -torch.inf, dtype=rows_type(self.q), device=self.q.device)
        for run, (one, _) in zip(self.job.schedule.runs, self.done):
            lse[:, :, run.first : run.end] = one
        return lse


# --- backward ---


class _Backward(_Pass):
    """rows: o, and lse and saved of each run; grads: dout, dlse."""

    def run(self, o: Tensor, rows: Sequence[tuple[Tensor, Tensor]], dout: Tensor, dlse: Tensor | None) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """dq, dk, dv, and the gradients of inputs and scalars by name."""
        job, schedule = self.job, self.job.schedule
        self.o, self.rows, self.dout, self.dlse = o, rows, dout, dlse
        self.dq: list[Tensor | None] = [None] * len(schedule.runs)
        self.named = {p.name: self._zeros_of(i) for i, p in enumerate(job.parameters) if p.of_rows or p.of_scores}
        if isinstance(self.scale, Tensor):
            self.named["scale"] = torch.zeros((), dtype=rows_type(self.q), device=self.q.device)
        self.begun = [False] * len(schedule.runs)
        # Of k and v, and of the inputs along the keys that have a gradient.
        self.back = [0, 1, *(2 + j for j, i in enumerate(self.of_keys) if job.parameters[i].name in self.named)]
        self.mine = self._zeros_like(self.own, self.own.place)
        self.returning: list[tuple[list[dist.Work], Sequence[int], Rows | None, Rows]] = []
        for i, stage in enumerate(schedule.stages):
            keys = self.arrive(i)
            made = self.mine if stage.own else self._zeros_like(self._buffer(i), stage.place)
            for call in stage.calls:
                self._part(call, keys, made)
            if not stage.own:
                self._keep_own(made)
            self._return(stage.rounds, made)
        while self.returning:
            self._take_back()
        self.finish()
        keys = [t.movedim(0, self.dims[i]) for i, t in zip(self.back, self.mine.tensors)]
        for i, d in zip(self.back[2:], keys[2:]):
            self.named[job.spec.inputs[self.of_keys[i - 2]].name] = d
        return self._whole_dq(), keys[0], keys[1], self.named

    def _zeros_like(self, rows: Rows, place: dict[int, int]) -> Rows:
        """For gradients of these keys."""
        return Rows([torch.zeros_like(rows.tensors[i], dtype=rows_type(self.q)) for i in self.back], place)

    def _zeros_of(self, i: int) -> Tensor:
        """For the gradient of a parameter; of one that lies along the keys it is in `mine`."""
        shape = self.inputs[i].shape if i < len(self.inputs) else ()
        shape = () if i in self.of_keys else shape
        return torch.zeros(shape, dtype=rows_type(self.q), device=self.q.device)

    def _part(self, call: Call, keys: Sequence[Tensor], made: Rows) -> None:
        job, run = self.job, self.job.schedule.runs[call.run]
        q, k, v, inputs, options = self.arguments(call, keys)
        if q.dtype.itemsize == 2:
            options["grad_f32"] = True
        o, dout = (t[:, :, run.first : run.end] for t in (self.o, self.dout))
        dlse = None if self.dlse is None else self.dlse[:, :, run.first : run.end]
        lse, saved = self.rows[call.run]
        dq, dk, dv, named = gradients_of(job.spec, dout, dlse, q, k, v, o, lse, saved, inputs, job.scalars, self.scale, options)
        one = self.dq[call.run]
        self.dq[call.run] = dq if one is None else one.add_(dq)
        of_keys = [dk, dv, *(named.pop(job.spec.inputs[self.of_keys[i - 2]].name) for i in self.back[2:])]
        for i, to, d in zip(self.back, made.tensors, of_keys):
            to[call.first : call.first + call.length].movedim(0, self.dims[i]).add_(d)
        self._add_named(call, named)
        self.begun[call.run] = True

    def _add_named(self, call: Call, named: dict[str, Tensor]) -> None:
        for p in self.job.parameters:
            if p.name not in named or (p.of_rows and not p.of_scores and self.begun[call.run]):
                continue
            to = self.named[p.name]
            if side_of(p.axes) == "q":
                to = self.columns(p.axes, self.of_run(p.axes, to, call.run), call)
            to.add_(named[p.name].reshape(to.shape))
        if "scale" in named:
            self.named["scale"].add_(named["scale"].reshape(()))

    # --- gradients of keys, on their way to the owners ---

    def _keep_own(self, made: Rows) -> None:
        """Of the rank's own chunks among gathered ones."""
        size = self.job.plan.chunk_rows
        for c, at in made.place.items():
            if c in self.mine.place:
                for to, t in zip(self.mine.tensors, made.tensors):
                    to[self.mine.place[c] : self.mine.place[c] + size].add_(t[at : at + size])

    def _return(self, rounds: Sequence[int], made: Rows) -> None:
        """Begins a stage's rounds the other way, of which at most two are on their way. All ranks do in one order."""
        size = self.job.plan.chunk_rows
        for i in rounds:
            one = self.job.schedule.rounds[i]
            returned = None
            if one.sent:
                tensors = [t.new_empty((len(one.sent) * size, *t.shape[1:])) for t in self.mine.tensors]
                returned = Rows(tensors, {c: j * size for j, c in enumerate(one.sent)})
            if len(self.returning) == 2:
                self._take_back()
            works = self.job.exchange.gradients(one, made if one.received else None, returned)
            self.returning.append((works, one.sent, returned, made))

    def _take_back(self) -> None:
        """Adds the oldest that are on their way: always in the order of rounds."""
        works, chunks, returned, _ = self.returning.pop(0)
        wait(works)
        size = self.job.plan.chunk_rows
        for c in chunks if returned is not None else ():
            assert returned is not None
            for to, t in zip(self.mine.tensors, returned.tensors):
                to[self.mine.place[c] : self.mine.place[c] + size].add_(t[returned.place[c] : returned.place[c] + size])

    def _whole_dq(self) -> Tensor:
        dq = torch.zeros_like(self.q)
        for run, one in zip(self.job.schedule.runs, self.dq):
            if one is not None:
                dq[:, :, run.first : run.end] = one
        return dq


# --- autograd ---


class Distributed(torch.autograd.Function):
    """(o, lse) of a rank's rows. tensors: the inputs, `count` of them, then the scalars and the scale where these are tensors, or None."""

    @staticmethod
    def forward(ctx, job, q, k, v, count, *tensors):  # type: ignore[no-untyped-def]
        scale = tensors[-1] if job.scale is None else job.scale
        one = _Forward(job, q, k, v, tensors[:count], scale)
        o, of_lse, of_saved = one.run()
        lse = one.whole_lse() if job.spec.has_lse else q.new_empty(0)
        ctx.job, ctx.count = job, count
        ctx.save_for_backward(q, k, v, o, *tensors, *of_lse, *of_saved)
        ctx.set_materialize_grads(False)
        if not job.spec.has_lse:
            ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx, dout, dlse):  # type: ignore[no-untyped-def]
        job, count, needs = ctx.job, ctx.count, ctx.needs_input_grad
        runs, learned = len(job.schedule.runs), len(needs) - 5
        q, k, v, o, *rest = ctx.saved_tensors
        tensors, of_lse, of_saved = rest[:learned], rest[learned : learned + runs], rest[learned + runs :]
        if dout is None and dlse is None:
            return (None,) * len(needs)
        dout = torch.zeros_like(o) if dout is None else dout
        scale = tensors[-1] if job.scale is None else job.scale
        with torch.no_grad():
            one = _Backward(job, q, k, v, tensors[:count], scale)
            dq, dk, dv, named = one.run(o, list(zip(of_lse, of_saved)), dout, dlse)
            whole = {p.name for p in job.parameters if not side_of(p.axes)} | {"scale"}
            if job.sums:
                job.exchange.add_up([d for name, d in named.items() if name in whole])
        found: list[Any] = [named.get(name) for name in (*(p.name for p in job.parameters), "scale")]
        grads = [d.reshape(t.shape).to(t.device, t.dtype) if need and d is not None else None for d, t, need in zip(found, tensors, needs[5:])]
        return None, dq, dk.to(k.dtype), dv.to(v.dtype), None, *grads
