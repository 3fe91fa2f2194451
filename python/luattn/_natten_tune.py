"""Tile shapes of a neighborhood's kernels: which there are, without a GPU, and which is the fastest on one."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from . import _boxes as boxes
from . import _capi as capi
from ._arguments import ARCH, take
from ._spec import Spec


def _arch_of(place: str, arch: Any, t: Tensor) -> int:
    if arch is not None:
        found = ARCH.fullmatch(take(place, "arch", "arch?", arch))
        assert found is not None
        return int(found[1])
    major, minor = torch.cuda.get_device_capability(t.device) if t.is_cuda else (9, 0)
    return 10 * major + minor


def tile_shapes(place: str, spec: Spec, q: Tensor, k: Tensor, v: Tensor, rpb: Tensor | None, backward: bool, arch: Any) -> list[boxes.TileShapes]:
    """Of tensors with heads first, whose data are not read."""
    target = capi.Target(
        struct_size=ctypes.sizeof(capi.Target), pass_=capi.BACKWARD if backward else capi.FORWARD,
        dtype=capi.DTYPES.index(str(q.dtype).removeprefix("torch.")), head_dim=q.shape[-1], head_dim_v=v.shape[-1], arch=_arch_of(place, arch, q),
        lengths=capi.SHORT if (k if backward else q).shape[2:-1].numel() <= capi.SHORT_MAX else capi.LONG,
    )  # fmt: skip
    if rpb is not None:
        target.input_types = 1 + capi.INPUT_DTYPES.index(str(rpb.dtype).removeprefix("torch."))
    args, kept = boxes.args_of(q.shape, k.shape)
    found = boxes.listed(spec.pointer, target, ctypes.addressof(args))
    del kept
    return [boxes.shapes_of(pair, len(spec.grid)) for pair in found]
