"""Says what is wrong with a call when it is traced: asks the library about shapes and types, on the CPU, which refuses what a GPU refuses. What only a
launch sees, such as values of cu_seqlens, XLA reports."""

import ctypes
import functools
from typing import Any

from . import _capi as capi
from ._call import ARRAYS, KEPT, WHOLE, give_back, take_frame
from ._jax_ops import Call
from ._spec import spec_of
from .engine import engine_of
from .errors import InvalidError


def _fill(given: tuple[tuple[int, ...], str, bool], at: int) -> None:
    """shape, type, and whether the library reads values, which are then 0: lengths, numbers of pages and offsets that are never wrong."""
    shape, dtype, is_read = given
    if dtype not in capi.DL_CODES:
        raise InvalidError(f"array of type {dtype}: luattn takes {', '.join(capi.DL_CODES)}")
    code, bits = capi.DL_CODES[dtype]
    count = 1
    for n in shape:
        count *= n
    data = (ctypes.c_char * (count * bits // 8))() if is_read else None
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    KEPT[at] = sizes, data
    capi.DLTensor.from_address(at).__init__(  # type: ignore[misc]
        ctypes.addressof(data) if data else None, capi.DLDevice(1, 0), len(shape), capi.DLDataType(code, bits, 1),
        ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)), None, 0,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def check(call: Call, arrays: tuple[tuple[tuple[int, ...], str], ...]) -> None:
    """Raises what the library would say of these shapes and types, in the order of Call.names. Of sizes that are symbols of jax.export the launch says it."""
    if not all(isinstance(n, int) for shape, _ in arrays for n in shape):
        return
    spec, of = spec_of(call.text, call.place), dict(zip(call.names, arrays))
    numbers = dict(call.numbers)
    rows = {name: (_swapped(shape) if call.bshd else shape, dtype, False) for name, (shape, dtype) in of.items() if name in ("q", "k", "v")}
    for name, (shape, dtype, _) in rows.items():
        if dtype not in capi.DTYPES:
            raise InvalidError(f"{call.name}: {name}: has type {dtype}, expected one of {', '.join(capi.DTYPES)}")
    frame = take_frame(spec)
    try:
        frame.set(_fill, (rows["q"], rows["k"], rows["v"], None, None, None))
        frame.set_inputs(_fill, [(*of[f"@{name}"], False) for name in call.inputs])
        frame.set_numbers(call.scale, call.scalars)
        frame.set_choices(numbers)
        given: dict[str, Any] = {name: (*of[option], True) for name, option in ARRAYS.items() if option in of}
        given |= {name: x for name, x in numbers.items() if name.startswith("max_seqlen")}
        whole = [numbers.get(name, 0) for name in WHOLE]
        if given or any(whole):
            frame.set_batch(_fill, {**given, "whole": whole})
        frame.workspace_size(engine_of(capi.CPU))
    finally:
        give_back(frame)


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 else shape
