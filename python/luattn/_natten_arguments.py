"""What the arguments of luattn.natten may be."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._arguments import take, what
from ._scale import check_scale
from .errors import InvalidError

_SCHEDULES = ("non", "coop", "pp")
_BACKENDS = ("cutlass", "hopper", "blackwell", "flex")


class Window(NamedTuple):
    """Of a neighborhood, an entry for each axis; the names are those of the prelude's fields."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    is_causal: tuple[bool, ...]


def _each(place: str, name: str, rank: int, kind: str, x: Any) -> tuple[Any, ...]:
    """One entry for each axis, of one that counts for all or of a list."""
    if isinstance(x, Sequence) and not isinstance(x, (str, bytes)):
        if len(x) != rank:
            raise InvalidError(f"{place}: {name}: has {len(x)} entries, and the tensors {rank} {'axis' if rank == 1 else 'axes'}; give one for each, or one number for all")
        return tuple(take(place, f"{name}[{i}]", kind, entry) for i, entry in enumerate(x))
    return (take(place, name, kind, x),) * rank


def at_least(place: str, name: str, least: int, x: Any) -> int:
    found: int = take(place, name, "integer", x)
    if found < least:
        raise InvalidError(f"{place}: {name}: is {found}, expected at least {least}")
    return found


def _whole(place: str, name: str, rank: int, least: int, x: Any) -> tuple[int, ...]:
    found = _each(place, name, rank, "integer", x)
    for entry in found:
        if entry < least:
            raise InvalidError(f"{place}: {name}: is {entry}, expected at least {least}")
    return found


def window_of(place: str, rank: int, kernel_size: Any, stride: Any, dilation: Any, is_causal: Any, extents: Sequence[int] | None) -> Window:
    """What a spec is made of. extents: of the grid; None: not known yet."""
    window = Window(
        _whole(place, "kernel_size", rank, 2, kernel_size),
        _whole(place, "stride", rank, 1, 1 if stride is None else stride),
        _whole(place, "dilation", rank, 1, 1 if dilation is None else dilation),
        _each(place, "is_causal", rank, "flag", False if is_causal is None else is_causal),
    )
    for i, (k, s, d) in enumerate(zip(window.kernel_size, window.stride, window.dilation)):
        if s > k:
            raise InvalidError(f"{place}: stride: is {s} along axis {i}, and kernel_size {k}; give at most that")
        if extents is not None and k * d > extents[i]:
            times = f" times dilation {d}" if d > 1 else ""
            raise InvalidError(f"{place}: kernel_size: is {k}{times} along axis {i}, and the tensors have {extents[i]} places there; give at most {extents[i] // d}")
    return window


def check_places(place: str, **tensors: Tensor) -> None:
    """That all are of the first one's type and device."""
    (first_name, first), *rest = tensors.items()
    for name, t in rest:
        if t.dtype != first.dtype:
            raise InvalidError(f"{place}: {name}: is {t.dtype}, and {first_name} {first.dtype}; convert one of them")
        if t.device != first.device:
            raise InvalidError(f"{place}: {name}: is on {t.device}, and {first_name} on {first.device}; move one of them")


def _check_sizes(place: str, query: Tensor, key: Tensor, value: Tensor, key_name: str = "key", value_name: str = "value") -> None:
    """Batch, heads and head dims."""
    check_places(place, query=query, **{key_name: key, value_name: value})
    for name, t in ((key_name, key), (value_name, value)):
        if t.shape[0] != query.shape[0]:
            raise InvalidError(f"{place}: {name}: has a batch of {t.shape[0]}, and query of {query.shape[0]}")
    if key.shape[-1] != query.shape[-1]:
        raise InvalidError(f"{place}: {key_name}: has head_dim {key.shape[-1]}, and query {query.shape[-1]}")
    heads, heads_kv = query.shape[-2], key.shape[-2]
    if value.shape[-2] != heads_kv:
        raise InvalidError(f"{place}: {value_name}: has {value.shape[-2]} heads, and {key_name} {heads_kv}")
    if heads_kv == 0 or heads % heads_kv != 0:
        raise InvalidError(f"{place}: {key_name}: has {heads_kv} heads, which is no divisor of query's {heads}")


def check_tensors(place: str, rank: int | None, query: Tensor, key: Tensor, value: Tensor) -> int:
    """The number of axes of the grid."""
    found = query.dim() - 3
    if not 1 <= found <= 3 or rank is not None and found != rank:
        expected = "4 to 6: batch, 1 to 3 axes" if rank is None else f"{rank + 3}: batch, {rank} {'axis' if rank == 1 else 'axes'}"
        raise InvalidError(f"{place}: query: has {query.dim()} axes, expected {expected} of the grid, heads and head_dim")
    for name, t in (("key", key), ("value", value)):
        if t.dim() != query.dim():
            raise InvalidError(f"{place}: {name}: has {t.dim()} axes, and query {query.dim()}")
        if t.shape[1:-2] != query.shape[1:-2]:
            raise InvalidError(f"{place}: {name}: has the extents {tuple(t.shape[1:-2])}, and query {tuple(query.shape[1:-2])}")
    _check_sizes(place, query, key, value)
    return found


def check_fmha(place: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 4:
            raise InvalidError(f"{place}: {name}: has {t.dim()} axes, expected 4: batch, length, heads and head_dim")
    if key.shape[1] != value.shape[1]:
        raise InvalidError(f"{place}: value: has length {value.shape[1]}, and key {key.shape[1]}")
    _check_sizes(place, query, key, value)


def check_additional(place: str, query: Tensor, key: Tensor, keys: Any, values: Any) -> tuple[Tensor, Tensor] | None:
    if keys is None and values is None:
        return None
    if keys is None or values is None:
        missing, given = ("additional_keys", "additional_values") if keys is None else ("additional_values", "additional_keys")
        raise InvalidError(f"{place}: {missing}: is None, and {given} is given: give both or none")
    for name, t in (("additional_keys", keys), ("additional_values", values)):
        take(place, name, "torch", t)
        if t.dim() != 4:
            raise InvalidError(f"{place}: {name}: has {t.dim()} axes, expected 4: batch, length, heads and head_dim")
        if t.shape[-2] != key.shape[-2]:
            raise InvalidError(f"{place}: {name}: has {t.shape[-2]} heads, and key {key.shape[-2]}")
    if keys.shape[1] != values.shape[1]:
        raise InvalidError(f"{place}: additional_values: has length {values.shape[1]}, and additional_keys {keys.shape[1]}")
    _check_sizes(place, query, keys, values, "additional_keys", "additional_values")
    return keys, values


def check_rpb(place: str, rpb: Any, heads: int, window: Window) -> Tensor:
    take(place, "rpb", "torch", rpb)
    expected = (heads, *(2 * k - 1 for k in window.kernel_size))
    if tuple(rpb.shape) != expected:
        raise InvalidError(f"{place}: rpb: is {tuple(rpb.shape)}, expected {expected}: heads, and 2 kernel_size - 1 for each axis")
    return rpb  # type: ignore[no-any-return]


def scale_of(place: str, scale: Any) -> Any:
    """None: head_dim ** -0.5, as 0 is too."""
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise InvalidError(f"{place}: scale: has shape {tuple(scale.shape)}, expected one element, or a number")
        return scale
    return None if scale is None or scale == 0 else check_scale(place, scale)


_MOST_OF_BOX = 256


def _check_tiles(place: str, rank: int | None, given: dict[str, Any]) -> None:
    """Shapes and sizes of tiles, and splits."""
    for name, x in given.items():
        if "tile" not in name and "splits" not in name:
            continue
        extents = () if x is None else _whole(place, name, rank or 1, 1, x)
        if rank is not None and "shape" in name and max(extents, default=1) > _MOST_OF_BOX:
            raise InvalidError(f"{place}: {name}: is {extents}, expected 1 to {_MOST_OF_BOX} places along an axis")


def check_kernels(place: str, rank: int | None, given: dict[str, Any]) -> None:
    """Arguments that choose among NATTEN's kernels. rank: of tile shapes; None: tiles have one size. In a graph the extents of tiles are checked, which
    reach kernels; the others change nothing."""
    _check_tiles(place, rank, given)
    if torch.compiler.is_dynamo_compiling():
        return
    suffix = "fmha" if rank is None else "fna"
    names = [f"{backend}-{suffix}" for backend in _BACKENDS]
    for name, x in given.items():
        if name == "backend":
            if x is not None and x not in names:
                raise InvalidError(f"{place}: backend: is {what(x)}, expected one of {', '.join(names)} or None; luattn chooses its own kernel")
        elif name == "kernel_schedule":
            if x is not None and getattr(x, "value", x) not in _SCHEDULES and type(x).__name__ != "KernelSchedule":
                raise InvalidError(f"{place}: kernel_schedule: is {what(x)}, expected one of {', '.join(_SCHEDULES)} or None")
        elif "tile" not in name and "splits" not in name:
            take(place, name, "flag", x)


def boxes_of(given: dict[str, Any]) -> list[int]:
    """Tile shapes that check_kernels has checked, as the ops take them: those of forward's queries and keys, then of backward's. Nothing: none is given."""
    boxes = []
    for name in ("q_tile_shape", "kv_tile_shape", "backward_q_tile_shape", "backward_kv_tile_shape"):
        box, shape = 0, given[name]
        for extent in () if shape is None else shape if isinstance(shape, (tuple, list)) else (shape,):
            box = box << 16 | int(extent)
        boxes.append(box)
    return boxes if any(boxes) else []


def _check_lengths(place: str, name: str, x: Tensor) -> None:
    if x.dim() != 1 or x.shape[0] == 0 or x.is_floating_point() or x.dtype is torch.bool:
        raise InvalidError(f"{place}: {name}: is {x.dtype} {tuple(x.shape)}, expected whole numbers of one axis, one for each sequence")
    least = int(x.min())
    if least < 0:
        raise InvalidError(f"{place}: {name}: has {least}, expected at least 0")


def check_more(place: str, options: Any, known: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """attention_kwargs: arguments of attention but for those that it is given anyway."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidError(f"{place}: attention_kwargs: is {what(options)}, expected a dict of arguments of attention")
    for name in options:
        if name in given:
            raise InvalidError(f"{place}: attention_kwargs: has '{name}', which attention is given; leave it out")
        if name not in known:
            raise InvalidError(f"{place}: attention_kwargs: has '{name}', and attention has no such argument")
    return options


def lengths_of(
    place: str, query: Tensor, key: Tensor, seqlens_q: Any, seqlens_kv: Any, cumulative_q: Any, cumulative_kv: Any, longest_q: Any, longest_kv: Any
) -> dict[str, Any] | None:
    """Options of a packed call; None: of one that is not."""
    given = {
        "seqlens_Q": seqlens_q, "seqlens_KV": seqlens_kv, "cumulative_seqlen_Q": cumulative_q, "cumulative_seqlen_KV": cumulative_kv,
    }  # fmt: skip
    if all(x is None for x in given.values()) and not longest_q and not longest_kv:
        return None
    if query.shape[0] != 1:
        raise InvalidError(f"{place}: query: has a batch of {query.shape[0]}, and packed sequences have one of 1")
    if seqlens_q is not None or seqlens_kv is not None:
        if any(x is not None for x in (cumulative_q, cumulative_kv)):
            raise InvalidError(f"{place}: cumulative_seqlen_Q, cumulative_seqlen_KV: are given beside seqlens; give one of them")
        for name in ("seqlens_Q", "seqlens_KV"):
            if given[name] is None:
                raise InvalidError(f"{place}: {name}: is None, and lengths of one side are given: give both")
            _check_lengths(place, name, take(place, name, "torch", given[name]))
        cumulative_q, cumulative_kv = (torch.nn.functional.pad(x.cumsum(0), (1, 0)).to(torch.int32) for x in (seqlens_q, seqlens_kv))
        longest_q, longest_kv = int(seqlens_q.max()), int(seqlens_kv.max())
    needed = {"cumulative_seqlen_Q": cumulative_q, "cumulative_seqlen_KV": cumulative_kv, "max_seqlen_Q": longest_q, "max_seqlen_KV": longest_kv}
    for name, x in needed.items():
        if x is None:
            raise InvalidError(f"{place}: {name}: is None; packed sequences need cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q and max_seqlen_KV")
    longest_q, longest_kv = (take(place, name, "integer", x) for name, x in (("max_seqlen_Q", longest_q), ("max_seqlen_KV", longest_kv)))
    for name, x in (("cumulative_seqlen_Q", cumulative_q), ("cumulative_seqlen_KV", cumulative_kv)):
        take(place, name, "torch", x)
        if x.dtype != torch.int32 or x.dim() != 1 or x.shape[0] < 2:
            raise InvalidError(f"{place}: {name}: is {x.dtype} {tuple(x.shape)}, expected int32 of one axis, one more than sequences")
    if cumulative_q.shape != cumulative_kv.shape:
        raise InvalidError(f"{place}: cumulative_seqlen_KV: has {cumulative_kv.shape[0]} entries, and cumulative_seqlen_Q {cumulative_q.shape[0]}")
    for name, x, t in (("max_seqlen_Q", longest_q, query), ("max_seqlen_KV", longest_kv, key)):
        if not 0 <= x <= t.shape[1]:
            raise InvalidError(f"{place}: {name}: is {x}, expected 0 to the {t.shape[1]} rows that there are")
    return {"cu_seqlens_q": cumulative_q, "cu_seqlens_k": cumulative_kv, "max_seqlen_q": longest_q, "max_seqlen_k": longest_kv}
