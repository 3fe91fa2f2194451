"""NATTEN's operations up to 0.17: scores of each query with the keys of its window, and sums by such weights (luattn/natten.h), as functions of torch
whose gradients are functions of the same kind, so that these have gradients and tangents too."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import _capi as capi
from ._arguments import take
from ._call import Tensors
from ._library import call
from ._natten_arguments import Window, check_places, check_rpb, window_of
from ._tensors import fill, place
from .engine import engine_of
from .errors import InvalidError, Unsupported

_AXES = ("x", "y, x", "t, y, x")


# --- calls of the library ---


def _rows(t: Tensor) -> Tensor:
    """As kernels read it: rows that are contiguous, and hold no negative of what they stand for."""
    t = t.resolve_neg()
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _run(name: str, args: Any, window: Window, **tensors: Tensor) -> None:
    rank = len(window.kernel_size)
    args.struct_size = ctypes.sizeof(args)
    args.window.rank = rank
    for i in range(rank):
        args.window.kernel_size[i], args.window.dilation[i], args.window.is_causal[i] = window.kernel_size[i], window.dilation[i], window.is_causal[i]
    # In variables: they live until the call returns.
    rows = {field: _rows(t).detach() for field, t in tensors.items()}
    places = Tensors(len(rows))
    for (field, t), at in zip(rows.items(), places.at):
        fill(t, at)
        setattr(args, field, at)
    first = next(iter(rows.values()))
    device, stream = place(first) if first.is_cuda else (capi.CPU, None)
    call(name, engine_of(device), ctypes.byref(args), stream)


def _unread(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of which a call reads the shape alone."""
    return like.new_empty(shape[-1]).expand(shape)


def _taps(window: Window) -> int:
    count = 1
    for k in window.kernel_size:
        count *= k
    return count


def _scores(q: Tensor, k: Tensor, rpb: Tensor | None, window: Window) -> Tensor:
    attn = q.new_empty(*q.shape[:-1], _taps(window))
    given = {} if rpb is None else {"rel_pos_bias": rpb}
    _run("luattn_na_qk", capi.NaQkArgs(), window, query=q, key=k, attn=attn, **given)
    return attn


def _products(q: Tensor, k: Tensor, window: Window) -> Tensor:
    """Scores that are 0 where there is no key."""
    made = q.new_empty(*q.shape[:-1], _taps(window))
    _run("luattn_na_av_backward", capi.NaAvArgs(), window, attn=_unread(q, tuple(made.shape)), value=k, d_out=q, d_attn=made)
    return made


def _of_queries(attn: Tensor, k: Tensor, window: Window) -> Tensor:
    out = attn.new_empty(*attn.shape[:-1], k.shape[-1])
    _run("luattn_na_av", capi.NaAvArgs(), window, attn=attn, value=k, out=out)
    return out


def _of_keys(attn: Tensor, q: Tensor, heads: int, window: Window) -> Tensor:
    shape = (q.shape[0], heads, *q.shape[2:])
    made = q.new_empty(shape)
    _run("luattn_na_qk_backward", capi.NaQkArgs(), window, query=q, key=_unread(q, shape), d_attn=attn, d_key=made)
    return made


def _of_bias(attn: Tensor, window: Window) -> Tensor:
    """In attn's type."""
    one = _unread(attn, (*attn.shape[:-1], 1))
    made = attn.new_empty(attn.shape[1], *(2 * k - 1 for k in window.kernel_size), dtype=torch.float64 if attn.dtype is torch.float64 else torch.float32)
    _run("luattn_na_qk_backward", capi.NaQkArgs(), window, query=one, key=one, d_attn=attn, d_rel_pos_bias=made)
    return made.to(attn.dtype)


# --- their gradients ---


def _sum(*terms: Tensor | None) -> Tensor | None:
    made: Tensor | None = None
    for term in terms:
        made = term if made is None else made if term is None else made + term
    return made


class _Taps(Function):
    @staticmethod
    def vmap(*_: Any) -> Any:  # type: ignore[override]
        raise Unsupported("na_qk, na_av: torch.vmap: such calls are not mapped yet: put the mapped dimension into the batch yourself")


class _Scores(_Taps):
    """q, k -> [.., taps]. hides: taps without a key are -inf, else 0."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, window: Window, hides: bool) -> Tensor:  # type: ignore[override]
        return _scores(q, k, None, window) if hides else _products(q, k, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        q, k, ctx.window, _ = inputs
        ctx.save_for_backward(q, k)
        ctx.save_for_forward(q, k)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        q, k = ctx.saved_tensors
        wants = ctx.needs_input_grad
        dq = _Queries.apply(d, k, ctx.window) if wants[0] else None
        return dq, _Keys.apply(d, q, k.shape[1], ctx.window) if wants[1] else None, None, None

    @staticmethod
    def jvp(ctx: Any, dq: Any, dk: Any, *_: Any) -> Any:  # type: ignore[override]
        q, k = ctx.saved_tensors
        return _sum(
            None if dq is None else _Scores.apply(dq, k, ctx.window, False),
            None if dk is None else _Scores.apply(q, dk, ctx.window, False),
        )


class _Queries(_Taps):
    """weights [.., taps], rows of keys -> rows of queries."""

    @staticmethod
    def forward(attn: Tensor, k: Tensor, window: Window) -> Tensor:  # type: ignore[override]
        return _of_queries(attn, k, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        attn, k, ctx.window = inputs
        ctx.save_for_backward(attn, k)
        ctx.save_for_forward(attn, k)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        attn, k = ctx.saved_tensors
        wants = ctx.needs_input_grad
        d_attn = _Scores.apply(d, k, ctx.window, False) if wants[0] else None
        return d_attn, _Keys.apply(attn, d, k.shape[1], ctx.window) if wants[1] else None, None

    @staticmethod
    def jvp(ctx: Any, d_attn: Any, dk: Any, *_: Any) -> Any:  # type: ignore[override]
        attn, k = ctx.saved_tensors
        return _sum(
            None if d_attn is None else _Queries.apply(d_attn, k, ctx.window), None if dk is None else _Queries.apply(attn, dk, ctx.window)
        )


class _Keys(_Taps):
    """weights [.., taps], rows of queries -> rows of keys."""

    @staticmethod
    def forward(attn: Tensor, q: Tensor, heads: int, window: Window) -> Tensor:  # type: ignore[override]
        return _of_keys(attn, q, heads, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        attn, q, ctx.heads, ctx.window = inputs
        ctx.save_for_backward(attn, q)
        ctx.save_for_forward(attn, q)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        attn, q = ctx.saved_tensors
        wants = ctx.needs_input_grad
        d_attn = _Scores.apply(q, d, ctx.window, False) if wants[0] else None
        return d_attn, _Queries.apply(attn, d, ctx.window) if wants[1] else None, None, None

    @staticmethod
    def jvp(ctx: Any, d_attn: Any, dq: Any, *_: Any) -> Any:  # type: ignore[override]
        attn, q = ctx.saved_tensors
        return _sum(
            None if d_attn is None else _Keys.apply(d_attn, q, ctx.heads, ctx.window),
            None if dq is None else _Keys.apply(attn, dq, ctx.heads, ctx.window),
        )


class _Bias(_Taps):
    """A table [heads, 2 k - 1 an axis] -> [.., taps] of queries of this shape, 0 where there is no key."""

    @staticmethod
    def forward(rpb: Tensor, shape: tuple[int, ...], window: Window) -> Tensor:  # type: ignore[override]
        zero = rpb.new_zeros(1).expand(*shape, 1)
        return _scores(zero, zero, rpb, window).masked_fill_(_hidden(zero, window), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.shape, ctx.window = inputs

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        return _OfBias.apply(d, ctx.window), None, None

    @staticmethod
    def jvp(ctx: Any, d: Any, *_: Any) -> Any:  # type: ignore[override]
        return _Bias.apply(d, ctx.shape, ctx.window)


class _OfBias(_Taps):
    """[.., taps] -> the sums over displacements: what _Bias is the transpose of."""

    @staticmethod
    def forward(attn: Tensor, window: Window) -> Tensor:  # type: ignore[override]
        return _of_bias(attn, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        attn, ctx.window = inputs
        ctx.shape = tuple(attn.shape[:-1])

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        return _Bias.apply(d, ctx.shape, ctx.window), None

    @staticmethod
    def jvp(ctx: Any, d: Any, *_: Any) -> Any:  # type: ignore[override]
        return _OfBias.apply(d, ctx.window)


def _hidden(zero: Tensor, window: Window) -> Tensor:
    return _scores(zero, zero, None, window) < 0


# --- functions ---


def _check(place: str, rank: int, name: str, t: Tensor) -> None:
    take(place, name, "torch", t)
    if t.dim() != rank + 3:
        last = "taps" if name == "attn" else "head_dim"
        raise InvalidError(f"{place}: {name}: has {t.dim()} axes, expected {rank + 3}: batch, heads, {_AXES[rank - 1]} and {last}")


def _check_keys(place: str, first_name: str, first: Tensor, name: str, t: Tensor) -> None:
    check_places(place, **{first_name: first, name: t})
    if t.shape[0] != first.shape[0]:
        raise InvalidError(f"{place}: {name}: has a batch of {t.shape[0]}, and {first_name} of {first.shape[0]}")
    if t.shape[1] < 1 or first.shape[1] % t.shape[1] != 0:
        raise InvalidError(f"{place}: {name}: has {t.shape[1]} heads, which is no divisor of {first_name}'s {first.shape[1]}")
    if t.shape[2:-1] != first.shape[2:-1]:
        raise InvalidError(f"{place}: {name}: has the extents {tuple(t.shape[2:-1])}, and {first_name} {tuple(first.shape[2:-1])}")


def _check_additional(place: str, name: str, t: Any, first: Tensor, like_name: str, like: Tensor) -> Tensor:
    """[batch, heads, n, channels], with a copy of each head for all of `first` that share it."""
    take(place, name, "torch", t)
    if t.dim() != 4 or t.shape[:2] != like.shape[:2] or t.shape[-1] != like.shape[-1]:
        raise InvalidError(f"{place}: {name}: is {tuple(t.shape)}, expected ({like.shape[0]}, {like.shape[1]}, n, {like.shape[-1]})")
    check_places(place, **{like_name: like, name: t})
    made: Tensor = t.repeat_interleave(first.shape[1] // t.shape[1], 1) if t.shape[1] != first.shape[1] else t
    return made


def qk(place: str, rank: int, query: Tensor, key: Tensor, kernel_size: Any, dilation: Any, additional_keys: Any, is_causal: Any, rpb: Any) -> Tensor:
    _check(place, rank, "query", query)
    _check(place, rank, "key", key)
    _check_keys(place, "query", query, "key", key)
    if key.shape[-1] != query.shape[-1]:
        raise InvalidError(f"{place}: key: has head_dim {key.shape[-1]}, and query {query.shape[-1]}")
    window = window_of(place, rank, kernel_size, 1, dilation, is_causal, query.shape[2:-1])
    attn: Tensor = _Scores.apply(query, key, window, True)  # type: ignore[no-untyped-call]
    if rpb is not None:
        rpb = check_rpb(place, rpb, query.shape[1], window).to(query.dtype)
        check_places(place, query=query, rpb=rpb)
        attn = attn + _Bias.apply(rpb, tuple(query.shape[:-1]), window)  # type: ignore[no-untyped-call]
    if additional_keys is None:
        return attn
    more = _check_additional(place, "additional_keys", additional_keys, query, "query", key)
    return torch.cat([attn, (query.flatten(2, -2) @ more.mT).unflatten(2, query.shape[2:-1])], -1)  # type: ignore[no-untyped-call]


def av(place: str, rank: int, attn: Tensor, value: Tensor, kernel_size: Any, dilation: Any, additional_values: Any, is_causal: Any) -> Tensor:
    _check(place, rank, "attn", attn)
    _check(place, rank, "value", value)
    attn = attn.to(value.dtype)  # what autocast leaves in float32
    _check_keys(place, "attn", attn, "value", value)
    window = window_of(place, rank, kernel_size, 1, dilation, is_causal, attn.shape[2:-1])
    taps = _taps(window)
    more = None if additional_values is None else _check_additional(place, "additional_values", additional_values, attn, "value", value)
    expected = taps + (0 if more is None else more.shape[2])
    if attn.shape[-1] != expected:
        beside = "" if more is None else f" and {more.shape[2]} additional values"
        raise InvalidError(f"{place}: attn: has {attn.shape[-1]} taps, expected {expected}: of kernel_size {window.kernel_size}{beside}")
    out: Tensor = _Queries.apply(attn[..., :taps], value, window)  # type: ignore[no-untyped-call]
    if more is None:
        return out
    more_out: Tensor = (attn[..., taps:].flatten(2, -2) @ more).unflatten(2, attn.shape[2:-1])  # type: ignore[no-untyped-call]
    return out + more_out
