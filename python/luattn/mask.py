"""Mask: which tiles of scores a spec's mask leaves empty, full or partial, and a picture of them."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from . import _capi as capi
from ._call import KEPT, fill_of, give_back, take_frame
from ._library import call, lib
from ._spec import Spec
from .errors import InvalidError, Unsupported

EMPTY, PARTIAL, FULL = 0, 1, 2


class Mask:
    """Classes of tiles of one batch entry and head: `rows[i][j]` is EMPTY, PARTIAL or FULL."""

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
        """For notebooks: the picture that `luattn mask --svg` draws."""
        title, classes = f"{self.name}, {self.q_len} x {self.kv_len}".encode(), bytes(one for row in self.rows for one in row)
        drawn = ctypes.c_void_p()
        picture = capi.MaskPicture(title, classes, self.q_len, self.kv_len, self.tile, self.tile)
        call("luattn_mask_svg", ctypes.byref(picture), ctypes.byref(drawn))
        try:
            return ctypes.string_at(drawn.value or 0).decode()
        finally:
            lib.luattn_text_free(drawn)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file: NAME.svg, or NAME.png, which needs matplotlib."""
        name = os.fspath(path)
        if name.endswith(".svg"):
            with open(name, "w", encoding="utf-8") as file:
                file.write(self._repr_svg_())
        elif name.endswith(".png"):
            _plot(self, name)
        else:
            raise InvalidError(f"{self.name}: save: path: '{name}' ends in neither .svg nor .png, the formats that there are")


def _plot(mask: Mask, path: str) -> None:
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported(f"{mask.name}: save: '{path}' needs matplotlib; pip install matplotlib, or save a .svg, which needs nothing") from None
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    across, down = (len(mask.rows[0]) if mask.rows else 0) * mask.tile, len(mask.rows) * mask.tile
    colors = ListedColormap(["#ffffff", "#e69f00", "#0072b2"])  # as gen/cpu/mask_svg.c has them
    axes.imshow(mask.rows, cmap=colors, vmin=0, vmax=2, interpolation="nearest", extent=(0, across, down, 0))
    axes.set(xlim=(0, mask.kv_len), ylim=(mask.q_len, 0), xlabel="kv_idx", ylabel="q_idx", title=repr(mask)[1:-1])
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    figure.savefig(path, dpi=150)


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
