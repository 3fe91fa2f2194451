"""luattn_args of forward with tangents: those of forward, and luattn_tangents."""

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _capi as capi
from ._call import Fill, Frame
from ._library import lib
from ._spec import Spec

_POOL = 2  # of spec.frames, behind forward's and backward's
# Members of luattn_tangents, and the places of capi.TENSORS where their DLTensors lie: those of gradients, which forward has not.
_PLACES = {name: capi.TENSORS.index(of) for name, of in (("q", "dq"), ("k", "dk"), ("v", "dv"), ("o", "dout"), ("lse", "dlse"))}


class JvpFrame(Frame):
    """A Frame of forward whose calls compute tangents too."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec, False)
        n, num_scalars = len(spec.inputs), len(spec.scalars)
        self.pool = _POOL
        self._of_inputs, self._of_scalars = (capi.Input * n)(), (capi.Scalar * num_scalars)()
        self._along = capi.Tangents(struct_size=ctypes.sizeof(capi.Tangents))
        self._along.inputs = ctypes.addressof(self._of_inputs) if n else None
        self._along.scalars = ctypes.addressof(self._of_scalars) if num_scalars else None
        self._named: dict[str, int] = {}  # of each tangent the address of its DLTensor
        self._args.tangents = ctypes.addressof(self._along)
        self._run = lib.luattn_forward_jvp

    def set_tangents(self, fill: Fill, tensors: Sequence[Any], inputs: Sequence[Any], scalars: Sequence[float]) -> None:
        """Those of q, k, v, o and lse, of the inputs and of the scalars, in the spec's order; None and 0: there is none."""
        along, named, n = self._along, self._named, len(self.spec.inputs)
        self._held_others = self._held_others, tensors, inputs
        named.clear()
        for (name, place), tensor in zip(_PLACES.items(), tensors):
            if tensor is not None:
                named[f"tangent {name}"] = self._at[place]
                fill(tensor, self._at[place])
            setattr(along, name, None if tensor is None else self._at[place])
        given = [(info.name, tensor, at) for info, tensor, at in zip(self.spec.inputs, inputs, self._at[len(capi.TENSORS) + n :]) if tensor is not None]
        for i, (name, tensor, at) in enumerate(given):
            named[f"tangent input {name}"] = at
            fill(tensor, at)
            self._of_inputs[i] = capi.Input(name.encode(), at, None)
        numbers = [(name, x) for name, x in zip(self.spec.scalars, scalars) if x != 0]
        for i, (name, x) in enumerate(numbers):
            self._of_scalars[i] = capi.Scalar(name.encode(), x)
        along.num_inputs, along.num_scalars = len(given), len(numbers)

    def workspace_size(self, engine: int) -> int:
        self.check(lib.luattn_forward_jvp_workspace_size(engine, self.spec.pointer, self.args, self._size_at, self._err_at))
        return self._size.value

    def slots(self) -> dict[str, int]:
        return super().slots() | self._named


def take_jvp_frame(spec: Spec) -> JvpFrame:
    """As take_frame does."""
    try:
        frame: JvpFrame = spec.frames[_POOL].pop()
    except IndexError:
        return JvpFrame(spec)
    frame.spec = spec
    return frame
