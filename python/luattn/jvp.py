"""jvp: an attention and its tangents, for code that carries tangents by hand."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._arguments import is_dense, is_tensor, take, what
from .attention import Attention
from .errors import InvalidError, Unsupported
from .linear import LinearAttention

if TYPE_CHECKING:
    from torch import Tensor


def jvp(attention: Attention, primals: Sequence[Any], tangents: Sequence[Any] | Mapping[str, Any], **given: Any) -> tuple[Any, Any]:
    """(o, its tangent) of attention(q, k, v, **given), by one fused pass; with return_lse=True ((o, lse), their tangents).

    primals: (q, k, v), tensors of torch. tangents: theirs, in this order, None where there is none; or by name, then also of inputs and scalars, which
    are keyword arguments, and of "scale". A tangent has the shape, type and device of what it belongs to; that of a scalar is a number or a tensor.
    o, lse and their tangents have gradients: detach what is to have none, or work under torch.no_grad(). The same as
    torch.autograd.forward_ad or torch.func.jvp around the call, within which it must not be called."""
    place = f"{getattr(attention, 'name', 'attention')}: jvp"
    if isinstance(attention, LinearAttention):
        raise Unsupported(f"{attention.name}: jvp: linear attention has no forward-mode derivative yet; take derivatives backwards, by torch.autograd")
    if not isinstance(attention, Attention):
        raise InvalidError(f"jvp: attention: is {what(attention)}, expected what luattn.attention returns; torch.func.jvp takes any function")
    along = _named(place, primals, tangents)
    for name in set("qkv") & set(given):
        raise InvalidError(f"{place}: {name}: is given twice; it is one of primals")
    q = primals[0]
    if not is_tensor(q):
        raise Unsupported(f"{place}: q: is {what(q)}: tangents are of tensors of torch")
    import torch

    if torch.compiler.is_compiling():
        return _in_graph(place, attention, primals, along, given)
    from . import _jvp_calls, _tangents

    call = _jvp_calls.find(attention, primals, along, given)
    known = call and _jvp_calls.run(call)
    if call and known:
        o, lse, _, o_tangent, lse_tangent = known
        return ((o, lse), (o_tangent, lse_tangent)) if call.return_lse else (o, o_tangent)
    with _jvp_calls.remembers(call) as results:
        made: tuple[Any, Any] = _tangents.uncompiled(_by_forward_mode)(place, attention, primals, along, given)
        first, second = (x if isinstance(x, tuple) else (x, None) for x in made)
        results += *first, *second
    return made


def _by_forward_mode(place: str, attention: Attention, primals: Sequence[Any], along: dict[str, Any], given: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from torch.autograd import forward_ad

    from . import _tangents

    if torch.is_inference_mode_enabled():  # has no forward mode
        with torch.inference_mode(False), torch.no_grad():
            return jvp(attention, primals, along, **given)
    if forward_ad._current_level >= 0 or _tangents.is_transformed():
        raise Unsupported(f"{place}: is called within forward mode or a transform of torch.func: call the attention itself there")
    named = _arguments(place, attention, primals, along, given)
    with forward_ad.dual_level():
        for name, tangent in along.items():
            if tangent is not None:
                primal, along_it = _pair(place, name, named.get(name), tangent, torch)
                primal = primal.clone() if primal.is_inference() else primal  # of which torch has no forward mode
                named[name] = forward_ad.make_dual(primal, along_it)  # type: ignore[no-untyped-call]
        q, k, v = (named.pop(name) for name in "qkv")
        made = attention(q, k, v, **named)
        results = made if isinstance(made, tuple) else (made,)
        pairs = [forward_ad.unpack_dual(t) for t in results]  # type: ignore[no-untyped-call]
        first = tuple(primal for primal, _ in pairs)
        second = tuple(torch.zeros_like(primal) if tangent is None else tangent for primal, tangent in pairs)
    return (first, second) if isinstance(made, tuple) else (first[0], second[0])


def _arguments(place: str, attention: Attention, primals: Sequence[Any], along: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """By their names, and scalars that have a tangent."""
    named = {**given, **dict(zip("qkv", primals))}
    takes = ("q", "k", "v", "scale", *attention.inputs, *attention.scalars)
    for name in along:
        if name not in takes:
            raise InvalidError(f"{place}: tangents: '{name}': the call has no such argument; tangents are of {', '.join(takes)}")
        if name not in named and name in attention.scalars:
            named[name] = attention.scalars[name]
    return named


def _in_graph(place: str, attention: Attention, primals: Sequence[Any], along: dict[str, Any], given: dict[str, Any]) -> tuple[Any, Any]:
    """Where torch.compile traces the call: by torch.func.jvp, which graphs can have."""
    import torch

    named = _arguments(place, attention, primals, along, given)
    pairs = {name: _pair(place, name, named.get(name), tangent, torch) for name, tangent in along.items() if tangent is not None}

    def call(*values: Any) -> Any:
        of = {**named, **dict(zip(pairs, values))}
        q, k, v = (of.pop(name) for name in "qkv")
        return attention(q, k, v, **of)

    if pairs:
        made: Any = torch.func.jvp(call, tuple(x for x, _ in pairs.values()), tuple(t for _, t in pairs.values()))
        return made[0], made[1]
    results = call()
    return results, tuple(torch.zeros_like(t) for t in results) if isinstance(results, tuple) else torch.zeros_like(results)


def _named(place: str, primals: Sequence[Any], tangents: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(primals, (tuple, list)) or len(primals) != 3:
        raise InvalidError(f"{place}: primals: is {what(primals)}, expected (q, k, v)")
    if isinstance(tangents, Mapping):
        return dict(tangents)
    if not isinstance(tangents, (tuple, list)) or len(tangents) != 3:
        raise InvalidError(f"{place}: tangents: is {what(tangents)}, expected those of (q, k, v), or a dict by name")
    return dict(zip("qkv", tangents))


def _pair(place: str, name: str, primal: Any, tangent: Any, torch: Any) -> tuple["Tensor", "Tensor"]:
    """What torch makes a dual number of. A scalar, or the scale, becomes a tensor."""
    if primal is None:
        raise InvalidError(f"{place}: tangents: '{name}': the call has no such argument; give it, or leave the tangent out")
    if not is_tensor(primal) and getattr(primal, "shape", ()) != ():
        raise InvalidError(f"{place}: {name}: is {what(primal)}: tangents are of tensors of torch")
    if not is_tensor(primal):
        primal = torch.tensor(take(place, name, "real", primal), dtype=torch.float64, device="cpu")
    if primal.dim() and not (is_tensor(tangent) and is_dense(tangent)):
        raise InvalidError(f"{place}: tangents: '{name}': is {what(tangent)}, expected a tensor of torch like what it belongs to")
    if not is_tensor(tangent):
        tangent = torch.full_like(primal, take(place, f"tangents: '{name}'", "real", tangent))
    if not primal.is_floating_point():
        raise InvalidError(f"{place}: tangents: '{name}': is of {primal.dtype}, and tangents are of real numbers; leave it out")
    for thing, a, b in (("shape", tuple(primal.shape), tuple(tangent.shape)), ("type", primal.dtype, tangent.dtype), ("device", primal.device, tangent.device)):
        if a != b:
            raise InvalidError(f"{place}: tangents: '{name}': has {thing} {b}, expected {a}, that of what it belongs to")
    return primal, tangent
