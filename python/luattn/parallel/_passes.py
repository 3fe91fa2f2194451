"""What forward and backward of one rank have in common: keys of stages as they arrive, and arguments of the calls that take them."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._call import CHUNKS
from .._spec import Spec
from ..errors import Error
from ._call_streams import run_concurrently
from ._exchange import Exchange, Rows, Work, copy_all, rows_first, wait
from ._kept_calls import MOST, KeptCall, Made, run_kept
from ._stages import Call, Schedule, ranges_of
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


class Notes(NamedTuple):
    """What becomes known of calls; None: nothing is to."""

    bases: Mapping[str, Tensor]
    calls: list[KeptCall | None] | None


def slice_rows(t: Tensor, first: int, count: int) -> Tensor:
    return t[first : first + count]


class Pass:
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
            (slice_rows(to, stage.place[first], (end - first) * size), slice_rows(t, self.own.place[first], (end - first) * size))
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

    def run_stage(self, i: int, bases: Mapping[str, Tensor], general: Callable[[Call, "Notes"], _T], of_kept: Callable[[Call, Made], _T]) -> list[_T]:
        """What the calls of a stage make: those that are known, or by `general`, which notes what becomes known. bases: tensors of the pass, by names."""
        calls, known = self.schedule.stages[i].calls, None if self.kept is None else self.kept.get(i)
        if not calls:
            return []
        leaves_room = self.job.spare > 0
        if known:
            made = run_kept(known, {name: t.data_ptr() for name, t in bases.items()}, self.q, self.job.seed, leaves_room)
            if made is not None:
                return [of_kept(call, one) for call, one in zip(calls, made)]
        notes = Notes(bases, [] if known is None and self.kept is not None else None)
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
