"""What Attention and flash_attn call with torch tensors: calls that know their signature, others, states, gradients of parts, weights, and scales.

A plain call goes past the ops of _torch.py, which compiled graphs, transforms and modes see."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _allocate, _fit, _out, _scale, _signature, _tangents
from . import _tensors as tensors
from ._arguments import take
from ._call import numbers_of
from ._signature import is_plain, named_of
from ._spec import Spec
from ._torch import any_needs_grad, apply_plain, backward_op, filled, forward_anew, forward_op, swap, values_of, weights_op
from .errors import InvalidError, Unsupported

_NOTHING: dict[str, Any] = {}


class _Call(NamedTuple):
    """What attend was given. key, named: of its signature, which is not known; None of a call that has none."""

    spec: Spec
    q: Tensor
    k: Tensor
    v: Tensor
    inputs: Sequence[Tensor]
    scalars: Sequence[float | Tensor]
    scale: float | Tensor | None
    given: dict[str, Any]
    return_lse: bool
    swapped: bool
    key: Any
    named: Any


def _tensors_in(given: dict[str, Any]) -> Sequence[Tensor]:
    return [x for x in given.values() if isinstance(x, Tensor)] if given else ()


_FLOATS = frozenset((float,))


def attend(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any] = _NOTHING,
    return_lse: bool = True,
    swapped: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The result and lse (None unless return_lse) of torch tensors, with gradients. scale: None: head_dim ** -0.5. given: keyword
    arguments of the op. swapped: q, k, v and the result have lengths before heads. out: where the result goes, without gradients."""
    key: Any = None
    named: Any = None
    known: Any = None
    if not torch.compiler.is_compiling() and (scale is None or _scale.is_plain(scale)) and _FLOATS.issuperset(map(type, scalars)):
        named, numbers = named_of(spec, q, k, v, inputs, given)
        if out is not None:
            named["o"] = out
        key, known = _signature.find(spec.signatures, named, (*numbers, scale, return_lse, swapped))
    if known is not None:
        if known.needs_grad:
            made = apply_plain((tensors.forward, 1 + return_lse, spec, scalars, scale or 0.0, given, swapped, key, named, known), q, k, v, None, *inputs)
            return made if return_lse else (made, None)
        made = known.run(spec, named, scalars, given)
        if made is not None:
            if out is None:
                return made[0], made[1]
            tensors.mark_written(out)
            return out, made[1]
    call = _Call(spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, key, named)
    return _attend_anew(call) if out is None else _attend_into(out, call)


def _attend_into(out: Tensor, call: _Call) -> tuple[Tensor, Tensor | None]:
    """attend, into a tensor that is there: by the kernel itself, or by a copy where that makes o otherwise, or something stands between the call
    and the kernel."""
    spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, _, _ = call
    take(spec.name, "out", "torch", out)
    if torch.is_grad_enabled():
        learned = [x for x in (*scalars, scale) if isinstance(x, Tensor)]
        if out.requires_grad or any(t.requires_grad for t in (q, k, v, *inputs, *learned)):
            raise InvalidError(f"{spec.name}: out: is given, and a gradient is asked for, which goes on to no tensor that is there: leave it out, or call under torch.no_grad()")
    compiling = torch.compiler.is_compiling()
    if not compiling:
        with_scale(spec, q, inputs, scalars, scale)  # refuses what is no scale before anything is written
    copies = compiling or _fit.needs_padding(spec, q, v) or given.get("seqused_q") is not None
    if copies or not is_plain((out, q, k, v, *inputs, *_tensors_in(given))):
        if not compiling:
            _out.check_apart(spec.name, out, {"q": q, "k": k, "v": v, **{f"input '{info.name}'": t for info, t in zip(spec.inputs, inputs)}})
        o, lse = attend(spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped)
        _out.check(spec.name, out, o, o, o.dtype)
        return out.copy_(o), lse
    _out.check(spec.name, out, q, v, _allocate.type_of(q, given.get("out_f32", False)))
    try:
        _, lse = _attend_anew(call, out)
    except InvalidError as e:
        raise InvalidError(_out.renamed(str(e))) from None
    tensors.mark_written(out)
    return out, lse


def _attend_anew(call: _Call, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """attend, of a call whose signature is not known. out: of a plain call without gradients."""
    spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, key, named = call
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale)
    if _fit.needs_padding(spec, q, v):
        wide = _fit.padded(spec, q, k, v)
        o, lse = attend(spec, wide[0], wide[1], wide[2], inputs, scalars, _fit.scale_of(scale, q), given, return_lse, swapped)
        return _fit.columns(o, v.size(-1)), lse
    if inputs:
        inputs = _fit.with_rows(spec, q, k, inputs)
    compiling = torch.compiler.is_compiling()
    learned = None
    # Under torch.compile a float in a list would be a constant of the graph, and each value another graph.
    if scalars and (compiling or any(isinstance(x, Tensor) for x in scalars)):
        learned = _stack(spec, scalars)
        scalars = []
    if compiling or not is_plain((q, k, v, learned, *inputs, *_tensors_in(given))):
        o, lse, _ = forward_op(spec.line, *swap(swapped, q, k, v), list(inputs), list(scalars), learned, scale, **given)
        return o.transpose(1, 2) if swapped else o, lse
    if any_needs_grad(spec, q, k, v, learned, inputs):
        made = apply_plain((tensors.forward, 1 + return_lse, spec, scalars, scale, given, swapped, key, named, None), q, k, v, learned, *inputs)
        return made if return_lse else (made, None)
    values = values_of(scalars, learned)
    made = forward_anew(tensors.forward, spec, q, k, v, inputs, values, scale, given, swapped, key, named, False, return_lse, out)
    return made[0], made[1]


def attend_state(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any],
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """o, lse and state of a spec of parts (of another spec: what it saves), without gradients. out: memory for o, which need not be used."""
    if _tangents.is_dual_level():  # else each tensor would be asked, in each part of a pass over ranks
        every = [x for x in (q, k, v, *inputs, *scalars, scale) if isinstance(x, Tensor)]
        _tangents.refuse(f"{spec.name}: return_state", every, "a state has no tangent; leave return_state out")
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale)
    if _fit.needs_padding(spec, q, v):
        wide = _fit.padded(spec, q, k, v)
        o, lse, state = attend_state(spec, wide[0], wide[1], wide[2], inputs, scalars, _fit.scale_of(scale, q), given)
        return _fit.columns(o, v.size(-1)), lse, state
    inputs = _fit.with_rows(spec, q, k, inputs)
    learned = _stack(spec, scalars) if any(isinstance(x, Tensor) for x in scalars) else None
    if any_needs_grad(spec, q, k, v, learned, inputs):
        raise Unsupported(
            f"{spec.name}: return_state: is True, and there are no gradients through a state: call it under torch.no_grad(), and "
            "gradients() for each part after the merge"
        )
    if not torch.compiler.is_compiling() and is_plain((q, k, v, learned, *inputs, *_tensors_in(given))):
        o, lse, state = filled(q, tensors.forward(spec, q, k, v, inputs, values_of(scalars, learned), scale, given, out=out))
    else:
        values = [] if learned is not None else list(scalars)
        o, lse, state = forward_op(spec.line, q, k, v, list(inputs), values, learned, scale, **given)
    return o, lse, lse.new_empty((0, *lse.shape)) if state.dim() == 1 else state


def gradients_of(
    spec: Spec,
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    saved: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float | Tensor | None,
    given: dict[str, Any],
    out: Sequence[Tensor | None] = (None, None, None),
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Of all that has one, by backward from o, lse and saved of whole rows; of a scale that is a tensor too. out: memory for dq, dk and dv, which need
    not be used."""
    is_learned = isinstance(scale, Tensor)
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale, is_learned)
    scalars, dim, dim_v = [float(x) for x in scalars], q.size(-1), v.size(-1)
    if _fit.needs_padding(spec, q, v):
        scale = _fit.scale_of(scale, q)
        q, k, v, o, dout = _fit.padded(spec, q, k, v, o, dout)
    if o.dtype is torch.float32:
        dout, given = dout.to(q.dtype), {**given, "out_f32": True}
    wants, lse_or_none, saved_or_none = [info.grad for info in spec.inputs], lse if spec.has_lse else None, saved if spec.num_saved else None
    made: Any
    with torch.no_grad():
        if not torch.compiler.is_compiling() and is_plain((dout, dlse, q, k, v, o, lse_or_none, saved_or_none, *inputs, *_tensors_in(given))):
            made = tensors.backward(
                spec, dout, dlse if spec.has_lse else None, q, k, v, o, lse_or_none, saved_or_none, inputs, scalars, scale, given, spec.wants, wants, out
            )
        else:
            made = backward_op(
                spec.line, dout, dlse if spec.has_lse else None, q, k, v, o, *filled(q, (lse_or_none, saved_or_none)), list(inputs), scalars, None, scale,
                **given, wants=spec.wants, want_inputs=wants,
            )  # fmt: skip
    dq, dk, dv, dscalars, dinputs = made
    named = {info.name: d for info, d in zip(spec.inputs, dinputs) if info.grad}
    named |= {name: dscalars[i] for i, name in enumerate(spec.scalars)}
    of_scale = named.pop(_scale.NAME, None)
    dq, dk, dv = _fit.columns(dq, dim), _fit.columns(dk, dim), _fit.columns(dv, dim_v)
    return dq, dk, dv, named | ({"scale": of_scale} if is_learned and of_scale is not None else {})


def weights(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float | Tensor], scale: float, given: dict[str, Any]
) -> Tensor:  # fmt: skip
    """Those of v, negative where dropout drops them (_tensors.weights), for tests and pictures; without gradients. spec, inputs, scalars and scale
    are those of with_scale."""
    if _fit.needs_padding(spec, q, v):
        scale = _fit.scale_of(scale, q)
        q, k, v = _fit.padded(spec, q, k, v)
    inputs = _fit.with_rows(spec, q, k, inputs) if inputs else inputs
    learned = _stack(spec, scalars) if any(isinstance(x, Tensor) for x in scalars) else None
    numbers = [] if learned is not None else [float(x) for x in scalars]
    with torch.no_grad():
        made: Tensor = weights_op(spec.line, q, k, v, list(inputs), numbers, learned, scale, **given)
    return made


def _find_scaled(text: str, place: str, kind: str) -> Spec:
    return _scale.scaled(text, place, kind)


# What torch.compiler.assume_constant_result does, after seconds of imports.
_find_scaled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def with_scale(
    spec: Spec, q: Tensor, inputs: Sequence[Any], scalars: Sequence[Any], scale: Any, is_learned: bool = False
) -> tuple[Spec, Sequence[Any], Sequence[Any], float]:
    """The spec, inputs, scalars and scale of an op, where 0.0 is the default. is_learned: whether a tensor has a gradient whatever it says."""
    if scale is None:
        return spec, inputs, scalars, 0.0
    if _scale.is_plain(scale):
        return spec, inputs, scalars, scale
    kind = "scalars"
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise InvalidError(
                f"{spec.name}: scale: has shape {tuple(scale.shape)}, expected one element, or a number: for one of each head declare an input, "
                'inputs = { temperature = { axes = {"h"}, grad = true } }, and multiply by it in score_mod'
            )
        scale = scale.reshape(()).to(torch.float64 if q.dtype is torch.float64 else torch.float32)
        has_derivative = scale.requires_grad or _tangents.tangent_of(scale) is not None or _tangents.is_transformed()
        if not (is_learned or scale.is_cuda or has_derivative or torch.compiler.is_compiling()):
            return _scale.with_scale(spec, inputs, scalars, float(scale))
        if scale.is_cuda:
            kind = "inputs"
    else:
        scale = _scale.check_scale(spec.name, scale)
        if scale > 0:
            return spec, inputs, scalars, scale
    return _scale.multiplied(_find_scaled(spec.text, spec.place, kind), kind, inputs, scalars, scale)


def seed_of(seed: Any, q: Tensor) -> Tensor:
    """The ops' seed: of a number, of two, or as it is; None: the next of the generator of q's device, whose replays in CUDA graphs
    draw others."""
    if isinstance(seed, Tensor):
        return seed
    if seed is None:
        return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    return torch.tensor([(x + 2**63) % 2**64 - 2**63 for x in numbers_of(seed)], dtype=torch.int64, device="cpu")


def values_stacked(spec: Spec, scalars: Sequence[float | Tensor]) -> Sequence[float]:
    """Scalars as numbers; refuses tensors for which a call would wait."""
    if not any(isinstance(x, Tensor) for x in scalars):
        return [float(x) for x in scalars]
    with torch.no_grad():
        return values_of([], _stack(spec, scalars))


def _stack(spec: Spec, scalars: Sequence[float | Tensor]) -> Tensor:
    numbers = []
    for name, x in zip(spec.scalars, scalars):
        if not isinstance(x, Tensor):
            x = torch.tensor(x, dtype=torch.float64, device="cpu")
        elif x.is_cuda:
            raise InvalidError(
                f"{spec.name}: scalar '{name}' is a tensor on {x.device}, for which every call would wait: "
                f"declare it as an input, inputs = {{ {name} = {{ axes = {{}}, grad = true }} }}, or pass float({name})"
            )
        elif x.numel() != 1:
            raise InvalidError(f"{spec.name}: scalar '{name}' has {x.numel()} elements, expected 1")
        numbers.append(x.to(torch.float64).reshape(()))
    return torch.stack(numbers)
