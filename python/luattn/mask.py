"""Mask: which tiles of scores a spec's mask leaves empty, full or partial, and a picture of them."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _capi as capi
from ._arguments import what
from ._call import KEPT, WHOLE, fill_of, give_back, numbers_of, take_frame
from ._library import call, lib
from ._spec import InputInfo, Spec
from .errors import InvalidError

EMPTY, PARTIAL, FULL = 0, 1, 2
COLORS = ("#ffffff", "#e69f00", "#0072b2")  # of these, as gen/cpu/mask_svg.c has them


class Mask:
    """Classes of tiles of one batch entry and head: `rows[i][j]` is EMPTY, PARTIAL or FULL."""

    def __init__(self, name: str, q_len: int, kv_len: int, tile: int | tuple[int, int], classes: bytes) -> None:
        self.name, self.q_len, self.kv_len, self.tile = name, q_len, kv_len, tile
        self._sizes = (tile, tile) if isinstance(tile, int) else tile
        columns = -(-kv_len // self._sizes[1])
        self.rows = [list(classes[i * columns : (i + 1) * columns]) for i in range(-(-q_len // self._sizes[0]))]

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
        return f"<luattn.Mask {self.name} {self.q_len} x {self.kv_len}, tiles of {self.tile if isinstance(self.tile, int) else f'{self.tile[0]} x {self.tile[1]}'}: {counts}>"

    def __str__(self) -> str:
        return "\n".join("".join(" ░█"[one] for one in row) for row in self.rows)

    def _repr_svg_(self) -> str:
        """For notebooks: the picture that `luattn mask --svg` draws."""
        title, classes = f"{self.name}, {self.q_len} x {self.kv_len}".encode(), bytes(one for row in self.rows for one in row)
        drawn = ctypes.c_void_p()
        picture = capi.MaskPicture(title, classes, self.q_len, self.kv_len, *self._sizes)
        call("luattn_mask_svg", ctypes.byref(picture), ctypes.byref(drawn))
        try:
            return ctypes.string_at(drawn.value or 0).decode()
        finally:
            lib.luattn_text_free(drawn)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file: NAME.svg, or NAME.png, which needs matplotlib."""
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidError(f"{self.name}: save: path: is {what(path)}, expected the path of a file")
        if not (self.q_len and self.kv_len):
            raise InvalidError(f"{self.name}: save: the mask is of {self.q_len} x {self.kv_len} scores, and a picture has at least 1 of each")
        name = os.fspath(path)
        if name.endswith(".svg"):
            with open(name, "w", encoding="utf-8") as file:
                file.write(self._repr_svg_())
        elif name.endswith(".png"):
            from .plots import save_png

            save_png(self, name)
        else:
            raise InvalidError(f"{self.name}: save: path: '{name}' ends in neither .svg nor .png, the formats that there are")


class GridMask:
    """What one query keeps of a grid's keys, and the classes of the boxes of keys beside the box of queries that it is in."""

    def __init__(self, name: str, axes: Sequence[str], found: capi.MaskPlaces, places: bytes) -> None:
        self.name, self.axes = name, tuple(axes)
        n = len(self.axes)
        self.query, self.q_extents, self.kv_extents = (tuple(x[:n]) for x in (found.query, found.q_extent, found.kv_extent))
        self.boxes = tuple(found.q_box[:n]), tuple(found.kv_box[:n])  # of queries, of keys
        self._found, self._places = found, ctypes.create_string_buffer(places, len(places))
        found.places = ctypes.addressof(self._places)

    def count(self, which: int) -> int:
        """Boxes of keys that are EMPTY, PARTIAL or FULL."""
        return int(self._found.boxes[which])

    def keeps(self, *key: int) -> bool:
        """Whether the query sees the key at these coordinates."""
        if len(key) != len(self.axes) or not all(0 <= x < n for x, n in zip(key, self.kv_extents)):
            raise InvalidError(f"{self.name}: keeps: key: is {key}, expected coordinates along {', '.join(self.axes)} below {self.kv_extents}")
        at = 0
        for x, n in zip(key, self.kv_extents):
            at = at * n + x
        return bool(self._places.raw[at] & 1)

    @property
    def kept(self) -> int:
        """How many keys the query sees."""
        return sum(place & 1 for place in self._places.raw)

    def __repr__(self) -> str:
        boxes = ", ".join(f"{self.count(i)} {word}" for i, word in ((FULL, "full"), (PARTIAL, "partial"), (EMPTY, "empty")))
        of_q, of_kv = ("x".join(map(str, box)) for box in self.boxes)
        return f"<luattn.GridMask {self.name}, query {self.query} of {self.q_extents}: {self.kept} keys; boxes of {of_kv} beside one of {of_q}: {boxes}>"

    def _repr_svg_(self) -> str:
        """For notebooks: the picture that `luattn mask --svg` draws."""
        drawn = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(self.axes))(*(axis.encode() for axis in self.axes))
        call("luattn_mask_places_svg", ctypes.byref(self._found), names, f"{self.name}, query {self.query}".encode(), ctypes.byref(drawn))
        try:
            return ctypes.string_at(drawn.value or 0).decode()
        finally:
            lib.luattn_text_free(drawn)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file, NAME.svg."""
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).endswith(".svg"):
            raise InvalidError(f"{self.name}: save: path: is {what(path)}, expected the path of a file that ends in .svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._repr_svg_())


def shape_only(sizes: tuple[int, ...], at: int) -> Any:
    """A tensor without data: masks read lengths alone from q and k."""
    kept = (ctypes.c_int64 * len(sizes))(*sizes)
    tensor = capi.DLTensor.from_address(at)
    tensor.data, tensor.device, tensor.ndim = None, capi.DLDevice(1, 0), len(sizes)
    tensor.dtype, tensor.byte_offset = capi.DLDataType(*capi.DL_CODES["float32"], 1), 0
    tensor.shape = ctypes.cast(kept, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = None
    KEPT[at] = kept


class Entry:
    """One batch entry of a call, as the problem of equal lengths that its mask sees: from which rows on, how many, and where they are in a whole.
    given: the arguments of the call that say so. q_len, kv_len: of q and k where no array says it, or None."""

    def __init__(self, name: str, batch: int, q_len: int | None, kv_len: int | None, given: Mapping[str, Any]) -> None:
        self.name, self.batch, self.given = name, batch, given
        arrays = {x: t for x, t in given.items() if len(getattr(t, "shape", ()))}
        self.arrays = {x: t.tolist() for x, t in arrays.items() if x != "block_table"}
        counts = {x: t.shape[0] - x.startswith("cu_") for x, t in arrays.items()}
        self.entries = max(counts.values(), default=batch + 1)
        for x, count in counts.items():
            if not (0 <= batch < count == self.entries):
                raise InvalidError(f"{name}: mask: batch: is {batch}, and {x} has {count} {'entry' if count == 1 else 'entries'}")
        self.is_packed, self.is_paged = "cu_seqlens_q" in given, "seqused_k" in given and "cu_seqlens_k" not in given
        if "block_table" in given and not self.is_paged:
            raise InvalidError(f"{name}: mask: seqused_k: is missing, and block_table is given: give each entry's length, and no cu_seqlens_k")
        if self.is_packed != ("cu_seqlens_k" in given) and not (self.is_packed and self.is_paged):
            raise InvalidError(f"{name}: mask: cu_seqlens_q, cu_seqlens_k: one is missing: packed sequences need both")
        (self.first_q, self.q_len), (self.first_kv, self.kv_len) = self._rows("q", q_len), self._rows("k", kv_len)

    def _at(self, array: str, default: int = 0) -> int:
        return int(self.arrays[array][self.batch]) if array in self.arrays else default

    def _rows(self, x: str, length: int | None) -> tuple[int, int]:
        """The first row of q or k, and how many there are."""
        word, first, most = "q_len" if x == "q" else "kv_len", 0, length
        if f"cu_seqlens_{x}" in self.arrays:
            first, end = self.arrays[f"cu_seqlens_{x}"][self.batch : self.batch + 2]
            most = end - first
            if length not in (None, most):
                raise InvalidError(f"{self.name}: mask: {word}: is {length}, and cu_seqlens_{x} says {most} for entry {self.batch}: leave it out")
        rows = self._at(f"seqused_{x}", -1 if most is None else most)
        if rows < 0:
            raise InvalidError(f"{self.name}: mask: {word}: is missing: give the length, or cu_seqlens_{x}{' or seqused_k' if x == 'k' else ''}")
        bound = self.given.get(f"max_seqlen_{x}")
        for said, limit in ((word if length is not None else f"cu_seqlens_{x}", most), (f"max_seqlen_{x}", bound)):
            if limit is not None and rows > limit:
                raise InvalidError(f"{self.name}: mask: {said}: is {limit} for entry {self.batch}, which has {rows} rows: give as many")
        return first, rows

    def whole(self) -> list[int]:
        """WHOLE's numbers."""
        numbers = {x: int(self.given.get(x) or 0) for x in WHOLE if x not in self.arrays}
        for x, rows in (("q", self.q_len), ("kv", self.kv_len)):
            if f"{x}_offset" in self.arrays:  # which are clamped, as kernels do
                most = max(numbers[f"{x}_len"] - rows, 0) if numbers[f"{x}_len"] else 2**31 - 1
                numbers[f"{x}_offset"] = min(max(self._at(f"{x}_offset"), 0), most)
        return [numbers[x] for x in WHOLE]

    def cut(self, info: InputInfo, x: Any) -> Any:
        """An input, of the rows of this entry: along its first axis q, or else kv, it has those of all sequences, one after another
        (common/call/packed_axis.h); along others places for the longest one."""
        along = next((axis for axis in ("q", "kv") if axis in info.axes), None)
        if x is None or along is None or not (self.is_packed or self.is_paged) or len(x.shape) != len(info.axes):
            return x
        packed = info.axes.index(along) if self.is_packed and not (along == "kv" and self.is_paged) else -1
        ranges = {"q": (self.first_q, self.q_len), "kv": (self.first_kv, self.kv_len)}
        place = []
        for i, axis in enumerate(info.axes):
            first, rows = ranges.get(axis, (0, x.shape[i]))
            first = first if i == packed else 0
            if axis in ranges and x.shape[i] < first + rows:
                raise InvalidError(f"{self.name}: mask: input '{info.name}': has {x.shape[i]} places on axis {axis}, and entry {self.batch} ends at {first + rows}")
            place.append(slice(first, first + rows) if axis in ranges else slice(None))
        return x[tuple(place)]


def _sizes(spec: Spec, entry: Entry, head: int, inputs: Sequence[Any]) -> tuple[int, int, int]:
    """batch, heads and heads_kv that the inputs have, else as many as are asked for."""
    found = {"b": entry.entries, "h": head + 1, "hkv": 0}
    for info, tensor in zip(spec.inputs, inputs):
        for axis, size in zip(info.axes, () if tensor is None else tensor.shape):
            if axis in found:
                found[axis] = max(found[axis], size)
    return found["b"], found["h"], found["hkv"] or found["h"]


class _Problem:
    """luattn_args of one entry, without data but for the inputs. heads: batch, heads and heads_kv; None: as many as inputs have, and those of `head`.
    extents: of queries and of keys over a grid."""

    def __init__(
        self, spec: Spec, entry: Entry, heads: tuple[int, int, int] | None, head: int, inputs: Sequence[Any], scalars: Sequence[float], seed: Any,
        extents: Any = None,
    ) -> None:  # fmt: skip
        self.spec, self.inputs = spec, [entry.cut(info, x) for info, x in zip(spec.inputs, inputs)]
        b, h, hkv = heads or _sizes(spec, entry, head, self.inputs)
        self.frame = take_frame(spec)
        try:
            of_q, of_k = extents or ((entry.q_len,), (entry.kv_len,))
            k = (b, hkv, *of_k, 8)
            self.frame.set(shape_only, ((b, h, *of_q, 8), k, k, None, None, None))
            self.frame.set_inputs(lambda tensor, at: fill_of(tensor)(tensor, at), self.inputs)
            self.frame.set_numbers(0.0, scalars)
            if seed is not None:
                self.frame.set_seed(*numbers_of(seed))
            if any(entry.whole()):
                self.frame.set_batch(shape_only, {"whole": entry.whole()})
        except BaseException:
            give_back(self.frame)
            raise

    def __enter__(self) -> Any:
        return self.frame

    def __exit__(self, kind: Any, e: Any, _: Any) -> None:
        """Says it in words of Python where an input that the mask reads is missing."""
        give_back(self.frame)
        for info, x in zip(self.spec.inputs, self.inputs):
            if isinstance(e, InvalidError) and x is None and f"input '{info.name}': is missing" in str(e):
                raise InvalidError(f"{self.spec.name}: mask: input '{info.name}' is missing, and the mask reads it: pass {info.name}=") from None


def survey(
    spec: Spec, entry: Entry, heads: tuple[int, int, int], tile: tuple[int, int], inputs: Sequence[Any], scalars: Sequence[float], seed: Any,
    target: capi.Target | None, extents: Any = None,
) -> capi.MaskCounts:  # fmt: skip
    """Counts tiles of all batch entries and heads; of kernels of `target`, or of the CPU. extents: of queries and of keys over a grid."""
    counts = capi.MaskCounts(struct_size=ctypes.sizeof(capi.MaskCounts))
    with _Problem(spec, entry, heads, 0, inputs, scalars, seed, extents) as frame:
        of = None if target is None else ctypes.byref(target)
        call("luattn_mask_survey", spec.pointer, of, frame.args, *tile, ctypes.byref(counts))
    return counts


def _coordinates(place: str, name: str, axes: Sequence[str], x: Any, least: int) -> tuple[int, ...]:
    n = len(axes)
    if not isinstance(x, Sequence) or isinstance(x, (str, bytes)) or len(x) != n or not all(isinstance(y, int) and y >= least for y in x):
        raise InvalidError(f"{place}: {name}: is {what(x)}, expected {n} integers of at least {least}, along {', '.join(axes)}")
    return tuple(x)


def grid_mask_of(
    spec: Spec, place: str, batch: int, head: int, extents: tuple[Any, Any], query: Any, boxes: Any, inputs: Sequence[Any], scalars: Sequence[float], seed: Any
) -> GridMask:  # fmt: skip
    """boxes: of queries and of keys, or None. Errors: InvalidError, also of an input that is None and that the mask reads."""
    axes = spec.grid
    of_q = _coordinates(place, "q_len", axes, extents[0], 1)
    of_kv = of_q if extents[1] is None else _coordinates(place, "kv_len", axes, extents[1], 1)
    found = capi.MaskPlaces(struct_size=ctypes.sizeof(capi.MaskPlaces), batch=batch, head=head)
    at = tuple(n // 2 for n in of_q) if query is None else _coordinates(place, "query", axes, query, 0)
    found.query[: len(axes)] = at
    if boxes is not None:
        if not isinstance(boxes, Sequence) or len(boxes) != 2:
            raise InvalidError(f"{place}: tile: is {what(boxes)}, expected a pair of boxes, of queries and of keys, as ((8, 8), (8, 16))")
        for to, name, box in ((found.q_box, "tile[0]", boxes[0]), (found.kv_box, "tile[1]", boxes[1])):
            to[: len(axes)] = _coordinates(place, name, axes, box, 1)
    count = 1
    for n in of_kv:
        count *= n
    places = ctypes.create_string_buffer(count)
    found.places = ctypes.addressof(places)
    entry = Entry(spec.name, batch, 1, 1, {})
    with _Problem(spec, entry, None, head, inputs, scalars, seed, (of_q, of_kv)) as frame:
        call("luattn_mask_places_of", spec.pointer, frame.args, ctypes.byref(found))
    return GridMask(spec.name, axes, found, places.raw)


def mask_of(
    spec: Spec, entry: Entry, head: int, tile: int | tuple[int, int], inputs: Sequence[Any], scalars: Sequence[float], seed: Any = None, name: str = "",
) -> Mask:  # fmt: skip
    """Errors: InvalidError, also of an input that is None and that the mask reads. tile: of as many queries as keys, or both."""
    tile_m, tile_n = (tile, tile) if isinstance(tile, int) else tile
    if min(tile_m, tile_n) < 1:
        raise InvalidError(f"{spec.name}: tile: is {tile}, expected 1 or more")
    q_len, kv_len = entry.q_len, entry.kv_len
    classes = ctypes.create_string_buffer(-(-q_len // tile_m) * -(-kv_len // tile_n))
    with _Problem(spec, entry, None, head, inputs, scalars, seed) as frame:
        call("luattn_mask_tiles", spec.pointer, frame.args, entry.batch, head, tile_m, tile_n, classes)
    return Mask(name or spec.name, q_len, kv_len, tile, classes.raw)
