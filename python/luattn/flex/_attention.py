"""flex_attention and create_block_mask, with the signatures of torch.nn.attention.flex_attention."""

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from .._spec import spec_of
from .._torch import call
from ..attention import Attention
from ..errors import InvalidError, Unsupported
from ._key import key_of
from ._trace import Mod, translate

noop_mask = theirs.noop_mask
and_masks = theirs.and_masks
or_masks = theirs.or_masks

_translated: dict[Any, tuple[str, list[int]]] = {}


class BlockMask:
    """A mask_mod and the sizes it was made for. It holds no tensor: luattn derives from the mask_mod which blocks are empty."""

    def __init__(self, mask_mod: Mod, shape: tuple[int, int, int, int], block_size: tuple[int, int]) -> None:
        self.mask_mod, self.shape, self.BLOCK_SIZE = mask_mod, shape, block_size
        self.seq_lengths = shape[2:]

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, mask_mod={getattr(self.mask_mod, '__name__', self.mask_mod)})"

    def __getitem__(self, index: Any) -> "BlockMask":
        raise Unsupported(
            "BlockMask: slicing does not exist: make one by create_block_mask for what the slice has"
        )

    @staticmethod
    def from_kv_blocks(*args: Any, **given: Any) -> "BlockMask":
        raise Unsupported(
            "BlockMask.from_kv_blocks: does not exist yet: say which blocks there are by a mask_mod"
        )

    def to(self, device: Any) -> "BlockMask":
        """Itself: its mask_mod has the tensors."""
        return self

    def to_dense(self) -> Tensor:
        """int32 [B, H, blocks of queries, blocks of keys]: 1 where a block has anything to compute."""
        if self.BLOCK_SIZE[0] != self.BLOCK_SIZE[1]:
            raise Unsupported(
                f"BlockMask.to_dense: blocks of {self.BLOCK_SIZE}: it can tell of square ones alone"
            )
        text, tensors = _spec(None, self.mask_mod, torch.float32)
        attention = Attention(spec_of(text, "mask_mod"))
        inputs = dict(zip(attention.inputs, (t.detach().cpu() for t in tensors)))
        b, h, q_len, kv_len = self.shape
        heads = [
            [
                attention.mask(q_len, kv_len, batch=i, head=j, tile=self.BLOCK_SIZE[0], **inputs).rows
                for j in range(h)
            ]
            for i in range(b)
        ]
        return (torch.tensor(heads) != 0).int()

    def sparsity(self) -> float:
        """How many of a hundred blocks have nothing to compute."""
        return float(100 * (1 - self.to_dense().double().mean()))


def create_block_mask(
    mask_mod: Mod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    **given: Any,
) -> BlockMask:
    """Nothing is computed here, nor on a device: further arguments of FlexAttention's (_compile, ..) change nothing."""
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    return BlockMask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), sizes)


def _spec(score_mod: Mod | None, mask_mod: Mod | None, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    """The text of a spec, and its inputs."""
    tensors: list[Tensor] = []
    key = key_of((score_mod, mask_mod), tensors)
    if key is None:
        name = getattr(score_mod or mask_mod, "__qualname__", repr(score_mod or mask_mod))
        raise Unsupported(
            f"{name}: holds an object that is neither a tensor, a number, a function nor a container of these, so that "
            "its changes would go unnoticed: capture what the mod needs of it in local variables"
        )
    found = _translated.get((key, dtype))
    if found is None:
        found = _translated[key, dtype] = translate(score_mod, mask_mod, dtype, tensors)
    text, used = found
    return text, [tensors[i] for i in used]


def _title(mod: Mod | None) -> str:
    """Stands for the file of a spec in messages: the mod, and where it is."""
    code = getattr(mod, "__code__", None)
    name = getattr(mod, "__name__", "flex")
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def to_lua(mod: Mod, dtype: torch.dtype = torch.float32) -> str:
    """The spec of a score_mod (five parameters) or a mask_mod (four)."""
    count = len(inspect.signature(mod).parameters)
    return _spec(mod, None, dtype)[0] if count == 5 else _spec(None, mod, dtype)[0]


def _mask_of(block_mask: Any, query: Tensor, key: Tensor) -> Mod | None:
    if block_mask is None:
        return None
    if isinstance(block_mask, theirs.BlockMask):
        raise Unsupported(
            "block_mask: is PyTorch's: make it by luattn.flex.create_block_mask, with the same arguments"
        )
    if not isinstance(block_mask, BlockMask):
        raise InvalidError(
            f"block_mask: is a {type(block_mask).__name__}, expected one of luattn.flex.create_block_mask"
        )
    b, h, q_len, kv_len = block_mask.shape
    if (
        (q_len, kv_len) != (query.shape[2], key.shape[2])
        or b not in (1, query.shape[0])
        or h not in (1, query.shape[1])
    ):
        raise InvalidError(
            f"block_mask: is for {(b, h, q_len, kv_len)}, and query and key are {tuple(query.shape)} and {tuple(key.shape)}"
        )
    mod: Mod = block_mask.mask_mod
    return None if mod is noop_mask else mod


@torch.compiler.disable(reason="luattn.flex traces mods itself; luattn.attention can be compiled")  # type: ignore[untyped-decorator]
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """As FlexAttention's. lse is in natural log."""
    if kernel_options:
        warnings.warn("luattn.flex: kernel_options change nothing: luattn chooses its tiles", stacklevel=2)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidError(f"query has {query.shape[1]} heads and key {key.shape[1]}: set enable_gqa=True")
    if return_aux is not None and return_aux.max_scores:
        raise Unsupported("return_aux: max_scores do not exist yet")
    mask_mod = _mask_of(block_mask, query, key)
    text, inputs = _spec(score_mod, mask_mod, query.dtype)
    spec = spec_of(text, _title(score_mod or mask_mod))
    o, lse = call(spec, query, key, value, inputs, [], 0.0 if scale is None else scale, [], None, None, {})
    if return_aux is not None:
        return o, theirs.AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (o, lse) if return_lse else o
