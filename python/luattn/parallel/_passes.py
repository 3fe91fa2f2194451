"""Forward and backward of one rank: calls of parts as their keys arrive, merges, and gradients that go back to the keys' owners.

Backward of a part reads o, lse and what is saved of whole rows, so nothing of a merge is differentiated. What a parameter gets from scores is
added up over the parts of a run; what it gets once a row is whole in each part, and is taken of the first (include/luattn/merge.h)."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import _capi as capi
from .._allocate import rows_type, type_of
from .._attend import attend_state, gradients_of
from .._call import CHUNKS
from .._once import once
from .._signature import is_plain
from .._spec import Spec
from .._torch_merge import merge_into
from ..errors import Error
from ._call_streams import run_concurrently
from ._exchange import Exchange, Rows, Work, copy_all, rows_first, wait
from ._kept_calls import MOST, KeptCall, Made, keep_backward, keep_forward, run_kept
from ._stages import RETURNING, Call, Run, Schedule, Stage, ranges_of
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
    schedules: tuple[Schedule, Schedule]  # of forward and backward
    plan: Plan
    exchanges: tuple[Exchange, Exchange]  # likewise
    parameters: Sequence[Parameter]
    axes: Sequence[tuple[str, ...]]
    scalars: Sequence[float]
    scale: float | None
    seed: Tensor | None
    by_lse: bool
    out_f32: bool
    swapped: bool
    sums: bool  # gradients of what is whole on all ranks are summed over them
    spare: int  # multiprocessors that calls leave to the exchange
    wants_lse: bool = True
    kept: dict[Any, dict[int, Sequence[KeptCall]]] | None = None  # calls of passes that are known, by what these passes are and by stage; None: of other jobs


def side_of(axes: Sequence[str]) -> str:
    """Along which axis an input lies on the ranks: that of queries, of keys, or "" """
    return "q" if "q" in axes else "kv" if "kv" in axes else ""


@functools.lru_cache(4096)
def positions_of(chunks: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Of the first row of each, which kernels read."""
    return torch.tensor([c * size for c in chunks], dtype=torch.int32, device=device)


_T = TypeVar("_T")


class _Notes(NamedTuple):
    """What becomes known of calls; None: nothing is to."""

    bases: Mapping[str, Tensor]
    calls: list[KeptCall | None] | None


class _Part(NamedTuple):
    """o: None: it lies where the pass's does."""

    o: Tensor | None
    lse: Tensor
    state: Tensor


def _rows(t: Tensor, first: int, count: int) -> Tensor:
    return t[first : first + count]


class _Pass:
    """One pass of a call on this rank. keys: k, v, and inputs that lie along the keys."""

    number: int  # 0: forward, 1: backward

    def __init__(self, job: Job, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], scale: Any) -> None:
        self.job, self.q, self.inputs, self.scale = job, q, inputs, scale
        self.schedule, self.exchange = job.schedules[self.number], job.exchanges[self.number]
        self.of_keys = [i for i, axes in enumerate(job.axes) if side_of(axes) == "kv"]
        self.dims = [2, 2, *(job.axes[i].index("kv") for i in self.of_keys)]
        self.keys = [k, v, *(inputs[i] for i in self.of_keys)]
        places = {c: i * job.plan.chunk_rows for i, c in enumerate(self.schedule.own)}
        self.own = Rows([rows_first(t, dim) for t, dim in zip(self.keys, self.dims)], places)
        self.works: list[list[Work]] = []  # of the stages whose rounds have begun
        self.buffers: dict[int, Rows] = {}  # of stages
        self.kept: dict[int, Sequence[KeptCall]] | None = None  # by stage; none of a stage whose calls go the general way

    def _begin(self, end: int) -> None:
        """Begins the rounds of the stages before `end` that are left, in the order that all ranks have. Those of a stage travel together."""
        for i in range(len(self.works), end):
            rounds = [self.schedule.rounds[t] for t in self.schedule.stages[i].rounds]
            received = self._buffer(i) if any(one.received for one in rounds) else None
            self.works.append(self.exchange.keys(rounds, self.own, received))

    def _buffer(self, i: int) -> Rows:
        """Memory for a stage's keys, with the rank's own chunks among them."""
        if i in self.buffers:
            return self.buffers[i]
        stage, size = self.schedule.stages[i], self.job.plan.chunk_rows
        tensors = self.exchange.memory(stage, self.own.tensors)
        copy_all([
            (_rows(to, stage.place[first], (end - first) * size), _rows(t, self.own.place[first], (end - first) * size))
            for first, end in ranges_of([c for c in self.schedule.own if c in stage.place])
            for to, t in zip(tensors, self.own.tensors)
        ])  # fmt: skip
        self.buffers[i] = Rows(tensors, stage.place)
        return self.buffers[i]

    def arrive(self, i: int) -> Sequence[Tensor]:
        """The keys of a stage, as they lie. Those of the next one are on their way from then on: keys of two stages are there."""
        stages = self.schedule.stages
        self.buffers.pop(i - 1, None)
        self._begin(min(i + 2, len(stages)))
        wait(self.works[i])  # all ranks wait in one order, though some have all of these keys
        return self.keys if stages[i].own else self._buffer(i).tensors

    # --- calls ---

    def take_kept(self, key: Any) -> None:
        """Calls of passes as this one, which no other has until give_kept. key: what makes this pass one of a kind, besides its job; None: nothing does."""
        table = self.job.kept
        if table is not None and key is not None:
            self.key, self.kept = (self.number, key), table.pop((self.number, key), {})

    def give_kept(self) -> None:
        table = self.job.kept
        if table is not None and self.kept is not None:
            for oldest in [*table][: max(0, len(table) - MOST + 1)]:
                table.pop(oldest, None)
            table[self.key] = self.kept

    def run_stage(self, i: int, bases: Mapping[str, Tensor], general: Callable[[Call, "_Notes"], _T], of_kept: Callable[[Call, Made], _T]) -> list[_T]:
        """What the calls of a stage make: those that are known, or by `general`, which notes what becomes known. bases: tensors of the pass, by names."""
        calls, known = self.schedule.stages[i].calls, None if self.kept is None else self.kept.get(i)
        if not calls:
            return []
        leaves_room = self.job.spare > 0
        if known:
            made = run_kept(known, {name: t.data_ptr() for name, t in bases.items()}, self.q, self.job.seed, leaves_room)
            if made is not None:
                return [of_kept(call, one) for call, one in zip(calls, made)]
        notes = _Notes(bases, [] if known is None and self.kept is not None else None)
        found = run_concurrently(self.q.device, [functools.partial(general, call, notes) for call in calls], leaves_room)
        if self.kept is not None:
            complete = notes.calls is not None and all(notes.calls)
            self.kept[i] = [one for one in notes.calls or () if one is not None] if complete else ()
        return found

    def bases_of(self, keys: Sequence[Tensor]) -> dict[str, Tensor]:
        """Of a stage with these keys: by names of a frame's tensors, those of the pass of which a call has parts."""
        names = self.job.spec.input_names
        of_keys = {names[i]: t for i, t in zip(self.of_keys, keys[2:])}
        return {"q": self.q, "k": keys[0], "v": keys[1], **dict(zip(names, self.inputs)), **of_keys}

    def finish(self) -> None:
        """Until nothing reads the rank's keys any more."""
        self.buffers.clear()
        self._begin(len(self.schedule.stages))
        for works in self.works:
            wait(works)
        self.exchange.end()

    @contextlib.contextmanager
    def whole_exchange(self) -> Iterator[None]:
        """Where a part refuses its arguments, keys travel nevertheless: so that the ranks, which all refuse them, can go on with another call."""
        try:
            yield
        except Error:
            self.finish()
            raise

    def arguments(self, call: Call, keys: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor], dict[str, Any]]:
        """q, k, v, the inputs and the options of a part."""
        run = self.schedule.runs[call.run]
        moved = keys if keys is self.keys else [t.movedim(0, dim) for t, dim in zip(keys, self.dims)]
        k, v, *rows = (t.narrow(dim, call.first, call.length) for t, dim in zip(moved, self.dims))
        inputs = list(self.inputs)
        for i, t in zip(self.of_keys, rows):
            inputs[i] = t
        for i, axes in enumerate(self.job.axes):
            if side_of(axes) == "q":
                inputs[i] = self.columns(axes, self.of_run(axes, inputs[i], call.run), call)
        options = self._places(run.chunks, call.chunks)
        if self.job.seed is not None:
            options["seed"] = self.job.seed
        if self.job.spare:
            options["spare_multiprocessors"] = self.job.spare
        return self.q[:, :, run.first : run.end], k, v, inputs, options

    def _places(self, queries: Sequence[int], keys: Sequence[int]) -> dict[str, Any]:
        """Which chunks of the whole a call has: several, or offsets of those that lie after each other."""
        size, length = self.job.plan.chunk_rows, self.job.plan.q_len
        if not self.schedule.together:
            return {"whole": [queries[0] * size, keys[0] * size, length, length, 0, 0, 0]}
        made = {"whole": [0, 0, length, length, 0, 0, 0], "chunk_rows": size}
        for name, chunks in zip(CHUNKS, (queries, keys)):
            made[name] = positions_of(chunks, size, self.q.device)
        return made

    def of_run(self, axes: Sequence[str], t: Tensor, run: int) -> Tensor:
        """The rows of a run, of a tensor along q."""
        one = self.schedule.runs[run]
        return t.narrow(axes.index("q"), one.first, one.end - one.first)

    def columns(self, axes: Sequence[str], t: Tensor, call: Call) -> Tensor:
        """The keys of a call, of a pair of axes."""
        return t.narrow(axes.index("kv"), call.chunks[0] * self.job.plan.chunk_rows, call.length) if "kv" in axes else t


# --- forward ---


class _Forward(_Pass):
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

    def _part(self, keys: Sequence[Tensor], call: Call, notes: _Notes) -> _Part:
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


def _whole_of(runs: Sequence[Run], parts: Sequence[Tensor], q: Tensor, fill: float) -> Tensor:
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


# --- backward ---


class _Gradients(NamedTuple):
    """dk, dv: None: they are where the pass has them."""

    dq: Tensor
    dk: Tensor | None
    dv: Tensor | None
    named: dict[str, Tensor]


class _Backward(_Pass):
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
                _rows(t, first, end - first).zero_()
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

    def _part(self, keys: Sequence[Tensor], made: Rows, call: Call, notes: _Notes) -> _Gradients:
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
                tensors = [_rows(t, made.place[chunks[0]], len(chunks) * size) for t in made.tensors]
            else:
                tensors = [torch.cat([_rows(t, made.place[c], size) for c in chunks]) for t in made.tensors]
            self.mine = Rows(tensors, self.own.place)
        else:
            self._add_rows(chunks, made)

    def _add_rows(self, chunks: Sequence[int], made: Rows) -> None:
        """Adds chunks to the rank's own; those that follow each other do so in both."""
        size, mine = self.job.plan.chunk_rows, self._of_own()
        both = [
            (_rows(to, mine.place[first], (end - first) * size), _rows(t, made.place[first], (end - first) * size))
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


# --- autograd ---


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
    whole = [_whole_of(forward, lses, q, -torch.inf), _whole_of(forward, saved, q, 0)]
    return [t[..., run.first : run.end].contiguous() if t.dim() > 1 else t for t in whole for run in backward]


class Distributed(torch.autograd.Function):
    """(o, lse) of a rank's rows. tensors: the inputs, `count` of them, then the scalars and the scale where these are tensors, or None."""

    @staticmethod
    def forward(ctx, job, q, k, v, count, *tensors):  # type: ignore[no-untyped-def]
        scale, inputs = tensors[-1] if job.scale is None else job.scale, tensors[:count]
        o, lses, saved = _Forward(job, q, k, v, inputs, scale).run(key_of((q, k, v, *inputs)))
        ctx.job, ctx.count = job, count
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(q, k, v, o, *tensors, *_of_runs(job, q, lses, saved))
        ctx.set_materialize_grads(False)
        has_lse = job.wants_lse and job.spec.has_lse
        lse = _whole_of(job.schedules[0].runs, lses, q, -torch.inf) if has_lse else q.new_empty(0)
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
            dq, dk, dv, named = _Backward(job, q, k, v, inputs, scale).run(key, o, [*zip(rows[:runs], rows[runs:])], dout, dlse)
            whole = {p.name for p in job.parameters if not side_of(p.axes)} | {"scale"}
            if job.sums:
                job.exchanges[1].add_up([d for name, d in named.items() if name in whole])
        found: list[Any] = [named.get(name) for name in (*(p.name for p in job.parameters), "scale")]
        found = [torch.zeros_like(t) if need and d is None else d for d, t, need in zip(found, tensors, needs[5:])]  # what nothing reads
        grads = [d.reshape(t.shape).to(t.device, t.dtype) if need else None for d, t, need in zip(found, tensors, needs[5:])]
        first = once(job.spec.said, (dq, dk.to(k.dtype), dv.to(v.dtype), *grads), sources)
        return None, *first[:3], None, *first[3:]
