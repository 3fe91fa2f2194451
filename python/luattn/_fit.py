"""Tensors that kernels take in the place of those that they do not: head dims padded to multiples of 8 in half precision, and inputs of no
elements where nothing reads them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from ._call import is_fixed, pads
from ._spec import Spec
from .errors import InvalidError


def needs_padding(spec: Spec, q: Tensor, v: Tensor) -> bool:
    """Kernels read 16 bytes of a row at once in half precision. A spec that reads channels is refused by the library, as in C."""
    return q.element_size() == 2 and pads(spec, q.size(-1), v.size(-1))


def padded(spec: Spec, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> list[Tensor]:
    """With zeros behind the last channel, which change no score, and give columns of o that are cut off. others: of v's head dim."""
    if q.size(-1) != k.size(-1):
        raise InvalidError(f"{spec.name}: k: has head dim {k.size(-1)}, and q {q.size(-1)}: they are the same")
    return [pad(t, (0, -t.size(-1) % 8)) if t.size(-1) % 8 else t for t in (q, k, v, *others)]


def with_rows(spec: Spec, q: Tensor, k: Tensor, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs, where there are no queries or no keys: then nothing reads an axis of length 0, which the library refuses."""
    if q.numel() and k.numel():
        return inputs
    fitted = []
    for info, t in zip(spec.inputs, inputs):
        if isinstance(t, Tensor) and t.dim() == len(info.axes):
            sides = [side for axis, n in zip(info.axes, t.shape) for side in (int(n == 0 and not is_fixed(axis)), 0)]
            t = pad(t, sides[::-1]) if any(sides) else t
        fitted.append(t)
    return fitted


def columns(t: Tensor, count: int) -> Tensor:
    """The first columns."""
    return t if t.size(-1) == count else t[..., :count]


def scale_of(scale: float, q: Tensor) -> float:
    """The scale of an op, of q before it was padded."""
    return scale if scale != 0 else q.size(-1) ** -0.5

