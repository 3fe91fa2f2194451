"""Batch: which tiles masks from data keep, found once for all layers and both passes of a step (luattn/batch.h)."""

import ctypes
import itertools
import weakref
from typing import TYPE_CHECKING, Any

from . import _capi as capi
from ._library import call, lib
from ._spec import Spec
from .errors import InvalidError

if TYPE_CHECKING:
    from .attention import Attention

_number = itertools.count(1)
_batches: "weakref.WeakValueDictionary[int, Batch]" = weakref.WeakValueDictionary()


class Bits:
    """The tile bits of one spec: a luattn_batch, and the memory on the device in which they lie."""

    def __init__(self, memory: Any) -> None:
        options = capi.BatchOptions(struct_size=ctypes.sizeof(capi.BatchOptions))
        handle = ctypes.c_void_p()
        call("luattn_batch_open", ctypes.byref(options), ctypes.byref(handle))
        assert handle.value
        self.memory: Any = memory
        self.handle: int = handle.value
        weakref.finalize(self, lib.luattn_batch_close, handle)


class Batch:
    """Evaluates masks from data (flags, tables and lists of blocks, groups) once for all layers of a step.

    batch = luattn.Batch()
    batch.prepare(attention, q, k, table=table)  # each step, or when table changes
    o = attention(q, k, v, table=table, batch=batch)  # in every layer, and backward
    """

    def __init__(self) -> None:
        import torch

        self._bits: dict[int, Bits] = {}  # by the address of the spec
        number = next(_number)
        _batches[number] = self
        # What travels through the ops of torch, and keeps this object.
        self.token = torch.tensor([number])
        self.token.__dict__["_luattn_batch"] = self

    def prepare(self, attention: "Attention", q: Any, k: Any, *, layout: str = "bhsd", **given: Any) -> None:
        """Evaluates the mask of `attention` for tensors like q and k, on the current stream, which a CUDA graph may capture.
        given: its inputs and scalars. Does nothing where ranges decide the mask, and for tensors on the CPU.

        Calls of `attention` with this batch must then have the same lengths, scalars and inputs as far as the mask reads
        them, and say so if not. Contents of inputs are not compared: prepare again after changing them. A batch holds the
        bits of as many attentions as a model has, and of the last prepare of each.
        """
        from ._tensors import prepare_mask

        if layout == "bshd":
            q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
        elif layout != "bhsd":
            raise InvalidError(f"{attention.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        inputs, scalars, options = attention._sort(given, q)
        if options:
            raise InvalidError(f"{attention.name}: {next(iter(options))}: prepare takes inputs and scalars alone")
        if q.is_cuda:
            prepare_mask(self._bits, attention._spec, q, k, inputs, [float(x) for x in scalars])


def handle_of(token: Any, spec: Spec) -> int | None:
    """The luattn_batch with this spec's bits; None if it needs none, or nobody has prepared them."""
    batch = _batches.get(int(token))
    if batch is None:
        raise InvalidError(f"{spec.name}: batch: is not there any more: keep it until backward has run")
    bits = batch._bits.get(spec.pointer)
    return None if bits is None else bits.handle
