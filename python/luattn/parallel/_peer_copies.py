"""Rows of tensors that travel between GPUs of one host by their copy engines, each into memory of the other GPU that both see (torch's symmetric memory).

Attention's kernels hold every multiprocessor until they end, so kernels that send and receive, as NCCL's, wait for them, and hide behind none. A copy engine
needs no multiprocessor: a copy runs on a stream of its own beside the kernels. What has come is known by a barrier of all ranks, a tiny kernel between two
others.

A round's rows go to one of some slots of the receiver's memory, which are taken in turns. A slot may be written again once its owner has read it, which the
barrier of the round after says to all: so there is one slot more than rounds are on their way at once. Passes take turns with two halves of the memory,
whatever their slots are: a barrier of the pass between says that the half is free."""

import datetime
import math
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Unsupported
from ._exchange import Exchange, Rows, Work
from ._stages import RETURNING, Round, Schedule, ranges_of

_ALIGNED = 512


class Memory(Protocol):
    """Of the ranks of a group, seen by all of them."""

    def of(self, rank: int) -> Tensor:
        """The bytes of a rank."""

    def start(self, copies: Callable[[], None]) -> Any:
        """Runs copies of what the current stream has made, beside what follows in it. What done() waits for."""

    def done(self, started: Any) -> None:
        """The current stream waits for copies of this rank."""

    def barrier(self) -> None:
        """The current stream waits until those of all ranks are here."""

    def enter(self, size: int) -> int:
        """Before a pass, which takes so many bytes of each rank: where they begin. All ranks call it alike, on streams that need not be those of the pass before."""

    def leave(self) -> None:
        """After it."""


class PeerMemory:
    """Of GPUs of one host."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device, self._rank = group, device, group.rank()
        self._copies = torch.cuda.Stream(device)
        self._last = torch.cuda.Event()
        self._bytes = self._half = 0
        self._limit = _timeout_of(group, device) // datetime.timedelta(milliseconds=1)

    def _reserve(self, size: int) -> None:
        """Anew, and seen by all."""
        import torch.distributed._symmetric_memory as symmetric

        if self._bytes:
            torch.cuda.synchronize(self._device)
            self.barrier()  # no rank writes to what goes now
            torch.cuda.synchronize(self._device)
        self._bytes = -(-size // 2**21) * 2**21
        mine = symmetric.empty(self._bytes, dtype=torch.uint8, device=self._device)
        self._handle = symmetric.rendezvous(mine, self._group)
        self._of = [mine if r == self._rank else self._handle.get_buffer(r, (self._bytes,), torch.uint8) for r in range(self._group.size())]

    def of(self, rank: int) -> Tensor:
        return self._of[rank]

    def start(self, copies: Callable[[], None]) -> torch.cuda.Event:
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            copies()
        made = torch.cuda.Event()
        made.record(self._copies)
        return made

    def done(self, started: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(started)

    def barrier(self) -> None:
        self._handle.barrier(channel=0, timeout_ms=self._limit)

    def enter(self, size: int) -> int:
        torch.cuda.current_stream(self._device).wait_event(self._last)
        if 2 * size > self._bytes:
            self._reserve(2 * size)
        self._half = self._bytes // 2 - self._half
        return self._half

    def leave(self) -> None:
        self._last.record(torch.cuda.current_stream(self._device))


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> datetime.timedelta:
    """After which the group gives up, and a barrier too: no rank waits for one that is gone."""
    try:
        found: datetime.timedelta = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return datetime.timedelta(minutes=10)
    return found


class _Slots:
    """Bytes from `first` on: of rounds in turns, and of tensors in them, which have these bytes a row."""

    def __init__(self, count: int, rows: int, row_bytes: Sequence[int]) -> None:
        self.first, self._count, self._places, self._slot, self._taken = 0, count, [], 0, 0
        for n in row_bytes:
            self._places.append(self._slot)
            self._slot += -(-n * rows // _ALIGNED) * _ALIGNED
        self.size = count * self._slot

    def take(self) -> list[int]:
        """Where the tensors of the next round begin."""
        at = self.first + self._taken % self._count * self._slot
        self._taken += 1
        return [at + place for place in self._places]


def _row_bytes(tensors: Sequence[Tensor]) -> list[int]:
    return [t.element_size() * math.prod(t.shape[1:]) for t in tensors]


class _Round(Work):
    def __init__(self, memory: Memory, started: Any, take: Callable[[], None]) -> None:
        self._memory, self._started, self._take = memory, started, take

    def wait(self) -> None:
        if self._started is not None:
            self._memory.done(self._started)
        self._memory.barrier()
        self._take()


class PeerExchange(Exchange):
    def __init__(self, group: dist.ProcessGroup, chunk_rows: int, memory: Memory) -> None:
        super().__init__(group, chunk_rows)
        self._memory, self._rank, self._is_open = memory, group.rank(), False

    def begin(self, schedule: Schedule, keys: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        rounds, rows = len(schedule.rounds), schedule.round_chunks * self.chunk_rows
        self._is_open = rounds > 0
        if not self._is_open:
            return
        self._keys = _Slots(min(rounds, schedule.ahead + 1), rows, _row_bytes(keys))
        self._made = _Slots(min(rounds, RETURNING + 1), rows, _row_bytes(made))
        self._keys.first = self._memory.enter(self._keys.size + self._made.size)
        self._made.first = self._keys.first + self._keys.size

    def end(self) -> None:
        if self._is_open:
            self._memory.leave()

    def keys(self, one: Round, own: Rows, received: Rows | None) -> list[Work]:
        at = self._keys.take()
        started = self._memory.start(lambda: self._push(one.to, at, one.sent, own)) if one.sent else None
        return [_Round(self._memory, started, lambda: self._take(at, one.received, received))]

    def gradients(self, one: Round, made: Rows) -> tuple[list[Work], Rows | None]:
        at = self._made.take()
        started = self._memory.start(lambda: self._push(one.source, at, one.received, made)) if one.received else None
        returned = Rows([self._slot(at[i], t, len(one.sent)) for i, t in enumerate(made.tensors)], self._compact(one.sent)) if one.sent else None
        return [_Round(self._memory, started, lambda: None)], returned

    def _compact(self, chunks: Sequence[int]) -> dict[int, int]:
        return {c: i * self.chunk_rows for i, c in enumerate(chunks)}

    def _push(self, rank: int, at: Sequence[int], chunks: Sequence[int], rows: Rows) -> None:
        """Copies chunks, one after another, to where the other rank reads them."""
        to, place = self._memory.of(rank), self._compact(chunks)
        for first, end in ranges_of(chunks):
            for begin, t, size in zip(at, rows.tensors, _row_bytes(rows.tensors)):
                part = t[rows.place[first] : rows.place[first] + (end - first) * self.chunk_rows]
                begin += place[first] * size
                to[begin : begin + part.numel() * part.element_size()].copy_(part.view(-1).view(torch.uint8))

    def _slot(self, at: int, like: Tensor, chunks: int) -> Tensor:
        """What has come, as rows of such a tensor."""
        shape = (chunks * self.chunk_rows, *like.shape[1:])
        size = like.element_size() * math.prod(shape)
        return self._memory.of(self._rank)[at : at + size].view(like.dtype).view(shape)

    def _take(self, at: Sequence[int], chunks: Sequence[int], received: Rows | None) -> None:
        if received is None:
            return
        place = self._compact(chunks)
        for begin, t in zip(at, received.tensors):
            slot = self._slot(begin, t, len(chunks))
            for first, end in ranges_of(chunks):
                n = (end - first) * self.chunk_rows
                t[received.place[first] : received.place[first] + n].copy_(slot[place[first] : place[first] + n])


# --- which exchange a group has ---

_MEMORIES: "weakref.WeakKeyDictionary[dist.ProcessGroup, PeerMemory]" = weakref.WeakKeyDictionary()


def _why_not(device: torch.device) -> str:
    """Why this process cannot see the memory of other GPUs; "" where it may."""
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        return f"torch {torch.__version__} has no symmetric memory"
    return "" if hasattr(symmetric, "rendezvous") and hasattr(symmetric, "empty") else f"torch {torch.__version__} has no symmetric memory"


def exchange_of(group: dist.ProcessGroup, chunk_rows: int, device: torch.device, transport: str | None) -> tuple[Exchange, str]:
    """The exchange of a group, and why it is that one. transport: one of rank_plan.TRANSPORTS; None: copies between GPUs where these can. All ranks call it alike."""
    why = "as told" if transport == "group" else "there is one rank" if group.size() == 1 else _why_not(device)
    if not why and group not in _MEMORIES:
        said: list[Any] = [None] * group.size()
        dist.all_gather_object(said, (socket.gethostname(), _sees_all(device)), group=group)
        hosts = {host for host, _ in said}
        if len(hosts) > 1:
            why = f"its ranks are on {len(hosts)} hosts"
        elif not all(sees for _, sees in said):
            why = "its GPUs do not see each other's memory"
        else:
            _MEMORIES[group] = PeerMemory(group, device)
    if not why:
        return PeerExchange(group, chunk_rows, _MEMORIES[group]), "as told" if transport else "its GPUs are of one host"
    if transport == "peer":
        raise Unsupported(f'luattn.parallel.ContextParallel: transport: is "peer", and {why}; give "group", or leave it out')
    return Exchange(group, chunk_rows), why


def _sees_all(device: torch.device) -> bool:
    """Whether this GPU sees the memory of all others that this process has."""
    return all(torch.cuda.can_device_access_peer(device, i) for i in range(torch.cuda.device_count()) if i != device.index)
