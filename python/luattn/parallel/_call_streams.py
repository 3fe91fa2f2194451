"""Runs calls of a stage on several streams: while the last tiles of one end, multiprocessors begin with the next one's."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

STREAMS = 3  # each takes memory of its own for the calls that it runs


@functools.lru_cache(64)
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """Besides the current one. Nothing else runs on them."""
    return tuple(torch.cuda.Stream(device) for _ in range(1, STREAMS))


class _Events:
    """By which streams begin after the current one, and it goes on after them. One user has them at a time."""

    def __init__(self) -> None:
        self.begin, *self.ends = (torch.cuda.Event() for _ in range(STREAMS))


_free_events: dict[torch.device, list[_Events]] = {}


@contextlib.contextmanager
def fork(device: torch.device, count: int) -> Iterator[list[int]]:
    """Up to STREAMS streams, the current one first, whose work begins after what that one has now; after the block it waits for them."""
    here, others = torch.cuda.current_stream(device), _streams(device)[: count - 1]
    if not others:
        yield [here.cuda_stream]
        return
    free = _free_events.setdefault(device, [])
    try:
        events = free.pop()
    except IndexError:
        events = _Events()
    events.begin.record(here)
    for stream in others:
        stream.wait_event(events.begin)
    try:
        yield [here.cuda_stream, *(stream.cuda_stream for stream in others)]
    finally:
        for stream, end in zip(others, events.ends):
            end.record(stream)
            here.wait_event(end)
        free.append(events)


def _tensors_of(x: object) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for one in x.values():
            yield from _tensors_of(one)
    elif isinstance(x, (tuple, list)):
        for one in x:
            yield from _tensors_of(one)


def run_concurrently(device: torch.device, calls: Sequence[Callable[[], T]], leaves_room: bool = False) -> list[T]:
    """The results of calls that read and write nothing of each other's, for the current stream. One after the other where each leaves
    multiprocessors to an exchange, which the next one would take."""
    if device.type != "cuda" or len(calls) < 2 or STREAMS < 2 or leaves_room:
        return [f() for f in calls]
    here, others = torch.cuda.current_stream(device), _streams(device)[: len(calls) - 1]
    for stream in others:
        stream.wait_stream(here)
    found: list[T] = []
    try:
        for i, f in enumerate(calls):
            at = i % (1 + len(others))
            with torch.cuda.stream(others[at - 1] if at else here):
                found.append(f())
            if at:
                for t in _tensors_of(found[-1]):
                    if t.is_cuda:
                        t.record_stream(here)
    finally:
        for stream in others:
            here.wait_stream(stream)
    return found
