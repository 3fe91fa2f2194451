"""NumPy arrays as tensors of a call: on the CPU, without gradients."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _capi as capi
from ._call import IN_NO_BATCH, KEPT, check_seed, give_back, is_fixed, is_paged, pads, refuse_later, take_frame, weights_shape
from ._out import check, check_apart, renamed
from ._scale import with_scale as scaled
from ._spec import Spec
from .engine import engine_of
from .errors import InvalidError



def fill(array: np.ndarray, at: int) -> None:
    name, n = array.dtype.name, array.ndim
    if name not in capi.DL_CODES:
        raise InvalidError(f"NumPy array of type {name}: luattn takes {', '.join(capi.DL_CODES)}")
    if not array.dtype.isnative:
        raise InvalidError(f"NumPy array: {_foreign(array)}")
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidError(
            f"NumPy array with strides of {array.strides} bytes, no multiples of its {size}: copy it"
        )
    sizes = (ctypes.c_int64 * (2 * n))(*array.shape, *(stride // size for stride in array.strides))
    KEPT[at] = sizes
    code, bits = capi.DL_CODES[name]
    tensor = capi.DLTensor.from_address(at)
    tensor.data = array.ctypes.data
    tensor.device = capi.DLDevice(1, 0)
    tensor.ndim = n
    tensor.dtype = capi.DLDataType(code, bits, 1)
    address = ctypes.addressof(sizes)
    tensor.shape = ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(address + 8 * n, ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = 0


def _type_of(q: np.ndarray, given: Mapping[str, Any]) -> np.dtype[Any]:
    """That of o."""
    return np.dtype(np.float32) if given.get("out_f32") and q.dtype.itemsize == 2 else q.dtype


def like_rows(q: np.ndarray, head_dim: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An empty array of q's rows, in the order that q has in memory: [B, H, S, D] or [B, S, H, D]."""
    if q.ndim > 4:  # over a grid
        order = sorted(range(q.ndim - 1), key=lambda i: -q.strides[i])
        made = np.empty((*(q.shape[i] for i in order), head_dim), dtype)
        return made.transpose(*(order.index(i) for i in range(q.ndim - 1)), q.ndim - 1)
    b, h, n = q.shape[:3]
    if q.strides[1] < q.strides[2]:
        return np.empty((b, n, h, head_dim), dtype).transpose(0, 2, 1, 3)
    return np.empty((b, h, n, head_dim), dtype)


def attend(
    spec: Spec,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    inputs: Sequence[Any],
    scalars: Sequence[float],
    scale: float | None,
    given: Mapping[str, Any],
    return_lse: bool,
    swapped: bool,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The result and lse (None unless return_lse). given: keyword arguments of the ops of torch. swapped: lengths are before heads. out: where the result goes."""
    if out is not None:
        check(spec.name, out, q, v, _type_of(q, given))
    to = out.swapaxes(1, 2) if swapped and out is not None else out
    if swapped:
        q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))
    try:
        o, lse, _ = _attend(spec, q, k, v, inputs, scalars, scale, given, return_lse, to)
    except InvalidError as e:
        raise e if out is None else InvalidError(renamed(str(e))) from None
    return out if out is not None else o.swapaxes(1, 2) if swapped else o, lse


def attend_state(
    spec: Spec,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    inputs: Sequence[Any],
    scalars: Sequence[float],
    scale: float | None,
    given: Mapping[str, Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """o, lse and state of a spec of parts."""
    o, lse, state = _attend(spec, q, k, v, inputs, scalars, scale, given, True)
    assert lse is not None
    return o, lse, np.empty((0, *lse.shape), lse.dtype) if state is None else state


def _attend(
    spec: Spec,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    inputs: Sequence[Any],
    scalars: Sequence[float],
    scale: float | None,
    given: Mapping[str, Any],
    return_lse: bool,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """o, lse and saved."""
    spec, inputs, scalars, scale = scaled(spec, inputs, scalars, _number(spec.name, scale))
    refuse_later(spec.name, given)
    check_seed(spec, given)
    if out is not None and (given.get("seqused_q") is not None or (q.dtype.itemsize == 2 and pads(spec, q.shape[-1], v.shape[-1]))):
        check_apart(spec.name, out, {"q": q, "k": k, "v": v, **{f"input '{info.name}'": x for info, x in zip(spec.inputs, inputs)}})
        o, lse, saved = _attend(spec, q, k, v, inputs, scalars, scale, given, return_lse)
        out[...] = o
        return out, lse, saved
    if q.dtype.itemsize == 2 and pads(spec, q.shape[-1], v.shape[-1]):
        wide = padded(spec, q, k, v)
        o, *rest = _attend(spec, wide[0], wide[1], wide[2], inputs, scalars, scale or q.shape[-1] ** -0.5, given, return_lse)
        return o[..., : v.shape[-1]], rest[0], rest[1]
    packed = given.get("cu_seqlens_q") is not None
    for name, array in zip("qkv", (q, k, v)):
        pages = name != "q" and is_paged(given)
        ndim = 3 if packed and not pages else spec.dims
        if array.ndim != ndim:
            axes = "all lengths, heads, head dim" if packed else f"batch, heads, {spec.rows}, head dim"
            axes = "pages, heads, rows of a page, head dim" if pages else axes
            raise InvalidError(f"{spec.name}: {name}: has {array.ndim} dimensions, expected {ndim}: {axes}")
    row = np.float64 if q.dtype == np.float64 else np.float32
    rows = (q.shape[1], q.shape[0]) if packed else q.shape[:-1]
    dtype = _type_of(q, given)
    o = np.empty((*q.shape[:2], v.shape[-1]), dtype) if packed else like_rows(q, v.shape[-1], dtype)
    o = o if out is None else out
    lse = np.empty(rows, row) if spec.has_lse and return_lse else None
    saved = np.empty((spec.num_saved, *rows), row) if spec.num_saved else None
    if given.get("seqused_q") is not None:  # rows that are not used stay as they are
        o.fill(0)
        if lse is not None:
            lse.fill(-np.inf)
    frame = take_frame(spec)
    try:
        frame.set(fill, (q, k, v, o, lse, saved))
        arrays = [np.asarray(x) for x in _with_rows(spec, q, k, inputs)]
        frame.set_inputs(fill, arrays)
        frame.set_numbers(scale, [float(x) for x in scalars])
        if not IN_NO_BATCH.issuperset(given):
            frame.set_batch(fill, given)
        frame.set_choices(given)
        if spec.draws:
            frame.set_seed(*given["seed"])
        frame.run(engine_of(capi.CPU), None)
    except InvalidError:
        _check_bytes(spec, {"q": q, "k": k, "v": v}, inputs, given)
        raise
    finally:
        give_back(frame)
    return o, lse, saved


def weights(
    spec: Spec, q: np.ndarray, k: np.ndarray, v: np.ndarray, inputs: Sequence[Any], scalars: Sequence[float], scale: float, given: Mapping[str, Any]
) -> np.ndarray:  # fmt: skip
    """Those of v, as _tensors.weights has them."""
    check_seed(spec, given)
    if q.dtype.itemsize == 2 and pads(spec, q.shape[-1], v.shape[-1]):
        scale = scale or q.shape[-1] ** -0.5
        q, k, v = padded(spec, q, k, v)
    made = np.empty(weights_shape(q, k, given), np.float64 if q.dtype == np.float64 else np.float32)
    frame = take_frame(spec)
    try:
        frame.set(fill, (q, k, v, None, None, None))
        frame.set_inputs(fill, [np.asarray(x) for x in _with_rows(spec, q, k, inputs)])
        frame.set_numbers(scale, scalars)
        if not IN_NO_BATCH.issuperset(given):
            frame.set_batch(fill, given)
        frame.set_choices(given)
        if spec.draws:
            frame.set_seed(*given["seed"])
        frame.run_weights(engine_of(capi.CPU), fill, made, None)
    except InvalidError:
        _check_bytes(spec, {"q": q, "k": k, "v": v}, inputs, given)
        raise
    finally:
        give_back(frame)
    return made


def _number(name: str, scale: Any) -> float | None:
    if scale is None or isinstance(scale, float):
        return scale
    if scale.numel() != 1:
        raise InvalidError(f"{name}: scale: has shape {tuple(scale.shape)}, expected one element, or a number")
    return float(scale.item())


def with_scale(spec: Spec, _: Any, inputs: Sequence[Any], scalars: Sequence[Any], scale: Any) -> tuple[Spec, Sequence[Any], Sequence[Any], float]:
    """with_scale of _attend.py."""
    return scaled(spec, inputs, scalars, _number(spec.name, scale))


def _check_bytes(spec: Spec, arrays: Mapping[str, Any], inputs: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Names the array whose numbers are of no type that kernels take, after fill has refused one."""
    named = {**arrays, **{f"input '{info.name}'": x for info, x in zip(spec.inputs, inputs)}, **given}
    for name, x in named.items():
        if isinstance(x, np.ndarray) and not x.dtype.isnative:
            raise InvalidError(f"{spec.name}: {name}: {_foreign(x)}")
        if isinstance(x, np.ndarray) and x.dtype.name not in capi.DL_CODES:
            raise InvalidError(f"{spec.name}: {name}: has type {x.dtype.name}, expected one of {', '.join(capi.DL_CODES)}")


def _foreign(array: np.ndarray) -> str:
    return f"has type {array.dtype.str}, whose bytes lie the other way round than here: pass .astype('{array.dtype.name}')"


def padded(spec: Spec, *arrays: np.ndarray) -> list[np.ndarray]:
    """With zeros behind the last channel, up to a multiple of 8."""
    q, k, *_ = arrays
    if q.shape[-1] != k.shape[-1]:
        raise InvalidError(f"{spec.name}: k: has head dim {k.shape[-1]}, and q {q.shape[-1]}: they are the same")
    return [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 8)]) for x in arrays]


def _with_rows(spec: Spec, q: np.ndarray, k: np.ndarray, inputs: Sequence[Any]) -> Sequence[Any]:
    """_fit.with_rows."""
    if q.size and k.size:
        return inputs
    return [
        np.pad(x, [(0, int(n == 0 and not is_fixed(axis))) for axis, n in zip(info.axes, x.shape)]) if x.ndim and x.ndim == len(info.axes) else x
        for info, x in zip(spec.inputs, map(np.asarray, inputs))
    ]


def append(
    spec: Spec,
    k: np.ndarray,
    v: np.ndarray,
    inputs: Sequence[Any],
    given: Mapping[str, Any],
    new_k: np.ndarray,
    new_v: np.ndarray,
    scalars: Sequence[float],
) -> None:
    """Writes new rows to the caches k and v: behind the rows that given["seqused_k"] has. An input that is None is missing."""
    for name, cache in (("k", k), ("v", v)):
        if not cache.flags.writeable:
            raise InvalidError(f"{spec.name}: append: {name}: is an array that may not be written to: pass a copy of it")
    frame = take_frame(spec)
    try:
        frame.set(fill, (new_k, k, v, None, None, None))
        frame.set_inputs(fill, [x if x is None else np.asarray(x) for x in inputs])
        frame.set_numbers(0.0, scalars)
        frame.set_batch(fill, given)
        frame.set_choices(given)
        frame.append(engine_of(capi.CPU), fill, new_k, new_v, None)
    except InvalidError:
        _check_bytes(spec, {"k": k, "v": v, "new_k": new_k, "new_v": new_v}, inputs, given)
        raise
    finally:
        give_back(frame)
