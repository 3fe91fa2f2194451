"""The plan of a call: how it is computed, as the library says it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _by_library as by_library
from . import _capi as capi
from ._arguments import check_types
from ._call import IN_NO_BATCH, fill_of, give_back, is_numpy, is_paged, padding_line, pads, take_frame
from ._spec import Spec
from .engine import engine_of, wants_deterministic
from .errors import InvalidError


class Given(NamedTuple):
    """What a call has: the spec for the types of its inputs, q, k and v with heads before lengths, inputs (None: missing), scalars, a scale (0: the
    default), keyword arguments of torch's op, and a seed."""

    spec: Spec
    q: Any
    k: Any
    v: Any
    inputs: Sequence[Any]
    scalars: Sequence[float]
    scale: float
    options: dict[str, Any]
    seed: Any

    def engine(self) -> int:
        is_cuda = not is_numpy(self.q) and self.q.is_cuda
        return engine_of(self.q.device.index, wants_deterministic()) if is_cuda else engine_of(capi.CPU)


def check_shapes(place: str, given: Given) -> None:
    """Refuses q, k and v that no call has: the library compares their shapes when it computes."""
    q, k, v = given.q, given.k, given.v
    packed, paged = given.options.get("cu_seqlens_q") is not None, is_paged(given.options)
    for name, t, in_rows in (("q", q, packed), ("k", k, packed and not paged), ("v", v, packed and not paged)):
        axes, said = (3, "all lengths, heads") if in_rows else (given.spec.dims, f"batch, heads, {given.spec.rows}")
        if t.ndim != axes:
            raise InvalidError(f"{place}: {name}: has {t.ndim} dimensions, expected {axes}: {said} and head dim")
    if k.shape[-1] != q.shape[-1]:
        raise InvalidError(f"{place}: k: has head dim {k.shape[-1]}, and q {q.shape[-1]}: they are the same")
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise InvalidError(f"{place}: v: has shape {list(v.shape)}, and k {list(k.shape)}: they differ in the head dim alone")
    if not (packed or paged) and k.shape[0] != q.shape[0]:
        raise InvalidError(f"{place}: k: has {k.shape[0]} batch entries, and q {q.shape[0]}: they are the same")


def plan_of(given: Given, backward: bool, decode: int) -> str:
    spec, q, k, v, line = given.spec, given.q, given.k, given.v, ""
    check_types(f"{spec.name}: plan", q=q, k=k, v=v)
    if q.dtype.itemsize == 2 and pads(spec, q.shape[-1], v.shape[-1]):
        line = padding_line(q.shape[-1], v.shape[-1])
        q, k, v = by_library.padded_of(is_numpy(q))(spec, q, k, v)
    fill, engine = fill_of(q), given.engine()
    grads = [x if backward and info.grad else None for x, info in zip(given.inputs, spec.inputs)]
    frame = take_frame(spec, backward)
    try:
        frame.set(fill, (q, k, v, *[None] * 5, q, k, v) if backward else (q, k, v, None, None, None))
        frame.set_inputs(fill, given.inputs, grads)
        frame.set_numbers(given.scale, given.scalars)
        frame.set_choices(given.options)
        frame.set_scalar_grads(fill, None)
        frame.set_options(decode=decode)
        if not IN_NO_BATCH.issuperset(given.options):
            frame.set_batch(fill, given.options)
        return line + frame.choice(engine) + frame.plan(engine)
    finally:
        give_back(frame)
