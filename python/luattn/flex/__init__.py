"""FlexAttention's functions on luattn: import them from here instead of torch.nn.attention.flex_attention.

A mod is traced once, written as a spec, and found again by its structure. Tensors that it captures are inputs, with gradients.
"""

from .. import _torch as _torch  # defines the ops
from ._attention import and_masks, flex_attention, noop_mask, or_masks, to_lua
from ._block_mask import BlockMask, create_block_mask
from ._trace import NotTranslatable

__all__ = [
    "BlockMask",
    "NotTranslatable",
    "and_masks",
    "create_block_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
    "to_lua",
]
