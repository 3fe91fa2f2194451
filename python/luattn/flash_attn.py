"""flash-attn 2's functions on luattn: import them from here instead of flash_attn; and torch.nn.attention.varlen's varlen_attn.

Signatures, alignment and shapes are theirs, random numbers are luattn's own. Types, head dims, gradients and devices are luattn's: the CPU and float32 too, and slopes
may learn. A call is a spec of its mask and score, which is written and loaded when it is first needed.
"""

import collections
import functools
from typing import Any

import torch
from torch import Tensor

from . import _kvcache, _tangents
from ._arguments import Arguments, take
from ._attend import attend, seed_of, weights, with_scale
from ._scale import check_scale
from ._spec import Spec, spec_of
from .attention import Attention
from .errors import InvalidError, Unsupported

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "to_attention",
    "varlen_attn",
    "varlen_attn_out",
]

_OPTIONS = {
    "dropout_p": "real", "softmax_scale": "scale?", "causal": "flag", "window_size": "any", "softcap": "cap", "alibi_slopes": "torch?", "deterministic": "flag",
    "return_attn_probs": "flag",
}  # fmt: skip
_QKV = {"q": "torch", "k": "torch", "v": "torch"}
_CU = {"cu_seqlens_q": "torch", "cu_seqlens_k": "torch", "max_seqlen_q": "integer", "max_seqlen_k": "integer"}
_OF_OPTIONS = Arguments(**{name: _OPTIONS[name] for name in ("dropout_p", "causal", "window_size", "softcap", "alibi_slopes")})
_OF_DENSE = Arguments(**_QKV, **_OPTIONS)
_OF_VARLEN = Arguments(**_QKV, **_CU, **_OPTIONS, block_table="torch?")
_OF_VARLEN_QKV = Arguments(qkv="torch", cu_seqlens="torch", max_seqlen="integer", **_OPTIONS)
_OF_VARLEN_KV = Arguments(q="torch", kv="torch", **_CU, **_OPTIONS)
_OF_VARLEN_ATTN = Arguments(
    query="torch", key="torch", value="torch", cu_seq_q="torch", cu_seq_k="torch?", max_q="integer", max_k="integer", scale="scale?", window_size="any",
    enable_gqa="flag", seqused_k="torch?", block_table="torch?", num_splits="integer?", return_aux="aux?",
)  # fmt: skip
_OF_CACHE = Arguments(
    **{name: "torch" for name in ("q", "k_cache", "v_cache")},
    **{name: "torch?" for name in ("k", "v", "rotary_cos", "rotary_sin", "cache_batch_idx", "cache_leftpad", "block_table", "page_table", "alibi_slopes")},
    **{name: "torch?" for name in ("cu_seqlens_q", "cu_seqlens_k_new")},
    cache_seqlens="length?", softmax_scale="scale?", causal="flag", window_size="any", softcap="cap", rotary_interleaved="flag", num_splits="integer",
    return_softmax_lse="flag", max_seqlen_q="integer?", attention_chunk="integer", out="torch?", sinks="torch?",
)  # fmt: skip
_named: Any = collections.namedtuple
_Cache = _named("_Cache", _OF_CACHE.names)  # the arguments of flash_attn_with_kvcache
_Window = tuple[int, int]
_ANY_LENGTH = 1 << 30
# A tensor, or what else an option asks for beside it. A union would have to be taken apart, and overloads would say each signature three times.
_Result = Tensor | Any
_Rotary = tuple[int, bool, bool] | None


def _text(
    left: int, right: int, softcap: float, slopes: int, dropout_p: float, leftpad: bool = False, rotary: _Rotary = None, chunk: int = 0,
    sinks: bool = False,
) -> str:  # fmt: skip
    """The spec of a window (negative: without an end), a cap (0: none), the number of axes of alibi_slopes, a dropout, whether
    keys begin at an input `leftpad`, a rotary embedding: channels, whether pairs are neighbours, and whether each query has its own position;
    the length of the chunks in which queries see keys (0: all); and whether each head has a sink."""
    distance, lines = "q_idx + kv_len - q_len - kv_idx", ["return attention {", '  name = "flash_attn",']
    axes, index = ('"h"', "h") if slopes == 1 else ('"b", "h"', "{b, h}")
    inputs = [f'alibi_slopes = {{ axes = {{{axes}}}, dtype = "any", grad = true }}'] * (slopes > 0)
    inputs += ['leftpad = { axes = {"b"}, dtype = "i32" }'] * leftpad
    inputs += ['sinks = { axes = {"h"}, dtype = "any", grad = true }'] * sinks
    if rotary is not None:
        inputs += [f'rotary_{x} = {{ axes = {{"position", "pair"}}, dtype = "any" }}' for x in ("cos", "sin")]
        inputs.append('first_new = { axes = {"b"}, dtype = "i32" }')
        channels, interleaved, spread = rotary
        turn = f'{"rotary_interleaved" if interleaved else "rotary"}("rotary_cos", "rotary_sin", {{ channels = {channels} }})'
        lines.insert(0, f"local turn = {turn}")
        at = "first_new[b] + pos" if spread else "first_new[b]"
        lines += ["  key_mod = turn,", f"  query_mod = function(x, b, h, pos, d) return turn(x, b, h, {at}, d) end,"]
    if inputs:
        lines.append(f"  inputs = {{ {', '.join(inputs)} }},")
    if slopes or softcap:
        lines.append("  score_mod = function(score, b, h, q_idx, kv_idx)")
        if softcap:
            lines.append(f"    score = {softcap!r} * tanh(score / {softcap!r})")
        if slopes:
            lines.append(f"    score = score - alibi_slopes[{index}] * abs({distance})")
        lines += ["    return score", "  end,"]
    kept = [f"d <= {left}"] * (left >= 0) + [f"d >= {-right}"] * (right >= 0)
    kept += ["kv_idx >= leftpad[b]"] * leftpad
    if chunk:  # counted from the first key that is not left padding
        kept += [f"kv_idx >= first and kv_idx < first + {chunk}"]
    if (left, right) == (-1, 0) and not leftpad and not chunk:
        lines.append("  block_mask = causal_bottom_right(),")
    elif kept:
        lines.append("  block_mask = function(b, h, q_idx, kv_idx)")
        lines.append(f"    local d = {distance}")
        if chunk:
            first_key = "leftpad[b]" if leftpad else "0"
            lines.append(f"    local first = (d + kv_idx - {first_key}) // {chunk} * {chunk} + {first_key}")
        lines += [f"    return {' and '.join(kept)}", "  end,"]
    online = 'attention_sink("sinks")' if sinks else ""
    if dropout_p:
        online = f"dropout({dropout_p!r}, {online})" if sinks else f"dropout({dropout_p!r})"
    if online:
        lines.append(f"  online_func = {online},")
    return "\n".join([*lines, "}", ""])


def _spec(
    left: int, right: int, softcap: float, slopes: int, dropout_p: float, leftpad: bool = False, rotary: _Rotary = None, chunk: int = 0,
    sinks: bool = False,
) -> Spec:  # fmt: skip
    options = left, right, softcap, slopes, dropout_p, leftpad, rotary, chunk, sinks
    if torch.compiler.is_dynamo_compiling():  # its numbers may be symbols, which a spec turns into constants that the graph is guarded by
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        options = tuple(guard_scalar(x) if isinstance(x, (int, float)) else x for x in options)  # type: ignore[assignment]
    return _constant(*options)


def _constant(*options: Any) -> Spec:
    return _loaded(*options)


_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does, after seconds of imports


@functools.lru_cache(256)
def _loaded(*options: Any) -> Spec:
    return spec_of(_text(*options), "flash_attn")


def _window(name: str, window_size: Any, causal: bool, longest: int) -> _Window:
    if type(window_size) is not tuple or len(window_size) != 2 or type(window_size[0]) is not int or type(window_size[1]) is not int:
        window_size = window_size if torch.compiler.is_compiling() else take(name, "window_size", "pair", window_size)
    left, right = (-1 if n < 0 or n >= longest else int(n) for n in window_size)
    return left, 0 if causal else right


def _cap(name: str, softcap: Any) -> float:
    """A cap as text has it; 0: none."""
    if isinstance(softcap, Tensor) and softcap.requires_grad:
        raise InvalidError(f"{name}: softcap: requires a gradient, and a cap is a constant here: write a spec with a scalar, or pass float(softcap)")
    _tangents.refuse_in(f"{name}: softcap", softcap)
    cap = float(softcap)
    if not (cap <= 0 or 2**-126 <= cap < 2**127):
        raise InvalidError(f"{name}: softcap: is {cap:g}, expected 1.17549e-38 to 1.70141e+38, or 0 for no cap")
    return max(cap, 0.0)


def _spec_and_inputs(
    name: str, longest: int, dropout_p: float, causal: bool, window_size: Any, softcap: float, alibi_slopes: Tensor | None, sinks: Tensor | None
) -> tuple[Spec, list[Any]]:  # fmt: skip
    """What the options say, of keys that are `longest` at most."""
    if not 0 <= dropout_p < 1:
        raise InvalidError(f"{name}: dropout_p: is {dropout_p}, expected a number of at least 0 and below 1")
    slopes = 0 if alibi_slopes is None else alibi_slopes.dim()
    if alibi_slopes is not None and slopes not in (1, 2):
        raise InvalidError(f"{name}: alibi_slopes: has {slopes} axes, expected (nheads) or (batch_size, nheads)")
    spec = _spec(*_window(name, window_size, causal, longest), _cap(name, softcap), slopes, float(dropout_p), sinks=sinks is not None)
    named = {"alibi_slopes": alibi_slopes, "sinks": sinks}
    inputs: list[Any] = [named[one.name] for one in spec.inputs]
    return spec, inputs


def _attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    longest: int,
    given: dict[str, Any],
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    *,
    swapped: bool = False,
    out: Any = None,
    sinks: Tensor | None = None,
) -> Any:
    """The functions of flash-attn, of tensors as luattn takes them. swapped: lengths are before heads. sinks: sinks_of()."""
    spec, inputs = _spec_and_inputs(name, longest, dropout_p, causal, window_size, softcap, alibi_slopes, sinks)
    scale = max(q.shape[-1], 1) ** -0.5 if softmax_scale is None else softmax_scale
    said = "scale" if name.startswith("varlen_attn") else "softmax_scale"
    if not isinstance(scale, Tensor):
        scale = check_scale(name, scale, said)
    elif scale.numel() != 1:
        raise InvalidError(f"{name}: {said}: has shape {tuple(scale.shape)}, expected one element, or a number")
    if deterministic:
        given = {**given, "deterministic": True}
    if spec.draws:
        given = {**given, "seed": seed_of(None, q)}
    o, lse = attend(spec, q, k, v, inputs, [], scale, given, return_attn_probs, swapped, out)
    if not return_attn_probs:
        return o
    if not spec.draws:
        return o, lse, None
    if swapped:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    spec, found, scalars, plain = with_scale(spec, q, inputs, (), scale)
    return o, lse, weights(spec, q, k, v, found, scalars, plain, given).to(o.dtype)


def sinks_of(name: str, s_aux: Any, learnable_sink: Any) -> Tensor | None:
    """A logit of each head, under either of the names that flash-attn 3 and 4 have for it."""
    if s_aux is not None and learnable_sink is not None:
        raise InvalidError(f"{name}: learnable_sink: is s_aux's other name, and both are given")
    said, x = ("s_aux", s_aux) if learnable_sink is None else ("learnable_sink", learnable_sink)
    if x is None:
        return None
    take(name, said, "torch", x)
    if x.dim() != 1:
        raise InvalidError(f"{name}: {said}: has {x.dim()} axes, expected (nheads)")
    return x  # type: ignore[no-any-return]


def _unbind(name: str, what: str, packed: Tensor, count: int) -> tuple[Tensor, ...]:
    """q, k and v out of [.., count, heads, headdim]."""
    take(name, what, "torch", packed)
    if packed.dim() < 3 or packed.shape[-3] != count:
        raise InvalidError(
            f"{name}: {what}: is {tuple(packed.shape)}, expected {count} in the place of its third last axis"
        )
    return packed.unbind(-3)


def to_attention(
    *, causal: bool = False, window_size: _Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None, dropout_p: float = 0.0,
    s_aux: Tensor | None = None, learnable_sink: Tensor | None = None,
) -> tuple[Attention, dict[str, Tensor]]:  # fmt: skip
    """The attention that flash_attn_func with these options computes, and the tensors among them by the names of its inputs: for what takes an attention,
    as luattn.parallel.ContextParallel does.

        attention, tensors = luattn.flash_attn.to_attention(causal=True, window_size=(4096, 0), s_aux=sinks)
        o = attention(q, k, v, layout="bshd", **tensors)  # as flash_attn_func(q, k, v, causal=True, window_size=(4096, 0), s_aux=sinks)
    """
    name = "to_attention"
    dropout_p, causal, window_size, softcap, alibi_slopes = _OF_OPTIONS.take(name, dropout_p, causal, window_size, softcap, alibi_slopes)
    spec, inputs = _spec_and_inputs(name, _ANY_LENGTH, dropout_p, causal, window_size, softcap, alibi_slopes, sinks_of(name, s_aux, learnable_sink))
    return Attention(spec), {info.name: t for info, t in zip(spec.inputs, inputs)}


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """As flash_attn's: q is [batch, length, heads, headdim], and so is the result; masks are aligned at the last query and key.

    out: a tensor for the result, without gradients. s_aux, or learnable_sink: a logit of each head (nheads), which takes its share of each row
    and has no value, as flash-attn 3 and 4 have it, with a gradient; softmax_lse has it too. The other functions take these as well.

    return_attn_probs: also softmax_lse [batch, heads, length], and S_dmask [batch, heads, queries, keys]: the weights without dropout,
    negative where they are dropped, for tests and pictures; None without dropout. dropout_p counts in steps of 1/256.
    """
    return _dense(
        "flash_attn_func", q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, out=out, sinks=sinks_of("flash_attn_func", s_aux, learnable_sink),
    )  # fmt: skip


def _dense(name: str, q: Tensor, k: Tensor, v: Tensor, *options: Any, **extras: Any) -> Any:
    q, k, v, *options = _OF_DENSE.take(name, q, k, v, *options)  # type: ignore[assignment]
    for what, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 4:
            raise InvalidError(f"{name}: {what}: has {t.dim()} axes, expected (batch_size, seqlen, nheads, headdim)")
    return _attend(name, q, k, v, k.shape[1], {}, *options, swapped=True, **extras)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """flash_attn_func of one tensor [batch, length, 3, heads, headdim], which is read as it lies."""
    name = "flash_attn_qkvpacked_func"
    q, k, v = _unbind(name, "qkv", qkv, 3)
    return _dense(
        name, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, out=out, sinks=sinks_of(name, s_aux, learnable_sink),
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """flash_attn_func of keys and values in one tensor [batch, length, 2, heads, headdim]."""
    name = "flash_attn_kvpacked_func"
    k, v = _unbind(name, "kv", kv, 2)
    return _dense(
        name, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, out=out, sinks=sinks_of(name, s_aux, learnable_sink),
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """As flash_attn's: sequences follow one another in q, [total, heads, headdim]; cu_seqlens are int32 [batch + 1].

    return_attn_probs: also softmax_lse [heads, total_q], and S_dmask [batch, heads, max_seqlen_q, max_seqlen_k] or None. block_table:
    k and v are [blocks, block size, heads_k, headdim], with blocks of any size, and cu_seqlens_k says how many rows each sequence has;
    without gradients.
    """
    name = "flash_attn_varlen_func"
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options, block_table = _OF_VARLEN.take(
        name, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, block_table,
    )  # fmt: skip
    if block_table is not None:
        return _paged(name, q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table, max_seqlen_q, max_seqlen_k, *options, out=out, sinks=sinks_of(name, s_aux, learnable_sink))
    return _packed(name, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options, out=out, sinks=sinks_of(name, s_aux, learnable_sink))


def _packed(
    name: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *options: Any, used: Any = None,
    splits: int = 0, **extras: Any,
) -> Any:
    for what, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 3:
            raise InvalidError(f"{name}: {what}: has {t.dim()} axes, expected (total, nheads, headdim)")
    given: dict[str, Any] = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": max_q, "max_seqlen_k": max_k}
    if used is not None:
        given["seqused_k"] = used
    return _attend(name, q, k, v, max_k, given | ({"num_splits": splits} if splits else {}), *options, **extras)


def _paged(
    name: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Any, used: Any, table: Any, max_q: int, max_k: int, *options: Any, splits: int = 0, **extras: Any
) -> Any:
    for what, t, axes in (("q", q, "total, nheads, headdim"), ("k", k, "blocks, size, nheads, headdim"), ("v", v, "the same")):
        if t.dim() != axes.count(",") + 1 and axes != "the same":
            raise InvalidError(f"{name}: {what}: has {t.dim()} axes, expected ({axes}) beside block_table")
    if options[-1] and options[0]:
        raise Unsupported(f"{name}: return_attn_probs: there are no weights of a dropout beside block_table; leave out one of them")
    given = {"cu_seqlens_q": cu_q, "max_seqlen_q": max_q, "max_seqlen_k": max_k, "seqused_k": used, "block_table": table.contiguous()}
    given |= {"num_splits": splits} if splits else {}
    return _attend(name, q, k.transpose(1, 2), v.transpose(1, 2), max_k, given, *options, **extras)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """flash_attn_varlen_func of one tensor [total, 3, heads, headdim]."""
    name = "flash_attn_varlen_qkvpacked_func"
    qkv, cu_seqlens, max_seqlen, *options = _OF_VARLEN_QKV.take(
        name, qkv, cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )
    q, k, v = _unbind(name, "qkv", qkv, 3)
    return _packed(name, q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, out=out, sinks=sinks_of(name, s_aux, learnable_sink))


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> _Result:
    """flash_attn_varlen_func of keys and values in one tensor [total, 2, heads, headdim]."""
    name = "flash_attn_varlen_kvpacked_func"
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options = _OF_VARLEN_KV.take(
        name, q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip
    k, v = _unbind(name, "kv", kv, 2)
    return _packed(name, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options, out=out, sinks=sinks_of(name, s_aux, learnable_sink))


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    attention_chunk: int = 0,
    out: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    **of_flash_attn_3: Any,
) -> _Result:
    """As flash_attn's, without gradients as theirs: q is [batch, length, heads, headdim], and attends over the first cache_seqlens rows
    of each cache [batch_cache, longest, heads_k, headdim] and k and v [batch, new, heads_k, headdim], which are written there first, in
    place; with rotary_cos and rotary_sin they and q are rotated by their positions. cache_leftpad: keys begin there. return_softmax_lse:
    also [batch, heads, length].

    With block_table, the caches are [blocks, block size, heads_k, headdim], of any block size, and what lies behind a sequence's end is
    not read, nor is its table. num_splits is that of kernels for few queries and many keys; others do not split. 0: luattn's choice; with 1
    a sequence's result does not depend on its neighbours.

    flash-attn 3's page_table is block_table, whose rows cache_batch_idx chooses too; with cu_seqlens_q and max_seqlen_q, q is packed
    [total, heads, headdim], and lse [heads, total]; with cu_seqlens_k_new, k and v are packed [total_new, heads_k, headdim]; with an
    attention_chunk, a query sees the keys of its chunk of so many positions; s_aux, or learnable_sink, has a sink's logit of each head. Its pack_gqa, sm_margin, scheduler_metadata and a rotary_seqlens that is
    cache_seqlens change nothing here; its other arguments are refused.
    """
    if of_flash_attn_3:
        _kvcache.check_flash_attn_3(of_flash_attn_3, cache_seqlens)
    given = _Cache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, block_table, page_table, alibi_slopes, cu_seqlens_q,
        cu_seqlens_k_new, cache_seqlens, softmax_scale, causal, window_size, softcap, rotary_interleaved, num_splits, return_softmax_lse, max_seqlen_q,
        attention_chunk, out, None if s_aux is learnable_sink is None else sinks_of("flash_attn_with_kvcache", s_aux, learnable_sink),
    )  # fmt: skip
    known = _kvcache.known_call(given)
    found: Any = known and known.run(k)
    if found is None:
        found = _kvcache.run(_Cache(*_OF_CACHE.take("flash_attn_with_kvcache", *given)), known)
    return tuple(found) if return_softmax_lse else found[0]


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: _Window = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> _Result:
    """As torch.nn.attention.varlen's, with a gradient of lse too, and beside seqused_k; not beside block_table. window_size (-1, 0) is causal, aligned
    at the last query and key. num_splits is that of kernels for few queries and many keys; others do not split."""
    return _varlen(
        "varlen_attn", None, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, seqused_k, block_table, num_splits, return_aux
    )


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: _Window = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> _Result:
    """varlen_attn into `out`, which is returned; without gradients."""
    return _varlen(
        "varlen_attn_out", take("varlen_attn_out", "out", "torch", out), query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa,
        seqused_k, block_table, num_splits, return_aux,
    )  # fmt: skip


def _varlen(name: str, out: Tensor | None, *given: Any) -> Any:
    query, key, value, cu_seq_q, cu_seq_k, *lengths, scale, window_size, enable_gqa, seqused_k, block_table, num_splits, return_aux = _OF_VARLEN_ATTN.take(
        name, *given
    )
    if cu_seq_k is None and (block_table is None or seqused_k is None):
        raise InvalidError(f"{name}: cu_seq_k: is None, which goes with block_table and seqused_k alone")
    if query.dim() == 3 and key.dim() in (3, 4) and query.shape[1] != key.shape[-2] and not enable_gqa:
        raise InvalidError(f"{name}: query has {query.shape[1]} heads and key {key.shape[-2]}: set enable_gqa=True")
    want_lse = return_aux is not None and return_aux.lse
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        raise Unsupported(f"{name}: return_aux: max_scores do not exist yet")
    options = *lengths, 0.0, scale, False, window_size, 0.0, None, False, want_lse
    if block_table is not None:
        used = seqused_k if seqused_k is not None or cu_seq_k is None else cu_seq_k.diff()
        found = _paged(name, query, key, value, cu_seq_q, used, block_table, *options, splits=num_splits or 0, out=out)
    else:
        found = _packed(name, query, key, value, cu_seq_q, cu_seq_k, *options, used=seqused_k, splits=num_splits or 0, out=out)
    return found[:2] if want_lse else found
