"""Operators of flash-linear-attention 0.6 (fla.ops) and of mamba-ssm's SSD by their names and arguments, on the CPU and on GPUs:

    from luattn.fla import chunk_gated_delta_rule      # was: from fla.ops.gated_delta_rule import chunk_gated_delta_rule

chunk_ and fused_recurrent_ of an operator compute the same: which kernel does is a matter of the call's lengths. Tensors are torch's, [B, T, H, ..];
autograd has all gradients. What an argument asks for and cannot have is refused by its name."""

import sys
import warnings
from collections.abc import Sequence
from opcode import opmap
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import take, what
from ._fla_specs import operator
from .errors import InvalidError, Unsupported
from .linear import CHUNK

__all__ = [
    *(f"{kind}_{name}" for kind in ("chunk", "fused_recurrent") for name in (
        "comba", "delta_rule", "gated_delta_rule", "gla", "kda", "lightning_attn", "linear_attn", "retention", "rwkv7", "simple_gla",
    )),
    "mamba_chunk_scan_combined",
    "selective_state_update",
]  # fmt: skip

# Arguments that say how a kernel is to compute, and change nothing of what.
_HOW = ("cu_seqlens_cpu", "chunk_indices", "chunk_size", "disable_recompute", "max_num_seqs", "head_first")
# Those that fla's kernels take: any of them gives the same here.
_CHUNK_SIZES = {"kda": (32, CHUNK), "others": (16, 32, CHUNK, 128, 256)}
_WHY = {
    "reverse": "a sequence is taken from its beginning; flip the tensors along T, and o back",
    "gv": "a decay of channels of v is no linear attention of this form",
    "gk": "this operator has one decay a token; chunk_kda has one a channel",
    "cp_context": "a sequence lies on one device; run each part from the final state of the one before it",
    "use_graph": "capture the call into a torch.cuda.CUDAGraph",
}
# fla's operators that are no recurrence of this form, and what they need.
_NEEDS = {
    "chunk_log_linear_attn": "a state for each level of a tree over the tokens",
    "chunk_mesa_net": "a matrix that is inverted for every query",
    **dict.fromkeys(("chunk_gsa", "fused_recurrent_gsa"), "two states, of which one is read by a softmax of what the other gives"),
    **dict.fromkeys(("chunk_ttt_linear", "fused_chunk_ttt_linear"), "a state that a nonlinear network updates"),
    "parallel_path_attn": "products of the transitions between every two tokens",
}


class _NoSuchName(Unsupported, AttributeError):
    """A name of fla's that this module has not: hasattr() is False."""


class _NoSuchImport(Unsupported, ImportError):
    """The same of an import, which would make of an AttributeError an ImportError of its own words."""

    def __init__(self, message: str) -> None:
        ImportError.__init__(self, message, name=__name__)


def _is_import() -> bool:
    """Whether the caller's caller runs `from luattn.fla import ..`. A thread that begins with getattr() has no such caller."""
    frame = sys._getframe(1).f_back
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def __getattr__(name: str) -> Any:
    if name in _NEEDS:
        error = _NoSuchImport if _is_import() else _NoSuchName
        raise error(f"luattn.fla: {name}: it needs {_NEEDS[name]}, and linear_attention has one state, which each token updates linearly; take fla's own")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _refuse(name: str, given: dict[str, Any]) -> None:
    for key, value in given.items():
        if key == "head_first" and value:
            raise InvalidError(f"{name}: head_first: is {what(value)}; tensors are [B, T, H, ..], so transpose them")
        if key == "chunk_size" and value is not None and value not in _CHUNK_SIZES.get(name, _CHUNK_SIZES["others"]):
            sizes = " or ".join(map(str, _CHUNK_SIZES.get(name, _CHUNK_SIZES["others"])))
            raise InvalidError(f"{name}: chunk_size: is {what(value)}; give {sizes}, which changes nothing, or leave it out")
        if key in _HOW or (key in _WHY and (value is None or value is False)):
            continue
        if key in _WHY:
            raise Unsupported(f"{name}: {key}: is {what(value)}; {_WHY[key]}")
        raise InvalidError(f"{name}: {key}: is no argument that this operator knows; leave it out")


def _value_first(name: str, state_v_first: bool, given: dict[str, Any]) -> bool:
    """state_v_first, or what fla called it before, which leaves `given`."""
    if "transpose_state_layout" not in given:
        return state_v_first
    if state_v_first:
        raise InvalidError(f"{name}: transpose_state_layout: is an older name of state_v_first, and both are given; pass state_v_first alone")
    warnings.warn(f"{name}: transpose_state_layout is an older name of state_v_first", DeprecationWarning, stacklevel=3)
    return bool(given.pop("transpose_state_layout"))


# --- types and channels that fla's kernels take, and ours do not ---


def _one_type(name: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the type that holds all of them."""
    q, k, v = (take(name, of, "torch", x) for of, x in (("q", q), ("k", k), ("v", v)))
    for said, x in (("q", q), ("k", k), ("v", v)):
        if not x.is_floating_point():  # results have v's type
            raise InvalidError(f"{name}: {said}: is {what(x)}; convert it to a floating-point type")
    of = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return q.to(of), k.to(of), v.to(of)


def _wants_eights(x: Tensor) -> bool:
    """Kernels take head dims that are multiples of 8; the CPU takes all."""
    return x.is_cuda


def _to_eights(x: Tensor, count: int) -> Tensor:
    """x with zeros behind its last axis of `count` channels, up to a multiple of 8."""
    return F.pad(x, (0, -count % 8)) if x.shape[-1] == count else x


def _pad_state(x: Tensor, rows: int, columns: int) -> Tensor:
    """States [.., rows, columns], with zeros up to multiples of 8."""
    return F.pad(x, (0, -columns % 8, 0, -rows % 8))


# Inputs with channels of k, or of v (D), and their axes where they have them.
_OF_CHANNELS = {"g": 4, "p": 4, "a": 4, "e": 4, "D": 2}


def _run_all(
    name: str,
    decay: str,
    update: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    state_v_first: bool = False,
    norm: bool = False,
    every: int | None = None,
    **inputs: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """o, the final state, and with `every` the states before each so many tokens."""
    op = operator(name, decay, update, norm)
    initial_state = take(name, "initial_state", "torch?", initial_state)
    first = initial_state if initial_state is None or initial_state.dtype is torch.float64 else initial_state.float()
    has_state = first is not None or output_final_state or every is not None
    of = v.dtype if isinstance(v, Tensor) else None
    q, k, v = _one_type(name, q, k, v)
    channels, values = k.shape[-1], v.shape[-1]
    is_padded = _wants_eights(k) and min(channels, values) >= 8 and bool(channels % 8 or values % 8)
    if is_padded:
        scale = channels**-0.5 if scale is None else scale
        q, k, v = _to_eights(q, channels), _to_eights(k, channels), _to_eights(v, values)
        inputs = {n: _to_eights(x, values if n == "D" else channels) if isinstance(x, Tensor) and n in _OF_CHANNELS and x.dim() == _OF_CHANNELS[n] else x for n, x in inputs.items()}
        first = None if first is None else _pad_state(first, *((values, channels) if state_v_first else (channels, values)))
    result = op(
        q, k, v, scale=scale, cu_seqlens=cu_seqlens, initial_state=first, output_final_state=output_final_state,
        state_layout=("vk" if state_v_first else "kv") if has_state else None, states_every=every, **inputs,
    )  # fmt: skip
    o, *states = result if isinstance(result, tuple) else (result,)
    if is_padded:
        o = o[..., :values]
        states = [x[..., :values, :channels] if state_v_first else x[..., :channels, :values] for x in states]
    return o.to(of), states[0] if output_final_state else None, states[-1] if every is not None else None


def _run(*call: Any, **more: Any) -> tuple[Tensor, Tensor | None]:
    """o and the final state."""
    return _run_all(*call, **more)[:2]


def _whole(states: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """States of chunks without what lies between those of two sequences."""
    if cu_seqlens is None:
        return states
    ends = cu_seqlens.tolist()
    rows = [first // CHUNK + i + n for i, (first, end) in enumerate(zip(ends, ends[1:])) for n in range(-(-(end - first) // CHUNK))]
    return states[:, torch.tensor(rows, dtype=torch.int64, device=states.device)]


# --- decays and strengths that an operator makes itself ---


def _number_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _as_number(x: Tensor) -> Tensor:
    """What a decay or a strength is made of: halves would round it."""
    return x.to(_number_type(x))


def _gate(name: str, g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None) -> Tensor:
    """The logarithm of a decay, of a gate's input [.., HV] or [.., HV, K]."""
    g, A_log, dt_bias = take(name, "g", "torch", g), take(name, "A_log", "torch?", A_log), take(name, "dt_bias", "torch?", dt_bias)
    shape = g.shape[-2:] if g.dim() == 4 else g.shape[-1:]
    for of, t, count in (("A_log", A_log, shape[0]), ("dt_bias", dt_bias, shape.numel())):
        if t is not None and t.numel() != count:
            raise InvalidError(f"{name}: {of}: has {t.numel()} numbers, expected {count}, as g {tuple(g.shape)} has them")
    x = _as_number(g) if dt_bias is None else _as_number(g) + dt_bias.view(shape)
    factor = None if A_log is None else _as_number(A_log).exp().view(-1, *[1] * (len(shape) - 1))
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(x if factor is None else factor * x)
    if factor is None:
        raise InvalidError(f"{name}: A_log: is missing, and use_gate_in_kernel asks for -exp(A_log) * softplus(g + dt_bias)")
    return -factor * F.softplus(x)


def _refuse_gate(name: str, **given: Any) -> None:
    """What a decay would be made of, where nobody asks for that: learned parameters would go unread."""
    for of, x in given.items():
        if x is not None:
            raise InvalidError(f"{name}: {of}: is given, and use_gate_in_kernel is False, so that g is the decay itself; pass use_gate_in_kernel=True, or leave it out")


def _check_shape(name: str, of: str, x: Any, shape: Sequence[int]) -> None:
    take(name, of, "torch?", x)
    if x is not None and tuple(x.shape) != tuple(shape):
        raise InvalidError(f"{name}: {of}: has shape {tuple(x.shape)}, expected {tuple(shape)}")


def _strength(name: str, beta: Tensor | None, v: Tensor, is_logit: bool, is_signed: bool) -> Tensor:
    beta = take(name, "beta", "torch?", beta)
    if beta is None and is_logit:
        raise InvalidError(f"{name}: beta: is missing, and use_beta_sigmoid_in_kernel asks for its sigmoid")
    if beta is None:
        return torch.ones(v.shape[:3], dtype=torch.float32, device=v.device)
    if beta.dim() == 4:
        raise Unsupported(f"{name}: beta: has {tuple(beta.shape)}; one for each channel of v is no linear attention of this form: give [B, T, HV]")
    if is_signed and not is_logit:
        raise InvalidError(f"{name}: allow_neg_eigval: goes with use_beta_sigmoid_in_kernel alone")
    return (2 if is_signed else 1) * _as_number(beta).sigmoid() if is_logit else beta


# --- fla.ops ---


def _by_head(name: str, q: Tensor, k: Tensor, v: Tensor, g_gamma: Tensor, *given: Any, **more: Any) -> tuple[Tensor, Tensor | None]:
    return _run(name, "head", "add", q, k, v, *given, g=g_gamma, **more)


def chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, *, state_v_first: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    name = "simple_gla"
    state_v_first = _value_first(name, state_v_first, kwargs)
    _refuse(name, kwargs)
    call = (q, k, v, scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    if g is None:
        return _by_head(name, q, k, v, g_gamma, *call[3:]) if g_gamma is not None else _run(name, "none", "add", *call)
    return _run(name, "token", "add", *call, g=g if g_gamma is None else g + g_gamma)


def chunk_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False,
    *, cu_seqlens: Tensor | None = None, state_v_first: bool = False, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    state_v_first = _value_first("retention", state_v_first, kwargs)
    _refuse("retention", kwargs)
    gamma = (1 - 2.0 ** (-5.0 - torch.arange(v.shape[2], dtype=torch.float64))).log().to(v.device)
    return _by_head("retention", q, k, v, gamma, scale, initial_state, output_final_state, cu_seqlens, state_v_first)


def chunk_lightning_attn(
    q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, *, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    _refuse("lightning_attn", kwargs)
    heads = v.shape[2]
    gamma = -(8 / heads * (1 - layer_idx / num_layers)) * torch.arange(heads, dtype=torch.float64)
    gamma = gamma.to(v.device)
    return _by_head("lightning_attn", q, k, v, gamma, scale, initial_state, output_final_state, cu_seqlens)


def chunk_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None, output_final_state: bool = False,
    normalize: bool = True, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """With normalize states are pairs, as in fla: of k v', and of the sum of k [N, 1, H, K]."""
    _refuse("linear_attn", kwargs)
    first, of_sum = initial_state if normalize and isinstance(initial_state, tuple) else (initial_state, None)
    o, final = _run("linear_attn", "none", "add", q, k, v, scale, first, output_final_state, cu_seqlens)
    if not normalize:
        return o, final
    if v.shape[2] != q.shape[2]:
        raise InvalidError(f"linear_attn: normalize: divides heads of v by sums of k, and v has {v.shape[2]} heads and k {k.shape[2]}; repeat q and k, or pass normalize=False")
    channels = 1 if k.device.type == "cpu" else 8  # kernels take multiples of 8
    ones = torch.ones(*k.shape[:3], channels, dtype=_number_type(k) if k.device.type == "cpu" else k.dtype, device=k.device)
    start = None if of_sum is None else of_sum.transpose(1, 2).transpose(2, 3)  # [N, H, K, 1]
    start = start if start is None else start.expand(*start.shape[:3], channels)
    total, last = _run("linear_attn", "none", "add", q, k, ones, scale, start, True, cu_seqlens)
    total = total[..., :1]
    o = (o / (total + 1e-10)).to(o.dtype)
    assert last is not None
    last = last[..., :1]
    return o, (final, last.transpose(2, 3).transpose(1, 2))


def fused_recurrent_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None, output_final_state: bool = False,
    reverse: bool = False, normalize: bool = False, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    return chunk_linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens, reverse=reverse)


def chunk_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    state_v_first = _value_first("gla", state_v_first, kwargs)
    _refuse("gla", kwargs)
    return _run("gla", "channel", "add", q, k, v, scale, initial_state, output_final_state, cu_seqlens, state_v_first, g=g)


def fused_recurrent_gla(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, gv: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    state_v_first = _value_first("gla", state_v_first, kwargs)
    _refuse("gla", {"gv": gv, "reverse": reverse, **kwargs})
    call = (q, k, v, scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    return _run("gla", "none", "add", *call) if gk is None else _run("gla", "channel", "add", *call, g=gk)


def chunk_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    name = "delta_rule"
    _refuse(name, kwargs)
    strength = _strength(name, beta, v, False, False)
    return _run(name, "none", "delta", q, k, v, scale, initial_state, output_final_state, cu_seqlens, norm=use_qk_l2norm_in_kernel, beta=strength)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None, *, use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None, dt_bias: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    name = "gated_delta_rule"
    state_v_first = _value_first(name, state_v_first, kwargs)
    _refuse(name, kwargs)
    strength = _strength(name, beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call = (q, k, v, scale, initial_state, output_final_state, cu_seqlens, state_v_first, use_qk_l2norm_in_kernel)
    if not use_gate_in_kernel:
        _refuse_gate(name, A_log=A_log, dt_bias=dt_bias)
    if g is None and use_gate_in_kernel:
        raise InvalidError(f"{name}: g: is missing, and use_gate_in_kernel asks for a decay made of it")
    if g is None:
        return _run(name, "none", "delta", *call, beta=strength)
    return _run(name, "token", "delta", *call, g=_gate(name, g, A_log, dt_bias, None) if use_gate_in_kernel else g, beta=strength)


def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None, gv: Tensor | None = None, beta: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    _refuse("gated_delta_rule", {"gk": gk, "gv": gv})
    return chunk_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state, **given)


def chunk_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, safe_gate: bool = False, lower_bound: float | None = None, *,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, A_log: Tensor | None = None, dt_bias: Tensor | None = None,
    return_intermediate_states: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """o and the final state; with return_intermediate_states also the state before each chunk of 64 tokens [B, chunks, HV, K, V], of k's type."""
    name = "kda"
    state_v_first = _value_first(name, state_v_first, kwargs)
    _refuse(name, kwargs)
    if return_intermediate_states and torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (q, k, v, g, beta, initial_state, A_log, dt_bias)):
        raise InvalidError(f"{name}: return_intermediate_states: a gradient is wanted, and they have none; call under torch.inference_mode()")
    if return_intermediate_states and kwargs.get("chunk_size") not in (None, CHUNK):
        raise Unsupported(f"{name}: chunk_size: is {what(kwargs['chunk_size'])}, and states are kept every {CHUNK} tokens; give {CHUNK}, or leave it out")
    strength = _strength(name, beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if not use_gate_in_kernel:
        _refuse_gate(name, A_log=A_log, dt_bias=dt_bias)
    elif safe_gate and lower_bound is None:
        raise InvalidError(f"{name}: lower_bound: is missing, and safe_gate asks for one; give it, such as -5.0, or leave safe_gate out")
    decay = _gate(name, g, A_log, dt_bias, lower_bound) if use_gate_in_kernel else g
    o, final, states = _run_all(
        name, "channel", "delta", q, k, v, scale, initial_state, output_final_state, cu_seqlens, state_v_first, use_qk_l2norm_in_kernel,
        CHUNK if return_intermediate_states else None, g=decay, beta=strength,
    )  # fmt: skip
    return (o, final) if states is None else (o, final, _whole(states, cu_seqlens).to(k.dtype))


def fused_recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None, dt_bias: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, **given: Any,
) -> Any:  # fmt: skip
    return chunk_kda(q, k, v, g, beta, scale, initial_state, output_final_state, A_log=A_log, dt_bias=dt_bias, **given)


def chunk_comba(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor | None, g: Tensor, beta: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    name = "comba"
    _refuse(name, kwargs)
    call = (q, k, v, scale, initial_state, output_final_state, cu_seqlens, False, use_qk_l2norm_in_kernel)
    return _run(name, "token", "comba", *call, g=g, beta=_strength(name, beta, v, False, False), p=k if p is None else p)


def fused_recurrent_comba(
    q: Tensor, k: Tensor, p: Tensor | None, v: Tensor, g: Tensor, beta: Tensor | None = None, *given: Any, **more: Any
) -> tuple[Tensor, Tensor | None]:
    return chunk_comba(q, k, v, p, g, beta, *given, **more)


def chunk_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = 1.0, initial_state: Tensor | None = None,
    output_final_state: bool = False, cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, safe_gate: bool = False,
    chunk_size: int | None = None, disable_recompute: bool = False, cp_context: Any = None, lower_bound: float | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """w is the logarithm of the decay; S <- Diag(e^w) S + b (a' S)' + k v'."""
    _refuse("rwkv7", {"cp_context": cp_context, "chunk_size": chunk_size})
    return _run("rwkv7", "channel", "dplr", r, k, v, scale, initial_state, output_final_state, cu_seqlens, g=w, a=a, e=b)


def fused_recurrent_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = True, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    return chunk_rwkv7(r, w, k, v, a, b, scale, initial_state, output_final_state, cu_seqlens)


fused_recurrent_simple_gla = chunk_simple_gla
fused_recurrent_retention = chunk_retention
fused_recurrent_lightning_attn = chunk_lightning_attn
fused_recurrent_delta_rule = chunk_delta_rule


# --- mamba_ssm.ops.triton ---

_NO_LIMIT = (-float("inf"), float("inf"))


def _check_dims(name: str, **given: tuple[Any, int]) -> None:
    for of, (x, dims) in given.items():
        if take(name, of, "torch", x).dim() != dims:
            raise InvalidError(f"{name}: {of}: has {x.dim()} dimensions, expected {dims}")


def _steps(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, limit: tuple[float, float]) -> tuple[str, dict[str, Any]]:
    """How kernels make steps, and of what; limits are kept to before them, but those that keep nothing off."""
    if limit == _NO_LIMIT or (dt_softplus and limit == (0.0, float("inf"))):
        kind = "ssd" + (" softplus" if dt_softplus else "") + ("" if dt_bias is None else " bias")
        return kind, {"dt": dt, **({} if dt_bias is None else {"dt_bias": dt_bias})}
    dt = _as_number(dt) if dt_bias is None else _as_number(dt) + dt_bias
    return "ssd", {"dt": (F.softplus(dt) if dt_softplus else dt).clamp(*limit)}


def _gated(out: Tensor, z: Tensor) -> Tensor:
    row = _number_type(out)
    return (out.to(row) * F.silu(z.to(row))).to(out.dtype)


def _ends_of(name: str, seq_idx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where sequences begin and end among the rows of all batch entries, which of them is the first of its entry, and their numbers."""
    batch, length = seq_idx.shape
    begins = torch.ones(batch, length, dtype=torch.bool, device=seq_idx.device)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    at = begins.flatten().nonzero().flatten()
    numbers = seq_idx.flatten()[at].long()
    if torch.stack([at // max(length, 1), numbers]).unique(dim=1).shape[1] < len(at):  # type: ignore[no-untyped-call]
        raise InvalidError(f"{name}: seq_idx: rows of one number lie apart in an entry; give each sequence a number of its own")
    return torch.cat([at, at.new_tensor([batch * length])]), at % max(length, 1) == 0, numbers


def _first_states(name: str, states: Tensor, is_first: Tensor, numbers: Tensor) -> Tensor:
    """Of all sequences: those that are given, of sequences of number 0, which is what begins before these rows; of others 0."""
    if bool(((numbers == 0) & ~is_first).any()):
        raise InvalidError(f"{name}: seq_idx: number 0, to which initial_states belong, is not the first of its entry; number sequences from 0 on, in their order")
    of_first = (numbers[is_first] == 0)[:, None, None, None]
    made = torch.zeros(len(is_first), *states.shape[1:], dtype=states.dtype, device=states.device)
    return made.index_copy(0, is_first.nonzero().flatten(), torch.where(of_first, states, 0))


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, initial_states: Tensor | None = None, seq_idx: Tensor | None = None, cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
    return_varlen_states: bool = False, state_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """x [b, l, heads, p], dt [b, l, heads], A [heads], B and C [b, l, groups, n], D [heads] or [heads, p]; states [b, heads, p, n].

    initial_states are of sequences of number 0 in seq_idx, as in mamba-ssm: an entry whose first rows have another number begins at 0. The last state of such a
    sequence counts them, wherever it ends."""
    name = "mamba_chunk_scan_combined"
    _check_dims(name, x=(x, 4), dt=(dt, 3), A=(A, 1), B=(B, 4), C=(C, 4))
    for of, t, shape in (("dt", dt, x.shape[:3]), ("dt_bias", dt_bias, x.shape[2:3]), ("z", z, x.shape), ("seq_idx", seq_idx, x.shape[:2])):
        _check_shape(name, of, t, shape)
    if D is not None and tuple(take(name, "D", "torch", D).shape) not in (tuple(x.shape[2:3]), tuple(x.shape[2:])):
        raise InvalidError(f"{name}: D: has shape {tuple(D.shape)}, expected {tuple(x.shape[2:3])}, one a head, or {tuple(x.shape[2:])}")
    if state_dtype not in (None, x.dtype):
        raise Unsupported(f"{name}: state_dtype: is {state_dtype}; states stay in registers, and meet C rounded to x's {x.dtype}: leave it out")
    low, high = dt_limit
    decay, inputs = _steps(dt, dt_bias, dt_softplus, (low, high))
    update = "ssd" if D is None else "ssd D" if D.dim() == 1 else "ssd Dp"
    inputs.update(A=A, **({} if D is None else {"D": D}))
    batch, length = x.shape[:2]
    q, k, v, first = C, B, x, initial_states
    cu_seqlens = None if cu_seqlens is None else torch.as_tensor(cu_seqlens)
    ends: Any = cu_seqlens
    if length == 0 and not return_varlen_states:
        seq_idx = None  # no rows are of no sequence
    if seq_idx is not None:
        ends, is_first, numbers = _ends_of(name, seq_idx)
        q, k, v, inputs["dt"] = (t.reshape(1, batch * length, *t.shape[2:]) for t in (q, k, v, inputs["dt"]))
        if first is not None:
            first = _first_states(name, first, is_first, numbers)
    elif return_varlen_states or cu_seqlens is not None:
        raise InvalidError(f"{name}: seq_idx: is missing, and cu_seqlens or return_varlen_states ask for sequences apart; give which one each row is of")
    wants_states = return_final_states or return_varlen_states
    out, states = _run(name, decay, update, q, k, v, 1.0, first, wants_states, ends, True, **inputs)
    out = out.reshape(x.shape)
    if z is not None:
        out = _gated(out, z)
    if not wants_states:
        return out
    assert states is not None
    last = states if seq_idx is None else states[torch.tensor([int((ends <= (i + 1) * length - 1).sum()) - 1 for i in range(batch)], dtype=torch.int64)]
    if return_varlen_states and (cu_seqlens is None or not torch.equal(cu_seqlens.to(ends), ends)):
        raise InvalidError(f"{name}: cu_seqlens: does not have the {len(ends) - 1} sequences of seq_idx, whose states return_varlen_states asks for")
    made = (out, last) if return_final_states else (out,)
    return (*made, states) if return_varlen_states else made


def selective_state_update(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, dt_softplus: bool = False, state_batch_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One token: updates state [b, heads, dim, dstate], or its rows, in place. x, dt and z [b, heads, dim], A [heads, dim, dstate], B and C
    [b, groups, dstate], D and dt_bias [heads, dim]. dt, dt_bias and A are one number a head, as Mamba-2 has them. Without gradients."""
    name = "selective_state_update"
    if state.dim() != 4:
        raise Unsupported(f"{name}: state: has {state.dim()} dimensions; one without heads is Mamba-1's, whose decay differs between channels of v")
    if x.dim() != 3:
        raise InvalidError(f"{name}: x: has {x.dim()} dimensions, expected 3, [b, heads, dim]")
    B, C = (t.unsqueeze(1) if t.dim() == 2 else t for t in (B, C))  # one group
    _check_shape(name, "z", z, x.shape)
    if torch.is_grad_enabled():
        for of, t in (("state", state), ("x", x), ("dt", dt), ("A", A), ("B", B), ("C", C), ("D", D), ("z", z), ("dt_bias", dt_bias)):
            if t is not None and t.requires_grad:
                raise InvalidError(f"{name}: {of}: requires a gradient, and one token has none; detach it, or call under torch.no_grad()")
    for of, t, axes in (("dt", dt, 3), ("A", A, 3), ("dt_bias", dt_bias, 2), ("D", D, 2)):
        if t is not None and t.dim() != axes:
            raise InvalidError(f"{name}: {of}: has {t.dim()} dimensions, expected {axes}; repeat numbers of heads by expand")
    for of, t in (("A", A), ("dt", dt), ("dt_bias", dt_bias)):
        # of an expanded number nothing is compared, which would wait for the GPU
        flat = None if t is None else t.flatten(1) if of != "dt" else t.flatten(2)
        if t is not None and flat is not None and flat.numel() and any(t.stride()[2 if of == "dt" else 1 :]) and not bool((flat == flat[..., :1]).all()):
            raise Unsupported(f"{name}: {of}: differs within a head, as Mamba-1's; a decay is one number a token and head here")
    of_head = None if dt_bias is None else dt_bias[:, 0].contiguous()
    decay, inputs = _steps(dt[:, None, :, 0], of_head, dt_softplus, _NO_LIMIT)
    update = "ssd" if D is None else "ssd Dp"
    op = operator(name, decay, update, False)
    inputs.update({} if D is None else {"D": D})
    with torch.no_grad():
        out = op(
            *(t.unsqueeze(1) for t in (C, B, x)), scale=1.0, initial_state=state, final_state=state, state_layout="vk",
            state_indices=state_batch_indices, A=A[:, 0, 0].contiguous(), **inputs,
        ).squeeze(1)  # fmt: skip
        out = out if z is None else _gated(out, z)
    return out  # type: ignore[no-any-return]
