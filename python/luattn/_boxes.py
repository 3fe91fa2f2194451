"""Pairs of boxes over a grid: what the library lists for the extents of a call."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from . import _capi as capi
from ._library import call

MOST = 24  # that luattn_plan_box_pairs lists


class TileShapes(NamedTuple):
    """A pair of boxes that a kernel runs for a problem. computed: scores in boxes of which one may be kept, over those that are kept; full: the share of
    boxes of which all are kept; predicted: time, over that of the pair that calls take by themselves, the first one."""

    q_tile_shape: tuple[int, ...]
    kv_tile_shape: tuple[int, ...]
    computed: float
    full: float
    predicted: float

    def __str__(self) -> str:
        return " by ".join(" x ".join(map(str, shape)) for shape in self[:2])


def box_of(size: int, axes: int) -> tuple[int, ...]:
    return tuple(size >> 16 * a & 0xFFFF for a in reversed(range(axes)))


def shapes_of(pair: capi.BoxPair, axes: int) -> TileShapes:
    ratio = pair.computed / pair.kept if pair.kept else 0.0
    return TileShapes(box_of(pair.query_tile_size, axes), box_of(pair.key_tile_size, axes), ratio, pair.full, pair.predicted)


def listed(spec: int, target: capi.Target, args: int) -> list[capi.BoxPair]:
    """Of the tensors of luattn_args at `args`, of which q and k need no data."""
    pairs, count = (capi.BoxPair * MOST)(), ctypes.c_int()
    call("luattn_plan_box_pairs", spec, ctypes.byref(target), args, pairs, MOST, ctypes.byref(count))
    return list(pairs[: count.value])


def args_of(q: Sequence[int], k: Sequence[int]) -> tuple[capi.Args, list[object]]:
    """luattn_args of tensors of these shapes without data, and what has to live as long."""
    kept: list[object] = []
    tensors = []
    for shape in (q, k):
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        tensor = capi.DLTensor(ndim=len(shape), shape=ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)))
        tensors.append(ctypes.addressof(tensor))
        kept += [sizes, tensor]
    return capi.Args(struct_size=ctypes.sizeof(capi.Args), q=tensors[0], k=tensors[1]), kept
