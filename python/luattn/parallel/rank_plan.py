"""Plan: which rows of a sequence each rank has, which keys it needs of whom, and how fast that is predicted to be."""

import ctypes
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _capi as capi
from .._arguments import take, what
from .._library import call, lib
from .._spec import Spec
from ..attention import Attention, attention
from ..errors import InvalidError, Unsupported
from . import _counting

_PLACE = "luattn.parallel.plan"
# From Python, as two and four H200 showed them (bench/results/context_parallel_h200.md): seconds of a launch of long rows on the GPU, with its last tiles, and on the host;
# until an exchange is on its way; bytes a second of ranges of keys from several GPUs at once.
_FROM_PYTHON = {"stage": 25e-6, "launch": 180e-6, "exchange": 50e-6, "peer": 330e9}
TRANSPORTS = ("peer", "group")  # copies between GPUs of one host; the group's own sends and receives
PASSES = ("forward", "backward")
_RATES = ("forward", "backward", "peer", "network", "memory", "stage", "launch", "exchange")
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Candidate:
    """A partition that was tried. forward, backward: predicted efficiency, the time of one GPU over that of all, and over their number; imbalance: the
    most tiles of a rank over the mean; received: bytes of keys and values that a rank receives in a forward of one layer, the most; memory: bytes of a
    rank in forward of one layer, the most: its q, k, v, o and lse, parts of o, and keys of others that are there at once."""

    partition: str
    chunk_rows: int
    forward: float
    backward: float
    imbalance: float
    seconds: float
    received: float
    memory: float


@dataclass(frozen=True)
class Levels:
    """What is predicted where heads are shared out over `across` ranks, as HeadParallel does over all, and the sequence over the groups of so many; exchanged:
    bytes that a rank sends for heads in a forward of one layer."""

    across: int
    forward: float
    backward: float
    exchanged: float


@dataclass(frozen=True)
class Layer:
    """Layers of one mask. needs[i][j]: not 0 where chunk i of queries needs chunk j of keys. gathered: in forward, and in backward, all keys come before the
    first call; else a rank's own are computed first. transports: by which rows travel in forward, and in backward, one of TRANSPORTS each. Calls of a pass are
    cut for its transport, so that a ContextParallel that is told another one has the same bits. masks: what the mask reads, by name, as the plan was given it."""

    text: str
    name: str
    weight: float
    needs: tuple[bytes, ...] = field(repr=False)
    gathered: tuple[bool, bool]
    masks: Mapping[str, Any] = field(repr=False)
    sizes: tuple[int, int] = (1, 1)  # batch, heads
    differs: int = 0  # luattn_mask_differs
    transports: tuple[str, str] = ("group", "group")


class Plan:
    """Made by plan(); equal on all ranks that called it with equal arguments."""

    def __init__(
        self, q_len: int, world_size: int, chunk_rows: int, rank_of: Sequence[int], layers: Sequence[Layer], node: int = 8, candidates: Sequence[Candidate] = (),
        chosen: int = 0, schedule: str = "auto", levels: Sequence[Levels] = (),
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.q_len, self.world_size, self.chunk_rows, self.node = q_len, world_size, chunk_rows, node
        self.rank_of, self.layers = tuple(rank_of), tuple(layers)
        self.candidates, self.chosen, self.levels = tuple(candidates), chosen, tuple(levels)
        self.padded_len = chunk_rows * len(self.rank_of)
        self.rows = self.padded_len // world_size  # of each rank

    @property
    def prediction(self) -> Candidate | None:
        """What is predicted of this partition; None where the caller gave it."""
        return self.candidates[self.chosen] if self.candidates else None

    @functools.cached_property
    def hash(self) -> str:
        """Equal where the partition and the masks are, and what masks read."""
        said = hashlib.sha256(repr((self.q_len, self.world_size, self.chunk_rows, self.node, self.rank_of)).encode())
        for layer in self.layers:
            said.update(repr((layer.text, layer.gathered, layer.transports)).encode())
            said.update(b"".join(layer.needs))
            for name, x in sorted(layer.masks.items()):
                said.update(name.encode() + _counting.bytes_of(x))
        return said.hexdigest()

    def chunks(self, rank: int) -> list[int]:
        """The chunks of a rank, in the order of the sequence, in which they lie in its tensors."""
        self._check_rank(rank)
        return [c for c, r in enumerate(self.rank_of) if r == rank]

    def ranges(self, rank: int) -> list[tuple[int, int]]:
        """The rows of a rank, as (first, end) of chunks that lie after each other."""
        found: list[tuple[int, int]] = []
        for c in self.chunks(rank):
            first = c * self.chunk_rows
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], first + self.chunk_rows
            else:
                found.append((first, first + self.chunk_rows))
        return found

    def layer_of(self, of: Attention) -> Layer:
        """That of an attention's mask."""
        for layer in self.layers:
            if layer.text == of.text:
                return layer
        names = ", ".join(layer.name for layer in self.layers)
        raise InvalidError(f"luattn.parallel: {of.name}: the plan was made for {names}; make it with specs=[.., this one], or take plan.with_layer(this one), so that its keys are known")

    def with_layer(
        self, of: Attention, *, inputs: Mapping[str, Any] | None = None, heads: Any = (32, 8), batch: int = 1, seed: Any = None, schedule: str | None = None
    ) -> "Plan":
        """The same partition, which also knows the keys of this attention: of a mask that became known later, or reads other data. Arguments are plan()'s;
        schedule: None: that of the plan's first layer, whose transports it has."""
        shape = _shape_of(self.q_len, self.world_size, heads, 128, "bfloat16", batch)
        tiles, read = _counted(of._spec, shape, self.chunk_rows, len(self.rank_of), inputs or {}, seed)
        gathered = self.layers[0].gathered if schedule in (None, "auto") else (schedule == "gathered",) * 2
        made = _layer_of(of, 1.0, shape, tiles, len(self.rank_of), 1, gathered, self.layers[0].transports, read)
        others = [layer for layer in self.layers if layer.text != of.text]
        return Plan(self.q_len, self.world_size, self.chunk_rows, self.rank_of, [*others, made], self.node, self.candidates, self.chosen, self.schedule, self.levels)

    def shard(self, tensor: Any, rank: int, dim: int | None = None, fill: float = 0) -> Any:
        """A rank's rows of a tensor of the whole sequence, which lies along `dim`; None: the one axis of length q_len. Rows of padding have `fill`."""
        import torch

        tensor = take("luattn.parallel: shard", "tensor", "torch", tensor)
        dim = self._axis(tensor, dim, self.q_len, "shard")
        if self.padded_len != self.q_len:
            more = list(tensor.shape)
            more[dim] = self.padded_len - self.q_len
            tensor = torch.cat([tensor, tensor.new_full(more, fill)], dim)
        parts = [tensor.narrow(dim, first, end - first) for first, end in self.ranges(rank)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def unshard(self, parts: Sequence[Any], dim: int | None = None) -> Any:
        """The tensor of the whole sequence, of those of all ranks in their order."""
        import torch

        if len(parts) != self.world_size:
            raise InvalidError(f"luattn.parallel: unshard: parts: are {len(parts)}, and the plan is for {self.world_size} ranks")
        parts = [take("luattn.parallel: unshard", f"parts[{i}]", "torch", part) for i, part in enumerate(parts)]
        dim = self._axis(parts[0], dim, self.rows, "unshard")
        for i, part in enumerate(parts):
            if part.shape != parts[0].shape:
                raise InvalidError(f"luattn.parallel: unshard: parts[{i}]: is {tuple(part.shape)}, and parts[0] {tuple(parts[0].shape)}")
        chunks: list[Any] = [None] * len(self.rank_of)
        for rank, part in enumerate(parts):
            for c, chunk in zip(self.chunks(rank), part.split(self.chunk_rows, dim)):
                chunks[c] = chunk
        return torch.cat(chunks, dim).narrow(dim, 0, self.q_len)

    def positions(self, rank: int, device: Any = None) -> Any:
        """The positions of a rank's rows in the whole sequence (int64); of padding those after its end."""
        import torch

        return torch.cat([torch.arange(first, end, device=device) for first, end in self.ranges(rank)])

    def _check_rank(self, rank: int) -> None:
        rank = take("luattn.parallel", "rank", "integer", rank)
        if not 0 <= rank < self.world_size:
            raise InvalidError(f"luattn.parallel: rank: is {rank}, and the plan is for {self.world_size} ranks")

    def _axis(self, tensor: Any, dim: int | None, length: int, place: str) -> int:
        place, word = f"luattn.parallel: {place}", "q_len" if length == self.q_len and place == "shard" else "the length"
        shape = tuple(tensor.shape)
        dim = take(place, "dim", "integer?", dim)
        if dim is not None:
            if not -len(shape) <= dim < len(shape) or shape[dim] != length:
                raise InvalidError(f"{place}: dim: is {dim}, and the tensor {shape}; expected an axis of {length}")
            return dim % len(shape)
        found = [i for i, n in enumerate(shape) if n == length]
        if len(found) != 1:
            raise InvalidError(f"{place}: the tensor is {shape}, and has {len(found)} axes of {word} {length}; say which one, as dim=")
        return found[0]

    def __repr__(self) -> str:
        return f"<luattn.parallel.Plan of {self.q_len} rows on {self.world_size} ranks, chunks of {self.chunk_rows}>"

    def __str__(self) -> str:
        """A table of what was tried, and the rows of each rank."""
        best = self.prediction
        how = best.partition if best else "as given"
        padding = f", padded to {self.padded_len}" if self.padded_len != self.q_len else ""
        lines = [f"{self.q_len} rows{padding} on {self.world_size} ranks: {how}, in chunks of {self.chunk_rows}; efficiencies are predictions"]
        if best:
            lines.append(f"  {'partition':12} {'chunk rows':>10} {'forward':>9} {'backward':>9} {'most/mean':>10} {'received MB':>12} {'memory MB':>11}")
        for i, c in enumerate(self.candidates):
            mark = "*" if i == self.chosen else " "
            lines.append(f"{mark} {c.partition:12} {c.chunk_rows:10d} {c.forward:9.3f} {c.backward:9.3f} {c.imbalance:10.3f} {c.received / 1e6:12.1f} {c.memory / 1e6:11.1f}")
        for x in self.levels:
            left = self.world_size // x.across
            where = f"{x.across} ranks, rows over {left}" if left > 1 else f"{x.across} ranks alone"
            lines.append(f"heads over {where}: forward {x.forward:.3f}, backward {x.backward:.3f}, {x.exchanged / 1e6:.1f} MB exchanged")
        for layer in self.layers:
            orders = [f"{name}: {'all keys first' if x else 'own keys first'}, by {by}" for name, x, by in zip(PASSES, layer.gathered, layer.transports)]
            lines.append(f"layers of {layer.name}, {layer.weight:g}: {', '.join(orders)}")
        for rank in range(min(self.world_size, 16)):
            found = [f"{first}-{end - 1}" for first, end in self.ranges(rank)]
            rest = f", and {len(found) - 8} more" if len(found) > 8 else ""
            lines.append(f"rank {rank}: {', '.join(found[:8])}{rest}")
        if self.world_size > 16:
            lines.append(f"and {self.world_size - 16} more ranks")
        return "\n".join(lines)


# --- making one ---


def _attentions(specs: Any) -> list[Attention]:
    one = isinstance(specs, (str, os.PathLike, Attention))
    if not one and not isinstance(specs, (list, tuple)):
        raise InvalidError(f"{_PLACE}: specs: is {what(specs)}, expected a spec, or a list of specs")
    found = [x if isinstance(x, Attention) else attention(x) for x in ([specs] if one else specs)]
    if not 1 <= len(found) <= 64:
        raise InvalidError(f"{_PLACE}: specs: are {len(found)}, expected 1 to 64, of layers that differ")
    for x in found:
        if x._spec.grid:
            raise Unsupported(f"{_PLACE}: {x.name}: its places lie on a grid of {', '.join(x._spec.grid)}, and ranks share out a sequence along a line")
    return found


def _list_of(name: str, x: Any, count: int, default: Any) -> list[Any]:
    """One for each spec, of one for all or of a list."""
    if x is None:
        return [default] * count
    if isinstance(x, (Mapping, int, float)):
        return [x] * count
    found = list(x)
    if len(found) != count:
        raise InvalidError(f"{_PLACE}: {name}: are {len(found)}, and there are {count} specs; give one for each")
    return found


def _inputs_of(inputs: Any, of: Sequence[Attention]) -> list[Any]:
    """A dict for each spec, of names that specs have."""
    found = _list_of("inputs", inputs, len(of), {})
    for i, given in enumerate(found):
        if not isinstance(given, Mapping):
            raise InvalidError(f"{_PLACE}: inputs: is {what(given)} for {of[i].name}, expected a dict by names")
        known = {name for x in (of if isinstance(inputs, Mapping) else of[i : i + 1]) for name in (*x.inputs, *x.scalars)}
        for name in given:
            if name not in known:
                raise InvalidError(f"{_PLACE}: inputs: '{name}': there is none; there are {', '.join(sorted(known)) or 'none of these specs'}")
    return found


def _two(name: str, x: Any) -> tuple[int, int]:
    found = take(_PLACE, name, "size", x)
    first, second = (found, found) if isinstance(found, int) else found
    if first < 1 or second < 1:
        raise InvalidError(f"{_PLACE}: {name}: is {what(x)}, expected a number above 0, or two")
    return first, second


@dataclass(frozen=True)
class _Shape:
    q_len: int
    world_size: int
    heads: tuple[int, int]
    head_dim: tuple[int, int]
    elem_bytes: int
    batch: int


def _shape_of(q_len: Any, world_size: Any, heads: Any, head_dim: Any, dtype: Any, batch: Any) -> _Shape:
    q_len, world_size, batch = (take(_PLACE, name, "integer", x) for name, x in (("q_len", q_len), ("world_size", world_size), ("batch", batch)))
    for name, x, most in (("q_len", q_len, 2**31 - 1), ("world_size", world_size, capi.MAX_RANKS), ("batch", batch, 2**20)):
        if not 1 <= x <= most:
            raise InvalidError(f"{_PLACE}: {name}: is {x}, expected 1 to {most}")
    dtype = take(_PLACE, "dtype", "dtype", dtype)
    said = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    if said not in _BYTES:
        raise InvalidError(f"{_PLACE}: dtype: is {said}, expected one of {', '.join(_BYTES)}")
    found = _two("heads", heads)
    if found[0] % found[1]:
        raise InvalidError(f"{_PLACE}: heads: are {found[0]}, no multiple of the {found[1]} of keys")
    return _Shape(q_len, world_size, found, _two("head_dim", head_dim), _BYTES[said], batch)


def _counted(spec: Spec, shape: _Shape, chunk_rows: int, chunks: int, given: Mapping[str, Any], seed: Any) -> tuple[Any, dict[str, Any]]:
    """The tiles of a layer by chunk, and what its mask reads."""
    names = _counting.masked_by(spec)
    scalars = spec.scalars
    read = {name: _counting.copy_of(take(_PLACE, f"inputs['{name}']", "scale" if name in scalars else "input", given[name])) for name in names if name in given}
    _counting.check_sizes(_PLACE, spec, read, shape.q_len)
    found = lib.luattn_spec_mask_differs(spec.pointer)
    sizes = (shape.batch if found & capi.MASK_BY_BATCH else 1, *(shape.heads if found & capi.MASK_BY_HEAD else (1, 1)), shape.q_len)
    real, tiles = _counting.count_chunks(_PLACE, spec, sizes, chunk_rows, read, seed)
    return _counting.widened(tiles, real, chunks), read


def transports_of(place: str, told: Any) -> tuple[str, str]:
    """Of forward and backward: capi.COPIES, of one word for both or of two."""
    found = tuple(told) if isinstance(told, (tuple, list)) else (told, told)
    if len(found) != 2 or any(x not in capi.COPIES for x in found):
        raise InvalidError(f"{place}: transport: is {what(told)}, expected one of {', '.join(capi.COPIES)}, or two of them, for forward and backward")
    return found[0], found[1]


def _copies_of(told: Any, world_size: int, node: int) -> tuple[str, str]:
    """Between nodes no copy engine moves rows."""
    first, second = ("group" if x == "auto" and world_size > node else x for x in transports_of(_PLACE, told))
    return first, second


def _layer_of(
    of: Attention, weight: float, shape: _Shape, tiles: Any, chunks: int, times: int, gathered: tuple[bool, bool], transports: tuple[str, str], read: Mapping[str, Any]
) -> Layer:  # fmt: skip
    """times: how many of the counted chunks one of the plan's has."""
    differs = lib.luattn_spec_mask_differs(of._spec.pointer)
    return Layer(of.text, of.name, weight, _counting.needs_of(tiles, chunks, times), gathered, read, (shape.batch, shape.heads[0]), differs, transports)


def _rates_of(rates: Mapping[str, float] | None, node: int, transports: tuple[str, str]) -> capi.ParallelRates:
    for name in rates or {}:
        if name not in _RATES:
            raise InvalidError(f"{_PLACE}: rates: there is no '{name}'; there are {', '.join(_RATES)}")
    copies = (ctypes.c_int * 2)(*map(capi.COPIES.index, transports))
    return capi.ParallelRates(**{name: float(x) for name, x in (_FROM_PYTHON | dict(rates or {})).items()}, node=node, copies=copies)


def _choose(shape: _Shape, chunk_rows: int, chunks: int, tiles: Sequence[Any], weights: Sequence[float], rates: capi.ParallelRates, schedule: int) -> Any:
    """rank_of, chunk_rows, gathered, overlapped, candidates, the chosen one and levels, of the library."""
    layers = (capi.ParallelLayers * len(tiles))(*(capi.ParallelLayers(ctypes.addressof(t), w) for t, w in zip(tiles, weights)))
    problem = capi.ParallelProblem(
        ctypes.sizeof(capi.ParallelProblem), shape.world_size, chunks, chunk_rows, len(tiles), ctypes.addressof(layers), *shape.heads, *shape.head_dim,
        shape.elem_bytes, rates, schedule,
    )  # fmt: skip
    made = ctypes.POINTER(capi.ParallelPlan)()
    call("luattn_parallel_plan_new", ctypes.byref(problem), ctypes.byref(made))
    try:
        p = made.contents
        candidates = [
            Candidate(capi.PARTITIONS[c.partition], *(getattr(c, name) for name, *_ in capi.ParallelCandidate._fields_[1:]))
            for c in p.candidates[: p.num_candidates]
        ]
        gathered, overlapped = ([(bool(x & 1), bool(x & 2)) for x in bits[: len(tiles)]] for bits in (p.gathered, p.overlapped))
        levels = [Levels(*(getattr(x, name) for name, *_ in x._fields_)) for x in p.levels[: p.num_levels]]
        return p.rank_of[: p.chunks], p.chunk_rows, gathered, overlapped, candidates, p.chosen, levels
    finally:
        lib.luattn_parallel_plan_free(made)


def _check_partition(rank_of: Sequence[int], rows: int, world_size: int) -> list[int]:
    found = [take(_PLACE, f"rank_of[{i}]", "integer", r) for i, r in enumerate(rank_of)]
    counts = [found.count(r) for r in range(world_size)]
    if not found or rows % len(found) or rows // len(found) % capi.TILE or len(set(counts)) > 1 or sum(counts) != len(found):
        raise InvalidError(
            f"{_PLACE}: rank_of: has {len(found)} chunks, of which ranks have {min(counts)} to {max(counts)}; expected equal numbers, of chunks of a multiple of "
            f"{capi.TILE} rows in {rows}"
        )
    return found


def _rows_of(shape: _Shape, rank_of: Sequence[int] | None) -> tuple[list[int] | None, int, int]:
    """The given partition, checked, and how long the counted chunks are, and how many, of the padded sequence."""
    unit = shape.world_size * capi.TILE
    rows = -(-shape.q_len // unit) * unit
    partition = None if rank_of is None else _check_partition(rank_of, rows, shape.world_size)
    chunk_rows = _counting.chunk_rows_of(rows, shape.world_size) if partition is None else rows // len(partition)
    return partition, chunk_rows, rows // chunk_rows


def plan(
    specs: Any,
    q_len: int,
    world_size: int,
    *,
    inputs: Any = None,
    heads: Any = (32, 8),
    head_dim: Any = 128,
    dtype: Any = "bfloat16",
    weights: Any = None,
    batch: int = 1,
    seed: Any = None,
    node: int = 8,
    rates: Mapping[str, float] | None = None,
    schedule: str = "auto",
    rank_of: Sequence[int] | None = None,
    transport: Any = "auto",
) -> Plan:
    """Shares a sequence of q_len rows out to ranks: one plan for all layers of a model, whose attentions are `specs`: one, or a list, each as
    attention() takes it or has made it. It is a function of its arguments: ranks that call it with equal ones have equal plans.

    inputs: of the whole sequence, by name, those that masks read, and scalars that they read; a dict, or one for each spec. Calls have to have the same.
    weights: how many layers have each spec. heads: (of queries, of keys), head_dim: (of q and k, of v), dtype: of what is predicted; where the mask
    differs by heads, they are the call's. batch: entries, where it differs by them.

    node: ranks of one machine. transport: how rows travel, which ContextParallel takes over: "group": by the group, where no kernel hides a copy; "peer": by
    copy engines, where rows that need no other rank's keys come first in forward and last in backward; "auto": for each layer and pass the one that is predicted to
    be faster, on one machine; or two of these words, for forward and for backward.
    rates: what a GPU does, as luattn_parallel_rates of luattn/parallel.h; those that are missing are an H200's,
    and a launch takes 25 us of the GPU and 180 us of the host, twice that in backward, an exchange 50 us until rows are on their way, and rows come at 330 GB/s, as from Python.
    schedule: "stages": a rank computes with its own keys first, then with those of others as they arrive; "gathered": with all keys in one call for
    each run of rows that lie after each other, once they are there, which is for functions whose parts do not merge, too; "auto": the one that is
    predicted to be faster, by layer.
    rank_of: which rank has each chunk, in the place of what is found; nothing is predicted then: "auto" is "stages", and of transports "group".

    Where q_len is no multiple of world_size * 128, the sequence is padded at its end: shard() adds rows, which no query sees, and unshard() drops
    them."""
    shape = _shape_of(q_len, world_size, heads, head_dim, dtype, batch)
    found = _attentions(specs)
    if schedule not in capi.SCHEDULES:
        raise InvalidError(f"{_PLACE}: schedule: is {what(schedule)}, expected one of {', '.join(capi.SCHEDULES)}")
    node = take(_PLACE, "node", "integer", node)
    transports = _copies_of(transport, shape.world_size, node or 8)
    of_layers = _inputs_of(inputs, found)
    numbers = [take(_PLACE, f"weights[{i}]", "real", x) for i, x in enumerate(_list_of("weights", weights, len(found), 1.0))]
    partition, chunk_rows, chunks = _rows_of(shape, rank_of)
    tiles, read = zip(*(_counted(a._spec, shape, chunk_rows, chunks, given, seed) for a, given in zip(found, of_layers)))
    candidates: list[Candidate] = []
    levels: list[Levels] = []
    chosen, used_rows = 0, chunk_rows
    gathered, overlapped = [(schedule == "gathered",) * 2] * len(found), [tuple(x == "peer" for x in transports)] * len(found)
    if partition is None:
        partition, used_rows, gathered, overlapped, candidates, chosen, levels = _choose(
            shape, chunk_rows, chunks, tiles, numbers, _rates_of(rates, node, transports), capi.SCHEDULES.index(schedule)
        )
    by = [("peer" if x else "group", "peer" if y else "group") for x, y in overlapped]
    layers = [_layer_of(a, numbers[i], shape, tiles[i], chunks, used_rows // chunk_rows, gathered[i], by[i], read[i]) for i, a in enumerate(found)]
    return Plan(shape.q_len, shape.world_size, used_rows, partition, layers, node or 8, candidates, chosen, schedule, levels)
