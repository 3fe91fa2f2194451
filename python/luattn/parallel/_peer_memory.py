"""Memory that all GPUs of one host see of each other (torch's symmetric memory), which copies of a pass are written into, and words
by which ranks tell each other that copies are done."""

import contextlib
import ctypes
import datetime
import functools
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Error, Unsupported

MEETING = datetime.timedelta(seconds=60)  # for which a rank waits until all have memory that they see
KEYS, GRADIENTS = range(2)  # kinds of parcels
WORDS = 2 * 2  # that a rank has for each other rank: two sets of one for each kind
_T = TypeVar("_T")


class Parcel(NamedTuple):
    """What goes to a rank, which is told: copies (to, from, bytes) of addresses. What lies there stays until sent(). In a pass each
    rank gets at most one of each kind from another rank."""

    rank: int
    kind: int
    copies: Sequence[tuple[int, int, int]]


class Memory(ABC):
    """Of the ranks of a group, seen by all of them. All ranks begin passes alike, each with a barrier.

    A copy sets a word of the receiver, which clears it when it has waited for it: a pass that ends leaves all words 0. One that
    raises leaves words that nobody has waited for, and copies of other ranks that may still set some. So passes take two sets of
    words in turns, and the set of pass n, if that raised, is cleared after the barrier of pass n + 1:

    - A rank comes to the barrier of pass n + 1 after all its copies of pass n: it has waited for them, after an error in _follow().
      So after this barrier nobody writes words of pass n.
    - The next copies that set words of this set are those of pass n + 2. They begin after its barrier, to which a rank comes after
      it has cleared its words.

    So when pass n + 2 begins, its words are 0 on all ranks: none is taken for set that a copy of pass n has set, and none is
    cleared that a copy of pass n + 2 has set. Rows that come late lie in memory that nobody reads before the barrier of pass n + 1.

    A rank that alone raises before the barrier is one behind from then on, and its barriers meet other ones of the others. Numbers
    of passes that are begun tell of it: ContextParallel compares them where it compares arguments.

    Groups have memory and words of their own. Passes in a CUDA graph take none of either: ContextParallel has them travel by the
    group."""

    def __init__(self) -> None:
        # What users have cut of it; empty where the memory is new.
        self.kept: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._set, self._ended = 0, True
        self.begun = 0  # passes, the same on all ranks

    def enter(self, size: int) -> None:
        """Before a pass, which takes so many bytes of each rank: nobody reads or writes them any more. All ranks call it alike, on
        streams that need not be those of the pass before."""
        raised = not self._ended
        self._follow(raised)
        self._hold(size)
        before, self._set, self._ended = self._set, 1 - self._set, False
        self._barrier()
        self.begun += 1
        if raised:
            self._clear(before)

    def leave(self) -> None:
        """After it, where all that came has been waited for. A pass that raised does not come here."""
        self._ended = True

    @abstractmethod
    def _follow(self, raised: bool) -> None:
        """The current stream goes on after the pass before; where that raised, after all that this rank has begun in it, copies
        too."""

    @abstractmethod
    def _hold(self, size: int) -> None:
        """That the memory has so many bytes."""

    @abstractmethod
    def _barrier(self) -> None:
        """The current stream waits until those of all ranks are there."""

    @abstractmethod
    def _clear(self, words: int) -> None:
        """Sets this rank's words of a set to 0."""

    @abstractmethod
    def of(self, rank: int) -> Tensor:
        """The bytes of a rank."""

    @abstractmethod
    def send(self, parcels: Sequence[Parcel]) -> Any:
        """Copies what the current stream has made, beside what follows in it, and then tells the ranks. What sent() waits for."""

    @abstractmethod
    def sent(self, started: Any) -> None:
        """The current stream waits until these copies are done."""

    @abstractmethod
    def receive(self, rank: int, kind: int) -> None:
        """The current stream waits until a rank has told of its parcel of this kind, once."""


class PeerMemory(Memory):
    """Of GPUs of one host."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__()
        self._group, self._device, self._rank, self._ranks = group, device, group.rank(), group.size()
        self._copies = torch.cuda.Stream(device)
        self._last, self._made = torch.cuda.Event(), torch.cuda.Event()
        self._free: list[torch.cuda.Event] = []
        self._one = torch.ones(1, dtype=torch.int32, device=device)
        self._bytes, self._stream = 0, torch.cuda.current_stream(device)
        self._limit = _timeout_of(group, device) // datetime.timedelta(milliseconds=1)

    @torch.inference_mode(False)
    def reserve(self, size: int) -> None:
        """Anew, and seen by all. What fails on any rank is an error on all of them, which keep what they had."""
        size = -(-size // 2**21) * 2**21
        mine = on_all(self._group, lambda: self._allocate(size))
        handle, of, pads = on_all(self._group, lambda: self._meet(mine))
        self.kept.clear()
        self._bytes, self._handle, self._of = size, handle, of
        # As wait_signal of symmetric memory reads them: word c * ranks + r of a rank is channel c of rank r. Channel 0 is the
        # barrier's.
        self._words = [[pad.data_ptr() + 4 * i for i in range(self._rank, pad.numel(), self._ranks)] for pad in pads]
        self._pads = pads
        self.channels = pads[self._rank].numel() // self._ranks - 1
        self._clear(0)
        self._clear(1)
        self._last.record(torch.cuda.current_stream(self._device))

    def _allocate(self, size: int) -> Tensor:
        import torch.distributed._symmetric_memory as symmetric

        if self._bytes:
            self._barrier()  # no rank writes to what goes now
        torch.cuda.synchronize(self._device)
        made: Tensor = symmetric.empty(size, dtype=torch.uint8, device=self._device)
        return made

    def _meet(self, mine: Tensor) -> tuple[Any, list[Tensor], list[Tensor]]:
        """Waits for all ranks: a handle, and of each rank the memory and the words."""
        import torch.distributed._symmetric_memory as symmetric

        with _waits_less(self._group):
            handle = symmetric.rendezvous(mine, self._group)
        of = [mine if r == self._rank else handle.get_buffer(r, (mine.numel(),), torch.uint8) for r in range(self._ranks)]
        return handle, of, [handle.get_signal_pad(r, dtype=torch.int32) for r in range(self._ranks)]

    def leave(self) -> None:
        self._last.record(torch.cuda.current_stream(self._device))
        super().leave()

    def _follow(self, raised: bool) -> None:
        here = torch.cuda.current_stream(self._device)
        here.wait_event(self._last)
        if raised:
            here.wait_stream(self._copies)
            here.wait_stream(self._stream)
        self._stream = here

    def _hold(self, size: int) -> None:
        if size > self._bytes:
            try:
                self.reserve(size)
            except Unsupported as e:
                raise Unsupported(
                    f"luattn.parallel.ContextParallel: a pass by copies between GPUs takes {size} bytes that all GPUs see, "
                    f'and {e}; give transport="group"'
                ) from e

    def _barrier(self) -> None:
        self._handle.barrier(channel=0, timeout_ms=self._limit)

    def _clear(self, words: int) -> None:
        first = _channel(words, KEYS) * self._ranks
        self._pads[self._rank][first : first + 2 * self._ranks].zero_()

    def of(self, rank: int) -> Tensor:
        return self._of[rank]

    def send(self, parcels: Sequence[Parcel]) -> torch.cuda.Event:
        self._made.record(torch.cuda.current_stream(self._device))
        self._copies.wait_event(self._made)
        stream, one = self._copies.cuda_stream, self._one.data_ptr()
        for rank, kind, copies in parcels:
            for to, of, size in copies:
                self._copy(to, of, size, stream)
            self._copy(self._words[rank][_channel(self._set, kind)], one, 4, stream)
        done = self._free.pop() if self._free else torch.cuda.Event()
        done.record(self._copies)
        return done

    def _copy(self, to: int, of: int, size: int, stream: int) -> None:
        """By the driver: torch's copy takes the host several times as long."""
        status = _driver_copy()(to, of, size, stream)
        if status == _NO_CONTEXT:  # of this thread
            with torch.cuda.device(self._device):
                status = _driver_copy()(to, of, size, stream)
        if status:
            raise Error(
                f"luattn.parallel: a copy of {size} bytes between GPUs: cuMemcpyAsync returns {status}; give transport=\"group\""
            )

    def sent(self, started: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(started)
        self._free.append(started)

    def receive(self, rank: int, kind: int) -> None:
        self._handle.wait_signal(rank, _channel(self._set, kind), self._limit)


def _channel(words: int, kind: int) -> int:
    """Of symmetric memory, whose first one is the barrier's."""
    return 1 + 2 * words + kind


_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


@functools.cache
def _driver_copy() -> Callable[[int, int, int, int], int]:
    """cuMemcpyAsync: to, from, bytes, stream."""
    copy = ctypes.CDLL(os.environ.get("LUATTN_LIBCUDA") or "libcuda.so.1").cuMemcpyAsync
    copy.argtypes, copy.restype = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p), ctypes.c_int
    return cast(Callable[[int, int, int, int], int], copy)


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> datetime.timedelta:
    """After which the group gives up, and a barrier too: no rank waits for one that is gone."""
    try:
        found: datetime.timedelta = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return datetime.timedelta(minutes=10)
    return found


# --- what ranks do together ---


def on_all(group: dist.ProcessGroup, make: Callable[[], _T]) -> _T:
    """What make() gives; what it raises on any rank is Unsupported on all, so that none goes on to wait for one that failed."""
    made, cause, failure, begin = None, None, "", time.monotonic()
    try:
        made = make()
    except Exception as e:  # no memory is left, or a container does not let processes share handles
        cause, failure = e, (str(e).strip() or type(e).__name__).splitlines()[0]
    said = said_by_all(group, (failure, time.monotonic() - begin >= MEETING.total_seconds()))
    failed, waited = ([rank for rank, (x, is_late) in enumerate(said) if x and is_late is late] for late in (False, True))
    first = min(failed or waited, default=None)
    if first is None:
        return cast(_T, made)
    others = f", for which rank {waited[0]} waited {MEETING.total_seconds():g} s" if failed and waited else ""
    raise Unsupported(f"torch's symmetric memory fails on rank {first}{others}: {said[first][0]}") from cause


@contextlib.contextmanager
def _waits_less(group: dist.ProcessGroup) -> Iterator[None]:
    """Ranks meet by the group's store, in which those that wait for one that fails alone would stay as long as the group may take
    for anything."""
    find = getattr(dist.distributed_c10d, "_get_process_group_store", None)
    if find is None:
        yield
        return
    store = find(group)
    before = store.timeout
    store.set_timeout(min(before, MEETING))
    try:
        yield
    finally:
        store.set_timeout(before)


def said_by_all(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, mine, group=group)
    return said
