"""Batch: what is found once for all layers of a step: which tiles masks from data keep, and how blocks share the keys of caches whose
entries differ in length (luattn/batch.h)."""

import ctypes
import itertools
import operator
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _capi as capi
from ._arguments import AllArguments, check_types, take, what
from ._call import NOT_OF_MASKS, WHOLE, is_numpy
from ._library import call, lib
from ._spec import Spec
from .errors import InvalidError, Unsupported

if TYPE_CHECKING:
    from .attention import Attention

_KINDS = AllArguments(
    q="data", k="data", v="data?", layout="layout", seqused_k="torch?", block_table="torch?", cu_seqlens_q="torch?", max_seqlen_q="integer?",
    max_seqlen_k="integer?", keys_modified="flag",
)  # fmt: skip
_number = itertools.count(1)
_batches: "weakref.WeakValueDictionary[int, Batch]" = weakref.WeakValueDictionary()


class Bits:
    """The tile bits of one spec: a luattn_batch, and the memory on the device in which they lie. key: of which calls."""

    def __init__(self, memory: Any, key: Any = None) -> None:
        options = capi.BatchOptions(struct_size=ctypes.sizeof(capi.BatchOptions))
        handle = ctypes.c_void_p()
        call("luattn_batch_open", ctypes.byref(options), ctypes.byref(handle))
        assert handle.value
        self.memory: Any = memory
        self.key = key
        self.handle: int = handle.value
        weakref.finalize(self, lib.luattn_batch_close, handle)


class Splits:
    """The list of blocks of one spec's decode kernel: a luattn_batch of calls with these arrays and lengths, and the memory in which it lies.
    key: of which calls."""

    def __init__(self, handle: int, memory: Any, given: Mapping[str, Any], key: Any = None) -> None:
        self.memory: Any = memory
        self.key = key
        self.handle = handle
        self.given = dict(given)  # keeps the arrays
        weakref.finalize(self, lib.luattn_batch_close, handle)

    def check(self, spec: Spec, given: Mapping[str, Any], names: Iterable[str]) -> None:
        """That a call has the arrays and lengths of this list."""
        names = tuple(names)
        if all(map(operator.is_, map(given.get, names), map(self.given.get, names))):  # the usual case, in a tenth of the time
            return
        for name in names:
            mine, other = self.given.get(name), given.get(name)
            if not _is_same(mine, other):
                raise InvalidError(
                    f"{spec.name}: batch: was prepared with {_of(mine)} as {name}, and the call has {_of(other)}: give both the same, "
                    "or leave out batch"
                )


def _is_same(a: Any, b: Any) -> bool:
    if a is None or b is None or not hasattr(a, "data_ptr") or not hasattr(b, "data_ptr"):
        return (a or 0) == (b or 0) if not hasattr(a, "data_ptr") and not hasattr(b, "data_ptr") else a is b
    return bool(a.data_ptr() == b.data_ptr() and a.shape == b.shape)


def _of(x: Any) -> str:
    return "none" if x is None else f"{tuple(x.shape)} at {x.data_ptr():#x}" if hasattr(x, "data_ptr") else repr(x)


class Batch:
    """Evaluates masks from data (flags, tables and lists of blocks, groups) once for all layers of a step.

    batch = luattn.Batch()
    batch.prepare(attention, q, k, kept=kept)  # each step, or when what the mask reads changes
    o = attention(q, k, v, kept=kept, batch=batch)  # in every layer, and backward

    Or, for few queries over caches whose entries differ much in length, shares their keys evenly among blocks:

    batch.prepare(attention, q, k, seqused_k=used, block_table=table)  # each step
    o = attention(q, k, v, seqused_k=used, block_table=table, batch=batch)  # in every layer
    """

    def __init__(self) -> None:
        import torch

        self._bits: dict[Spec, Bits] = {}
        self._splits: dict[Spec, Splits] = {}
        self._captured: dict[Any, list[Any]] = {}  # memory that CUDA graphs use, by the calls that it is of; the last is in use
        number = next(_number)
        _batches[number] = self
        # What travels through the ops of torch, and keeps this object.
        self.token = torch.tensor([number], device="cpu")  # wherever a model is made
        self.token.__dict__["_luattn_batch"] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is one that nothing was prepared in: calls take it, and find anew what it does not have."""
        return type(self), ()

    def prepare(
        self,
        attention: "Attention",
        q: Any,
        k: Any,
        v: Any = None,
        *,
        layout: str = "bhsd",
        seqused_k: Any = None,
        block_table: Any = None,
        cu_seqlens_q: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        keys_modified: bool = False,
        **given: Any,
    ) -> None:
        """Evaluates the mask of `attention` for tensors like q and k, on the current stream, which a CUDA graph may capture.
        given: its inputs and scalars. Does nothing where ranges decide the mask, and for tensors on the CPU.

        Calls of `attention` with this batch must then have the same lengths, scalars and inputs as far as the mask reads
        them, and say so if not. Contents of inputs are not compared: prepare again after changing them. A batch holds the
        bits of as many attentions as a model has, and of the last prepare of each.

        With seqused_k, and block_table, cu_seqlens_q, max_seqlen_q and max_seqlen_k as the calls have them, makes a list of blocks by
        length instead. Calls must have the same tensors and numbers, and say so if not. After a change of seqused_k results
        stay right, and only the balance suffers; after one of cu_seqlens_q prepare again. v: if its head dim is not k's. Does nothing where
        calls take another kernel than that for few queries.

        A CUDA graph may capture prepare, calls, or both. What it uses stays as long as this object, and only prepare for the same
        tensors and numbers writes to it: so a Batch serves graphs of several sizes, and a graph of calls alone is replayed after another
        prepare.
        """
        from ._tensors import prepare_mask, prepare_splits
        from .attention import Attention

        if not isinstance(attention, Attention):
            raise InvalidError(f"Batch.prepare: attention: is {what(attention)}, expected what luattn.attention() returns")
        q, k, v, layout, seqused_k, block_table, cu_seqlens_q, max_seqlen_q, max_seqlen_k, keys_modified = _KINDS.take(
            f"{attention.name}: Batch.prepare", q, k, v, layout, seqused_k, block_table, cu_seqlens_q, max_seqlen_q, max_seqlen_k, keys_modified
        )
        place = f"{attention.name}: Batch.prepare"
        check_types(place, q=q, k=k, **({} if v is None else {"v": v}))
        for name in (*WHOLE, "cu_seqlens_k", "seqused_q"):
            if given.pop(name, None) is not None:
                raise Unsupported(f"{place}: {name}: a batch goes with neither packed keys nor parts of a whole yet; call without batch")
        for name in NOT_OF_MASKS.keys() & given.keys():  # of calls, whatever they are
            take(place, name, NOT_OF_MASKS[name], given.pop(name))
        inputs, scalars, options = attention._sort(given, q, reads=False)
        spec = attention._for(inputs)
        if options:
            raise InvalidError(f"{attention.name}: {next(iter(options))}: prepare takes inputs and scalars alone")
        numbers = [float(x) for x in scalars]
        lengths = {
            "cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "seqused_k": seqused_k,
            "block_table": block_table,
        }  # fmt: skip
        lengths = {name: x for name, x in lengths.items() if x is not None}
        q, k, v = attention._heads_first(layout, q, k, k if v is None else v, lengths)
        if lengths and seqused_k is None:
            raise InvalidError(f"{attention.name}: {next(iter(lengths))}: prepare takes it beside seqused_k alone")
        if is_numpy(q) or not q.is_cuda:
            return
        if lengths:
            if keys_modified:
                lengths["keys_modified"] = True
            prepare_splits(self, spec, q, k, v, inputs, numbers, lengths)
        else:
            prepare_mask(self, spec, q, k, inputs, numbers, v)

    def room(self, key: Any, before: Bits | Splits | None, size: int, device: Any) -> Any:
        """Memory of at least `size` bytes for what prepare finds for the calls of `key`, or None: what captured graphs of such calls use, or
        what the prepare before wrote, if no graph uses that."""
        kept = self._captured.get(key)
        memory = kept[-1] if kept else None
        if kept is None and before is not None and before.key not in self._captured:
            memory = before.memory
        return memory if memory is not None and memory.device == device and memory.numel() >= size else None

    def capture(self, made: Bits | Splits) -> None:
        """A CUDA graph uses this from now on."""
        kept = self._captured.setdefault(made.key, [])
        if not kept or kept[-1] is not made.memory:
            kept.append(made.memory)


def take_batch(place: str, batch: Any) -> Batch:
    if not isinstance(batch, Batch):
        raise InvalidError(f"{place}: batch: is {what(batch)}, expected luattn.Batch")
    return batch


def _batch_of(token: Any, spec: Spec) -> Batch:
    batch = token.__dict__.get("_luattn_batch") or _batches.get(int(token))
    if batch is None:
        raise InvalidError(f"{spec.name}: batch: is not there any more: keep it until backward has run")
    return batch


def bits_of(token: Any, spec: Spec) -> tuple[Batch, Bits | None]:
    """This spec's tile bits; None if it needs none, or nobody has prepared them."""
    batch = _batch_of(token, spec)
    return batch, batch._bits.get(spec)


def splits_of(token: Any, spec: Spec, given: Mapping[str, Any], names: Iterable[str]) -> tuple[Batch, Splits | None]:
    """This spec's list of blocks; None if it needs none, or nobody has prepared it."""
    batch = _batch_of(token, spec)
    splits = batch._splits.get(spec)
    if splits is not None:
        splits.check(spec, given, names)
    return batch, splits
