"""FlexAttention's functions on luattn: import them from here instead of torch.nn.attention.flex_attention.

A mod runs once for each call; what it does is written as a spec, which equal ones share. Tensors that it captures are inputs, with gradients.
"""

from torch.nn.attention import flex_attention as _theirs

from .. import _torch as _torch  # defines the ops
from ._attention import flex_attention, to_attention, to_lua
from ._block_mask import BlockMask, create_block_mask
from ._trace import NotTranslatable

# PyTorch's own: and_masks, create_mask, AuxRequest, and what else this version of it has.
_others = {name: getattr(_theirs, name) for name in (*_theirs.__all__, "create_mask", "and_masks", "or_masks", "noop_mask")}
globals().update({name: x for name, x in _others.items() if name not in globals()})

__all__ = ["BlockMask", "NotTranslatable", "create_block_mask", "flex_attention", "to_attention", "to_lua"]
__all__ += sorted(set(_others) - set(__all__))
