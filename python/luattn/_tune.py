"""Attention.tune: measures the candidate tiles of a call's passes on its GPU, over a grid its pairs of boxes, and remembers the fastest, as `luattn tune`
does."""

import ctypes
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _boxes as boxes
from . import _capi as capi
from . import _tensors as tensors
from ._call import Frame, give_back, take_frame
from ._fit import needs_padding, padded, scale_of
from ._library import call, lib
from ._spec import Spec
from .engine import engine_of, nvrtc_path
from .errors import Error, InvalidError, Unsupported
from .progress import progress_bar

_MOST = 64  # candidates of a pass
_ROUNDS = 7
_LEAST_GAIN = 1.01
# The largest distance of two kernels' rows, over the length of the row: cli/tune.c says why.
_ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 4 * 2**-8, torch.float16: 4 * 2**-11}


def device_of(q: Tensor) -> int:
    if not q.is_cuda:
        raise InvalidError(f"tune: q: is on {q.device}, and tiles are measured on a GPU: move it to one")
    return q.get_device()


def tune(spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float], scale: float,
         backward: bool, time_limit: float) -> str:  # fmt: skip
    """A line for each pass: what was fastest, and where it is remembered."""
    device_of(q)
    if backward and not spec.has_backward:
        raise Unsupported(spec.why_no_backward)
    if needs_padding(spec, q, v):
        scale = scale_of(scale, q)
        q, k, v = padded(spec, q, k, v)
    deadline = time.monotonic() + time_limit
    o, _, _ = made = tensors.forward(spec, q, k, v, inputs, scalars, scale, {})
    lines = []
    for is_backward in (False, True)[: 1 + backward]:
        frame = take_frame(spec, is_backward)
        try:
            frame.set_inputs(tensors.fill, inputs)
            frame.set_numbers(scale, scalars)
            if is_backward:
                wants = _wants(spec, q, k, v, inputs)
                want_inputs = [bool(wants & capi.WANT_INPUTS) and info.grad for info in spec.inputs]
                *grads, _, dinputs = tensors.gradients(spec, q, k, v, inputs, wants, want_inputs)
                frame.set(tensors.fill, (q, k, v, *made, o, None, *grads))  # dout: any numbers
                frame.set_inputs(tensors.fill, inputs, dinputs)
                frame.set_scalar_grads(tensors.fill, None)
                outputs = [t for t in grads if t is not None]
            else:
                wants = 0
                frame.set(tensors.fill, (q, k, v, *made))
                outputs = [t for t in made if t is not None]
            lines.append(_Pass(frame, q, k, v, inputs, wants, outputs).tune(deadline))
        finally:
            give_back(frame)
        deadline += time_limit
    call("luattn_engine_forget", engine_of(device_of(q)), spec.pointer)  # so that the next call takes what is remembered
    spec.signatures.clear()
    return "\n".join(lines)


def _wants(spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor]) -> int:
    """Gradients that training with these tensors asks for; those of q, k and v where none requires one."""
    wants = q.requires_grad + 2 * k.requires_grad + 4 * v.requires_grad
    if any(info.grad and t.requires_grad for info, t in zip(spec.inputs, inputs)):
        wants |= capi.WANT_INPUTS
    return wants or 7


class _Kernel:
    """pair: over a grid, with its axes."""

    def __init__(self, tiles: capi.Tiles, pointer: int, pair: tuple[capi.BoxPair, int] | None = None) -> None:
        self.tiles, self.pointer, self.pair = tiles, pointer, pair
        self.ms: list[float] = []

    def __str__(self) -> str:
        if self.pair is not None:
            return str(boxes.shapes_of(*self.pair))
        t = self.tiles
        rest = f", {t.warps_n} {t.chunk_m}" if t.warps_n else ""
        return f"{t.tile_m} x {t.tile_n}, {t.threads} threads, {t.stages} stages{rest}"


class _Pass:
    """One pass of a call. Its frame has all arguments but the workspace."""

    def __init__(self, frame: Frame, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], wants: int,
                 outputs: list[Tensor]) -> None:  # fmt: skip
        self.frame, self.spec, self.outputs, self.q = frame, frame.spec, outputs, q
        self.device = device_of(q)
        self.driver = lib.luattn_engine_driver(engine_of(self.device))
        info, version = capi.DeviceInfo(), ctypes.c_int()
        call("luattn_device_get_info", self.driver, self.device, ctypes.byref(info))
        call("luattn_driver_version", self.driver, ctypes.byref(version))
        self.name: bytes = info.name
        self.stream = torch._C._cuda_getCurrentRawStream(self.device) if q.is_cuda else None
        length = math.prod((k if frame.backward else q).shape[2:-1])
        self.target = capi.Target(
            struct_size=ctypes.sizeof(capi.Target),
            pass_=capi.BACKWARD if frame.backward else capi.FORWARD,
            dtype=capi.DTYPES.index(str(q.dtype).removeprefix("torch.")),
            head_dim=q.shape[-1],
            head_dim_v=v.shape[-1],
            arch=info.arch,
            wants=wants,
            lengths=capi.SHORT if length <= capi.SHORT_MAX else capi.LONG,
            nvrtc=nvrtc_path(),
            driver_version=version.value,
        )
        self.axes = len(frame.spec.grid)
        if not self.axes and not frame.backward and frame.plan(engine_of(self.device)).startswith("decode: "):  # the kernel that the call uses
            rows = q.shape[2] * q.shape[1] // k.shape[1]
            self.target.decode = 1
            self.target.lengths = capi.SHORT if rows <= capi.DECODE_TILE else capi.LONG
            self.target.many_rows = rows > capi.DECODE_MANY
        for i, (one, t) in enumerate(zip(self.spec.inputs, inputs)):
            if one.dtype == "any":
                self.target.input_types |= 1 + capi.INPUT_DTYPES.index(str(t.dtype).removeprefix("torch.")) << 4 * i

    def tune(self, deadline: float) -> str:
        listed = self.listed()
        own = self.compile(listed[0] if self.axes else None)
        kernels = [own]
        try:
            for kernel in self.candidates(listed, own, deadline):
                kernels.append(kernel)
            workspace = self.make_room(kernels)
            want = self.run(own)
            for other in kernels[1:]:
                self.check(own, other, want, self.run(other))
            self.measure(kernels, deadline)
            del workspace
            return self.remember(own, min(kernels, key=lambda kernel: statistics.median(kernel.ms)))
        finally:
            for kernel in kernels:
                lib.luattn_kernel_unload(kernel.pointer)

    def listed(self) -> list[Any]:
        """Tiles, or over a grid pairs of boxes, of which the first is what calls take by themselves."""
        if self.axes:
            return boxes.listed(self.spec.pointer, self.target, self.frame.args)[:_MOST]
        tiles, count = (capi.Tiles * _MOST)(), ctypes.c_int()
        at = ctypes.byref
        call("luattn_plan_candidates", self.spec.pointer, at(self.target), tiles, _MOST, at(count))
        return list(tiles[: count.value])

    def choose(self, what: Any) -> None:
        """Makes tiles or a pair of boxes part of the target; None: neither."""
        target = self.target
        target.tiles = ctypes.addressof(what) if isinstance(what, capi.Tiles) else None
        target.boxes = target.query_tile_size = target.key_tile_size = 0
        if isinstance(what, capi.BoxPair):
            if what.boxes:  # the kernel's own pairs are known by their numbers, whose images engines have
                target.boxes = what.boxes if what.boxes > 1 else 0
            else:
                target.query_tile_size, target.key_tile_size = what.query_tile_size, what.key_tile_size

    def compile(self, what: Any) -> _Kernel:
        self.choose(what)
        image, kernel, report = ctypes.c_void_p(), ctypes.c_void_p(), capi.CompileReport()
        at = ctypes.byref
        try:
            call("luattn_compile", self.spec.pointer, at(self.target), at(image), at(report))
        finally:
            self.choose(None)
        try:
            call("luattn_kernel_load", self.driver, self.device, image, at(kernel))
        finally:
            lib.luattn_image_free(image)
        assert kernel.value
        pair = (what, self.axes) if self.axes else None
        return _Kernel(capi.Tiles.from_buffer_copy(report.tiles), kernel.value, pair)

    def candidates(self, listed: Sequence[Any], own: _Kernel, deadline: float) -> Iterator[_Kernel]:
        """Those that compile without spilling registers, until half of the time is over."""
        end = (time.monotonic() + deadline) / 2
        with progress_bar(len(listed)) as progress:
            for i, what in enumerate(listed):
                if time.monotonic() > end:
                    return
                if i > 0 if self.axes else bytes(what) != bytes(own.tiles):
                    try:
                        yield self.compile(what)
                    except Error:
                        pass  # refused: it spills, or does not fit
                if progress:
                    progress(None, i + 1, len(listed))

    def make_room(self, kernels: list[_Kernel]) -> Tensor:
        """A workspace for each of them. It has to live as long as the launches."""
        size, most = ctypes.c_size_t(), 0
        for kernel in kernels:
            call("luattn_workspace_size", kernel.pointer, self.frame.args, ctypes.byref(size))
            most = max(most, size.value)
        workspace = tensors.memory(self.q, most)
        self.frame.set_workspace(workspace.data_ptr(), most)
        return workspace

    def launch(self, kernel: _Kernel) -> None:
        call("luattn_launch", kernel.pointer, self.frame.args, self.stream)

    def run(self, kernel: _Kernel) -> list[Tensor]:
        """The results, of outputs that were full of NaN."""
        for t in self.outputs:
            t.fill_(torch.nan)
        self.launch(kernel)
        call("luattn_synchronize", self.driver, self.device, self.stream)
        return [t.clone() for t in self.outputs]

    def check(self, own: _Kernel, other: _Kernel, want: list[Tensor], got: list[Tensor]) -> None:
        for a, b in zip(want, got):
            a, b = (t.double().flatten(0, -2) for t in (a, b))
            equal = (a == b) | (a.isnan() & b.isnan())
            apart, length = torch.where(equal, 0, a - b).norm(dim=-1), torch.where(a.isfinite(), a, 0).norm(dim=-1)
            allowed = _ALLOWED[self.q.dtype] * length + 1e-5 * length.max()
            if not (apart <= allowed).all():
                raise Error(
                    f"tune: {self.spec.name}: {other} give other results than {own}; nothing is remembered; this is an "
                    "error in luattn: report it with the spec"
                )

    def measure(self, kernels: list[_Kernel], deadline: float) -> None:
        """Medians of rounds that take all kernels in turn."""
        timer = ctypes.c_void_p()
        call("luattn_timer_open", self.driver, self.device, ctypes.byref(timer))
        try:
            count = max(1, min(20, int(2 / self.time(timer, kernels[0], 1))))  # launches of 2 ms or more together
            for i in range(_ROUNDS):
                if i >= 3 and time.monotonic() > deadline:
                    break
                for kernel in kernels:
                    kernel.ms.append(self.time(timer, kernel, count))
        finally:
            lib.luattn_timer_close(timer)

    def time(self, timer: ctypes.c_void_p, kernel: _Kernel, count: int) -> float:
        ms = ctypes.c_double()
        call("luattn_timer_start", timer, self.stream)
        for _ in range(count):
            self.launch(kernel)
        call("luattn_timer_stop", timer, self.stream)
        call("luattn_timer_read", timer, ctypes.byref(ms))
        return ms.value / count

    def remember(self, own: _Kernel, best: _Kernel) -> str:
        """Removes what was remembered where nothing is faster than the plan's own tiles."""
        gain = statistics.median(own.ms) / statistics.median(best.ms)
        is_faster = best is not own and gain >= _LEAST_GAIN
        path = ctypes.create_string_buffer(4096)
        target, at = self.target, ctypes.byref(self.target)
        target.device = self.name
        if best.pair is None:
            target.tiles = ctypes.addressof(best.tiles) if is_faster else None
            call("luattn_tuned_store", self.spec.pointer, at, gain, path, len(path))
        else:
            if is_faster:
                target.query_tile_size, target.key_tile_size = best.pair[0].query_tile_size, best.pair[0].key_tile_size
            call("luattn_tuned_boxes_store", self.spec.pointer, at, self.frame.args, gain, path, len(path))
        title = f"{'backward' if self.frame.backward else 'forward'}: "
        if not is_faster:
            return f"{title}nothing is {_LEAST_GAIN - 1:.0%} faster than the plan's {own}; nothing is remembered"
        return f"{title}{best} are {gain:.3f} times as fast as the plan's {own}; remembered in {path.value.decode()}"
