"""explain: what a call computes and why, as a table."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _capi as capi
from ._arguments import ARCH, check_types, is_tensor
from ._call import CHOICES, DECODE, WHOLE, is_paged
from ._library import call, lib
from ._plan import Given, plan_of
from ._spec import Spec
from .errors import Error
from .mask import COLORS, EMPTY, FULL, PARTIAL, Entry, mask_of, survey

_TILES = re.compile(r"tiles (?:of )?(\d+) x (\d+)")
# In the order of luattn_mask_means.
_MEANS = (
    "there is no mask",
    "ranges of positions",
    "ranges of positions, and minima and maxima of numbers in blocks",
    "cells of 64 x 64 scores, for which the mask is evaluated on the device",
)
_MASKED = ("q_offset", "kv_offset", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k", "block_table")


@dataclass(frozen=True)
class Explanation:
    """What Attention.explain returns. Tiles are of `tile` scores, in all batch entries and heads; kept: scores that the mask keeps (None: nobody
    counted them, as of packed sequences); flops: of the products, in the tiles that are computed; bytes: the least, each tensor once."""

    name: str
    call: str
    plan: str
    why: str
    tile: tuple[int, int]
    full: float
    partial: float
    skipped: float
    means: str
    scores: float
    kept: float | None
    error: float
    flops: float
    bytes: int

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts of the table."""
        found = [("call", self.call)]
        for line in self.plan.splitlines():
            name, colon, text = line.partition(": ")
            found.append(("family" if name.startswith("family ") else "tiles" if name.startswith("tiles ") else name if colon else "", text))
            if name.startswith(("family ", "tiles ")):
                found[-1] = found[-1][0], f"{name.partition(' ')[2]}: {text}"
            if name.startswith("family ") and self.why:
                found.append(("why", self.why))
        tiles, about = max(1.0, self.full + self.partial + self.skipped), " (a sample)" if self.error else ""
        of = f"of {self.tile[0]} x {self.tile[1]} scores, {tiles:,.0f} in all batch entries and heads"
        found += [
            ("full", f"{self.full:,.0f} tiles, {self.full / tiles:.1%}: computed without mask code; tiles are {of}{about}"),
            ("partial", f"{self.partial:,.0f} tiles, {self.partial / tiles:.1%}: computed with it{about}"),
            ("skipped", f"{self.skipped:,.0f} tiles, {self.skipped / tiles:.1%}: {self._why()}{about}"),
        ]
        if self.kept is not None:
            found.append(("scores kept", f"{self.kept:,.0f} of {self.scores:,.0f}, {self.kept / max(1.0, self.scores):.2%}{about}"))
        found.append(("operations", f"{_short(self.flops)}FLOP, in the tiles that are computed"))
        found.append(("bytes", f"{_short(self.bytes)}B at least, each tensor once: {self.flops / max(1, self.bytes):,.0f} FLOP a byte"))
        return found

    def _why(self) -> str:
        if self.means == _MEANS[0]:
            return "the spec has no mask, so every score is computed"
        return f"the mask keeps no score there; found by {self.means}"

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        return "\n".join([self.name, *(f"  {name:{width}} {text}" for name, text in self.rows())])

    def __repr__(self) -> str:
        return f"<luattn.Explanation {self.name}: {self.full:,.0f} full, {self.partial:,.0f} partial, {self.skipped:,.0f} skipped tiles>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        import html  # which takes milliseconds

        cells = "".join(
            f'<tr><th style="text-align:left; vertical-align:top">{html.escape(name)}</th><td style="text-align:left">{html.escape(text)}</td></tr>'
            for name, text in self.rows()
        )
        tiles = max(1.0, self.full + self.partial + self.skipped)
        parts = "".join(
            f'<span style="display:inline-block; height:12px; width:{100 * count / tiles:.2f}%; background:{color}"></span>'
            for count, color in zip((self.full, self.partial, self.skipped), reversed(COLORS))
        )
        bar = f'<div style="width:400px; font-size:0; white-space:nowrap; border:1px solid #808080" title="full, partial and skipped tiles">{parts}</div>'
        return f"<b>{html.escape(self.name)}</b>{bar}<table>{cells}</table>"


def _short(number: float) -> str:
    """With three digits, and the letter of a power of 1000."""
    for letter in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {letter}"
        number /= 1000
    return f"{number:.4g} P"


def explain(given: Given, backward: bool, decode: int, arch: str | None) -> Explanation:
    spec, q, k, v = given.spec, given.q, given.k, given.v
    check_types(f"{spec.name}: explain", q=q, k=k, v=v)
    found = ARCH.fullmatch(arch) if arch is not None else None
    number = int(found[1]) if found else _arch_of(given)
    target = _target(given, backward, decode, number) if number else None
    text = _planned(spec, target) if found and target is not None else plan_of(given, backward, decode)
    tiles = _TILES.search(text)
    tile = (int(tiles[1]), int(tiles[2])) if tiles else (64, 64)
    # The kernel for few queries has rows of all query heads of a kv head in a tile.
    group = q.shape[1] // k.shape[1] if re.search("^decode: ", text, re.M) else 1
    of_heads = min(group, tile[0])
    *counts, scores, kept, error, means, boxes = _count(given, target, (max(1, tile[0] // group), tile[1]))
    if boxes:
        tile = boxes[2]
    full, partial, every = (count / of_heads for count in counts)
    d, d_v = q.shape[-1], v.shape[-1]
    each = 3 * d + 2 * d_v if backward else d + d_v
    mask_line = re.search(r"^mask: tiles by (.*)$", text, re.M)
    said = _MEANS[means] if means == 0 or mask_line is None else _MEANS[3] if means == 3 else mask_line[1]
    if boxes:
        said += f"; tiles are boxes of {boxes[0]} queries by {boxes[1]} keys"
    elif spec.grid and means != 0:
        said += "; counted in tiles of the places' row-major numbers, where kernels compute boxes"
    return Explanation(
        spec.name, _call_of(given, backward), text, _why(spec, target, text), tile, full, partial, every - full - partial, said, scores, kept, error,
        2.0 * each * (full + partial) * tile[0] * tile[1], _bytes(given, backward),
    )  # fmt: skip


def _call_of(given: Given, backward: bool) -> str:
    shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in (("q", given.q), ("k", given.k), ("v", given.v)))
    dtype = str(getattr(given.q.dtype, "name", given.q.dtype)).removeprefix("torch.")
    others = ", ".join(name.replace("_f32", "_dtype=float32") for name in given.options if name != "whole")
    return f"{'backward' if backward else 'forward'}: {shapes}, {dtype}, on {getattr(given.q, 'device', 'cpu')}{', with ' if others else ''}{others}"


def _arch_of(given: Given) -> int:
    """Of the GPU where q is; 0: on the CPU."""
    if not (is_tensor(given.q) and given.q.is_cuda):
        return 0
    info = capi.DeviceInfo()
    call("luattn_device_get_info", lib.luattn_engine_driver(given.engine()), given.q.device.index, ctypes.byref(info))
    return int(info.arch)


def _target(given: Given, backward: bool, decode: int, arch: int) -> capi.Target:
    q, k, v, options = given.q, given.k, given.v, given.options
    packed, paged = options.get("cu_seqlens_q") is not None, is_paged(options)
    dtype = str(getattr(q.dtype, "name", q.dtype)).removeprefix("torch.")
    dims = [d + (-d % 8 if q.dtype.itemsize == 2 and given.spec.pads else 0) for d in (q.shape[-1], v.shape[-1])]
    lengths = [options.get(f"max_seqlen_{x}") or (t.shape[0] if packed and t.ndim == 3 else _product(t.shape[2:-1])) for x, t in (("q", q), ("k", k))]
    target = capi.Target(
        struct_size=ctypes.sizeof(capi.Target), pass_=capi.BACKWARD if backward else capi.FORWARD, dtype=capi.DTYPES.index(dtype), head_dim=dims[0],
        head_dim_v=dims[1], arch=arch, lengths=capi.SHORT if lengths[backward] <= capi.SHORT_MAX else capi.LONG, packed=int(packed),
        offsets=2 if any(options.get(x) is not None for x in ("q_offset", "kv_offset")) else int(any(options.get("whole") or ())),
        pages=int(paged) * (8 if k.shape[2] % 8 == 0 else 1), **{name: int(bool(options.get(name))) for name in CHOICES},
        out_f32=int(q.dtype.itemsize == 2 and bool(options.get("out_f32"))),
        grad_f32=int(backward and q.dtype.itemsize == 2 and bool(options.get("grad_f32"))),
    )  # fmt: skip
    if decode == DECODE.index("always"):
        rows = lengths[0] * q.shape[1] // k.shape[1]
        target.decode, target.many_rows = 1, int(rows > capi.DECODE_MANY)
        target.lengths = capi.SHORT if rows <= capi.DECODE_TILE else capi.LONG
    for i, (one, x) in enumerate(zip(given.spec.inputs, given.inputs)):
        if one.dtype == "any":
            name = "float32" if x is None else str(getattr(x.dtype, "name", x.dtype)).removeprefix("torch.")
            target.input_types |= 1 + capi.INPUT_DTYPES.index(name) << 4 * i
    return target


_FAMILIES = ("simt", "sm80", "sm90")  # of luattn_family; later ones are faster


def _why(spec: Spec, target: capi.Target | None, plan: str) -> str:
    """What the faster families say of the call."""
    found = re.search(r"^family (\w+):", plan, re.M)
    if target is None or found is None or found[1] not in _FAMILIES or re.search("^decode: ", plan, re.M):
        return ""
    said = []
    for i in range(len(_FAMILIES) - 1, _FAMILIES.index(found[1]), -1):
        target.family = 1 + i
        try:
            _planned(spec, target)
            said.append(f"{_FAMILIES[i]} could run it, and the plan takes {found[1]}")
        except Error as e:
            said.append(str(e).removeprefix("target: ").removeprefix("family: ").partition("; ")[0])
    target.family = 0
    return "; ".join(said) or f"{found[1]} is the fastest family, and runs such calls on this GPU"


def _planned(spec: Spec, target: capi.Target) -> str:
    """The plan of a target; without a GPU or NVRTC."""
    text = ctypes.c_void_p()
    call("luattn_emit", spec.pointer, ctypes.byref(target), b"plan", ctypes.byref(text))
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        lib.luattn_text_free(text)


def _on_host(x: Any) -> Any:
    return x.detach().cpu() if is_tensor(x) else x


def _count(given: Given, target: capi.Target | None, tile: tuple[int, int]) -> Any:
    """Full and partial tiles, all of them, scores, those that are kept, the error of a sample, by what means, and the boxes that tiles are, of queries,
    of keys, and both sizes, or None."""
    spec, options = given.spec, given.options
    arrays = {name: _on_host(x) for name in _MASKED if (x := options.get(name)) is not None}
    inputs = [_on_host(x) for x in given.inputs]
    whole = {name: n for name, n in zip(WHOLE, options.get("whole") or ()) if n}
    heads, heads_kv = given.q.shape[1], given.k.shape[1]
    seed = _on_host(given.seed)
    if not any(getattr(x, "shape", ()) for x in arrays.values()):
        extents = given.q.shape[2:-1], given.k.shape[2:-1]
        entry = Entry(spec.name, 0, _product(extents[0]), _product(extents[1]), {**whole, **arrays})
        c = survey(spec, entry, (given.q.shape[0], heads, heads_kv), tile, inputs, given.scalars, seed, target, extents)
        n = len(spec.grid or ())
        boxes = (*(" x ".join(map(str, box[:n])) for box in (c.q_box, c.kv_box)), (c.tile_m, c.tile_n)) if c.q_box[0] else None
        return c.full, c.partial, c.tiles, c.scores, c.kept, max(c.kept_error, c.computed_error), c.means, boxes
    full = partial = tiles = scores = 0.0
    for b in range(_entries(arrays)):
        sizes = (None if "cu_seqlens_q" in arrays else given.q.shape[2], None if is_paged(arrays) or "cu_seqlens_k" in arrays else given.k.shape[2])
        entry = Entry(spec.name, b, *sizes, {**whole, **arrays})
        scores += heads * entry.q_len * entry.kv_len
        for h in range(heads):
            made = mask_of(spec, entry, h, tile, inputs, given.scalars, seed)
            full, partial, tiles = full + made.count(FULL), partial + made.count(PARTIAL), tiles + sum(made.count(x) for x in (EMPTY, PARTIAL, FULL))
    return full, partial, tiles, scores, None, 0.0, 1 if spec.has_mask else 0, None


def _entries(arrays: dict[str, Any]) -> int:
    return next(int(x.shape[0]) - name.startswith("cu_") for name, x in arrays.items() if getattr(x, "shape", ()))


def _bytes(given: Given, backward: bool) -> int:
    """Of all tensors of the pass, each once; of pages and caches the rows that are used."""
    spec, q, k, v = given.spec, given.q, given.k, given.v
    size, real = q.dtype.itemsize, 8 if q.dtype.itemsize == 8 else 4
    rows = _product(q.shape) // max(1, q.shape[-1])
    keys = _product(k.shape) // max(1, k.shape[-1])
    if is_paged(given.options):
        keys = k.shape[1] * int(given.options["seqused_k"].sum())
    of_out = real if given.options.get("out_f32") else size
    of_q, of_o, of_k, of_v = rows * q.shape[-1] * size, rows * v.shape[-1] * of_out, keys * k.shape[-1] * size, keys * v.shape[-1] * size
    of_rows = rows * real * (spec.has_lse + spec.num_saved)
    inputs = sum(_product(x.shape) * x.dtype.itemsize for x in given.inputs if x is not None)
    if not backward:
        return int(of_q + of_k + of_v + of_o + of_rows + inputs)
    gradients: int = sum(_product(x.shape) * real for x, info in zip(given.inputs, spec.inputs) if x is not None and info.grad)
    of_qkv = of_q + of_k + of_v
    of_gradients = of_qkv * real // size if given.options.get("grad_f32") else of_qkv
    return int(of_qkv + of_gradients + 2 * of_o + of_rows + inputs + gradients)


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for n in sizes:
        found *= int(n)
    return found
