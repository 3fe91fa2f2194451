"""Runs calls of a stage on several streams: while the last tiles of one end, multiprocessors begin with the next one's."""

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
