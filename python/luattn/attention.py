"""attention(spec): what a spec computes, as a callable."""

import os
from typing import Any

from . import _capi as capi
from ._call import WHOLE, fill_of, give_back, is_numpy, take_frame
from ._library import call
from ._spec import InputInfo, Spec, load
from .engine import engine_of
from .errors import InvalidError, Unsupported
from .mask import Mask, mask_of

_LATER = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "max_seqlen_q",
    "max_seqlen_k",
    "seqused_q",
    "seqused_k",
    "block_table",
    "batch",
    "seed",
    "exact_rows",
)
_RESERVED = ("q", "k", "v", "scale", "return_lse", "layout", *WHOLE, *_LATER)


def attention(spec: str | os.PathLike[str]) -> "Attention":
    """Loads a spec: the path of a Lua file, or its text. Errors: SpecError, with the file and the line."""
    return Attention(load(spec))


class Attention:
    """A spec as a function of q, k and v; made by attention(). Inputs and scalars of the spec are keyword arguments."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.text = spec.text
        self.name = spec.name
        self.inputs: dict[str, InputInfo] = {info.name: info for info in spec.inputs}
        self.scalars: dict[str, float] = spec.scalars
        for name in (*self.inputs, *self.scalars):
            if name in _RESERVED:
                raise InvalidError(
                    f"{self.name}: '{name}' is an argument of every attention: rename what the spec declares"
                )

    def __repr__(self) -> str:
        names = ", ".join(
            ["q", "k", "v", *self.inputs, *(f"{name}={x:g}" for name, x in self.scalars.items())]
        )
        return f"<luattn.Attention {self.name}({names})>"

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        layout: str = "bhsd",
        q_offset: Any = 0,
        kv_offset: Any = 0,
        q_len: int = 0,
        kv_len: int = 0,
        head_offset: int = 0,
        heads: int = 0,
        heads_kv: int = 0,
        **given: Any,
    ) -> Any:
        """Computes o, and with return_lse (o, lse). Torch tensors have gradients, NumPy arrays do not.

        q is [batch, heads, length, head_dim], k and v have their own heads (a divisor of q's) and length; strides are
        free but for the last one. With layout="bshd" they are [batch, length, heads, head_dim], and so is o.
        lse is float32 (float64 for float64), [batch, heads, length], in natural log. scale: head_dim ** -0.5 if None.

        q_offset to heads_kv say of which whole the tensors are a part, as in luattn/batch.h. An offset is a number, or an
        int32 tensor [batch] where q is, which kernels read.
        """
        if layout == "bshd":
            q, k, v = _swap(q), _swap(k), _swap(v)
        elif layout != "bhsd":
            raise InvalidError(f"{self.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        if return_lse and not self._spec.has_lse:
            raise Unsupported(f"{self.name}: return_lse: its online function has no lse")
        inputs, scalars, later = self._sort(given)
        whole, q_offset, kv_offset = _whole(q_offset, kv_offset, q_len, kv_len, head_offset, heads, heads_kv)
        if scale is not None and scale == 0:
            raise InvalidError(
                f"{self.name}: scale: is 0, expected another number, or None for head_dim ** -0.5"
            )
        args = (
            self._spec,
            q,
            k,
            v,
            inputs,
            scalars,
            0.0 if scale is None else float(scale),
            whole,
            q_offset,
            kv_offset,
            later,
        )
        if is_numpy(q):
            from ._numpy import call as call_numpy

            results: tuple[Any, Any] = call_numpy(*args)
        else:
            from ._torch import call as call_torch

            results = call_torch(*args)
        o, lse = results
        if layout == "bshd":
            o = _swap(o)
        return (o, lse) if return_lse else o

    def _sort(self, given: dict[str, Any]) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Inputs and scalars in the spec's order, and arguments that do not exist yet."""
        inputs, scalars, later = [], [], {}
        for name in self.inputs:
            if name not in given:
                raise InvalidError(f"{self.name}: input '{name}' is missing: pass {name}=")
            inputs.append(given[name])
        for name, default in self.scalars.items():
            scalars.append(given.get(name, default))
        for name, value in given.items():
            if name in _LATER:
                later[name] = value
            elif name not in self.inputs and name not in self.scalars:
                known = ", ".join([*self.inputs, *self.scalars]) or "no inputs or scalars"
                raise InvalidError(f"{self.name}: there is no argument '{name}'; the spec declares {known}")
        return inputs, scalars, later

    def plan(
        self, q: Any, k: Any, v: Any, *, backward: bool = False, layout: str = "bhsd", **inputs: Any
    ) -> str:
        """How these tensors are computed, one fact a line: kernels, tiles, and why. Compiles the kernel if it is new."""
        given = self._sort(inputs)[0]
        if layout == "bshd":
            q, k, v = _swap(q), _swap(k), _swap(v)
        fill = fill_of(q)
        grads = [x if backward and info.grad else None for x, info in zip(given, self._spec.inputs)]
        named = [("q", q), ("k", k), ("v", v)]
        if backward:
            named += [("dq", q), ("dk", k), ("dv", v)]
        is_cuda = not is_numpy(q) and q.is_cuda
        engine = engine_of(q.device.index if is_cuda else capi.CPU)
        frame = take_frame(self._spec)
        try:
            frame.set(fill, named)
            frame.set_inputs(fill, given, grads)
            return frame.plan(engine, backward)
        finally:
            give_back(frame)

    def prepare(
        self,
        dtype: Any,
        head_dim: int,
        head_dim_v: int = 0,
        *,
        device: int = 0,
        scalars: bool = False,
        threads: int = 0,
    ) -> None:
        """Compiles the kernels for a GPU that training will need, for short and long lengths, on `threads` threads (0: one a
        processor): before a CUDA graph is captured, or the first step. Backward is that of q, k, v and the inputs with
        gradients, and with scalars=True of the scalars. dtype: torch.bfloat16, or its name."""
        name = str(dtype).removeprefix("torch.")
        if name not in capi.DTYPES:
            raise InvalidError(f"{self.name}: dtype: is {name}, expected one of {', '.join(capi.DTYPES)}")
        wants = self._spec.wants & (capi.WANT_ALL if scalars else capi.WANT_ALL - capi.WANT_SCALARS)
        passes = [(capi.FORWARD, 0)] + ([(capi.BACKWARD, wants)] if self._spec.has_backward else [])
        index = capi.DTYPES.index(name)
        requests = (capi.Request * len(passes))(
            *(
                capi.Request(self._spec.pointer, pass_, index, head_dim, head_dim_v, want)
                for pass_, want in passes
            )
        )
        call("luattn_prepare", engine_of(device), requests, len(passes), threads, None, None)

    def mask(
        self, q_len: int, kv_len: int, *, batch: int = 0, head: int = 0, tile: int = 64, **inputs: Any
    ) -> Mask:
        """Which tiles of `tile` x `tile` scores the mask leaves empty, full or partial, for one batch entry and head. A
        notebook shows it as a picture. Inputs that the mask reads are arrays or tensors on the CPU."""
        return mask_of(self._spec, q_len, kv_len, batch, head, tile, self._sort(inputs)[0])


def _swap(t: Any) -> Any:
    return t.swapaxes(1, 2)


def _whole(q_offset: Any, kv_offset: Any, *rest: int) -> tuple[list[int], Any, Any]:
    """The numbers of luattn_batch, or none where the tensors are the whole, and offsets that are tensors."""
    arrays = [None if isinstance(x, int) else x for x in (q_offset, kv_offset)]
    numbers = [x if isinstance(x, int) else 0 for x in (q_offset, kv_offset)]
    whole = [*numbers, *rest]
    if all(isinstance(x, int) and x == 0 for x in whole):
        whole = []
    return whole, arrays[0], arrays[1]
