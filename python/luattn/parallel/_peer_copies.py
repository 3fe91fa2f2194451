"""Rows of tensors that travel between GPUs of one host by their copy engines, each into memory of the other GPU that both see (_peer_memory.py).

Attention's kernels hold every multiprocessor until they end, so kernels that send and receive, as NCCL's, wait for them, and hide behind none. A copy engine
needs no multiprocessor: a copy runs on a stream of its own beside the kernels. After it, the engine copies a 1 into a word of the receiver, which waits for it
between two of its own kernels: ranks wait for what they need alone.

Keys are copied to where the receiver's calls read them, among its own; gradients of each round have a place of their own in the memory of the receiver. A pass begins
with a barrier of all ranks: then nobody reads what came in the one before."""

import itertools
import math
import socket
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Unsupported
from ._exchange import Exchange, Rows, Work
from ._peer_memory import GRADIENTS, KEYS, WORDS, Memory, Parcel, PeerMemory, on_all, said_by_all
from ._stages import Round, Schedule, Stage, ranges_of

_ALIGNED = 512


class _Places:
    """Memory of a rank for tensors that have these bytes a row, from byte `first` on: blocks of so many rows of all of them, one after another."""

    def __init__(self, first: int, rows: Sequence[int], row_bytes: Sequence[int]) -> None:
        self.end = first
        self._blocks: list[list[int]] = []
        for n in rows:
            self._blocks.append([])
            for size in row_bytes:
                self._blocks[-1].append(self.end)
                self.end += -(-size * n // _ALIGNED) * _ALIGNED

    def tensors(self, memory: Tensor, block: int, first: int, rows: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Rows of a block, from `first` on, as such tensors."""
        made = []
        for at, t, size in zip(self._blocks[block], like, _row_bytes(like)):
            made.append(memory[at + first * size : at + (first + rows) * size].view(t.dtype).view(rows, *t.shape[1:]))
        return made


def _row_bytes(tensors: Sequence[Tensor]) -> list[int]:
    return [t.element_size() * math.prod(t.shape[1:]) for t in tensors]


class _Waiting:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


# Of a parcel: the address of each range of rows at the receiver, of which of the sender's tensors it is, at which byte it begins there,
# and how many bytes it is.
_Route = list[tuple[int, int, int, int]]


class _Layout:
    """Where tensors of a pass lie in the memory of the ranks, which is the same in each call with tensors of the same kinds; what is cut of it is kept."""

    def __init__(self, memory: Memory, schedule: Schedule, chunk_rows: int, keys: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        self.schedule, self._memory, self._chunk_rows = schedule, memory, chunk_rows
        self._like = [t.new_empty((0, *t.shape[1:])) for t in keys], [t.new_empty((0, *t.shape[1:])) for t in made]
        self._keys = _Places(0, schedule.landing.rows, _row_bytes(keys))
        self._made = _Places(self._keys.end, [schedule.round_chunks * chunk_rows] * len(schedule.rounds), _row_bytes(made))
        self.size = self._made.end

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What make() gives, as long as the memory is the same."""
        kept = self._memory.kept.setdefault(self, {})
        if key not in kept:
            with torch.inference_mode(False):
                kept[key] = make()
        return kept[key]

    def _block(self, t: int) -> int:
        return next(b for b, stage in enumerate(self.schedule.arriving) if t in stage.rounds)

    def _route(self, places: _Places, rank: int, block: int, chunks: Sequence[int], there: dict[int, int], here: dict[int, int], like: Sequence[Tensor]) -> _Route:
        """Chunks that follow each other do so at both ends."""
        found = []
        for first, end in ranges_of(chunks):
            n = (end - first) * self._chunk_rows
            tensors = places.tensors(self._memory.of(rank), block, there[first], n, like)
            found += [(to.data_ptr(), i, here[first] * size, n * size) for i, (to, size) in enumerate(zip(tensors, _row_bytes(like))) if to.numel()]
        return found

    def keys_to(self, t: int, own: dict[int, int]) -> _Route:
        one = self.schedule.rounds[t]
        made: _Route = self._once(("to", t), lambda: self._route(self._keys, one.to, self._block(t), one.sent, self.schedule.landing.place[t], own, self._like[0]))
        return made

    def keys_here(self, stage: Stage, rank: int) -> list[Tensor]:
        """With 0 where no chunk will lie."""
        b = next(b for b, x in enumerate(self.schedule.arriving) if x is stage)
        tensors, gaps = self._once(("here", b), lambda: self._with_gaps(b, stage, rank))
        if gaps:
            torch._foreach_zero_(gaps)
        return list(tensors)

    def _with_gaps(self, b: int, stage: Stage, rank: int) -> tuple[list[Tensor], list[Tensor]]:
        tensors = self._keys.tensors(self._memory.of(rank), b, 0, stage.rows, self._like[0])
        at, gaps = 0, []
        for first in [*sorted(stage.place.values()), stage.rows]:
            gaps += [t[at:first] for t in tensors if at < first]
            at = first + self._chunk_rows
        return tensors, gaps

    def gradients_to(self, t: int, made: dict[int, int]) -> _Route:
        one = self.schedule.rounds[t]
        found: _Route = self._once(("back", t), lambda: self._route(self._made, one.source, t, one.received, self.compact(one.received), made, self._like[1]))
        return found

    def gradients_here(self, t: int, rank: int) -> list[Tensor]:
        """Of the rank's own chunks."""
        rows = len(self.schedule.rounds[t].sent) * self._chunk_rows
        return list(self._once(("made", t), lambda: self._made.tensors(self._memory.of(rank), t, 0, rows, self._like[1])))

    def compact(self, chunks: Sequence[int]) -> dict[int, int]:
        return {c: i * self._chunk_rows for i, c in enumerate(chunks)}


class PeerExchange(Exchange):
    """Keys come to lie where the receiver's calls read them."""

    def __init__(self, group: dist.ProcessGroup, chunk_rows: int, memory: Memory) -> None:
        super().__init__(group, chunk_rows)
        self._memory, self._rank = memory, group.rank()
        self._layouts: dict[Any, _Layout] = {}

    def begin(self, schedule: Schedule, keys: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        kinds = id(schedule), *((t.dtype, t.shape[1:]) for t in (*keys, *made))
        if kinds not in self._layouts:
            self._layouts[kinds] = _Layout(self._memory, schedule, self.chunk_rows, keys, made)
        self._layout, self._rounds = self._layouts[kinds], len(schedule.rounds)
        self._begun, self._returned = itertools.count(), itertools.count()
        self._sent: list[Any] = []  # of keys
        self._open = self._rounds if made else 0  # rounds of gradients that have not been waited for
        if self._rounds:
            self._memory.enter(self._layout.size)

    def end(self) -> None:
        while self._sent:
            self._memory.sent(self._sent.pop())
        if self._rounds and not self._open:  # after an error others may have begun rounds that this rank never waits for
            self._memory.leave()

    def memory(self, stage: Stage, keys: Sequence[Tensor]) -> list[Tensor]:
        return self._layout.keys_here(stage, self._rank) if stage.rounds else super().memory(stage, keys)

    def keys(self, rounds: Sequence[Round], own: Rows, received: Rows | None) -> list[Work]:
        numbers = list(itertools.islice(self._begun, len(rounds)))
        parcels = [self._parcel(one.to, KEYS, self._layout.keys_to(t, own.place), own) for t, one in zip(numbers, rounds) if one.sent]
        if parcels:
            self._sent.append(self._memory.send(parcels))
        sources = [one.source for one in rounds if one.received]
        return [_Waiting(lambda: self._receive(sources, KEYS))] if sources else []

    def gradients(self, rounds: Sequence[Round], made: Rows) -> tuple[list[Work], list[Rows]]:
        numbers = list(itertools.islice(self._returned, len(rounds)))
        layout = self._layout
        parcels = [self._parcel(one.source, GRADIENTS, layout.gradients_to(t, made.place), made) for t, one in zip(numbers, rounds) if one.received]
        started = self._memory.send(parcels) if parcels else None
        sources = [one.to for one in rounds if one.sent]

        def wait() -> None:
            """Until what this rank sent is no longer read, too."""
            if started is not None:
                self._memory.sent(started)
            self._receive(sources, GRADIENTS)
            self._open -= len(rounds)

        returned = [Rows(layout.gradients_here(t, self._rank), layout.compact(one.sent)) for t, one in zip(numbers, rounds) if one.sent]
        return [_Waiting(wait)], returned

    def _parcel(self, rank: int, kind: int, route: _Route, rows: Rows) -> Parcel:
        at = [t.data_ptr() for t in rows.tensors]
        return Parcel(rank, kind, [(to, at[i] + first, size) for to, i, first, size in route])

    def _receive(self, ranks: Sequence[int], kind: int) -> None:
        for rank in ranks:
            self._memory.receive(rank, kind)


# --- which exchange a group has ---

_MEMORIES: "weakref.WeakKeyDictionary[dist.ProcessGroup, PeerMemory]" = weakref.WeakKeyDictionary()
_FAILURES: "weakref.WeakKeyDictionary[dist.ProcessGroup, str]" = weakref.WeakKeyDictionary()  # why a group has none


def _why_not(device: torch.device) -> str:
    """Why this process cannot see the memory of other GPUs; "" where it may."""
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        return f"torch {torch.__version__} has no symmetric memory"
    return "" if hasattr(symmetric, "rendezvous") and hasattr(symmetric, "empty") else f"torch {torch.__version__} has no symmetric memory"


def exchanges_of(
    group: dist.ProcessGroup, chunk_rows: int, device: torch.device, told: tuple[str, str], planned: tuple[str, str]
) -> tuple[tuple[Exchange, Exchange], str]:
    """The exchanges of a group in forward and in backward, and why they are those. told: of the caller, capi.COPIES; planned: of the plan, for "auto". All ranks
    call it alike."""
    by_group, wanted = Exchange(group, chunk_rows), tuple(plan if word == "auto" else word for word, plan in zip(told, planned))
    why = "as the plan has it" if "auto" in told else "as told"
    if "peer" not in wanted:
        return (by_group, by_group), why
    if group.size() == 1:
        return (by_group, by_group), "there is one rank"
    why_not = _why_no_memory(group, device) or _why_too_few(_MEMORIES[group].channels, group.size())
    if why_not and "peer" in told:
        raise Unsupported(f'luattn.parallel.ContextParallel: transport: is "peer", and {why_not}; give "auto" or "group"')
    if why_not:
        if device.type == "cuda":
            warnings.warn(f'luattn.parallel.ContextParallel: rows travel by the group, where the plan has copies between GPUs, since {why_not}; make the plan with transport="group"', stacklevel=4)
        return (by_group, by_group), why_not
    peer = PeerExchange(group, chunk_rows, _MEMORIES[group])
    forward, backward = (peer if word == "peer" else by_group for word in wanted)
    return (forward, backward), why


def passes_begun(group: dist.ProcessGroup) -> int:
    """By copies, on this rank: the same number on all ranks, unless one of them alone raised before it began a pass."""
    return _MEMORIES[group].begun if group in _MEMORIES else 0


def _why_no_memory(group: dist.ProcessGroup, device: torch.device) -> str:
    """Why the ranks have no memory that all see, the same on all; "" where they do, from then on in _MEMORIES."""
    if device.type != "cuda":
        return _why_not(device)
    if group not in _MEMORIES and group not in _FAILURES:
        why_not = _why_no_new_memory(group, device)
        if why_not:
            _FAILURES[group] = why_not
    return _FAILURES.get(group, "")


def _why_no_new_memory(group: dist.ProcessGroup, device: torch.device) -> str:
    said = said_by_all(group, (socket.gethostname(), _why_not(device), _sees_all(device)))
    hosts = {host for host, *_ in said}
    reasons = [why for _, why, _ in said if why]
    if reasons:
        return str(reasons[0])
    if len(hosts) > 1:
        return f"its ranks are on {len(hosts)} hosts"
    if not all(sees for *_, sees in said):
        return "its GPUs do not see each other's memory"
    try:
        memory = on_all(group, lambda: PeerMemory(group, device))
        memory.reserve(_ALIGNED)
    except Unsupported as e:
        return str(e)
    _MEMORIES[group] = memory
    return ""


def _why_too_few(channels: int, ranks: int) -> str:
    """Words of symmetric memory are shared out among the ranks."""
    return f"symmetric memory has signals for {channels} channels, where {ranks} ranks of one host need {WORDS}" if channels < WORDS else ""


def _sees_all(device: torch.device) -> bool:
    """Whether this GPU sees the memory of all others that this process has."""
    return all(torch.cuda.can_device_access_peer(device, i) for i in range(torch.cuda.device_count()) if i != device.index)
