"""Counts the tiles of a layer by chunk, and says what of its mask a call may not change."""

import ctypes
from collections.abc import Mapping
from typing import Any

from .. import _capi as capi
from .._arguments import is_tensor
from .._call import fill_of, give_back, numbers_of, take_frame
from .._library import call, lib
from .._spec import Spec
from ..errors import InvalidError
from ..mask import shape_only

FINEST = 1024  # chunks, or twice as many as ranks


def chunk_rows_of(rows: int, world_size: int) -> int:
    """Rows of the shortest chunks whose pairs are few enough to count. They divide the rows of a rank."""
    blocks, of_rank = rows // capi.TILE, rows // capi.TILE // world_size
    tiles = 1
    while blocks // tiles > max(2 * world_size, FINEST) and of_rank % (2 * tiles) == 0:
        tiles *= 2
    while blocks // tiles > capi.MAX_CHUNKS or of_rank % tiles:
        tiles += 1
    return tiles * capi.TILE


def masked_by(spec: Spec) -> tuple[str, ...]:
    """The inputs and scalars that the mask reads."""
    names = [*(info.name for info in spec.inputs), *spec.scalars]
    return tuple(name for i, name in enumerate(names) if lib.luattn_spec_parameter(spec.pointer, i) & capi.PARAMETER_MASKS)


def copy_of(x: Any) -> Any:
    """On the CPU; what the caller writes to it later does not matter."""
    if is_tensor(x):
        return x.detach().cpu().clone()
    return x.copy() if hasattr(x, "shape") else x


def bytes_of(x: Any) -> bytes:
    """Equal where these are: for a hash."""
    if is_tensor(x):
        import torch

        found: bytes = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return found
    return x.tobytes() if hasattr(x, "tobytes") else repr(x).encode()


def count_chunks(
    place: str, spec: Spec, sizes: tuple[int, int, int, int], chunk_rows: int, given: Mapping[str, Any], seed: Any
) -> tuple[int, ctypes.Array[ctypes.c_float]]:
    """How many chunks the real rows have, and the tiles of each pair of them. sizes: batch, heads, heads_kv and rows. given: what the mask reads."""
    batch, heads, heads_kv, rows = sizes
    n = -(-rows // chunk_rows)
    tiles = (ctypes.c_float * (n * n))()
    inputs = [given.get(info.name) for info in spec.inputs]
    frame = take_frame(spec)
    try:
        of_k = (batch, heads_kv, rows, 8)
        frame.set(shape_only, ((batch, heads, rows, 8), of_k, of_k, None, None, None))
        frame.set_inputs(lambda tensor, at: fill_of(tensor)(tensor, at), inputs)
        frame.set_numbers(0.0, [float(given.get(name, x)) for name, x in spec.scalars.items()])
        if seed is not None:
            frame.set_seed(*numbers_of(seed))
        call("luattn_mask_chunks", spec.pointer, frame.args, chunk_rows, tiles)
    except InvalidError as e:
        for info, x in zip(spec.inputs, inputs):
            if x is None and f"input '{info.name}': is missing" in str(e):
                raise InvalidError(f"{place}: input '{info.name}' of {spec.name}: is missing, and the mask reads it; pass inputs={{'{info.name}': ..}}") from None
        raise
    finally:
        give_back(frame)
    return n, tiles


def widened(tiles: Any, real: int, chunks: int) -> Any:
    """The same counts, of more chunks: those of padding keep nothing."""
    if real == chunks:
        return tiles
    wide = (ctypes.c_float * (chunks * chunks))()
    size = ctypes.sizeof(ctypes.c_float)
    for i in range(real):
        ctypes.memmove(ctypes.byref(wide, size * chunks * i), ctypes.byref(tiles, size * real * i), size * real)
    return wide


def needs_of(tiles: Any, chunks: int, times: int) -> tuple[bytes, ...]:
    """For each chunk that is `times` as long as the counted ones, a byte for each such chunk of keys: not 0 where it needs these."""
    high = bytes(tiles)[3::4]  # of a positive number this byte is not 0: counts are no smaller than a sample's 1e-3 over entries and heads
    found = []
    for first in range(0, chunks, times):
        any_row = 0
        for i in range(first, first + times):
            any_row |= int.from_bytes(high[i * chunks : (i + 1) * chunks], "little")
        row = any_row.to_bytes(chunks, "little")
        found.append(bytes(int(any(row[j : j + times])) for j in range(0, chunks, times)))
    return tuple(found)


def check_sizes(place: str, spec: Spec, given: Mapping[str, Any], rows: int) -> None:
    """That what the mask reads is of the whole sequence."""
    for info in spec.inputs:
        if info.name not in given:
            continue
        for axis, n in zip(info.axes, given[info.name].shape):
            if axis in ("q", "kv") and n != rows:
                raise InvalidError(f"{place}: input '{info.name}' of {spec.name}: has {n} rows along {axis}, and q_len is {rows}; give that of the whole sequence")
