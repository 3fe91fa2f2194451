"""Specs that calls of JAX take in the place of the user's: scalars that are arrays become inputs, which have a gradient and stay on the device. And
whether a spec may have other entries of a batch put beside its own."""

import ctypes
import functools
import re
from collections.abc import Sequence

from . import _capi as capi
from ._library import call, lib
from ._spec import Spec, spec_of
from .errors import InvalidError, SpecError


@functools.lru_cache(maxsize=256)
def with_learned(text: str, place: str, names: Sequence[str]) -> Spec:
    """The spec, whose scalars of these names are inputs without axes."""
    moved = "; ".join(f'if t.scalars then t.scalars.{name} = nil end; t.inputs.{name} = {{ axes = {{}}, dtype = "any", grad = true }}' for name in names)
    # In one line, so that those of the spec stay what they are.
    wrap = f"local attention = (function(make) return function(t) t.inputs = t.inputs or {{}}; {moved}; return make(t) end end)(attention); "
    try:
        return spec_of(wrap + text, place)
    except SpecError as e:
        raise InvalidError(
            f"{place}: scalar '{names[0]}': is an array of JAX, and the spec takes it as a number alone: pass float({names[0]}), "
            f"or name it in static_argnames of jax.jit ({e})"
        ) from None


@functools.lru_cache(maxsize=256)
def computes_with_entry(text: str, place: str) -> bool:
    """Whether hooks do anything with the number of their batch entry but to read each axis "b" there: batches in one would then be told
    apart."""
    spec = spec_of(text, place)
    single = capi.DTYPES.index("float32")  # the types and the rest change nothing of what is looked for
    types = sum(1 + single << 4 * i for i, info in enumerate(spec.inputs) if info.dtype == "any")
    target = capi.Target(struct_size=ctypes.sizeof(capi.Target), dtype=single, head_dim=64, arch=80, input_types=types)
    printed = ctypes.c_char_p()
    call("luattn_emit", spec.pointer, ctypes.byref(target), b"ir", ctypes.byref(printed))
    lines = (printed.value or b"").decode().splitlines()
    lib.luattn_text_free(printed)
    entries = {line.split(" = ")[0] for line in lines if re.search(r" = var b\b", line)}
    axes = {info.name: info.axes for info in spec.inputs}
    return any(_computes_with(line, entries, axes) for line in lines)


def _computes_with(line: str, entries: set[str], axes: dict[str, tuple[str, ...]]) -> bool:
    value = line.partition(" = ")[2]
    load = re.match(r"load (\w+)\[(.*)\]", value)
    if load is None:
        return bool(entries.intersection(re.findall(r"%\d+", value)))
    return any((index in entries) != (axis == "b") for index, axis in zip(load[2].split(", "), axes[load[1]]))
