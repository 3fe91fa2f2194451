"""flex_attention, with the signature of torch.nn.attention.flex_attention."""

import dataclasses
import inspect
import warnings
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from .._arguments import Arguments, is_torch_dtype, take, what
from .._spec import Spec, spec_of
from .._attend import attend as compute
from .._attend import seed_of
from ..attention import Attention
from ..batch import Batch
from ..errors import Error, InvalidError, Unsupported
from . import _graph, _programs
from ._bits import bits_of
from ._block_mask import BlockMask, create_block_mask, table_of
from ._trace import Mod, NotTranslatable
from ._translate import Extras

__all__ = ["BlockMask", "create_block_mask", "flex_attention", "to_attention", "to_lua"]

noop_mask = theirs.noop_mask

_KINDS = Arguments(
    query="torch", key="torch", value="torch", score_mod="function?", scale="scale?", enable_gqa="flag", return_lse="flag", return_aux="aux?"
)
_warned: set[str] = set()


def to_lua(mod: Mod, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> str:
    """The spec of a score_mod (five parameters) or a mask_mod (four). device: where the tensors are that it captures."""
    mod = take("to_lua", "mod", "function", mod)
    dtype, device = _kind("to_lua", dtype, device)
    count = len(inspect.signature(mod).parameters)
    score_mod, mask_mod = (mod, None) if count == 5 else (None, mod)
    return _programs.find(score_mod, mask_mod, Extras(), dtype, device)[0].text


def to_attention(
    score_mod: Mod | None = None, block_mask: theirs.BlockMask | None = None, *, dtype: torch.dtype = torch.float32, device: Any = "cpu"
) -> tuple[Attention, dict[str, Any]]:
    """The attention of a score_mod and a block_mask of create_block_mask, and the tensors and numbers that they capture, by the names of its inputs and
    scalars: for what takes an attention, as luattn.parallel.ContextParallel does. They are whole on every rank, since mods index them.

    dtype: of q, k and v, in which a mod of numbers computes. device: where the tensors are that it captures. A mask with lists of blocks of its own, as torch's
    create_block_mask makes them, is for q and k of its lengths.

        attention, captured = luattn.flex.to_attention(score_mod, block_mask)
        o = attention(q, k, v, **captured)  # as flex_attention(q, k, v, score_mod, block_mask)

    Errors: NotTranslatable, as flex_attention; InvalidError."""
    score_mod = take("to_attention", "score_mod", "function?", score_mod)
    dtype, device = _kind("to_attention", dtype, device)
    mask_mod, table = _mod_of("to_attention", block_mask)
    extras = Extras() if table is None or block_mask is None else Extras(table, block_mask.BLOCK_SIZE)
    spec, inputs, scalars = _programs.find(score_mod, mask_mod, extras, dtype, device)
    return Attention(spec), {**{info.name: t for info, t in zip(spec.inputs, inputs)}, **dict(zip(spec.scalars, scalars))}


def _kind(name: str, dtype: Any, device: Any) -> tuple[torch.dtype, torch.device]:
    """Where a mod is recorded without a call."""
    dtype, device = take(name, "dtype", "dtype", dtype), take(name, "device", "device", device)
    if (isinstance(device, int) or torch.device(device).type == "cuda") and not torch.cuda.is_available():
        raise InvalidError(f"{name}: device: is {device!r}, and torch has no GPU here")
    if not is_torch_dtype(dtype):
        raise InvalidError(f"{name}: dtype: is {what(dtype)}, expected one of torch")
    return dtype, torch.device(device)


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 4:
            raise InvalidError(f"flex_attention: {name}: has {t.dim()} dimensions, expected 4: batch, heads, length, head dim")
    if not query.dtype == key.dtype == value.dtype:
        raise InvalidError(
            f"Expected query, key, and value to have the same dtype, but they have {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if not query.device == key.device == value.device:
        raise InvalidError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query.device}, "
            f"key.device: {key.device}, and value.device: {value.device} instead."
        )
    heads, heads_kv = query.shape[1], key.shape[1]
    if heads != heads_kv and not enable_gqa:
        raise InvalidError(f"query has {heads} heads and key {heads_kv}: set enable_gqa=True")
    if heads_kv and heads % heads_kv:
        raise InvalidError(f"query has {heads} heads, which is no multiple of key's {heads_kv}")
    if key.shape[0] not in (1, query.shape[0]):
        raise InvalidError(
            f"query is a batch of {query.shape[0]}, and key of {key.shape[0]}, expected as many, or 1"
        )


def _mod_of(name: str, mask: Any) -> tuple[Mod | None, Tensor | None]:
    """The mask_mod, and a table of blocks where these decide too, of one of create_block_mask or None."""
    if mask is None:
        return None, None
    if not isinstance(mask, theirs.BlockMask):
        raise InvalidError(f"{name}: block_mask: is {what(mask)}, expected one of create_block_mask")
    mod: Mod | None = mask.mask_mod
    if mod is None or mod is getattr(theirs, "_sliced_mask_mod_error", mask):
        raise InvalidError(
            "block_mask: Cannot use mask_mod from a sliced BlockMask: assign one that counts as the slice does, block_mask.mask_mod = .."
        )
    return None if mod is noop_mask else mod, None if _is_stand_in(mask) else table_of(mask)


def _is_stand_in(mask: theirs.BlockMask) -> bool:
    """Whether it is PyTorch's for no mask."""
    return tuple(mask.BLOCK_SIZE) == (1 << 30, 1 << 30)


def _mask_of(mask: Any, query: Tensor, key: Tensor) -> tuple[Mod | None, Tensor | None]:
    """What _mod_of has of a mask for these tensors."""
    mod, table = _mod_of("flex_attention", mask)
    if mask is None or _is_stand_in(mask):
        return mod, table
    *batch, q_len, kv_len = mask.shape
    b, h = [1] * (2 - len(batch)) + batch
    if (
        (q_len, kv_len) != (query.shape[2], key.shape[2])
        or b not in (1, query.shape[0])
        or h not in (1, query.shape[1])
    ):
        raise InvalidError(
            f"block_mask was created for {(b, h, q_len, kv_len)}, and query and key are {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if table is not None and table.device != query.device:
        raise InvalidError(
            "Expect q/k/v and block_mask to be on the same device, but got "
            f"{query.device} and {table.device}: block_mask.to(query.device)"
        )
    return mod, table


def _once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=3)  # of the user


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None = ..., block_mask: theirs.BlockMask | None = ..., scale: float | Tensor | None = ...,
    enable_gqa: bool = ..., return_lse: Literal[False] = ..., kernel_options: Any = ..., *, return_aux: None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None = ..., block_mask: theirs.BlockMask | None = ..., scale: float | Tensor | None = ...,
    enable_gqa: bool = ..., *, return_lse: Literal[True], kernel_options: Any = ..., return_aux: None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None = ..., block_mask: theirs.BlockMask | None = ..., scale: float | Tensor | None = ...,
    enable_gqa: bool = ..., return_lse: bool = ..., kernel_options: Any = ..., *, return_aux: Any = ...,
) -> Any: ...  # fmt: skip
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None = None,
    block_mask: theirs.BlockMask | None = None,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """As FlexAttention's. lse is in natural log."""
    query, key, value, score_mod, scale, enable_gqa, return_lse, return_aux = _KINDS.take(
        "flex_attention", query, key, value, score_mod, scale, enable_gqa, return_lse, return_aux
    )
    if return_aux is not None:
        if return_lse:
            raise InvalidError("return_lse and return_aux: return_aux=AuxRequest(lse=True) says both")
        if return_aux.max_scores:
            raise Unsupported("return_aux: max_scores do not exist yet")
    _check(query, key, value, enable_gqa)
    mask_mod, table = _mask_of(block_mask, query, key)
    extras = Extras()
    if table is not None and block_mask is not None:
        extras = Extras(table, block_mask.BLOCK_SIZE)
    if key.shape[0] != query.shape[0]:
        key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
    if kernel_options and not torch.compiler.is_dynamo_compiling():
        _once("luattn.flex: kernel_options change nothing: luattn chooses its tiles")
    o, lse = attend(query, key, value, score_mod, mask_mod, extras, scale, mask=block_mask)
    if return_aux is not None:
        return o, theirs.AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (o, lse) if return_lse else o


def _identity(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None,
    mask_mod: Mod | None,
    extras: Extras,
    scale: float | Tensor | None,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask: Any = None,
) -> tuple[Tensor, Tensor]:
    """o and lse. Offsets are those of Attention. mask: the object with mask_mod and extras.blocks, which other calls have too."""
    if not (query.numel() and key.numel()):  # no score for them, and what they read may have no elements
        score_mod, mask_mod, mask, extras = None, None, None, dataclasses.replace(extras, blocks=None)
    if torch.compiler.is_dynamo_compiling():
        options = {"score_mod": score_mod is not None, "mask_mod": mask_mod is not None}
        # Not `or`: Dynamo of torch 2.11 does not know whether a function is true.
        score_mod = _identity if score_mod is None else score_mod
        mask_mod = noop_mask if mask_mod is None else mask_mod
        given = (extras.blocks, *extras.size, extras.sinks, extras.dropout, q_offset, kv_offset, mask_mod)
        o, lse = _graph.flex_attention(query, key, value, score_mod, given, scale, options)
        return o, lse
    return attend_eagerly(query, key, value, score_mod, mask_mod, extras, scale, q_offset, kv_offset, mask)


def attend_eagerly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None,
    mask_mod: Mod | None,
    extras: Extras,
    scale: float | Tensor | None,
    q_offset: Any,
    kv_offset: int,
    mask: Any = None,
) -> tuple[Tensor, Tensor]:
    starts = [1 << 24 if isinstance(x, Tensor) else x for x in (q_offset, kv_offset)]
    sizes = (query.shape[0], query.shape[1], query.shape[2] + starts[0], key.shape[2] + starts[1])
    spec, inputs, scalars = _programs.find(score_mod, mask_mod, extras, query.dtype, query.device, sizes)
    batch = None
    try:
        if mask is not None and not (isinstance(q_offset, Tensor) or q_offset or kv_offset):  # parts of a whole have no bits
            batch = bits_of(mask, spec, query, key, value, inputs, scalars)
        return call_from(spec, query, key, value, inputs, scalars, scale, q_offset, kv_offset, batch)
    except Error as e:

        def again(spec: Spec, inputs: list[Tensor], scalars: list[float]) -> Any:
            return call_from(spec, query, key, value, inputs, scalars, scale, q_offset, kv_offset)

        mods = (score_mod, mask_mod, extras, query.dtype, query.device)
        raise _programs.blamed(e, *mods, again=again) from e.__cause__


def call_from(
    spec: Spec,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    inputs: list[Tensor],
    scalars: list[float],
    scale: float | Tensor | None,
    q_offset: Any,
    kv_offset: int,
    batch: Batch | None = None,
) -> tuple[Tensor, Tensor]:
    """With queries and keys that do not start at 0, or with the tile bits of the mask."""
    if not all(t.numel() for t in inputs):
        inputs = [_with_elements(t, spec, info.name, query.numel() and key.numel()) for t, info in zip(inputs, spec.inputs)]
    given: dict[str, Any] = {}
    if batch is not None:
        given["batch"] = batch.token
    if spec.draws:
        given["seed"] = seed_of(None, query)
    if isinstance(q_offset, Tensor):
        given["q_offset"], q_offset = q_offset, 0
    if q_offset or kv_offset:
        given["whole"] = [q_offset, kv_offset, 0, 0, 0, 0, 0]
    o, lse = compute(spec, query, key, value, inputs, scalars, scale, given)
    assert lse is not None
    return o, lse


def _with_elements(t: Tensor, spec: Spec, name: str, is_read: Any) -> Tensor:
    """A captured tensor of no elements, which a call of no queries or keys does not read."""
    if t.numel():
        return t
    if is_read:
        raise InvalidError(
            f"{spec.place}: input '{name}': reads an element of a captured tensor of shape {(*t.shape,)}, which has none: leave the read out where it is empty"
        )
    return t.new_zeros([max(1, n) for n in t.shape])
