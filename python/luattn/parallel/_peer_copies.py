"""Rows of tensors that travel between GPUs of one host by their copy engines, each into memory of the other GPU that both see (torch's symmetric memory).

Attention's kernels hold every multiprocessor until they end, so kernels that send and receive, as NCCL's, wait for them, and hide behind none. A copy engine
needs no multiprocessor: a copy runs on a stream of its own beside the kernels. After it, the engine copies a 1 into a word of the receiver, which waits for it
between two of its own kernels: ranks wait for what they need alone.

Each round of a pass has a place of its own in the memory of the receiver. A pass begins with a barrier of all ranks: then nobody reads what came in the one
before."""

import datetime
import itertools
import math
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Unsupported
from ._exchange import Exchange, Rows, Work, copy_all
from ._stages import Round, Schedule, ranges_of

_ALIGNED = 512


class Memory(Protocol):
    """Of the ranks of a group, seen by all of them."""

    def enter(self, size: int, channels: int) -> None:
        """Before a pass, which takes so many bytes of each rank, and channels: nobody reads or writes them any more. All ranks call it alike, on streams that need not be those
        of the pass before."""

    def leave(self) -> None:
        """After it."""

    def of(self, rank: int) -> Tensor:
        """The bytes of a rank."""

    def send(self, rank: int, channel: int, copies: Callable[[], None]) -> Any:
        """Runs copies of what the current stream has made, beside what follows in it, and then tells the rank by a channel. What sent() waits for."""

    def sent(self, started: Any) -> None:
        """The current stream waits until these copies are done."""

    def receive(self, rank: int, channel: int) -> None:
        """The current stream waits until the rank has told by a channel, once."""


class PeerMemory:
    """Of GPUs of one host."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device, self._rank, self._ranks = group, device, group.rank(), group.size()
        self._copies = torch.cuda.Stream(device)
        self._last = torch.cuda.Event()
        self._one = torch.ones(1, dtype=torch.int32, device=device)
        self._bytes = 0
        self._limit = _timeout_of(group, device) // datetime.timedelta(milliseconds=1)

    def _reserve(self, size: int) -> None:
        """Anew, and seen by all."""
        import torch.distributed._symmetric_memory as symmetric

        if self._bytes:
            self._barrier()  # no rank writes to what goes now
        torch.cuda.synchronize(self._device)
        self._bytes = -(-size // 2**21) * 2**21
        mine = symmetric.empty(self._bytes, dtype=torch.uint8, device=self._device)
        self._handle = symmetric.rendezvous(mine, self._group)
        self._of = [mine if r == self._rank else self._handle.get_buffer(r, (self._bytes,), torch.uint8) for r in range(self._ranks)]
        self._words = [self._handle.get_signal_pad(r, dtype=torch.int32) for r in range(self._ranks)]

    def enter(self, size: int, channels: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._last)
        if size > self._bytes:
            self._reserve(size)
        words = self._words[self._rank].numel()
        if self._ranks * (channels + 1) > words:
            raise Unsupported(
                f"luattn.parallel.ContextParallel: transport: is \"peer\", and symmetric memory has {words} words for signals, where {self._ranks} ranks of "
                f"one host with {channels} channels need {self._ranks * (channels + 1)}; give \"group\""
            )
        # What a pass that raised left: copies on their way, and signals that nobody has waited for.
        torch.cuda.current_stream(self._device).wait_stream(self._copies)
        self._words[self._rank][self._ranks :].zero_()
        self._barrier()

    def leave(self) -> None:
        self._last.record(torch.cuda.current_stream(self._device))

    def of(self, rank: int) -> Tensor:
        return self._of[rank]

    def send(self, rank: int, channel: int, copies: Callable[[], None]) -> torch.cuda.Event:
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        word = self._ranks * (channel + 1) + self._rank  # as wait_signal of symmetric memory reads it; channel 0 is the barrier's
        with torch.cuda.stream(self._copies):
            copies()
            self._words[rank][word : word + 1].copy_(self._one)
        made = torch.cuda.Event()
        made.record(self._copies)
        return made

    def sent(self, started: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(started)

    def receive(self, rank: int, channel: int) -> None:
        self._handle.wait_signal(rank, channel + 1, self._limit)

    def _barrier(self) -> None:
        self._handle.barrier(channel=0, timeout_ms=self._limit)


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> datetime.timedelta:
    """After which the group gives up, and a barrier too: no rank waits for one that is gone."""
    try:
        found: datetime.timedelta = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return datetime.timedelta(minutes=10)
    return found


class _Places:
    """Where rounds and their tensors begin, from byte `first` on: tensors that have these bytes a row."""

    def __init__(self, first: int, rounds: int, rows: int, row_bytes: Sequence[int]) -> None:
        self._places, self._first, self._size = [], first, 0
        for n in row_bytes:
            self._places.append(self._size)
            self._size += -(-n * rows // _ALIGNED) * _ALIGNED
        self.end = first + rounds * self._size

    def of(self, round_: int) -> list[int]:
        return [self._first + round_ * self._size + place for place in self._places]


def _row_bytes(tensors: Sequence[Tensor]) -> list[int]:
    return [t.element_size() * math.prod(t.shape[1:]) for t in tensors]


class _Round:
    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def wait(self) -> None:
        self._wait()


class PeerExchange(Exchange):
    def __init__(self, group: dist.ProcessGroup, chunk_rows: int, memory: Memory) -> None:
        super().__init__(group, chunk_rows)
        self._memory, self._rank = memory, group.rank()

    def begin(self, schedule: Schedule, keys: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        self._rounds, rows = len(schedule.rounds), schedule.round_chunks * self.chunk_rows
        self._begun, self._returned = itertools.count(), itertools.count()
        self._keys = _Places(0, self._rounds, rows, _row_bytes(keys))
        self._made = _Places(self._keys.end, self._rounds, rows, _row_bytes(made))
        if self._rounds:
            self._memory.enter(self._made.end, 2 * self._rounds)

    def end(self) -> None:
        if self._rounds:
            self._memory.leave()

    def keys(self, rounds: Sequence[Round], own: Rows, received: Rows | None) -> list[Work]:
        return [self._keys_of(one, own, received) for one in rounds]

    def _keys_of(self, one: Round, own: Rows, received: Rows | None) -> Work:
        number = next(self._begun)
        at = self._keys.of(number)
        started = self._send(one.to, number, at, one.sent, own)

        def wait() -> None:
            self._wait(started, one.source, number, one.received)
            if received is not None:
                self._take(at, one.received, received)

        return _Round(wait)

    def gradients(self, rounds: Sequence[Round], made: Rows) -> tuple[list[Work], list[Rows]]:
        works, returned = zip(*(self._gradients_of(one, made) for one in rounds)) if rounds else ((), ())
        return list(works), [rows for rows in returned if rows is not None]

    def _gradients_of(self, one: Round, made: Rows) -> tuple[Work, Rows | None]:
        number = next(self._returned)
        at, channel = self._made.of(number), self._rounds + number
        started = self._send(one.source, channel, at, one.received, made)
        returned = Rows([self._slot(at[i], t, len(one.sent)) for i, t in enumerate(made.tensors)], self._compact(one.sent)) if one.sent else None
        return _Round(lambda: self._wait(started, one.to, channel, one.sent)), returned

    def _send(self, rank: int, channel: int, at: Sequence[int], chunks: Sequence[int], rows: Rows) -> Any:
        return self._memory.send(rank, channel, lambda: self._push(rank, at, chunks, rows)) if chunks else None

    def _wait(self, started: Any, source: int, channel: int, chunks: Sequence[int]) -> None:
        """Until what this rank sent is no longer read, and what it receives is there."""
        if started is not None:
            self._memory.sent(started)
        if chunks:
            self._memory.receive(source, channel)

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
        place, pairs = self._compact(chunks), []
        for begin, t in zip(at, received.tensors):
            slot = self._slot(begin, t, len(chunks))
            for first, end in ranges_of(chunks):
                n = (end - first) * self.chunk_rows
                pairs.append((t[received.place[first] : received.place[first] + n], slot[place[first] : place[first] + n]))
        copy_all(pairs)


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


def exchange_of(group: dist.ProcessGroup, chunk_rows: int, device: torch.device, transport: str) -> tuple[Exchange, str]:
    """The exchange of a group, and why it is that one. transport: one of rank_plan.TRANSPORTS. All ranks call it alike."""
    if transport == "group":
        return Exchange(group, chunk_rows), "as told"
    if group.size() == 1:
        return Exchange(group, chunk_rows), "there is one rank"
    why = _why_not(device)
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
    if why:
        raise Unsupported(f'luattn.parallel.ContextParallel: transport: is "peer", and {why}; give "group"')
    return PeerExchange(group, chunk_rows, _MEMORIES[group]), "as told"


def _sees_all(device: torch.device) -> bool:
    """Whether this GPU sees the memory of all others that this process has."""
    return all(torch.cuda.can_device_access_peer(device, i) for i in range(torch.cuda.device_count()) if i != device.index)
