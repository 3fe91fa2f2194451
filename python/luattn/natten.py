"""NATTEN's functions and modules on luattn: import them from here instead of natten.

Argument lists and layouts are those of 0.21, [batch, .., heads, head_dim] with any strides; nothing is permuted or copied. Types, head dims, gradients and
devices are luattn's: the CPU, float32 and float64 too, and lse has a gradient. A call is a spec of its neighborhood over a grid, which is written and loaded
when it is first needed. Tile shapes name the boxes of luattn's kernels; other arguments that choose among NATTEN's are checked, and change nothing.
"""

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _natten_taps as taps
from . import _torch_merge as _torch_merge
from ._arguments import Arguments, take
from ._attend import attend
from ._boxes import TileShapes
from ._natten_arguments import Window, at_least, boxes_of, check_additional, check_fmha, check_kernels, check_more, check_rpb, check_tensors, lengths_of, scale_of, window_of
from ._spec import Spec, spec_of
from .errors import InvalidError
from .merge import merge

__all__ = [
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NeighborhoodAttention3D",
    "attention",
    "is_fna_enabled",
    "merge_attentions",
    "na1d",
    "na1d_av",
    "na1d_qk",
    "na2d",
    "na2d_av",
    "na2d_qk",
    "na3d",
    "na3d_av",
    "na3d_qk",
    "neighborhood_attention_generic",
    "tile_shapes",
    "tune",
    "use_fused_na",
]

_AXES = ("t", "y", "x")
_Sizes = int | tuple[int, ...]
_Causal = bool | tuple[bool, ...] | None
_Result = Tensor | Any  # (output, lse) with return_lse
_TENSORS = Arguments(query="torch", key="torch", value="torch", scale="scale?", return_lse="flag")


# --- specs ---


class _Neighborhood(NamedTuple):
    """What a spec is written of. rpb: whether scores have a relative position bias."""

    window: Window
    rpb: bool


def _text(of: _Neighborhood) -> str:
    window = of.window
    n = len(window.kernel_size)
    axes = _AXES[-n:]
    quoted = ", ".join(f'"{axis}"' for axis in axes)
    lists = (f"{name} = {{ {', '.join(str(x).lower() for x in entries)} }}" for name, entries in zip(window._fields, window))
    lines = ["return attention {", f'  name = "na{n}d",', f"  grid = {{ {quoted} }},"]
    if of.rpb:
        sizes = ", ".join(str(2 * k - 1) for k in window.kernel_size)
        steps = ", ".join(
            f"(kv_idx.{axis} - q_idx.{axis}){f' // {d}' if d > 1 else ''} + {k - 1}" for axis, k, d in zip(axes, window.kernel_size, window.dilation)
        )
        lines += [f'  inputs = {{ rpb = {{ axes = {{ "h", {sizes} }}, dtype = "any", grad = true }} }},']
        lines += [f"  score_mod = function(score, b, h, q_idx, kv_idx) return score + rpb[{{ h, {steps} }}] end,"]
    return "\n".join([*lines, f"  block_mask = neighborhood {{ {', '.join(lists)} }},", "}", ""])


_WHOLE = 'return attention { name = "attention" }\n'
_CAUSAL = 'return attention { name = "attention", block_mask = causal() }\n'


@functools.lru_cache(256)
def _loaded(of: _Neighborhood | str) -> Spec:
    return spec_of(of if isinstance(of, str) else _text(of), "natten")


def _constant(*of: Any) -> Spec:
    """Of numbers, as graphs have them."""
    if len(of) == 1:
        return _loaded(of[0])
    n = (len(of) - 1) // 4
    return _loaded(_Neighborhood(Window(*(of[i : i + n] for i in range(0, 4 * n, n))), of[-1]))


_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does, after seconds of imports


def _spec(window: Window, rpb: bool) -> Spec:
    if torch.compiler.is_dynamo_compiling():  # its numbers may be symbols, which a spec turns into constants that the graph is guarded by
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        return _constant(*(guard_scalar(x) for entries in window for x in entries), rpb)
    return _loaded(_Neighborhood(window, rpb))


# --- functions ---


def _attend(spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: list[Any], scale: Any, given: dict[str, Any] | None = None) -> tuple[Tensor, Tensor]:
    """Of tensors with heads last: o and lse with heads first."""
    o, lse = attend(spec, q.movedim(-2, 1), k.movedim(-2, 1), v.movedim(-2, 1), inputs, [], scale, given or {}, True)
    assert lse is not None
    return o, lse


def _flat(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, places, heads, head_dim]: views, unless strides along axes of the grid go together in no way."""
    return query.flatten(1, -3), key.flatten(1, -3), value.flatten(1, -3)


def _neighborhood(
    place: str, rank: int | None, query: Tensor, key: Tensor, value: Tensor, kernel_size: Any, stride: Any, dilation: Any, is_causal: Any, scale: Any,
    additional_keys: Any, additional_values: Any, attention_kwargs: Any, return_lse: bool, rpb: Any, **of_kernels: Any,
) -> _Result:  # fmt: skip
    query, key, value, scale, return_lse = _TENSORS.take(place, query, key, value, scale, return_lse)
    rank = check_tensors(place, rank, query, key, value)
    extents = query.shape[1 : 1 + rank]
    window = window_of(place, rank, kernel_size, stride, dilation, is_causal, extents)
    check_kernels(place, rank, of_kernels)
    additional = check_additional(place, query, key, additional_keys, additional_values)
    inputs = [] if rpb is None else [check_rpb(place, rpb, query.shape[-2], window)]
    scale = scale_of(place, scale)
    options = check_more(place, attention_kwargs, _OF_ATTENTION, _GIVEN)
    keeps_all = rpb is None and tuple(window.kernel_size) == tuple(extents) and not any(window.is_causal)
    if keeps_all:
        o, lse = _attend(_constant(_WHOLE), *_flat(query, key, value), [], scale)
    else:
        boxes = boxes_of(of_kernels)
        o, lse = _attend(_spec(window, rpb is not None), query, key, value, inputs, scale, {"boxes": boxes} if boxes else None)
        if additional:
            o, lse = o.flatten(2, -2), lse.flatten(2)
    if additional:
        more, more_lse = attention(query.flatten(1, -3), *additional, False, scale, return_lse=True, **options)
        o, lse = merge([o, more.transpose(1, 2)], [lse, more_lse.transpose(1, 2)])
    if keeps_all or additional:
        o, lse = o.unflatten(2, extents), lse.unflatten(2, extents)  # type: ignore[no-untyped-call]
    o = o.movedim(1, -2)
    return (o, lse.movedim(1, -1)) if return_lse else o


def neighborhood_attention_generic(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False,
    scale: float | None = None, additional_keys: Tensor | None = None, additional_values: Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None, backend: str | None = None, q_tile_shape: Any = None, kv_tile_shape: Any = None,
    backward_q_tile_shape: Any = None, backward_kv_tile_shape: Any = None, backward_kv_splits: Any = None, backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True, kernel_schedule: Any = None, torch_compile: bool = False, return_lse: bool = False, *, rpb: Tensor | None = None,
) -> _Result:  # fmt: skip
    """na1d, na2d or na3d, by the rank of query."""
    return _neighborhood(
        "neighborhood_attention_generic", None, query, key, value, kernel_size, stride, dilation, is_causal, scale, additional_keys, additional_values,
        attention_kwargs, return_lse, rpb, backend=backend, q_tile_shape=q_tile_shape, kv_tile_shape=kv_tile_shape,
        backward_q_tile_shape=backward_q_tile_shape, backward_kv_tile_shape=backward_kv_tile_shape, backward_kv_splits=backward_kv_splits,
        backward_use_pt_reduction=backward_use_pt_reduction, run_persistent_kernel=run_persistent_kernel, kernel_schedule=kernel_schedule,
        torch_compile=torch_compile,
    )  # fmt: skip


def na1d(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False,
    scale: float | None = None, additional_keys: Tensor | None = None, additional_values: Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None, backend: str | None = None, q_tile_shape: Any = None, kv_tile_shape: Any = None,
    backward_q_tile_shape: Any = None, backward_kv_tile_shape: Any = None, backward_kv_splits: Any = None, backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True, kernel_schedule: Any = None, torch_compile: bool = False, return_lse: bool = False, *, rpb: Tensor | None = None,
) -> _Result:  # fmt: skip
    """Neighborhood attention along a line: query, key and value are [batch, x, heads, head_dim], key and value may have fewer heads, and value another
    head_dim. Arguments as na2d has them."""
    return _neighborhood(
        "na1d", 1, query, key, value, kernel_size, stride, dilation, is_causal, scale, additional_keys, additional_values,
        attention_kwargs, return_lse, rpb, backend=backend, q_tile_shape=q_tile_shape, kv_tile_shape=kv_tile_shape,
        backward_q_tile_shape=backward_q_tile_shape, backward_kv_tile_shape=backward_kv_tile_shape, backward_kv_splits=backward_kv_splits,
        backward_use_pt_reduction=backward_use_pt_reduction, run_persistent_kernel=run_persistent_kernel, kernel_schedule=kernel_schedule,
        torch_compile=torch_compile,
    )  # fmt: skip


def na2d(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False,
    scale: float | None = None, additional_keys: Tensor | None = None, additional_values: Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None, backend: str | None = None, q_tile_shape: Any = None, kv_tile_shape: Any = None,
    backward_q_tile_shape: Any = None, backward_kv_tile_shape: Any = None, backward_kv_splits: Any = None, backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True, kernel_schedule: Any = None, torch_compile: bool = False, return_lse: bool = False, *, rpb: Tensor | None = None,
) -> _Result:  # fmt: skip
    """Neighborhood attention over a plane: query, key and value are [batch, y, x, heads, head_dim], key and value may have fewer heads, and value another
    head_dim. Of each query the kernel_size keys nearest along each axis, one number an axis or one for all; stride queries in a row share a window,
    dilation leaves gaps, is_causal keeps none behind the query. scale: None or 0: head_dim ** -0.5; a tensor of one element has a gradient.

    additional_keys and additional_values [batch, n, heads, head_dim] are seen by all queries: they are attended on their own, as attention does with
    attention_kwargs, and merged. return_lse: also [batch, y, x, heads] in float32 (float64 for float64), natural log, with a gradient.

    rpb, of NATTEN up to 0.17: a bias [heads, 2 k - 1 an axis] at (key - query) / dilation + k - 1, with a gradient, beside is_causal too.

    q_tile_shape and kv_tile_shape are the boxes of queries and of keys of forward's kernel, backward_q_tile_shape and backward_kv_tile_shape those of
    backward's, as luattn_args.query_tile_size and key_tile_size: without them the mask and the extents choose. A box that no kernel here has is refused,
    with those that there are; on the CPU, and where a window keeps all keys, there are none. The other arguments from backend to torch_compile choose
    among NATTEN's kernels: they are checked, and change nothing."""
    return _neighborhood(
        "na2d", 2, query, key, value, kernel_size, stride, dilation, is_causal, scale, additional_keys, additional_values,
        attention_kwargs, return_lse, rpb, backend=backend, q_tile_shape=q_tile_shape, kv_tile_shape=kv_tile_shape,
        backward_q_tile_shape=backward_q_tile_shape, backward_kv_tile_shape=backward_kv_tile_shape, backward_kv_splits=backward_kv_splits,
        backward_use_pt_reduction=backward_use_pt_reduction, run_persistent_kernel=run_persistent_kernel, kernel_schedule=kernel_schedule,
        torch_compile=torch_compile,
    )  # fmt: skip


def na3d(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False,
    scale: float | None = None, additional_keys: Tensor | None = None, additional_values: Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None, backend: str | None = None, q_tile_shape: Any = None, kv_tile_shape: Any = None,
    backward_q_tile_shape: Any = None, backward_kv_tile_shape: Any = None, backward_kv_splits: Any = None, backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True, kernel_schedule: Any = None, torch_compile: bool = False, return_lse: bool = False, *, rpb: Tensor | None = None,
) -> _Result:  # fmt: skip
    """Neighborhood attention over time and a plane: query, key and value are [batch, t, y, x, heads, head_dim]. Arguments as na2d has them."""
    return _neighborhood(
        "na3d", 3, query, key, value, kernel_size, stride, dilation, is_causal, scale, additional_keys, additional_values,
        attention_kwargs, return_lse, rpb, backend=backend, q_tile_shape=q_tile_shape, kv_tile_shape=kv_tile_shape,
        backward_q_tile_shape=backward_q_tile_shape, backward_kv_tile_shape=backward_kv_tile_shape, backward_kv_splits=backward_kv_splits,
        backward_use_pt_reduction=backward_use_pt_reduction, run_persistent_kernel=run_persistent_kernel, kernel_schedule=kernel_schedule,
        torch_compile=torch_compile,
    )  # fmt: skip


# --- tile shapes ---


def _problem(
    place: str, query: Tensor, key: Tensor, value: Tensor, kernel_size: Any, stride: Any, dilation: Any, is_causal: Any, rpb: Any
) -> tuple[Spec, Tensor, Tensor, Tensor, Tensor | None]:
    """The spec, and tensors with heads first."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        take(place, name, "torch", t)
    rank = check_tensors(place, None, query, key, value)
    window = window_of(place, rank, kernel_size, stride, dilation, is_causal, query.shape[1:-2])
    bias = None if rpb is None else check_rpb(place, rpb, query.shape[-2], window)
    if rank == 1:
        raise InvalidError(f"{place}: query: has one axis, and kernels over a line have tiles of its places, which luattn.attention(..).tune measures; give 2 or 3 axes")
    q, k, v = (t.movedim(-2, 1) for t in (query, key, value))
    return _spec(window, rpb is not None), q, k, v, bias


def tile_shapes(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False, *,
    backward: bool = False, rpb: Tensor | None = None, arch: str | None = None,
) -> list[TileShapes]:  # fmt: skip
    """The tile shapes that a kernel of na2d or na3d can run for these tensors, of which neither data nor a GPU is needed (device="meta" will do), as NATTEN's
    profiler lists in a dry run: first what calls take by themselves, then others, the fastest by its predicted time first. backward: of backward's kernel.
    arch: as "sm_90a"; None: of query's GPU, and sm_90a where it is on none. Pass them on as q_tile_shape and kv_tile_shape, or backward_q_tile_shape and
    backward_kv_tile_shape."""
    from . import _natten_tune

    spec, q, k, v, bias = _problem("tile_shapes", query, key, value, kernel_size, stride, dilation, is_causal, rpb)
    return _natten_tune.tile_shapes("tile_shapes", spec, q, k, v, bias, take("tile_shapes", "backward", "flag", backward), arch)


def tune(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False, *,
    backward: bool = False, rpb: Tensor | None = None, time_limit: float = 60.0,
) -> str:  # fmt: skip
    """Measures these tile shapes on query's GPU, compares their results, and remembers the fastest next to the kernel cache: calls of this window, with these
    extents and numbers of heads, take them from then on, in other processes too. Returns what was found, a line for each pass. Takes up to `time_limit`
    seconds a pass. No such call may be running."""
    from ._tune import tune

    spec, q, k, v, bias = _problem("tune", query, key, value, kernel_size, stride, dilation, is_causal, rpb)
    backward, time_limit = take("tune", "backward", "flag", backward), take("tune", "time_limit", "real", time_limit)
    inputs = [] if bias is None else [bias]
    return tune(spec, q, k, v, inputs, [], 0.0, backward, time_limit)


def attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None, seqlens_Q: Tensor | None = None,
    seqlens_KV: Tensor | None = None, cumulative_seqlen_Q: Tensor | None = None, cumulative_seqlen_KV: Tensor | None = None,
    max_seqlen_Q: int | None = None, max_seqlen_KV: int | None = None, backend: str | None = None, q_tile_size: int | None = None,
    kv_tile_size: int | None = None, backward_q_tile_size: int | None = None, backward_kv_tile_size: int | None = None,
    backward_kv_splits: int | None = None, backward_use_pt_reduction: bool = False, run_persistent_kernel: bool = True, kernel_schedule: Any = None,
    torch_compile: bool = False, return_lse: bool = False,
) -> _Result:  # fmt: skip
    """All keys, or with is_causal those up to the query, the first query seeing the first key: query [batch, length, heads, head_dim], key and value
    [batch, length_kv, heads_kv, ..]. Packed sequences have a batch of 1, and lengths as seqlens (which are read back from a GPU), or cumulative, int32
    [sequences + 1], with the longest of each. return_lse: also [batch, length, heads], with a gradient."""
    query, key, value, scale, return_lse = _TENSORS.take("attention", query, key, value, scale, return_lse)
    is_causal = take("attention", "is_causal", "flag", is_causal)
    check_fmha("attention", query, key, value)
    check_kernels(
        "attention", None,
        {
            "backend": backend, "q_tile_size": q_tile_size, "kv_tile_size": kv_tile_size, "backward_q_tile_size": backward_q_tile_size,
            "backward_kv_tile_size": backward_kv_tile_size, "backward_kv_splits": backward_kv_splits,
            "backward_use_pt_reduction": backward_use_pt_reduction, "run_persistent_kernel": run_persistent_kernel,
            "kernel_schedule": kernel_schedule, "torch_compile": torch_compile,
        },
    )  # fmt: skip
    spec, scale = _constant(_CAUSAL if is_causal else _WHOLE), scale_of("attention", scale)
    packed = lengths_of("attention", query, key, seqlens_Q, seqlens_KV, cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV)
    if packed is None:
        o, lse = _attend(spec, query, key, value, [], scale)
        o, lse = o.transpose(1, 2), lse.transpose(1, 2)
    else:
        found = attend(spec, query[0], key[0], value[0], [], [], scale, packed, True)
        assert found[1] is not None
        o, lse = found[0][None], found[1].transpose(0, 1)[None]
    return (o, lse) if return_lse else o


_GIVEN = ("query", "key", "value", "is_causal", "scale", "return_lse")
_OF_ATTENTION = tuple(inspect.signature(attention).parameters)


def merge_attentions(outputs: list[Tensor], lse_tensors: list[Tensor], torch_compile: bool = True, use_autograd_fix: bool = True) -> tuple[Tensor, Tensor]:
    """The output and lse of all keys, of those of parts of them: outputs are [batch, length, heads, head_dim], and lses [batch, length, heads]. Gradients
    are those of the merge itself, wherever the parts come from, and the parts stay as they are; the two flags change nothing."""
    place = "merge_attentions"
    outputs, lse_tensors = (take(place, name, "parts", x) for name, x in (("outputs", outputs), ("lse_tensors", lse_tensors)))
    for name, flag in (("torch_compile", torch_compile), ("use_autograd_fix", use_autograd_fix)):
        take(place, name, "flag", flag)
    if len(outputs) < 2:
        raise InvalidError(f"{place}: outputs: are {len(outputs)}, expected at least 2")
    if len(outputs) != len(lse_tensors):
        raise InvalidError(f"{place}: lse_tensors: are {len(lse_tensors)}, and outputs {len(outputs)}: each part has both")
    for i, (o, lse) in enumerate(zip(outputs, lse_tensors)):
        if o.dim() != 4 or o.shape != outputs[0].shape:
            first = tuple(outputs[0].shape)
            raise InvalidError(f"{place}: outputs[{i}]: is {tuple(o.shape)}, and outputs[0] {first}: all are the same [batch, length, heads, head_dim]")
        if lse.shape != o.shape[:3]:
            raise InvalidError(f"{place}: lse_tensors[{i}]: is {tuple(lse.shape)}, expected {tuple(o.shape[:3])}, as outputs[{i}]")
    outs, lses = list(outputs), [lse.transpose(1, 2) for lse in lse_tensors]
    while len(outs) > 1:  # by sixteen
        o, lse = merge(outs[:16], lses[:16], layout="bshd")
        outs, lses = [o, *outs[16:]], [lse, *lses[16:]]
    return outs[0], lses[0].transpose(1, 2)


# --- of NATTEN up to 0.17 ---


def na1d_qk(
    query: Tensor, key: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_keys: Tensor | None = None, is_causal: _Causal = False,
    rpb: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """na2d_qk along a line: query and key [batch, heads, x, head_dim]."""
    return taps.qk("na1d_qk", 1, query, key, kernel_size, dilation, additional_keys, is_causal, rpb)


def na1d_av(
    attn: Tensor, value: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_values: Tensor | None = None, is_causal: _Causal = False
) -> Tensor:
    """na2d_av along a line."""
    return taps.av("na1d_av", 1, attn, value, kernel_size, dilation, additional_values, is_causal)


def na2d_qk(
    query: Tensor, key: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_keys: Tensor | None = None, is_causal: _Causal = False,
    rpb: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The scores of each query with the keys of its window [batch, heads, y, x, taps], without a scale: query and key are [batch, heads, y, x, head_dim],
    heads first, and key may have fewer heads. Taps are in row-major order from the window's first key; those that a causal window lacks are -inf. Scores with
    additional_keys [batch, heads, n, head_dim] follow the taps. rpb: as na2d has it. Gradients have gradients and tangents too."""
    return taps.qk("na2d_qk", 2, query, key, kernel_size, dilation, additional_keys, is_causal, rpb)


def na2d_av(
    attn: Tensor, value: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_values: Tensor | None = None, is_causal: _Causal = False
) -> Tensor:
    """The sums of the values of each query's window by the weights attn [batch, heads, y, x, taps], as na2d_qk has them."""
    return taps.av("na2d_av", 2, attn, value, kernel_size, dilation, additional_values, is_causal)


def na3d_qk(
    query: Tensor, key: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_keys: Tensor | None = None, is_causal: _Causal = False,
    rpb: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """na2d_qk over time and a plane: query and key [batch, heads, t, y, x, head_dim]."""
    return taps.qk("na3d_qk", 3, query, key, kernel_size, dilation, additional_keys, is_causal, rpb)


def na3d_av(
    attn: Tensor, value: Tensor, kernel_size: _Sizes, dilation: _Sizes = 1, additional_values: Tensor | None = None, is_causal: _Causal = False
) -> Tensor:
    """na2d_av over time and a plane."""
    return taps.av("na3d_av", 3, attn, value, kernel_size, dilation, additional_values, is_causal)


def use_fused_na(mode: bool = True, kv_parallel: bool = True) -> None:
    """Changes nothing: na1d, na2d and na3d are fused, and na1d_qk and the like are not."""
    take("use_fused_na", "mode", "flag", mode)
    take("use_fused_na", "kv_parallel", "flag", kv_parallel)


def is_fna_enabled() -> bool:
    """True: see use_fused_na."""
    return True


# --- modules ---


class _NeighborhoodAttention(nn.Module):
    """A layer with NATTEN's parameters, qkv and proj, and its arguments."""

    rank = 0

    def __init__(
        self, embed_dim: int, num_heads: int, kernel_size: _Sizes, stride: _Sizes = 1, dilation: _Sizes = 1, is_causal: _Causal = False,
        qkv_bias: bool = True, qk_scale: float | None = None, proj_drop: float = 0.0, *, rel_pos_bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        place = type(self).__name__
        embed_dim, num_heads = (at_least(place, name, 1, x) for name, x in (("embed_dim", embed_dim), ("num_heads", num_heads)))
        if embed_dim % num_heads != 0:
            raise InvalidError(f"{place}: embed_dim: is {embed_dim}, and num_heads {num_heads}, which is no divisor of it")
        window = window_of(place, self.rank, kernel_size, stride, dilation, is_causal, None)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scale = scale_of(place, qk_scale) or self.head_dim**-0.5
        self.kernel_size, self.stride, self.dilation, self.is_causal = window
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.rpb = nn.Parameter(torch.empty(num_heads, *(2 * k - 1 for k in self.kernel_size))) if rel_pos_bias else None
        if self.rpb is not None:
            nn.init.trunc_normal_(self.rpb, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        place = type(self).__name__
        if x.dim() != self.rank + 2:
            raise InvalidError(f"{place}: x: has {x.dim()} axes, expected {self.rank + 2}: batch, {', '.join(_AXES[-self.rank :])} and embed_dim")
        if x.shape[-1] != self.embed_dim:
            raise InvalidError(f"{place}: x: has {x.shape[-1]} channels, and embed_dim is {self.embed_dim}")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(-3)
        o = neighborhood_attention_generic(q, k, v, self.kernel_size, self.stride, self.dilation, self.is_causal, self.scale, rpb=self.rpb)
        y: Tensor = self.proj_drop(self.proj(o.flatten(-2)))
        return y

    def extra_repr(self) -> str:
        names = ("head_dim", "num_heads", "kernel_size", "stride", "dilation", "is_causal")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class NeighborhoodAttention1D(_NeighborhoodAttention):
    """A layer over x [batch, x, embed_dim]: qkv, na1d and proj. rel_pos_bias: with a learned rpb."""

    rank = 1


class NeighborhoodAttention2D(_NeighborhoodAttention):
    """A layer over x [batch, y, x, embed_dim]: qkv, na2d and proj. rel_pos_bias: with a learned rpb."""

    rank = 2


class NeighborhoodAttention3D(_NeighborhoodAttention):
    """A layer over x [batch, t, y, x, embed_dim]: qkv, na3d and proj. rel_pos_bias: with a learned rpb."""

    rank = 3
