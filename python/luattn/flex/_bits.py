"""Tile bits of masks from data, found once for each mask object: all layers of a step share it, and so does backward."""

import re
import weakref
from typing import Any

import torch
from torch import Tensor

from .. import _tensors as tensors
from .._spec import Spec
from .._torch import is_plain
from ..batch import Batch

# By the id of a mask object, then by the spec: what its bits were found for, the tensors that the mask reads, which are kept so
# that no other has their place, and the bits (None: the mask needs none). Not in the object, whose copies are others.
_Found = tuple[Any, list[Tensor], Batch | None]
_held: dict[int, dict[Spec, _Found]] = {}
_reads: "weakref.WeakKeyDictionary[Spec, tuple[tuple[int, ...], tuple[int, ...]]]" = weakref.WeakKeyDictionary()


def _read(spec: Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs and the scalars that the mask reads, of a spec that translate() wrote."""
    known = _reads.get(spec)
    if known is not None:
        return known
    words = set(re.findall(r"\w+", spec.text.partition("\n  block_mask = ")[2]))
    inputs = tuple(i for i, info in enumerate(spec.inputs) if info.name in words)
    found = _reads[spec] = inputs, tuple(i for i, name in enumerate(spec.scalars) if name in words)
    return found


def _state(t: Tensor) -> tuple[int, int]:
    """Changes with every write that PyTorch knows of."""
    return t.data_ptr(), t._version


def bits_of(
    mask: Any, spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: list[Tensor], scalars: list[float]
) -> Batch | None:
    """The bits of a mask object, found anew if it is asked for others, or a tensor that it reads has been written to since.

    None where they are not kept: on the CPU, in traces, while a CUDA graph is captured (its replays find the mask anew, because what
    it reads may be written in between), and for tensors of inference mode, which do not tell of writes.
    """
    if not (spec.has_mask and _may_keep(q) and is_plain((q, k, v, *inputs))):
        return None
    of_inputs, of_scalars = _read(spec)
    read = [inputs[i] for i in of_inputs]
    if any(t.is_inference() for t in read):
        return None
    key = (q.shape[:3], k.shape[1:3], tensors.place(q), [_state(t) for t in read], [scalars[i] for i in of_scalars])
    found = _held.get(id(mask))
    if found is None:
        found = _held[id(mask)] = {}
        weakref.finalize(mask, _held.pop, id(mask), None).atexit = False
    known = found.get(spec)
    if known is not None and known[0] == key and all(a is b for a, b in zip(known[1], read)):
        return known[2]
    # Into other memory than before, which a backward to come may read.
    batch = Batch()
    tensors.prepare_mask(batch, spec, q, k, inputs, scalars, v)
    found[spec] = (key, read, batch if batch._bits else None)
    return found[spec][2]


def _may_keep(q: Tensor) -> bool:
    return q.is_cuda and not torch.cuda.is_current_stream_capturing()
