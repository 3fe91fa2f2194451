"""Both passes of torch tensors: allocates results, fills a frame, and launches it. Knows nothing of autograd."""

import ctypes
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _capi as capi
from ._allocate import gradients as gradients
from ._allocate import memory as memory
from ._allocate import new_where as new_where
from ._allocate import results, rows_type
from ._arguments import check_types, take
from ._call import ARRAYS, IN_NO_BATCH, KEPT, Fill, Frame, check_seed, give_back, is_paged, refuse_later, take_frame, weights_shape
from ._jvp_frame import take_jvp_frame
from ._fit import needs_padding, padded
from ._spec import Spec
from .batch import Batch, Bits, Splits
from .engine import engine_of
from .errors import Error, InvalidError, Unsupported

_DTYPES = {getattr(torch, name): capi.DLDataType(*code, 1) for name, code in capi.DL_CODES.items()}


def _fill_slowly(t: Tensor, at: int) -> None:
    """For torch before 2.10."""
    n, tensor = t.dim(), capi.DLTensor.from_address(at)
    if t.dtype not in _DTYPES:
        raise InvalidError(f"tensor of type {t.dtype}: luattn takes {', '.join(capi.DL_CODES)}")
    sizes = KEPT[at] = (ctypes.c_int64 * (2 * n))(*t.shape, *t.stride())
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


def is_packed(given: Mapping[str, Any]) -> bool:
    return given.get("cu_seqlens_q") is not None


# --- what the ops check, and a launch does not ---


def _check_given(spec: Spec, q: Tensor, given: Mapping[str, Any]) -> None:
    """Arguments that only some calls have."""
    refuse_later(spec.name, given)
    if given.get("seed") is not None:
        _check_seed(spec, q, given["seed"])
    for name in ARRAYS:
        array = given.get(name)
        if array is not None and array.device not in (q.device, torch.device("cpu")):
            raise InvalidError(f"{spec.name}: {name}: is on {array.device}, and q on {q.device}: move one of them")
    paged = is_paged(given)
    if not paged and (given.get("cu_seqlens_q") is None) != (given.get("cu_seqlens_k") is None):
        raise InvalidError(f"{spec.name}: cu_seqlens_q, cu_seqlens_k: one is missing: packed sequences need both")
    for x in "qk":
        array, most = given.get(f"cu_seqlens_{x}"), given.get(f"max_seqlen_{x}")
        if x == "k" and paged:
            continue
        if array is None and given.get(f"seqused_{x}") is not None:
            raise InvalidError(f"{spec.name}: seqused_{x}: is of packed sequences, and cu_seqlens_{x} is missing")
        if array is None and most:
            raise InvalidError(f"{spec.name}: max_seqlen_{x}: is {most}, and cu_seqlens_{x} is missing")
        if array is not None and array.is_cuda and not most:
            raise InvalidError(
                f"{spec.name}: max_seqlen_{x}: is missing: the host does not read cu_seqlens_{x} on {array.device}; "
                f"give the longest length, or cu_seqlens_{x}.cpu()"
            )


def _check_seed(spec: Spec, q: Tensor, seed: Tensor) -> None:
    if seed.dtype not in (torch.int64, torch.uint64) or seed.shape != (2,) or not seed.is_contiguous():
        raise InvalidError(
            f"{spec.name}: seed: is {seed.dtype} {tuple(seed.shape)}, expected int64 (2,), side by side: the seed and an offset"
        )
    if seed.device not in (q.device, torch.device("cpu")):
        raise InvalidError(f"{spec.name}: seed: is on {seed.device}, and q on {q.device}: move one of them")


def _set_given(frame: Frame, given: Mapping[str, Any]) -> None:
    """Arguments that only some calls have."""
    if not IN_NO_BATCH.issuperset(given):
        frame.set_batch(fill, given)
    if not frame.backward and given.get("num_splits"):
        frame.set_options(num_splits=given["num_splits"])
    if not frame.backward and given.get("decode"):
        frame.set_options(decode=given["decode"])
    if given.get("spare_multiprocessors"):
        frame.set_options(spare_multiprocessors=given["spare_multiprocessors"])
    if given.get("boxes"):
        query, key = given["boxes"][2 * frame.backward :][:2]
        frame.set_options(query_tile_size=query, key_tile_size=key)
    frame.set_choices(given)
    if given.get("seed") is not None:
        set_seed(frame, given["seed"])


def set_seed(frame: Frame, seed: Tensor) -> None:
    if on_device(seed):
        frame.set_seed(0, 0, seed.data_ptr())
    else:
        frame.set_seed(*seed.tolist())


def on_device(t: Tensor) -> bool:
    return t.is_cuda


def _check(spec: Spec, q: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float], given: Mapping[str, Any]) -> None:
    if given or spec.draws:
        check_seed(spec, given)
        _check_given(spec, q, given)
    if q.dim() != spec.dims and not (given and is_packed(given)):
        raise InvalidError(
            f"{spec.name}: q: has {q.dim()} dimensions, expected {spec.dims}: batch, heads, {spec.rows} and head dim"
        )
    if q.dim() != 3 and given and is_packed(given):
        raise InvalidError(
            f"{spec.name}: q: has {q.dim()} dimensions, expected 3 beside cu_seqlens_q: all lengths, heads and head dim"
        )
    if len(inputs) != len(spec.inputs):
        raise InvalidError(f"{spec.name}: {len(inputs)} inputs, expected {len(spec.inputs)}")
    if len(scalars) != len(spec.scalars):
        raise InvalidError(f"{spec.name}: {len(scalars)} scalars, expected {len(spec.scalars)}")


def _check_devices(
    spec: Spec, q: Tensor, inputs: Sequence[Tensor | None], given: Mapping[str, Any], first: str = "q", **others: Tensor | None
) -> None:
    """Says in torch's words what is no tensor as kernels take it, after the library or DLPack has refused a call."""
    named = {first: q, **others, **{f"input '{info.name}'": t for info, t in zip(spec.inputs, inputs)}, **given}
    for name, t in named.items():
        if not isinstance(t, Tensor) or name == "batch":
            continue
        if t.is_quantized or t.layout is not torch.strided or t.is_complex():
            take(spec.name, name, "torch", t)
        if t.is_floating_point() and t.dtype not in _DTYPES:
            check_types(spec.name, **{name: t})
        if t.device != q.device and (t.is_meta or name not in (*ARRAYS, "seed")):
            raise InvalidError(f"{spec.name}: {name}: is on {t.device}, and {first} on {q.device}: move one of them")


# --- both passes ---


def gpu_of(t: Tensor) -> int:
    """The number of a tensor's GPU; capi.CPU: it is on the CPU."""
    return t.get_device()


def stream_of(gpu: int) -> int:
    """The current stream of a GPU."""
    stream: int = torch._C._cuda_getCurrentRawStream(gpu)
    return stream


def place(q: Tensor) -> tuple[int, int]:
    """The GPU of a tensor, and its current stream."""
    return gpu_of(q), stream_of(gpu_of(q))


def engine_for(index: int, given: Mapping[str, Any] | None) -> int:
    """The engine of a GPU; that of deterministic kernels where torch or the call asks for them."""
    return engine_of(index, torch.are_deterministic_algorithms_enabled() or bool(given and given.get("deterministic")))


def engine_at(gpu: int, given: Mapping[str, Any] | None) -> int:
    """The engine of gpu_of()."""
    return engine_of(capi.CPU) if gpu == capi.CPU else engine_for(gpu, given)


def _prepare_batch(frame: Frame, engine: int, q: Tensor, stream: int) -> Tensor | None:
    """Copies arrays of the batch from the host. The result has to live as long as the call."""
    size = frame.batch_size()
    if size == 0:
        return None
    arrays = memory(q, size)
    frame.prepare_batch(engine, q.device.index, arrays.data_ptr(), size, stream)
    return arrays


def _state(x: Any) -> Any:
    """What a captured CUDA graph has of an argument: of a tensor, where it lies, but for one that stands for a number."""
    return (x.data_ptr() if x.dim() else 0, tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x


def _resolved(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors whose memory has their values, of those that are there: a negated view has none."""
    return [t if t is None else t.resolve_neg() for t in tensors]


def prepare_mask(
    batch: Batch,
    spec: Spec,
    q: Tensor,
    k: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    v: Tensor | None = None,
) -> None:
    """Evaluates a spec's mask into memory of the batch. v: of the calls to come, so that their kernel is asked for the sizes; None:
    as wide as k."""
    index, stream = place(q)
    v = k if v is None else v
    if needs_padding(spec, q, v):
        q, k, v = padded(spec, q, k, v)
    frame = take_frame(spec, False)
    try:
        frame.set(fill, (q, k, v, None, None, None))
        frame.set_inputs(fill, _resolved(inputs))
        frame.set_numbers(0.0, scalars)
        kernel, size = frame.mask_size(engine_for(index, None))
        before = batch._bits.pop(spec, None)
        if size == 0:
            return
        key = "mask", spec.pointer, index, tuple(q.shape[:3]), tuple(k.shape[1:3]), *map(_state, inputs), *scalars
        room = batch.room(key, before, size, q.device)
        if before is not None and room is before.memory:
            bits, bits.key = before, key
        else:
            bits = Bits(memory(q, size) if room is None else room, key)
        frame.prepare_mask(bits.handle, kernel, bits.memory.data_ptr(), size, stream)
        _keep(batch, batch._bits, spec, bits)
    except RuntimeError:
        _check_devices(spec, q, inputs, {}, k=k, v=v)
        raise
    finally:
        give_back(frame)


def prepare_splits(
    batch: Batch,
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    given: Mapping[str, Any],
) -> None:
    """Makes the list of blocks of calls over these caches in memory of the batch."""
    _check(spec, q, inputs, scalars, {**given, "seed": torch.zeros(2, dtype=torch.int64, device="cpu")} if spec.draws else given)
    for name, x in given.items():
        if isinstance(x, Tensor) and x.device != q.device:
            raise InvalidError(f"{spec.name}: {name}: is on {x.device}, and q on {q.device}: move one of them")
    index, stream = place(q)
    if needs_padding(spec, q, v):
        q, k, v = padded(spec, q, k, v)
    frame = take_frame(spec, False)
    try:
        frame.set(fill, (_aligned(q), _aligned(k), _aligned(v), None, None, None))
        frame.set_inputs(fill, inputs)
        frame.set_numbers(0.0, scalars)
        _set_given(frame, given)
        kernel, size = frame.tiles_size(engine_for(index, given))
        before = batch._splits.pop(spec, None)
        if size == 0:
            return
        key = "splits", spec.pointer, index, kernel, *(tuple(t.shape) for t in (q, k, v)), *((name, _state(x)) for name, x in given.items())
        room = batch.room(key, before, size, q.device)
        if room is None:
            room = memory(q, size)
        frame.prepare_tiles(kernel, room.data_ptr(), size, stream)
        _keep(batch, batch._splits, spec, Splits(frame.keep_batch(), room, given, key))
    finally:
        give_back(frame)


def is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def _keep(batch: Batch, held: dict[Spec, Any], spec: Spec, made: Bits | Splits) -> None:
    """Hands this to the calls of spec that follow."""
    held[spec] = made
    if is_capturing():
        batch.capture(made)
        spec.pin()


def run(frame: Frame, q: Tensor, given: Mapping[str, Any]) -> None:
    if not q.is_cuda:
        frame.run(engine_of(capi.CPU), None)
        return
    index, stream = place(q)
    engine = engine_for(index, given)
    arrays = _prepare_batch(frame, engine, q, stream) if given and frame.has_batch() else None
    size = frame.workspace_size(engine)
    if size:
        workspace = memory(q, size)
        frame.set_workspace(workspace.data_ptr(), size)
    frame.run(engine, stream)
    if is_capturing():
        frame.note_capture()
    del arrays


def run_backward_jvp(frame: Frame, q: Tensor, given: Mapping[str, Any], *rest: Any) -> None:
    def room(size: int) -> Tensor:
        return memory(q, size)

    if not q.is_cuda:
        frame.run_backward_jvp(engine_of(capi.CPU), None, room, *rest)
        return
    index, stream = place(q)
    engine = engine_for(index, given)
    arrays = _prepare_batch(frame, engine, q, stream) if given and frame.has_batch() else None
    frame.run_backward_jvp(engine, stream, room, *rest)
    if is_capturing():
        frame.note_capture()
    del arrays


def mark_written(*tensors: Tensor) -> None:
    """As torch's own operations do that write in place: backward of what has read one of these before says so."""
    for t in tensors:
        if not t.is_inference():
            torch.autograd.graph.increment_version(t)


NOT_ALIGNED = (
    "kernels cannot write to k or v as they lie: rows are contiguous, in half precision they begin at multiples of 16 bytes, and a negated view "
    "(is_neg()) is none of them"
)


def append(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], given: Mapping[str, Any], new_k: Tensor, new_v: Tensor,
    scalars: Sequence[float] | None = None,
) -> bool:  # fmt: skip
    """Writes new rows [batch, heads, rows, head_dim] to the caches k and v, which a call of spec with q and `given` reads: behind the rows
    that given["seqused_k"] has. False: kernels cannot read the caches as they lie, and nothing was written."""
    if not _are_aligned(k, v) or k.is_neg() or v.is_neg():
        return False
    new_k, new_v = _aligned(new_k.resolve_neg()), _aligned(new_v.resolve_neg())
    inputs = _resolved(inputs)
    frame = take_frame(spec, False)
    try:
        frame.set(fill, (q, k, v, None, None, None))
        frame.set_inputs(fill, inputs)
        if scalars is not None:
            frame.set_numbers(0.0, scalars)
        _set_given(frame, given)
        index, stream = place(q) if q.is_cuda else (capi.CPU, None)
        engine = engine_of(index) if stream is None else engine_for(index, given)
        arrays = None if stream is None else _prepare_batch(frame, engine, q, stream)
        frame.append(engine, fill, new_k, new_v, stream)
        mark_written(k, v)
        if stream is not None and is_capturing():
            frame.note_capture()
        del arrays
    except RuntimeError:
        _check_devices(spec, k, (), given, "k", v=v, new_k=new_k, new_v=new_v)
        raise
    finally:
        give_back(frame)
    return True


def fill_forward(
    frame: Frame, qkv: Sequence[Tensor], made: Sequence[Tensor | None], inputs: Sequence[Tensor], scalars: Sequence[float], scale: float,
    given: Mapping[str, Any],
) -> None:  # fmt: skip
    """made: o, lse and saved."""
    frame.set(fill, (*qkv, *made))
    if inputs:
        frame.set_inputs(fill, inputs)
    frame.set_numbers(scale, scalars)
    if given:
        _set_given(frame, given)


def fill_backward(
    frame: Frame, tensors: Sequence[Tensor | None], made: Sequence[Any], inputs: Sequence[Tensor], scalars: Sequence[float], scale: float,
    given: Mapping[str, Any],
) -> None:  # fmt: skip
    """tensors: q, k, v, o, lse, saved, dout and dlse. made: as gradients() has them."""
    dq, dk, dv, dscalars, dinputs = made
    frame.set(fill, (*tensors, dq, dk, dv))
    if inputs:
        frame.set_inputs(fill, inputs, dinputs)
    frame.set_numbers(scale, scalars)
    if scalars:
        frame.set_scalar_grads(fill, dscalars)
    if given:
        _set_given(frame, given)


def forward(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float,
    given: Mapping[str, Any],
    want_lse: bool = True,
    made: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """o, lse and saved, as results() has them. given: keyword arguments of the op. made: the results, if they are there. out: memory for o."""
    _check(spec, q, inputs, scalars, given)
    if made is None:
        made = results(spec, q, v, want_lse, out, bool(given and given.get("out_f32")))
        if given and given.get("seqused_q") is not None:
            _clear(made[0], made[2])
            if made[1] is not None:
                made[1].fill_(-torch.inf)
    frame = take_frame(spec, False)
    try:
        fill_forward(frame, (q, k, v), made, inputs, scalars, scale, given)
        run(frame, q, given)
    except RuntimeError as e:
        _check_devices(spec, q, inputs, given, k=k, v=v)
        if not isinstance(e, InvalidError) or _are_aligned(q, k, v):
            raise
        q, k, v = map(_aligned, (q, k, v))
        return forward(spec, q, k, v, inputs, scalars, scale, given, want_lse, made)  # which lie as q did
    finally:
        give_back(frame)
    return made


def forward_jvp(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float,
    tangents: Sequence[Tensor | None],
    scalar_tangents: Sequence[float],
    given: Mapping[str, Any],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """o, lse and saved, and the tangents of o and lse. tangents: of q, k, v and the inputs; None: it has none."""
    _check(spec, q, inputs, scalars, given)
    made = results(spec, q, v, True, None, bool(given and given.get("out_f32")))
    along = results(spec, q, v, True, None, bool(given and given.get("out_f32")))[:2]
    if given and given.get("seqused_q") is not None:
        _clear(made[0], made[2], *along)
        if made[1] is not None:
            made[1].fill_(-torch.inf)
    q, k, v = map(_aligned, (q, k, v))
    tangents = [*(None if t is None else _aligned(t) for t in tangents[:3]), *tangents[3:]]
    frame = take_jvp_frame(spec)
    try:
        fill_forward(frame, (q, k, v), made, inputs, scalars, scale, given)
        frame.set_tangents(fill, (*tangents[:3], *along), tangents[3:], scalar_tangents)
        run(frame, q, given)
    except RuntimeError:
        _check_devices(spec, q, inputs, given, k=k, v=v)
        raise
    finally:
        give_back(frame)
    noted: list[JvpNote] | None = getattr(_noted, "calls", None)
    if noted is not None:
        noted.append(JvpNote(spec, (q, k, v), inputs, scalars, scale, tangents, scalar_tangents, given, made, along))
    return (*made, *along)


class JvpNote(NamedTuple):
    """What forward_jvp was given and has made: made is o, lse and saved, along the tangents of o and lse."""

    spec: Spec
    qkv: Sequence[Tensor]
    inputs: Sequence[Tensor]
    scalars: Sequence[float]
    scale: float
    tangents: Sequence[Tensor | None]
    scalar_tangents: Sequence[float]
    given: Mapping[str, Any]
    made: Sequence[Tensor | None]
    along: Sequence[Tensor | None]


_noted = threading.local()


@contextlib.contextmanager
def noting() -> Iterator[list[JvpNote]]:
    """Of this thread's calls of forward_jvp."""
    _noted.calls = calls = list[JvpNote]()
    try:
        yield calls
    finally:
        _noted.calls = None


def backward_jvp(
    spec: Spec,
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float,
    tangents: Sequence[Tensor | None],
    scalar_tangents: Sequence[float],
    given: Mapping[str, Any],
    wants: int,
    want_inputs: Sequence[bool],
    of_rows: Sequence[Tensor] = (),
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor | None]]:
    """Tangents of what gradients() has. tangents: of dout, dlse, q, k, v and the inputs. of_rows: o, lse, and their tangents along these; or nothing."""
    if not spec.has_backward:
        raise spec.blamed(Unsupported(spec.why_no_backward))
    _check(spec, q, inputs, scalars, given)
    made = gradients(spec, q, k, v, inputs, wants, want_inputs, bool(given and given.get("grad_f32")))
    dq, dk, dv, dscalars, dinputs = made
    if all(t is None for t in tangents) and not any(scalar_tangents):
        _clear(*made[:4], *dinputs)
        return made
    if given and given.get("seqused_q") is not None:
        _clear(dq)
    if given and given.get("seqused_k") is not None:
        _clear(dk, dv)
    tangents = [None if t is None else _aligned(t) for t in tangents]
    frame = take_frame(spec, True)
    try:
        o, lse, *along_rows = map(_aligned, of_rows) if of_rows else (None, None, None, None)
        frame.set(fill, (_aligned(q), _aligned(k), _aligned(v), o, lse, None, _aligned(dout), None if dlse is None else dlse.contiguous()))
        if inputs:
            frame.set_inputs(fill, inputs)
        frame.set_numbers(scale, scalars)
        if given:
            _set_given(frame, given)
        named = dict(zip(("o", "lse", "dout", "dlse", "q", "k", "v", "dq", "dk", "dv", "scalar_grads"), (*along_rows, *tangents[:5], dq, dk, dv, dscalars)))
        run_backward_jvp(frame, q, given, fill, named, tangents[5:], dinputs, scalar_tangents)
    except RuntimeError:
        _check_devices(spec, q, inputs, given, k=k, v=v, dout=dout)
        raise
    finally:
        give_back(frame)
    return made


def fake_weights(q: Tensor, k: Tensor, given: Mapping[str, Any]) -> Tensor:
    """What weights() returns, where q may be fake."""
    return q.new_empty(weights_shape(q, k, given), dtype=rows_type(q))


def weights(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float,
    given: Mapping[str, Any],
) -> Tensor:
    """Those of v, [batch, heads, q_len, kv_len] (packed: of the longest sequences), negative where dropout drops them, in float32, for
    float64 in float64. given: keyword arguments of the op."""
    _check(spec, q, inputs, scalars, given)
    made = fake_weights(q, k, given)
    q, k, v = map(_aligned, (q, k, v))
    index, stream = place(q) if q.is_cuda else (capi.CPU, None)
    engine = engine_of(index)
    frame = take_frame(spec, False)
    try:
        frame.set(fill, (q, k, v, None, None, None))
        frame.set_inputs(fill, inputs)
        frame.set_numbers(scale, scalars)
        _set_given(frame, given)
        arrays = _prepare_batch(frame, engine, q, stream) if stream is not None and frame.has_batch() else None
        size = frame.weights_size(engine)
        workspace = memory(q, size) if size else None
        if workspace is not None:
            frame.set_workspace(workspace.data_ptr(), size)
        frame.run_weights(engine, fill, made, stream)
        del arrays
    except RuntimeError:
        _check_devices(spec, q, inputs, given, k=k, v=v)
        raise
    finally:
        give_back(frame)
    return made


def _clear(*tensors: Tensor | None) -> None:
    """For rows that are not used, which kernels leave as they are."""
    for t in tensors:
        if t is not None:
            t.zero_()


def is_aligned(t: Tensor) -> bool:
    """As kernels read it: contiguous rows, and in half precision 16 bytes at once."""
    *rest, last = strides = t.stride() or (1,)
    if last != 1 or 0 in strides:
        return False
    if t.element_size() != 2:
        return True
    bits = t.data_ptr() >> 1
    for stride in rest:
        bits |= stride
    return bits % 8 == 0


def _are_aligned(*tensors: Tensor) -> bool:
    return all(map(is_aligned, tensors))


def _aligned(t: Tensor) -> Tensor:
    """A copy where kernels cannot read it as it lies, which is looked at after the library has refused a call."""
    return t if is_aligned(t) else t.clone(memory_format=torch.contiguous_format)


def backward(
    spec: Spec,
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor | None,
    saved: Tensor | None,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float,
    given: Mapping[str, Any],
    wants: int,
    want_inputs: Sequence[bool],
    out: Sequence[Tensor | None] = (None, None, None),
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor | None]]:
    """As gradients() has them. out: memory for dq, dk and dv."""
    if not spec.has_backward:
        raise spec.blamed(Unsupported(spec.why_no_backward))
    _check(spec, q, inputs, scalars, given)
    # (o.sum()).backward() hands over one element with strides of 0.
    dlse = None if dlse is None else dlse.contiguous()
    if not dout.is_contiguous() or dout.data_ptr() % 16:
        dout = _aligned(dout)
    made = gradients(spec, q, k, v, inputs, wants, want_inputs, bool(given and given.get("grad_f32")), out)
    if given and given.get("seqused_q") is not None:
        _clear(made[0])
    if given and given.get("seqused_k") is not None:
        _clear(made[1], made[2])
    frame = take_frame(spec, True)
    try:
        fill_backward(frame, (q, k, v, o, lse, saved, dout, dlse), made, inputs, scalars, scale, given)
        run(frame, q, given)
    except RuntimeError as e:
        _check_devices(spec, q, inputs, given, k=k, v=v, dout=dout, dlse=dlse, o=o, lse=lse, saved=saved)
        if not isinstance(e, InvalidError) or _are_aligned(q, k, v):
            raise spec.blamed(e) if isinstance(e, Error) else e
        q, k, v = map(_aligned, (q, k, v))
        return backward(
            spec, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, scale, given, wants, want_inputs, out
        )
    finally:
        give_back(frame)
    return made
