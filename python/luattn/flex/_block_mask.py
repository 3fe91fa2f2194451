"""BlockMask: a mask_mod with the blocks that it leaves empty, which are looked for when somebody asks; and tables of blocks."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from .._arguments import Arguments, take
from ..errors import InvalidError
from ..mask import Entry, Mask, mask_of
from ._trace import Mod

# What decides, beside mask_mod. The others are for kernels of PyTorch's.
_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_OTHERS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
_LATER = ("dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt")


class BlockMask(theirs.BlockMask):
    """FlexAttention's BlockMask, also for its own functions.

    One of create_block_mask has a mask_mod and sizes. Its lists of blocks are computed when they are read first, by PyTorch, on the
    device: luattn does not read them, because it derives from the mask_mod which tiles are empty. From what is given by blocks
    (from_kv_blocks, a slice, a list or a mask_mod that is assigned) it reads them: a score is kept where both keep it.
    """

    _asked: tuple[int, int, Any] | None = None  # of create_block_mask: B, H and the device
    _derived = False  # whether the lists are what the mask_mod leaves empty

    @classmethod
    def _of(
        cls, mask_mod: Mod, b: int, h: int, q_len: int, kv_len: int, device: Any, size: tuple[int, int]
    ) -> "BlockMask":
        mask = cls.__new__(cls)
        set_to = functools.partial(object.__setattr__, mask)  # which Dynamo of torch 2.11 follows too
        set_to("seq_lengths", (q_len, kv_len))
        set_to("BLOCK_SIZE", size)
        set_to("mask_mod", mask_mod)
        set_to("_asked", (b, h, device))
        set_to("_derived", True)
        return mask

    @classmethod
    def _from(cls, other: theirs.BlockMask) -> "BlockMask":
        mask = cls.__new__(cls)
        vars(mask).update(vars(other))
        return mask

    def _find_blocks(self) -> None:
        if self._asked is None:
            return
        b, h, device = self._asked
        vars(self)["_asked"] = None
        if device is None and not torch.accelerator.is_available():
            device = "cpu"
        made = theirs.create_block_mask(
            self.mask_mod, b, h, *self.seq_lengths, device=device, BLOCK_SIZE=self.BLOCK_SIZE
        )
        vars(self).update({**vars(made), **{name: vars(self)[name] for name in ("seq_lengths", "mask_mod")}})

    def __getattr__(self, name: str) -> Any:
        if self._asked is None or name not in (*_LISTS, *_OTHERS, *_LATER):
            raise AttributeError(f"'BlockMask' object has no attribute '{name}'")
        self._find_blocks()
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (*_LISTS, *_OTHERS, "mask_mod"):
            self._find_blocks()  # of the mask_mod that there was
            if name not in _OTHERS:
                vars(self)["_derived"] = False
        super().__setattr__(name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        if self._asked is not None:
            return (*self._asked[:2], *self.seq_lengths)
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def __getitem__(self, index: Any) -> "BlockMask":
        """Of some batch entries, heads and rows of blocks. As in PyTorch it has no mask_mod until one is assigned."""
        self._find_blocks()
        return self._from(super().__getitem__(index))

    def tiles(self, batch: int = 0, head: int = 0) -> Mask:
        """Which blocks luattn computes of one batch entry and head, full or partial, as Attention.mask has them: it has a picture, and save(). A notebook shows
        that of the first ones."""
        from . import _programs  # which needs this module
        from ._translate import Extras

        batch, head = (take("BlockMask.tiles", name, "integer", x) for name, x in (("batch", batch), ("head", head)))
        table = table_of(self)
        mod = self.mask_mod if self.mask_mod not in (theirs.noop_mask, getattr(theirs, "_sliced_mask_mod_error", None)) else None
        *sizes, q_len, kv_len = self.shape
        b, h = [1] * (2 - len(sizes)) + sizes
        for name, x, most in (("batch", batch, b), ("head", head, h)):
            if not 0 <= x < most:
                raise InvalidError(f"BlockMask.tiles: {name}: is {x}, and the mask has {most}: give 0 to {most - 1}")
        extras = Extras() if table is None else Extras(table, self.BLOCK_SIZE)
        spec, inputs, scalars = _programs.find(None, mod, extras, torch.float32, self._device(table), (b, h, q_len, kv_len))
        name = getattr(mod, "__name__", "BlockMask")
        return mask_of(spec, Entry(name, batch, q_len, kv_len, {}), head, self.BLOCK_SIZE, [t.cpu() for t in inputs], scalars, name=name)

    def _device(self, table: Tensor | None) -> torch.device:
        """Where the lists are, or would be."""
        if table is not None:
            return table.device
        device: Any = self._asked[2] if self._asked is not None else self.kv_indices.device
        if device is None:
            device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        return torch.device(device)

    def _repr_svg_(self) -> str:
        """For notebooks: the picture that `luattn mask --svg` draws."""
        return self.tiles()._repr_svg_()

    def to(self, device: Any) -> "BlockMask":
        """The lists on a device. Tensors of the mask_mod stay where they are."""
        if self._asked is not None:
            b, h, _ = self._asked
            return self._of(self.mask_mod, b, h, *self.seq_lengths, device, self.BLOCK_SIZE)
        made = self._from(super().to(device))
        vars(made)["_derived"] = _is_derived(self)
        return made


_KINDS = Arguments(mask_mod="function", B="integer?", H="integer?", Q_LEN="integer", KV_LEN="integer", device="device?", BLOCK_SIZE="size")


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
    """A BlockMask of a mask_mod. Nothing is computed here; FlexAttention's other arguments (_compile, ..) change nothing."""
    mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE = _KINDS.take("create_block_mask", mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE)
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    if len(sizes) != 2 or min(sizes) < 1:
        raise InvalidError(
            f"create_block_mask: BLOCK_SIZE is {BLOCK_SIZE}, expected a number or (of queries, of keys)"
        )
    return BlockMask._of(mask_mod, B or 1, H or 1, Q_LEN, KV_LEN, device, sizes)


def _is_derived(mask: theirs.BlockMask) -> bool:
    return bool(getattr(mask, "_derived", False))


def table_of(mask: theirs.BlockMask) -> Tensor | None:
    """uint8 [B, H, blocks of queries, blocks of keys]: 0 for a block that is not listed, 2 for one of the full ones, and 1 where
    mask_mod decides; None where mask_mod alone decides. Kept until another list is assigned, or one is written to."""
    if _is_derived(mask):
        return None
    lists = [getattr(mask, name) for name in _LISTS]
    columns = -(-mask.seq_lengths[1] // mask.BLOCK_SIZE[1])
    if torch.compiler.is_dynamo_compiling():
        return _table(lists, columns)
    key = [(id(x), None if x is None else x._version) for x in lists]
    found = vars(mask).get("_table")
    if found is None or found[0] != key:
        found = vars(mask)["_table"] = (key, _table(lists, columns))
    table: Tensor = found[1]
    return table


def _table(lists: list[Tensor], columns: int) -> Tensor:
    """No step waits for the device."""
    num, indices = lists[:2]
    table = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.uint8, device=indices.device)
    for value, (num, indices) in enumerate((lists[:2], lists[2:]), 1):
        if num is not None:
            listed = torch.arange(indices.shape[-1], device=indices.device) < num[..., None]
            # What is not listed goes to a column that is cut off.
            table.scatter_(-1, torch.where(listed, indices, columns).long(), value)
    return table[(None,) * (4 - table.dim())][..., :columns].contiguous()
