"""What a call's offsets, lengths of a whole, and seed are to the ops of torch."""

from typing import Any

from ._arguments import is_compiling, take
from ._call import is_numpy, numbers_of
from .errors import InvalidError


def seed_of(place: str, seed: Any, q: Any) -> Any:
    seed = seed if is_compiling() else take(place, "seed", "seed?", seed)
    if is_numpy(q):
        return None if seed is None else numbers_of(seed)
    from . import _attend

    return _attend.seed_of(seed, q)


def is_in_f32(place: str, name: str, dtype: Any, q: Any) -> bool:
    """Whether results of this type are float32 beside a q of half precision, or one that autocast may make so."""
    if dtype is None:
        return False
    if not is_compiling():
        dtype = take(place, name, "dtype", dtype)
    want, have = _name_of(dtype), _name_of(q.dtype)
    if want == "float32" and q.dtype.itemsize <= 4:
        return True
    if want == have:
        return False
    raise InvalidError(f"{place}: {name}: is {want}, and q {have}: expected {have}{' or float32' if q.dtype.itemsize == 2 else ''}")


def _name_of(dtype: Any) -> str:
    return str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")


def whole_of(q: Any, cu_seqlens_q: Any, q_offset: Any, kv_offset: Any, *rest: int | None) -> dict[str, Any]:
    """Arguments of the ops: the numbers of luattn_batch, unless the tensors are the whole, and offsets that are tensors."""
    if q_offset is kv_offset is None and not any(rest):
        return {}
    options: dict[str, Any] = {}
    numbers = []
    for name, x in (("q_offset", q_offset), ("kv_offset", kv_offset)):
        is_number = x is None or isinstance(x, int)
        numbers.append((x or 0) if is_number else 0)
        if not is_number:
            options[name] = _of_each_entry(x, q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1)
    numbers += [x or 0 for x in rest]
    if any(numbers):
        options["whole"] = numbers
    return options


def _of_each_entry(offset: Any, batch: int) -> Any:
    """A number on a GPU, which is not read back, as one for each batch entry."""
    if len(offset.shape):
        return offset
    import torch

    return offset.clamp(-(2**31), 2**31 - 1).to(torch.int32).expand(batch).contiguous()
