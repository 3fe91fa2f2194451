"""luattn_args of one call, filled from tensors of any library. The one place that knows how arguments are laid out."""

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from . import _capi as capi
from ._library import lib, message_of
from ._spec import Spec

_SIZE = ctypes.sizeof(capi.DLTensor)
_NUM = len(capi.TENSORS)
_AT = {name: i for i, name in enumerate(capi.TENSORS)}

# Writes the DLTensor of a tensor to an address. It may point into the tensor, which a Frame keeps until it is given back.
Fill = Callable[[Any, int], Any]


class Frame:
    """luattn_args and all that it points to. Made once and filled again, which takes a quarter of the time."""

    def __init__(self, spec: Spec) -> None:
        n, num_scalars = len(spec.inputs), len(spec.scalars)
        self.spec = spec
        # In this order: TENSORS, the inputs, their gradients, scalar_grads, q_offsets, kv_offsets.
        self._tensors = (capi.DLTensor * (_NUM + 2 * n + 3))()
        first = ctypes.addressof(self._tensors)
        self._at = [first + i * _SIZE for i in range(len(self._tensors))]
        self._inputs = (capi.Input * n)()
        for i, one in enumerate(spec.inputs):
            self._inputs[i] = capi.Input(one.name.encode(), self._at[_NUM + i], None)
        self._scalars = (capi.Scalar * num_scalars)()
        for i, name in enumerate(spec.scalars):
            self._scalars[i].name = name.encode()
        self._args = capi.Args(
            struct_size=ctypes.sizeof(capi.Args),
            inputs=ctypes.addressof(self._inputs) if n else None,
            num_inputs=n,
            scalars=ctypes.addressof(self._scalars) if num_scalars else None,
            num_scalars=num_scalars,
        )
        self.args = ctypes.addressof(self._args)
        self._slots = (ctypes.c_void_p * _NUM).from_buffer(self._args, capi.Args.q.offset)
        self._given: list[int] = []
        self._alive: list[Any] = []  # what the DLTensors point into
        self._err = capi.Error()
        self._err_at = ctypes.addressof(self._err)
        self._warned = ctypes.c_char.from_buffer(self._err, capi.Error.message.offset)

    def set(self, fill: Fill, tensors: Sequence[tuple[str, Any]]) -> None:
        """Gives exactly these of capi.TENSORS; None is left out."""
        for i in self._given:
            self._slots[i] = None
        self._given.clear()
        for name, tensor in tensors:
            if tensor is not None:
                i = _AT[name]
                fill(tensor, self._at[i])
                self._alive.append(tensor)
                self._slots[i] = self._at[i]
                self._given.append(i)

    def set_input(self, fill: Fill, i: int, tensor: Any, grad: Any = None) -> None:
        """Input i of the spec, and where its gradient goes (None: not wanted)."""
        fill(tensor, self._at[_NUM + i])
        self._alive.append(tensor)
        at = self._at[_NUM + len(self._inputs) + i]
        if grad is not None:
            fill(grad, at)
        self._inputs[i].grad = None if grad is None else at

    def set_inputs(self, fill: Fill, inputs: Sequence[Any], grads: Sequence[Any] = ()) -> None:
        for i, tensor in enumerate(inputs):
            self.set_input(fill, i, tensor, grads[i] if grads else None)

    def set_numbers(
        self, scale: float, scalars: Sequence[float], fill: Fill | None = None, grads: Any = None
    ) -> None:
        """The scale (0: the default), the scalars in the spec's order, and where their gradients go."""
        self._args.scale = scale
        for i, value in enumerate(scalars):
            self._scalars[i].value = value
        at = self._at[-3]
        if fill is not None and grads is not None:
            fill(grads, at)
        self._args.scalar_grads = None if grads is None else at

    def set_whole(self, fill: Fill, whole: Sequence[int], q_offsets: Any, kv_offsets: Any) -> None:
        """Of which whole the tensors are a part (luattn_batch). whole: WHOLE's numbers, or none of them."""
        options = capi.BatchOptions(struct_size=ctypes.sizeof(capi.BatchOptions), **dict(zip(WHOLE, whole)))
        for name, tensor, at in (
            ("q_offsets", q_offsets, self._at[-2]),
            ("kv_offsets", kv_offsets, self._at[-1]),
        ):
            if tensor is not None:
                fill(tensor, at)
                setattr(options, name, at)
        batch = ctypes.c_void_p()
        self.check(lib.luattn_batch_open(ctypes.byref(options), ctypes.byref(batch), self._err_at))
        self._args.batch = batch

    def workspace_size(self, engine: int, backward: bool) -> int:
        size = ctypes.c_size_t()
        pass_ = capi.BACKWARD if backward else capi.FORWARD
        at = ctypes.byref(size)
        self.check(
            lib.luattn_engine_workspace_size(engine, self.spec.pointer, pass_, self.args, at, self._err_at)
        )
        return size.value

    def set_workspace(self, address: int, size: int) -> None:
        self._args.workspace, self._args.workspace_size = address, size

    def run(self, engine: int, backward: bool, stream: int | None) -> None:
        """Launches a pass on a stream; on the CPU computes it."""
        run = lib.luattn_backward if backward else lib.luattn_forward
        self.check(run(engine, self.spec.pointer, self.args, stream, self._err_at))

    def check(self, status: int) -> None:
        """Raises the error of the last call, or passes its warning on."""
        if status:
            raise message_of(status, self._err)
        if self._warned.value != b"\0":
            warnings.warn(self._err.message.decode("utf-8", "replace"), RuntimeWarning, stacklevel=2)

    def plan(self, engine: int, backward: bool) -> str:
        text = ctypes.c_char_p()
        pass_ = capi.BACKWARD if backward else capi.FORWARD
        at = ctypes.byref(text)
        self.check(lib.luattn_engine_plan(engine, self.spec.pointer, pass_, self.args, at, self._err_at))
        return (text.value or b"").decode()

    def clear(self) -> None:
        """Forgets tensors, and what only some calls set."""
        self._alive.clear()
        if self._args.batch:
            lib.luattn_batch_close(self._args.batch)
            self._args.batch = None


# Numbers of luattn_batch_options, in the order in which the ops of torch take them.
WHOLE = ("q_offset", "kv_offset", "q_len", "kv_len", "head_offset", "heads", "heads_kv")


def take_frame(spec: Spec) -> Frame:
    """A frame that no other call has: neither of another thread, nor one that this one interrupts. Give it back."""
    try:
        frame: Frame = spec.frames.pop()
    except IndexError:
        frame = Frame(spec)
    return frame


def give_back(frame: Frame) -> None:
    frame.clear()
    frame.spec.frames.append(frame)


def is_numpy(tensor: Any) -> bool:
    return type(tensor).__module__ == "numpy"


def fill_of(tensor: Any) -> Fill:
    """What fills the DLTensor of a torch tensor or a NumPy array. Neither library is loaded for the other."""
    if is_numpy(tensor):
        from . import _numpy

        return _numpy.fill
    from . import _torch

    return _torch.fill
