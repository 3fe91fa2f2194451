"""Calls of luattn.jvp whose signature is known (_signature.py): one launch, past forward mode of torch, with gradients below one function of autograd. The
first call of a signature goes the general way, and what its kernel was given is noted."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import _signature
from . import _tensors as tensors
from ._call import ARRAYS, WHOLE, Frame
from ._jvp_frame import JvpFrame
from ._spec import Spec
from ._torch import known_jvp

_NUMBERS = frozenset(("scale", "return_lse", "layout", "max_seqlen_q", "max_seqlen_k", *WHOLE))
_PLAIN = frozenset((bool, int, float, str, type(None)))  # kinds of these, of which equal ones are told apart


class JvpCall(NamedTuple):
    """named: the tensors, by their names in a frame. known: what is known of the signature `key`. swapped: they have lengths before heads. needs_grad: some
    of them require a gradient."""

    spec: Spec
    key: Any
    known: Any
    named: dict[str, Any]
    scalars: Sequence[float]
    return_lse: bool
    swapped: bool
    needs_grad: bool


def find(attention: Any, primals: Sequence[Any], along: Mapping[str, Any], given: Mapping[str, Any]) -> JvpCall | None:
    """None: the call has no signature, and goes the general way, which also refuses what is wrong."""
    named, numbers, of_scalars = dict(zip("qkv", primals)), list[Any](), dict[str, float]()
    is_alike = given.get("layout", "bhsd") == "bhsd"  # to what autograd keeps: q, k, v and inputs as they are, and no other tensors
    for name, x in given.items():
        if name in attention.inputs:
            named[f"input {name}"] = x
        elif name in attention.scalars and type(x) is float:
            of_scalars[name] = x
        elif name in ARRAYS and isinstance(x, torch.Tensor):
            named[name] = x
            is_alike = False
        elif name in _NUMBERS and type(x) in _PLAIN:
            numbers += name, type(x), x
        else:
            return None
    for name, x in along.items():
        if x is None:
            continue
        if name in attention.scalars and type(x) in (float, int):
            numbers += "tangent", name, x
            is_alike = False
        elif name in attention.inputs:
            named[f"tangent input {name}"] = x
        elif name in ("q", "k", "v"):
            named[f"tangent {name}"] = x
        else:
            return None
    spec = attention._spec
    if spec.draws or torch.is_inference_mode_enabled():
        return None
    key, known = _signature.find(spec.signatures, named, ("jvp", *numbers, *of_scalars))
    needs_grad = key is not None and torch.is_grad_enabled() and any(x.requires_grad for x in named.values())
    if key is None or (needs_grad and not is_alike):
        return None
    scalars = [of_scalars.get(name, x) for name, x in spec.scalars.items()] if spec.scalars else ()
    swapped = given.get("layout") == "bshd" and "cu_seqlens_q" not in given
    return JvpCall(spec, key, known, named, scalars, bool(given.get("return_lse")), swapped, needs_grad)


def run(call: JvpCall) -> Sequence[Any] | None:
    """o, lse, saved, and the tangents of o and lse; None: the call has to go the general way."""
    known = call.known
    if known is None:
        return None
    if call.needs_grad:
        return known_jvp(call.spec, known, call.named, call.scalars)
    made: Sequence[Any] | None = known.run(known.spec or call.spec, call.named, call.scalars)
    return made


@contextlib.contextmanager
def remembers(call: JvpCall | None) -> Iterator[list[Any]]:
    """Around a call that goes the general way: keeps what it was found to be. What is yielded gets its results, o, lse and their tangents, as its caller
    gets them."""
    results: list[Any] = []
    if call is None or (call.known is None and call.key in call.spec.signatures):
        yield results
        return
    with tensors.noting() as noted:
        yield results
    if len(noted) == 1 and results:
        _remember(call, noted[0], results)


def _remember(call: JvpCall, noted: tensors.JvpNote, results: Sequence[Any]) -> None:
    o, lse, o_tangent, lse_tangent = results
    want = call.return_lse or call.needs_grad
    made, along = (noted.made[0], noted.made[1] if want else None, noted.made[2]), (noted.along[0], noted.along[1] if want else None)

    # torch's forward mode copies tangents that lie in memory otherwise than what they are of.
    own = [call.named.get(f"tangent {name}") for name in "qkv"]
    own = [t.transpose(1, 2) if call.swapped and t is not None else t for t in own]
    own += [call.named.get(f"tangent input {info.name}") for info in noted.spec.inputs]

    def fill(frame: Frame) -> None:
        assert isinstance(frame, JvpFrame)
        tensors.fill_forward(frame, noted.qkv, made, noted.inputs, noted.scalars, noted.scale, noted.given)
        frame.set_tangents(tensors.fill, (*own[:3], *along), own[3:], noted.scalar_tangents)

    if call.needs_grad:
        lse, lse_tangent = noted.made[1], noted.along[1]
    every = (o, lse if want else None, made[2], o_tangent, lse_tangent if want else None)
    _signature.remember(call.spec.signatures, call.key, noted.spec, False, call.named, fill, every, noted.given, jvp=True)
    signature = call.spec.signatures.get(call.key)
    if signature is not None:
        signature.backward = noted.scale, dict(noted.given)
