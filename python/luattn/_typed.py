"""Inputs without a `dtype`: in Python they have the type of the tensor that comes. C, and packs, take them as float32, so a spec stays what it is until a call
has another type of real numbers for one of them."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ._call import is_numpy
from ._import_hook import when_imported
from ._spec import Spec, spec_of

# In one line, so that those of the spec stay what they are. What else is wrong with a table the library says.
_WRAP = (
    'local attention, linear_attention = (function(...) local function typed(make) return function(t) if type(t) == "table" and type(t.inputs) == "table" then '
    'for _, x in pairs(t.inputs) do if type(x) == "table" and x.dtype == nil then x.dtype = "any" end end end return make(t) end end '
    'local a, b = ... return typed(a), typed(b) end)(attention, linear_attention); '
)
_NAMES = ("float64", "float16", "bfloat16")
_OTHERS = set[Any]()  # types of torch for real numbers besides float32
_SINGLE = set[Any]()


def _ask_torch() -> None:
    torch = sys.modules["torch"]
    _OTHERS.update(getattr(torch, name) for name in _NAMES)
    _SINGLE.add(torch.float32)


when_imported("torch", _ask_torch)


def undeclared(spec: Spec) -> tuple[int, ...]:
    """Numbers of the inputs that may lack a dtype."""
    return tuple(i for i, info in enumerate(spec.inputs) if info.dtype == "float32")


def typed(text: str, place: str) -> Spec:
    """The spec of this text, with "any" as the type of inputs that lack one; kept as long as that of the text, with its kernels."""
    spec = spec_of(text, place)
    if spec.typed is None:
        spec.typed = spec_of(_WRAP + text, place)
    return spec.typed


typed._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does, after seconds of imports


def for_types(spec: Spec, places: Sequence[int], inputs: Sequence[Any]) -> Spec:
    """The spec that takes these inputs, of which those at `places` may lack a dtype."""
    for i in places:
        x = inputs[i]
        if x is None or x.dtype in _SINGLE:  # the usual case, in the time of one look
            continue
        if x.dtype.name in _NAMES if is_numpy(x) else x.dtype in _OTHERS:
            return typed(spec.text, spec.place)
    return spec


def for_names(spec: Spec, types: Mapping[str, str]) -> Spec:
    """The spec that takes inputs of these types, by their names."""
    of_others = any(types[spec.inputs[i].name] in _NAMES for i in undeclared(spec))
    return typed(spec.text, spec.place) if of_others else spec
