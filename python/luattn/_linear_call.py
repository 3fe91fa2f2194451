"""luattn_linear_args of one call, filled from arrays of any library."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _capi as capi
from ._call import Fill, Tensors
from ._library import call
from ._spec import Spec
from ._typed import for_types, undeclared


class Place(NamedTuple):
    """The GPU that a call runs on: its engine and stream, and memory of so many bytes there, which lives as long as the call."""

    engine: int
    stream: int
    memory: Callable[[int], Any]


class Between(NamedTuple):
    """States between tokens that a forward call returns."""

    shape: tuple[int, ...]
    every: int


def _memory(function: str, spec: Spec, args: capi.LinearArgs, place: Place) -> Any:
    """As many bytes as a function says; None: none."""
    size = ctypes.c_size_t()
    call(function, place.engine, spec.pointer, ctypes.byref(args), ctypes.byref(size))
    return place.memory(size.value) if size.value else None


def _run_there(spec: Spec, backward: bool, args: capi.LinearArgs, place: Place, keeps: bool, kept: Any) -> Any:
    if keeps:
        kept = _memory("luattn_linear_kept_size", spec, args, place)
    if kept is not None:
        args.kept, args.kept_size = kept.data_ptr(), kept.numel()
    room = _memory("luattn_linear_backward_workspace_size" if backward else "luattn_linear_workspace_size", spec, args, place)
    if room is not None:
        args.workspace, args.workspace_size = room.data_ptr(), room.numel()
    call("luattn_linear_backward" if backward else "luattn_linear_forward", place.engine, spec.pointer, ctypes.byref(args), place.stream)
    return kept


def run(
    spec: Spec,
    backward: bool,
    fill: Fill,
    tensors: Mapping[str, Any],
    inputs: Sequence[Any],
    scalars: Sequence[float],
    scale: float,
    state_layout: str | None,
    input_grads: Sequence[Any] = (),
    place: Place | None = None,
    states_every: int = 0,
    keeps: bool = False,
    kept: Any = None,
) -> Any:
    """Runs a pass, on the CPU without a place. tensors: members of luattn_linear_args by name; None: not given. scale 0: the spec's. input_grads: in the
    order of inputs; None: not wanted. Returns what forward keeps for backward, which then takes it as `kept`; None: nothing."""
    given = {name: t for name, t in tensors.items() if t is not None}
    n = len(inputs)
    places = Tensors(len(given) + 2 * n)
    at = iter(places.at)
    of_inputs, of_scalars = (capi.Input * n)(), (capi.Scalar * len(scalars))()
    names = [one.name.encode() for one in spec.inputs] + [name.encode() for name in spec.scalars]
    args = capi.LinearArgs(ctypes.sizeof(capi.LinearArgs), inputs=ctypes.addressof(of_inputs), num_inputs=n, scale=scale, states_every=states_every)
    args.scalars, args.num_scalars = ctypes.addressof(of_scalars), len(scalars)
    args.state_layout = capi.STATE_LAYOUTS[state_layout] if state_layout else 0
    for name, t in given.items():
        address = next(at)
        fill(t, address)
        setattr(args, name, address)
    for i, t in enumerate(inputs):
        grad = input_grads[i] if input_grads else None
        of_inputs[i].name = names[i]
        for member, one in (("tensor", t), ("grad", grad)):
            address = next(at)
            if one is not None:
                fill(one, address)
                setattr(of_inputs[i], member, address)
    for i, x in enumerate(scalars):
        of_scalars[i] = capi.Scalar(names[n + i], x)
    if place is not None:
        spec = for_types(spec, undeclared(spec), inputs)
        return _run_there(spec, backward, args, place, keeps, kept)
    call(f"luattn_cpu_linear_{'backward' if backward else 'forward'}", spec.pointer, ctypes.byref(args))
    return None
