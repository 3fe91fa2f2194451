"""Mask: which tiles of scores a spec's mask leaves empty, full or partial, and a picture of them."""

import ctypes
import html
from collections.abc import Sequence
from typing import Any

from . import _capi as capi
from ._call import KEPT, fill_of, give_back, take_frame
from ._library import call
from ._spec import Spec
from .errors import InvalidError

EMPTY, PARTIAL, FULL = 0, 1, 2


class Mask:
    """Classes of tiles of one batch entry and head: rows[i][j] is EMPTY, PARTIAL or FULL."""

    def __init__(self, name: str, q_len: int, kv_len: int, tile: int, classes: bytes) -> None:
        self.name, self.q_len, self.kv_len, self.tile = name, q_len, kv_len, tile
        columns = -(-kv_len // tile)
        self.rows = [list(classes[i : i + columns]) for i in range(0, len(classes), columns)]

    def count(self, which: int) -> int:
        return sum(row.count(which) for row in self.rows)

    @property
    def sparsity(self) -> float:
        """The part of tiles that cost nothing."""
        return self.count(EMPTY) / max(1, sum(map(len, self.rows)))

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{self.count(i)} {word}" for i, word in ((FULL, "full"), (PARTIAL, "partial"), (EMPTY, "empty"))
        )
        return f"<luattn.Mask {self.name} {self.q_len} x {self.kv_len}, tiles of {self.tile}: {counts}>"

    def __str__(self) -> str:
        return "\n".join("".join(" ░█"[one] for one in row) for row in self.rows)

    def _repr_svg_(self) -> str:
        """For notebooks: full tiles dark, partial ones light, runs of one class as one rectangle."""
        side = max(1.0, min(16.0, 480 / max(1, len(self.rows), len(self.rows[0]) if self.rows else 1)))
        boxes = []
        for i, row in enumerate(self.rows):
            j = 0
            while j < len(row):
                end = j + 1
                while end < len(row) and row[end] == row[j]:
                    end += 1
                if row[j] != EMPTY:
                    color = "#1f4e8c" if row[j] == FULL else "#9ec3f0"
                    place = (
                        f'x="{j * side:g}" y="{i * side:g}" width="{(end - j) * side:g}" height="{side:g}"'
                    )
                    boxes.append(f'<rect {place} fill="{color}"/>')
                j = end
        width, height = side * (len(self.rows[0]) if self.rows else 0), side * len(self.rows)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">'
            f"<title>{html.escape(repr(self))}</title>"
            f'<rect width="100%" height="100%" fill="#f4f4f4"/>{"".join(boxes)}</svg>'
        )


def shape_only(sizes: tuple[int, ...], at: int) -> Any:
    """A tensor without data: masks read lengths alone from q and k."""
    kept = (ctypes.c_int64 * len(sizes))(*sizes)
    tensor = capi.DLTensor.from_address(at)
    tensor.data, tensor.device, tensor.ndim = None, capi.DLDevice(1, 0), len(sizes)
    tensor.dtype, tensor.byte_offset = capi.DLDataType(*capi.DL_CODES["float32"], 1), 0
    tensor.shape = ctypes.cast(kept, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = None
    KEPT[at] = kept


def _sizes(spec: Spec, batch: int, head: int, inputs: Sequence[Any]) -> tuple[int, int, int]:
    """batch, heads and heads_kv that the inputs have, else as many as are asked for."""
    found = {"b": batch + 1, "h": head + 1, "hkv": 0}
    for info, tensor in zip(spec.inputs, inputs):
        for axis, size in zip(info.axes, tensor.shape):
            if axis in found:
                found[axis] = max(found[axis], size)
    return found["b"], found["h"], found["hkv"] or found["h"]


def mask_of(
    spec: Spec, q_len: int, kv_len: int, batch: int, head: int, tile: int, inputs: Sequence[Any]
) -> Mask:
    if tile < 1:
        raise InvalidError(f"{spec.name}: tile: is {tile}, expected 1 or more")
    b, h, hkv = _sizes(spec, batch, head, inputs)
    classes = ctypes.create_string_buffer(-(-q_len // tile) * -(-kv_len // tile))
    frame = take_frame(spec)
    try:
        k = (b, hkv, kv_len, 8)
        frame.set(shape_only, ((b, h, q_len, 8), k, k, None, None, None))
        frame.set_inputs(lambda tensor, at: fill_of(tensor)(tensor, at), inputs)
        call("luattn_mask_tiles", spec.pointer, frame.args, batch, head, tile, tile, classes)
    finally:
        give_back(frame)
    return Mask(spec.name, q_len, kv_len, tile, classes.raw)
