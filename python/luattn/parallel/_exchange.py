"""Rows of tensors that travel between ranks, by batched sends and receives of torch.distributed: gloo on the CPU; NCCL between GPUs, whose kernels
take multiprocessors (_peer_copies.py has the exchange that takes none)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ._stages import Round, Schedule, Stage, ranges_of


class Rows(NamedTuple):
    """Contiguous tensors with the axis of the sequence first, in which chunk c begins at row place[c]."""

    tensors: Sequence[Tensor]
    place: dict[int, int]


class Work(Protocol):
    """What is on its way."""

    def wait(self) -> object: ...


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies the second of each pair into the first, in one call, since each costs the host some 50 us."""
    if pairs:
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def rows_first(t: Tensor, dim: int) -> Tensor:
    """Makes chunks of rows contiguous, and their bytes what the tensor says: a lazy negation stays one otherwise."""
    return t.movedim(dim, 0).resolve_neg().contiguous()


class Exchange:
    """All ranks of the group call the same methods in the same order. chunk_rows: of each chunk."""

    def __init__(self, group: dist.ProcessGroup, chunk_rows: int) -> None:
        self.group, self.chunk_rows = group, chunk_rows
        self._global = [dist.get_global_rank(group, r) for r in range(group.size())]

    def begin(self, schedule: Schedule, keys: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Before a pass. keys, made: tensors of keys, and of their gradients that go back, for the size of a row."""

    def end(self) -> None:
        """After a pass, all of whose rounds of keys have been waited for: nothing reads the rank's keys any more."""

    def memory(self, stage: Stage, keys: Sequence[Tensor]) -> list[Tensor]:
        """For a stage's keys, with 0 where no chunk will lie. keys: the rank's own, for the size of a row."""
        new = torch.Tensor.new_zeros if stage.gaps else torch.Tensor.new_empty
        return [new(t, (stage.rows, *t.shape[1:])) for t in keys]

    def _ops(self, op: Callable[..., dist.Work | None], chunks: Sequence[int], rows: Rows, peer: int) -> list[dist.P2POp]:
        """Chunks that follow each other in the whole do so at both ends, and travel at once."""
        ops = []
        for first, end in ranges_of(chunks):
            at = rows.place[first]
            for t in rows.tensors:
                part = t[at : at + (end - first) * self.chunk_rows]
                if part.numel():
                    ops.append(dist.P2POp(op, part.view(-1).view(torch.uint8), self._global[peer], self.group))
        return ops

    def keys(self, rounds: Sequence[Round], own: Rows, received: Rows | None) -> list[Work]:
        """Starts rounds, at once, in which keys go where they are needed. received: None if none come."""
        ops: list[dist.P2POp] = []
        for one in rounds:
            ops += [] if received is None else self._ops(dist.irecv, one.received, received, one.source)
            ops += self._ops(dist.isend, one.sent, own, one.to)
        return self._start(ops)

    def gradients(self, rounds: Sequence[Round], made: Rows) -> tuple[list[Work], list[Rows]]:
        """Starts the same rounds the other way, at once: gradients go back to the keys' owners. Those of the rank's own chunks that will have come, of each round that
        has any."""
        ops, returned = [], []
        for one in rounds:
            if one.sent:
                place = {c: i * self.chunk_rows for i, c in enumerate(one.sent)}
                returned.append(Rows([t.new_empty((len(place) * self.chunk_rows, *t.shape[1:])) for t in made.tensors], place))
                ops += self._ops(dist.irecv, one.sent, returned[-1], one.to)
            ops += self._ops(dist.isend, one.received, made, one.source)
        return self._start(ops), returned

    def _start(self, ops: list[dist.P2POp]) -> list[Work]:
        return list(dist.batch_isend_irecv(ops)) if ops else []

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks; in their order where torch is to be deterministic."""
        if self.group.size() == 1:
            return
        for t in tensors:
            if torch.are_deterministic_algorithms_enabled():
                parts = [torch.empty_like(t) for _ in self._global]
                dist.all_gather(parts, t, group=self.group)
                t.zero_()
                for part in parts:
                    t.add_(part)
            else:
                dist.all_reduce(t, group=self.group)


def wait(works: list[Work]) -> None:
    """Once: gloo would wait for another transfer."""
    while works:
        works.pop().wait()
