"""Backward of one rank: calls of parts as their keys arrive, and gradients that go back to the keys' owners.

Backward of a part reads o, lse and what is saved of whole rows, so nothing of a merge is differentiated. What a parameter gets from scores is
added up over the parts of a run; what it gets once a row is whole in each part, and is taken of the first (include/luattn/merge.h)."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._allocate import rows_type
from .._attend import gradients_of
from ._exchange import Rows, Work, copy_all, wait
from ._kept_calls import Made, keep_backward
from ._passes import Notes, Pass, side_of, slice_rows
from ._stages import RETURNING, Call, Stage, ranges_of


class _Gradients(NamedTuple):
    """dk, dv: None: they are where the pass has them."""

    dq: Tensor
    dk: Tensor | None
    dv: Tensor | None
    named: dict[str, Tensor]


class Backward(Pass):
    number = 1

    def run(
        self, key: Any, o: Tensor, rows: Sequence[tuple[Tensor, Tensor]], dout: Tensor, dlse: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:  # fmt: skip
        """dq, dk, dv, and the gradients of inputs and scalars by name. key: as take_kept has it. rows: of each run lse and saved."""
        job, schedule = self.job, self.schedule
        self.take_kept(key)
        self.o, self.rows, self.dout = o, rows, dout.to(self.q.dtype)
        self.dlse = [None if dlse is None else dlse[..., run.first : run.end].contiguous() for run in schedule.runs]
        self.dq: list[Tensor | None] = [None] * len(schedule.runs)
        self.named = {p.name: self._zeros_of(i) for i, p in enumerate(job.parameters) if p.of_rows or p.of_scores}
        if isinstance(self.scale, Tensor):
            self.named["scale"] = torch.zeros((), dtype=rows_type(self.q), device=self.q.device)
        self.begun = [False] * len(schedule.runs)
        # Of k and v, and of the inputs along the keys that have a gradient.
        self.back = [0, 1, *(2 + j for j, i in enumerate(self.of_keys) if job.parameters[i].name in self.named)]
        self.mine: Rows | None = None
        self.exchange.begin(schedule, self.own.tensors, [self._empty(i, 1) for i in self.back])
        self.returning: list[tuple[list[Work], list[Rows], Rows]] = []
        self.among: list[Rows] = []  # gradients of other stages' keys, with own ones among them
        with self.whole_exchange():
            for i, stage in enumerate(schedule.stages):
                self._stage(i, stage)
        for made in self.among:
            self._keep_own(made)
        while self.returning:
            self._take_back()
        self.finish()
        self.give_kept()
        mine = self._of_own()
        keys = [t.movedim(0, self.dims[i]) for i, t in zip(self.back, mine.tensors)]
        for i, d in zip(self.back[2:], keys[2:]):
            self.named[job.spec.inputs[self.of_keys[i - 2]].name] = d
        return self._whole_dq(), keys[0], keys[1], self.named

    def _stage(self, i: int, stage: Stage) -> None:
        keys = self.arrive(i)
        if stage.own and self.mine is None:
            self.mine = self._made_for(stage)
        made = self._of_own() if stage.own else self._made_for(stage)
        found = self.run_stage(i, self._bases(keys, made), functools.partial(self._part, keys, made), functools.partial(self._of_kept, made))
        for call, gradients in zip(stage.calls, found):
            self._add(call, gradients, made)
        if not stage.own and any(c in made.place for c in self.schedule.own):
            self.among.append(made)
        self._return(stage.rounds, made)

    def _made_for(self, stage: Stage) -> Rows:
        """For gradients of a stage's keys; 0 where no call writes them first."""
        tensors = [self._empty(i, self.q.shape[2] if stage.own else stage.rows) for i in self.back]
        for first, end in stage.unwritten:
            for t in tensors:
                slice_rows(t, first, end - first).zero_()
        return Rows(tensors, self.own.place if stage.own else stage.place)

    def _empty(self, i: int, rows: int) -> Tensor:
        """For gradients of so many rows of keys."""
        of = self.own.tensors[i]
        return of.new_empty((rows, *of.shape[1:]), dtype=rows_type(self.q))

    def _of_own(self) -> Rows:
        """Gradients of the rank's own keys; 0 where no stage has come that has them."""
        if self.mine is None:
            self.mine = Rows([self._empty(i, self.q.shape[2]).zero_() for i in self.back], self.own.place)
        return self.mine

    def _zeros_of(self, i: int) -> Tensor:
        """For the gradient of a parameter; of one that lies along the keys it is in `mine`."""
        shape = self.inputs[i].shape if i < len(self.inputs) else ()
        shape = () if i in self.of_keys else shape
        return torch.zeros(shape, dtype=rows_type(self.q), device=self.q.device)

    def _bases(self, keys: Sequence[Tensor], made: Rows) -> dict[str, Tensor]:
        bases = {**self.bases_of(keys), "o": self.o, "dout": self.dout, "dk": made.tensors[0], "dv": made.tensors[1]}
        for i, ((lse, saved), dlse) in enumerate(zip(self.rows, self.dlse)):
            bases |= {f"{name} {i}": t for name, t in (("lse", lse), ("saved", saved), ("dlse", dlse)) if t is not None}
        return bases

    def _part(self, keys: Sequence[Tensor], made: Rows, call: Call, notes: Notes) -> _Gradients:
        """Of a call; those of its keys in `made` if it is the first one with them."""
        job, run = self.job, self.schedule.runs[call.run]
        q, k, v, inputs, options = self.arguments(call, keys)
        if q.dtype.itemsize == 2:
            options["grad_f32"] = True
        o, dout = (t[:, :, run.first : run.end] for t in (self.o, self.dout))
        (lse, saved), dlse = self.rows[call.run], self.dlse[call.run]
        rows = self._rows_of(call, made)
        out = (None, *rows[:2]) if call.writes else (None, None, None)
        found = gradients_of(job.spec, dout, dlse, q, k, v, o, lse, saved, inputs, job.scalars, self.scale, options, out)
        if notes.calls is not None:
            spec = job.spec
            read = {
                "q": q, "k": k, "v": v, "o": o, "lse": lse if spec.has_lse else None, "saved": saved if spec.num_saved else None, "dout": dout,
                "dlse": dlse if spec.has_lse else None,
            }  # fmt: skip
            given = {**options, "out_f32": True} if o.dtype is torch.float32 else options
            sources = {name: f"{name} {call.run}" for name in ("lse", "saved", "dlse")}
            notes.calls.append(keep_backward(spec, read, inputs, job.scalars, self.scale, given, found, out, notes.bases, sources))
        return _Gradients(*found)

    def _of_kept(self, made: Rows, call: Call, found: Made) -> _Gradients:
        dq, dk, dv, _, *dinputs = found
        named = {info.name: d for info, d in zip(self.job.spec.inputs, dinputs) if d is not None}
        assert dq is not None  # it is in memory of its own
        return _Gradients(dq, dk, dv, named)

    def _rows_of(self, call: Call, made: Rows) -> list[Tensor]:
        """Gradients of a call's keys."""
        return [t[call.first : call.first + call.length].movedim(0, self.dims[i]) for i, t in zip(self.back, made.tensors)]

    def _add(self, call: Call, found: _Gradients, made: Rows) -> None:
        job, (dq, dk, dv, named) = self.job, found
        one = self.dq[call.run]
        self.dq[call.run] = dq if one is None else one.add_(dq)
        if dk is not None or dv is not None or len(self.back) > 2:
            more = [named.pop(job.spec.inputs[self.of_keys[i - 2]].name) for i in self.back[2:]]
            for to, d in zip(self._rows_of(call, made), [dk, dv, *more]):
                if d is None:
                    continue
                if not call.writes:
                    to.add_(d)
                elif to.data_ptr() != d.data_ptr():
                    to.copy_(d)
        self._add_named(call, named)
        self.begun[call.run] = True

    def _add_named(self, call: Call, named: dict[str, Tensor]) -> None:
        for p in self.job.parameters:
            if p.name not in named or p.name not in self.named or (p.of_rows and not p.of_scores and self.begun[call.run]):
                continue
            to = self.named[p.name]
            if side_of(p.axes) == "q":
                to = self.columns(p.axes, self.of_run(p.axes, to, call.run), call)
            to.add_(named[p.name].reshape(to.shape))
        if "scale" in named:
            self.named["scale"].add_(named["scale"].reshape(()))

    # --- gradients of keys, on their way to the owners ---

    def _keep_own(self, made: Rows) -> None:
        """Of the rank's own chunks among gathered ones, which are the first that there are of these."""
        chunks, size = [c for c in self.schedule.own if c in made.place], self.job.plan.chunk_rows
        if not chunks:
            return
        if self.mine is None and len(chunks) == len(self.schedule.own):
            if len(ranges_of(chunks)) == 1:
                tensors = [slice_rows(t, made.place[chunks[0]], len(chunks) * size) for t in made.tensors]
            else:
                tensors = [torch.cat([slice_rows(t, made.place[c], size) for c in chunks]) for t in made.tensors]
            self.mine = Rows(tensors, self.own.place)
        else:
            self._add_rows(chunks, made)

    def _add_rows(self, chunks: Sequence[int], made: Rows) -> None:
        """Adds chunks to the rank's own; those that follow each other do so in both."""
        size, mine = self.job.plan.chunk_rows, self._of_own()
        both = [
            (slice_rows(to, mine.place[first], (end - first) * size), slice_rows(t, made.place[first], (end - first) * size))
            for first, end in ranges_of(chunks)
            for to, t in zip(mine.tensors, made.tensors)
        ]
        torch._foreach_add_([to for to, _ in both], [t for _, t in both])

    def _return(self, rounds: Sequence[int], made: Rows) -> None:
        """Begins a stage's rounds the other way, one after another, of which at most two are on their way, or at once. All ranks do in one order."""
        found = [self.schedule.rounds[i] for i in rounds]
        if not found:
            return
        for some in [found] if self.schedule.at_once else [[one] for one in found]:
            if len(self.returning) == RETURNING:
                self._take_back()
            works, returned = self.exchange.gradients(some, made)
            self.returning.append((works, returned, made))

    def _take_back(self) -> None:
        """Adds the oldest that are on their way: always in the order of rounds."""
        works, returned, _ = self.returning.pop(0)
        wait(works)
        for rows in returned:
            self._add_rows(list(rows.place), rows)

    def _whole_dq(self) -> Tensor:
        """Of the rank's rows, which runs have in their order; 0 in those that keep nothing, and in padding."""
        runs, n = self.schedule.runs, self.q.shape[2]
        if len(runs) == 1 and self.dq[0] is not None and runs[0].end - runs[0].first == n:
            return self.dq[0].to(self.q.dtype)
        dq, at = torch.empty_like(self.q), 0
        both: list[tuple[Tensor, Tensor]] = []
        for run, one in zip(runs, self.dq):
            if one is not None:
                if at < run.first:
                    dq[:, :, at : run.first].zero_()
                both.append((dq[:, :, run.first : run.end], one))
                at = run.end
        copy_all(both)
        if at < n:
            dq[:, :, at:].zero_()
        return dq
