"""Forward of one rank: calls of parts as their keys arrive, and merges of rows that several calls have."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _capi as capi
from .._allocate import rows_type, type_of
from .._attend import attend_state
from .._torch_merge import merge_into
from ._kept_calls import Made, keep_forward
from ._passes import Notes, Pass
from ._stages import Call, Run


class _Part(NamedTuple):
    """o: None: it lies where the pass's does."""

    o: Tensor | None
    lse: Tensor
    state: Tensor


class Forward(Pass):
    number = 0

    def run(self, key: Any) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """o of the rank's rows, and of each run lse and what is saved. key: as take_kept has it."""
        job = self.job
        self.take_kept(key)
        b, h, n, _ = self.q.shape
        dim_v, dtype = self.keys[1].shape[-1], type_of(self.q, job.out_f32)
        self.o = self.q.new_empty((b, n, h, dim_v), dtype=dtype).transpose(1, 2) if job.swapped else self.q.new_empty((b, h, n, dim_v), dtype=dtype)
        self.none = self.q.new_empty(0, dtype=rows_type(self.q))
        runs = range(len(self.schedule.runs))
        self.done: list[tuple[Tensor, Tensor]] = [(self.none, self.none)] * len(runs)
        self.parts: list[list[_Part]] = [[] for _ in runs]
        self.left = list(self.schedule.parts)
        self.exchange.begin(self.schedule, self.own.tensors, ())
        with self.whole_exchange():
            for i, stage in enumerate(self.schedule.stages):
                keys = self.arrive(i)
                made = self.run_stage(i, {**self.bases_of(keys), "o": self.o}, functools.partial(self._part, keys), self._of_kept)
                for call, part in zip(stage.calls, made):
                    self._add(call, part)
                self._merge_stage()
        self.finish()
        for i in runs:
            if not self.schedule.parts[i]:
                self._leave_empty(i)
        self._clear_padding()
        self.give_kept()
        return self.o, [lse for lse, _ in self.done], [saved for _, saved in self.done]

    def _part(self, keys: Sequence[Tensor], call: Call, notes: Notes) -> _Part:
        job, q_k_v_inputs = self.job, self.arguments(call, keys)
        q, k, v, inputs, options = q_k_v_inputs
        whole = self.schedule.parts[call.run] == 1
        if (job.out_f32 or not whole) and q.dtype.itemsize == 2:
            options["out_f32"] = True
        spec = job.spec if whole or job.by_lse else job.spec.parts()
        out = self._rows(call.run) if whole else None
        made = attend_state(spec, q, k, v, inputs, job.scalars, self.scale, options, out)
        if notes.calls is not None:
            notes.calls.append(keep_forward(spec, (q, k, v), inputs, job.scalars, self.scale, options, made, out, notes.bases))
        return _Part(*made)

    def _of_kept(self, call: Call, made: Made) -> _Part:
        o, lse, state = made
        return _Part(o, self.none if lse is None else lse, self.none if state is None else state)

    def _add(self, call: Call, part: _Part) -> None:
        i = call.run
        self.left[i] -= 1
        if self.schedule.parts[i] == 1:
            if part.o is not None and part.o.data_ptr() != self._rows(i).data_ptr():
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
        outs = [p.o for p in parts if p.o is not None]  # all are there
        o = torch.empty_like(outs[0]) if self.left[i] else self._rows(i)
        lse, state, saved = merge_into(o, outs, [p.lse for p in parts], None if job.by_lse else (job.spec, [p.state for p in parts]))
        self.parts[i] = [_Part(o, lse, state)] if self.left[i] else []
        if not self.left[i]:
            self.done[i] = lse, saved

    def _rows(self, i: int) -> Tensor:
        run = self.schedule.runs[i]
        return self.o[:, :, run.first : run.end]

    def _leave_empty(self, i: int) -> None:
        """Rows that keep nothing."""
        self._rows(i).zero_()

    def _clear_padding(self) -> None:
        ends = [run.first for run in self.schedule.runs[1:]] + [self.q.shape[2]]
        for run, end in zip(self.schedule.runs, ends):
            if run.end < end:
                self.o[:, :, run.end : end].zero_()


def whole_of(runs: Sequence[Run], parts: Sequence[Tensor], q: Tensor, fill: float) -> Tensor:
    """A number of the rank's rows, or several, of those of runs; `fill` in rows that keep nothing."""
    known = [t for t in parts if t.numel()]
    if not known:
        return torch.full(q.shape[:3] if fill else (0,), fill, dtype=rows_type(q), device=q.device)
    if sum(t.shape[-1] for t in known) == q.shape[2]:
        return known[0] if len(known) == 1 else torch.cat(known, -1)
    made = known[0].new_full((*known[0].shape[:-1], q.shape[2]), fill)
    for run, one in zip(runs, parts):
        if one.numel():
            made[..., run.first : run.end] = one
    return made
