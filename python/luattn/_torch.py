"""luattn::forward and luattn::backward, ops of torch, and their autograd.

A spec travels as its text, so that a graph of torch.export is whole in another process, and the cache of torch.compile
tells specs apart. Ops are defined by torch.library.Library: custom_op takes 240 us more for a call with gradients. Autograd
is a kernel of the op, not a wrapper around it: graphs keep the op itself, and a bare call has gradients too.

The schema has arguments for what does not exist yet. They come to life without a change to exported graphs.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _capi as capi
from ._call import Fill, give_back, take_frame
from ._spec import Spec, spec_of
from .engine import engine_of
from .errors import InvalidError, Unsupported

_LATER = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? block_table=None, Tensor? batch=None, Tensor? seed=None"
)
# learned: float64 [number of scalars] on the CPU, in the place of scalars, with a gradient.
# whole: _call.WHOLE, or nothing. q_offset, kv_offset: int32 [batch], in the place of whole's first two.
_SPEC = (
    "str spec, {}Tensor q, Tensor k, Tensor v, {}Tensor[] inputs, float[] scalars, Tensor? learned, float scale, *, "
    "SymInt[] whole=[], Tensor? q_offset=None, Tensor? kv_offset=None, " + _LATER
)
_lib = torch.library.Library("luattn", "DEF")
_lib.define(f"forward({_SPEC.format('', '')}, bool exact_rows=False) -> (Tensor o, Tensor lse, Tensor saved)")
_lib.define(
    f"backward({_SPEC.format('Tensor dout, Tensor? dlse, ', 'Tensor o, Tensor lse, Tensor saved, ')}, "
    "int wants=31, bool[] want_inputs=[]) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscalars, Tensor[] dinputs)"
)
_forward = torch.ops.luattn.forward.default
_backward = torch.ops.luattn.backward.default
_below_autograd = torch._C._AutoDispatchBelowAutograd

_DTYPES = {getattr(torch, name): capi.DLDataType(*code, 1) for name, code in capi.DL_CODES.items()}
_KEPT: dict[
    int, Any
] = {}  # shape and strides of the DLTensor at an address, which live as long as it is filled


def _fill_slowly(t: Tensor, at: int) -> None:
    """For torch before 2.10."""
    n, tensor = t.dim(), capi.DLTensor.from_address(at)
    if t.dtype not in _DTYPES:
        raise InvalidError(f"tensor of type {t.dtype}: luattn takes {', '.join(capi.DL_CODES)}")
    sizes = _KEPT[at] = (ctypes.c_int64 * (2 * n))(*t.shape, *t.stride())
    tensor.data = t.data_ptr() or None
    tensor.device = capi.DLDevice(2, t.device.index) if t.is_cuda else capi.DLDevice(1, 0)
    tensor.ndim, tensor.dtype, tensor.byte_offset = n, _DTYPES[t.dtype], 0
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(ctypes.addressof(sizes) + 8 * n, ctypes.POINTER(ctypes.c_int64))


def _find_fill() -> Fill:
    """The function of DLPack's exchange API, which fills a DLTensor in half a microsecond."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return _fill_slowly
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # DLPackExchangeAPI: a header of version and pointer, then six functions, of which this is the fourth.
    table = (ctypes.c_size_t * 8).from_address(get(capsule, b"dlpack_exchange_api"))
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(table[5])


fill = _find_fill()


# --- shapes of results, for fake tensors too ---


def _rows_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _results(spec: Spec, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, h, n, _ = q.shape
    d, rows = v.shape[-1], _rows_type(q)
    # In the order that q has in memory: [B, H, S, D] or [B, S, H, D].
    strides = q.stride()
    o = q.new_empty((b, n, h, d)).transpose(1, 2) if strides[1] < strides[2] else q.new_empty((b, h, n, d))
    lse = q.new_empty((b, h, n) if spec.has_lse else (0,), dtype=rows)
    saved = q.new_empty((spec.num_saved, b, h, n) if spec.num_saved else (0,), dtype=rows)
    return o, lse, saved


def _gradients(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    wants: int,
    want_inputs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    rows = _rows_type(q)
    dq, dk, dv = (
        torch.empty_like(t) if wants & bit else t.new_empty((0,))
        for t, bit in ((q, capi.WANT_DQ), (k, capi.WANT_DK), (v, capi.WANT_DV))
    )
    dscalars = q.new_empty((len(spec.scalars) if wants & capi.WANT_SCALARS else 0,), dtype=rows)
    dinputs = [q.new_empty(t.shape if want else (0,), dtype=rows) for t, want in zip(inputs, want_inputs)]
    return dq, dk, dv, dscalars, dinputs


# --- the ops on the CPU and on a GPU ---


def _refuse_later(spec: Spec, later: dict[str, Any]) -> None:
    for name, value in later.items():
        if value is not None and value is not False:
            raise Unsupported(f"{spec.name}: {name}: there is no such argument yet; leave it out")


def _check(spec: Spec, q: Tensor, tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    if q.dim() != 4:
        raise InvalidError(
            f"{spec.name}: q: has {q.dim()} dimensions, expected 4: batch, heads, length and head dim"
        )
    if len(inputs) != len(spec.inputs):
        raise InvalidError(f"{spec.name}: {len(inputs)} inputs, expected {len(spec.inputs)}")
    for t in (*tensors, *inputs):
        if t.device != q.device:
            raise InvalidError(
                f"{spec.name}: a tensor is on {t.device}, and q on {q.device}: move one of them"
            )


def _numbers(spec: Spec, scalars: Sequence[float], learned: Tensor | None) -> Sequence[float]:
    values = scalars if learned is None else learned.tolist()
    if len(values) != len(spec.scalars):
        raise InvalidError(f"{spec.name}: {len(values)} scalars, expected {len(spec.scalars)}")
    return values


def _run(frame: Any, q: Tensor, backward: bool) -> None:
    if not q.is_cuda:
        frame.run(engine_of(capi.CPU), backward, None)
        return
    engine = engine_of(q.device.index, backward and torch.are_deterministic_algorithms_enabled())
    size = frame.workspace_size(engine, backward)
    workspace = torch.empty(size, dtype=torch.uint8, device=q.device)  # 512-byte aligned
    frame.set_workspace(workspace.data_ptr(), size)
    frame.run(engine, backward, torch.cuda.current_stream(q.device).cuda_stream)


def _forward_kernel(
    text: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: list[Tensor],
    scalars: list[float],
    learned: Tensor | None,
    scale: float,
    *,
    whole: Sequence[int] = (),
    q_offset: Tensor | None = None,
    kv_offset: Tensor | None = None,
    **later: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    spec = spec_of(text)
    if later:
        _refuse_later(spec, later)
    _check(spec, q, (k, v), inputs)
    o, lse, saved = results = _results(spec, q, v)
    frame = take_frame(spec)
    try:
        frame.set(
            fill,
            (
                ("q", q),
                ("k", k),
                ("v", v),
                ("o", o),
                ("lse", lse if spec.has_lse else None),
                ("saved", saved if spec.num_saved else None),
            ),
        )
        frame.set_inputs(fill, inputs)
        frame.set_numbers(scale, _numbers(spec, scalars, learned))
        if whole or q_offset is not None or kv_offset is not None:
            frame.set_whole(fill, whole, q_offset, kv_offset)
        _run(frame, q, False)
    finally:
        give_back(frame)
    return results


def _is_aligned(t: Tensor) -> bool:
    """As kernels read it: contiguous rows, and in half precision 16 bytes at once."""
    if t.stride(-1) != 1 or 0 in t.stride():
        return False
    return t.element_size() != 2 or (
        t.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in t.stride()[:-1])
    )


def _backward_kernel(
    text: str,
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    saved: Tensor,
    inputs: list[Tensor],
    scalars: list[float],
    learned: Tensor | None,
    scale: float,
    *,
    whole: Sequence[int] = (),
    q_offset: Tensor | None = None,
    kv_offset: Tensor | None = None,
    wants: int = 31,
    want_inputs: Sequence[bool] = (),
    **later: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    spec = spec_of(text)
    if later:
        _refuse_later(spec, later)
    if not spec.has_backward:
        raise Unsupported(spec.why_no_backward)
    _check(spec, q, (k, v, dout, o, lse), inputs)
    want_inputs = want_inputs or [False] * len(inputs)
    results = _gradients(spec, q, k, v, inputs, wants, want_inputs)
    dq, dk, dv, dscalars, dinputs = results
    # (o.sum()).backward() hands over one element with strides of 0.
    dlse = None if dlse is None else dlse.contiguous()
    dout = dout if _is_aligned(dout) else dout.contiguous()
    frame = take_frame(spec)
    try:
        frame.set(
            fill,
            (
                ("q", q),
                ("k", k),
                ("v", v),
                ("o", o),
                ("lse", lse if spec.has_lse else None),
                ("saved", saved if spec.num_saved else None),
                ("dout", dout),
                ("dlse", dlse),
                ("dq", dq if wants & capi.WANT_DQ else None),
                ("dk", dk if wants & capi.WANT_DK else None),
                ("dv", dv if wants & capi.WANT_DV else None),
            ),
        )
        frame.set_inputs(fill, inputs, [grad if want else None for grad, want in zip(dinputs, want_inputs)])
        want_scalars = wants & capi.WANT_SCALARS and spec.scalars
        frame.set_numbers(scale, _numbers(spec, scalars, learned), fill, dscalars if want_scalars else None)
        if whole or q_offset is not None or kv_offset is not None:
            frame.set_whole(fill, whole, q_offset, kv_offset)
        _run(frame, q, True)
    finally:
        give_back(frame)
    return results


for _device in ("CPU", "CUDA"):
    _lib.impl("forward", _forward_kernel, _device)
    _lib.impl("backward", _backward_kernel, _device)


@torch.library.register_fake("luattn::forward", lib=_lib)
def _(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    return _results(spec_of(text), q, v)


@torch.library.register_fake("luattn::backward", lib=_lib)
def _(text, dout, dlse, q, k, v, o, lse, saved, inputs, *rest, wants=31, want_inputs=(), **given):  # type: ignore[no-untyped-def]
    return _gradients(spec_of(text), q, k, v, inputs, wants, want_inputs)


# --- autograd ---


def _is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Whether only autograd stands between a call and the kernel: no mode, transform, subclass or lazy negation. The
    dispatcher takes 3 us for each key that it asks."""
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._is_any_autocast_enabled()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    ):
        return False
    for t in tensors:
        if t is not None and not (type(t) in _PLAIN and (t.is_cpu or t.is_cuda) and not t.is_neg()):
            return False
    return True


_PLAIN = (Tensor, torch.nn.Parameter)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, text, scalars, scale, given, q, k, v, learned, *inputs):  # type: ignore[no-untyped-def]
        o, lse, saved = run(text, q, k, v, list(inputs), scalars, learned, scale, **given)
        ctx.call = text, scalars, scale, given
        ctx.save_for_backward(q, k, v, learned, o, lse, saved, *inputs)
        spec = spec_of(text)
        ctx.mark_non_differentiable(*([saved] if spec.has_lse else [lse, saved]))
        ctx.set_materialize_grads(False)
        return o, lse, saved

    @staticmethod
    def backward(ctx, dout, dlse, _):  # type: ignore[no-untyped-def]
        text, scalars, scale, given = ctx.call
        q, k, v, learned, o, lse, saved, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[5:9]
        grads = [info.grad and need for info, need in zip(spec_of(text).inputs, ctx.needs_input_grad[9:])]
        bits = (capi.WANT_DQ, capi.WANT_DK, capi.WANT_DV, capi.WANT_SCALARS)
        wants = sum(bit for bit, need in zip(bits, needs) if need)
        if (dout is None and dlse is None) or not (wants or any(grads)):
            return (None,) * len(ctx.needs_input_grad)
        if dout is None:
            dout = torch.zeros_like(o)
        given = {name: value for name, value in given.items() if name != "exact_rows"}
        is_plain = not torch.is_grad_enabled() and _is_plain((dout, dlse, q, k, v, o, lse, learned, *inputs))
        run = _backward_kernel if is_plain else _backward
        *dqkv, dscalars, dinputs = run(
            text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale,
            **given, wants=wants, want_inputs=grads,
        )  # fmt: skip
        return (
            None, None, None, None, None,
            *(d if need else None for d, need in zip(dqkv, needs)),
            dscalars.to("cpu", torch.float64) if needs[3] else None,
            *(d.to(t.dtype) if want else None for d, want, t in zip(dinputs, grads, inputs)),
        )  # fmt: skip


class _Backward(torch.autograd.Function):
    """The backward pass where its own gradient might be asked for."""

    @staticmethod
    def forward(ctx, name, given, *args):  # type: ignore[no-untyped-def]
        ctx.name = name
        text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs = args
        with _below_autograd():
            *first, dinputs = _backward(
                text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given
            )
        return (*first, *dinputs)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        raise Unsupported(
            f"{ctx.name}: there are no second derivatives yet: leave out create_graph=True, or detach the gradient"
        )


def _refuse_transforms(text: str, tensors: Sequence[Tensor | None]) -> None:
    """Forward mode would drop tangents without a word, and torch.func needs rules of its own."""
    if torch._C._functorch.maybe_current_level() is not None:
        raise Unsupported(
            f"{spec_of(text).name}: transforms of torch.func (grad, vjp, ..) do not exist for it yet: use torch.autograd"
        )
    if forward_ad._current_level >= 0:
        for t in tensors:
            if t is not None and forward_ad.unpack_dual(t).tangent is not None:
                raise Unsupported(
                    f"{spec_of(text).name}: forward-mode derivatives (torch.func.jvp, torch.autograd.forward_ad) do not "
                    "exist yet: use backward"
                )


def _forward_autograd(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    _refuse_transforms(text, (q, k, v, learned, *inputs))
    return _differentiate(_forward_below, text, q, k, v, inputs, scalars, learned, scale, given)


def _forward_below(*args, **given):  # type: ignore[no-untyped-def]
    with _below_autograd():
        return _forward(*args, **given)


def _differentiate(run, text, q, k, v, inputs, scalars, learned, scale, given):  # type: ignore[no-untyped-def]
    """run(..), which computes a forward pass, with gradients where any of its tensors wants one."""
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (learned is not None and learned.requires_grad)
        or any(t.requires_grad for t in inputs)
    ):
        spec = spec_of(text)
        for info, t in zip(spec.inputs, inputs):
            if t.requires_grad and not info.grad:
                raise InvalidError(
                    f"{spec.name}: input '{info.name}' requires a gradient, which the spec does not declare: "
                    f"write {info.name} = {{ .., grad = true }}, or pass {info.name}.detach()"
                )
        return _Attention.apply(run, text, scalars, scale, given, q, k, v, learned, *inputs)
    return run(text, q, k, v, inputs, scalars, learned, scale, **given)


def _backward_autograd(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    tensors = (dout, dlse, q, k, v, o, lse, saved, learned, *inputs)
    _refuse_transforms(text, tensors)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        args = (text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs)
        *first, dinputs = _split(_Backward.apply(spec_of(text).name, given, *args))
        return (*first, dinputs)
    with _below_autograd():
        return _backward(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given)


def _split(flat: Sequence[Tensor]) -> tuple[Any, ...]:
    return (*flat[:4], list(flat[4:]))


_lib.impl("forward", _forward_autograd, "Autograd")
_lib.impl("backward", _backward_autograd, "Autograd")


def _autocast(key: str, device: str) -> None:
    def cast(text, q, k, v, *rest, **given):  # type: ignore[no-untyped-def]
        to = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):
            return _forward(
                text, *(t.to(to) if t.dtype != torch.float64 else t for t in (q, k, v)), *rest, **given
            )

    _lib.impl("forward", cast, key)


_autocast("AutocastCPU", "cpu")
_autocast("AutocastCUDA", "cuda")


def _refuse_vmap(text, *args, **given):  # type: ignore[no-untyped-def]
    raise Unsupported(
        f"{spec_of(text).name}: torch.vmap does not exist for it yet: put the mapped dimension into the batch"
    )


_lib.impl("forward", _refuse_vmap, "FuncTorchBatched")
_lib.impl("backward", _refuse_vmap, "FuncTorchBatched")


# --- what Attention calls ---


def call(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float,
    whole: list[int],
    q_offset: Tensor | None,
    kv_offset: Tensor | None,
    later: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """The result and lse of torch tensors, with gradients."""
    learned = None
    # Under torch.compile a float in a list would be a constant of the graph, and each value another graph.
    if scalars and (torch.compiler.is_dynamo_compiling() or any(isinstance(x, Tensor) for x in scalars)):
        learned = _stack(spec, scalars)
        scalars = []
    given: dict[str, Any] = later
    if whole or q_offset is not None or kv_offset is not None:
        given = {"whole": whole, "q_offset": q_offset, "kv_offset": kv_offset, **later}
    args = (spec.text, q, k, v, list(inputs), list(scalars), learned, scale)
    if not torch.compiler.is_compiling() and _is_plain((q, k, v, learned, q_offset, kv_offset, *inputs)):
        o, lse, _ = _differentiate(_forward_kernel, *args, given)
    else:
        o, lse, _ = _forward(*args, **given)
    return o, lse


def _stack(spec: Spec, scalars: Sequence[float | Tensor]) -> Tensor:
    numbers = []
    for name, x in zip(spec.scalars, scalars):
        if not isinstance(x, Tensor):
            x = torch.tensor(x, dtype=torch.float64)
        elif x.is_cuda:
            raise InvalidError(
                f"{spec.name}: scalar '{name}' is a tensor on {x.device}, for which every call would wait: "
                f"declare it as an input, inputs = {{ {name} = {{ axes = {{}}, grad = true }} }}, or pass float({name})"
            )
        elif x.numel() != 1:
            raise InvalidError(f"{spec.name}: scalar '{name}' has {x.numel()} elements, expected 1")
        numbers.append(x.to(torch.float64).reshape(()))
    return torch.stack(numbers)
