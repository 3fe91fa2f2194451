"""page_table(kv_indptr, kv_indices, kv_last_page_len): lists of pages, as FlashInfer takes them, as a table."""

import ctypes
from typing import Any

from . import _capi as capi
from ._arguments import AllArguments
from ._call import Tensors, is_numpy
from ._library import call
from .engine import engine_of
from .errors import InvalidError

_KINDS = AllArguments(kv_indptr="data", kv_indices="data", kv_last_page_len="data", page_size="integer", max_pages="integer?")


def page_table(
    kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, page_size: int, *, max_pages: int | None = None
) -> tuple[Any, Any]:
    """(block_table, seqused_k) of the pages that FlashInfer's plan() takes, for the calls of all layers of a step:

    block_table, seqused_k = luattn.page_table(kv_indptr, kv_indices, kv_last_page_len, 16, max_pages=most)
    o = attention(q, k, v, block_table=block_table, seqused_k=seqused_k)  # k, v [pages, heads, 16, head_dim]

    int32 tensors of torch on one device, or NumPy arrays: entry b has pages kv_indices[kv_indptr[b]:kv_indptr[b + 1]], and
    kv_last_page_len[b] rows of the last one. block_table is [batch, max_pages], -1 behind an entry's last page; seqused_k [batch].

    max_pages: of the longest entry, or more. None: read from kv_indptr, which waits for a GPU, so a CUDA graph needs a number; on a
    GPU an entry with more pages is cut to these (include/luattn/pages.h). The kernel is compiled by the first call, which should not be
    captured.
    """
    kv_indptr, kv_indices, kv_last_page_len, page_size, max_pages = _KINDS.take(
        "page_table", kv_indptr, kv_indices, kv_last_page_len, page_size, max_pages
    )
    lists = {"kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_last_page_len": kv_last_page_len}
    for name, x in lists.items():
        if x.ndim != 1 or (name == "kv_indptr" and x.shape[0] < 1):
            raise InvalidError(f"page_table: {name}: has shape {list(x.shape)}, expected one axis{' of batch + 1' if name == 'kv_indptr' else ''}")
    if is_numpy(kv_indptr):
        return _numpy_table(lists, page_size, max_pages)
    return _torch_table(lists, page_size, max_pages)


def _call(fill: Any, lists: dict[str, Any], page_size: int, table: Any, used: Any, device: int, stream: int | None) -> None:
    tensors = Tensors(5)
    at = tensors.at
    for address, x in zip(at, (*lists.values(), table, used)):
        fill(x, address)
    args = capi.PageLists(ctypes.sizeof(capi.PageLists), at[0], at[1], at[2], page_size)
    call("luattn_page_table", engine_of(device), ctypes.byref(args), at[3], at[4], stream)


def _most_pages(differences: Any, max_pages: int | None) -> int:
    if max_pages is None:
        return max(int(differences.max()), 0) if differences.shape[0] else 0
    if max_pages < 0:
        raise InvalidError(f"page_table: max_pages: is {max_pages}, expected 0 or more, the pages of the longest entry")
    return max_pages


def _numpy_table(lists: dict[str, Any], page_size: int, max_pages: int | None) -> tuple[Any, Any]:
    import numpy as np

    from ._numpy import fill

    indptr = lists["kv_indptr"]
    pages = _most_pages(np.diff(indptr), max_pages)
    table, used = np.empty((indptr.shape[0] - 1, pages), np.int32), np.empty(indptr.shape[0] - 1, np.int32)
    _call(fill, lists, page_size, table, used, capi.CPU, None)
    return table, used


def _torch_table(lists: dict[str, Any], page_size: int, max_pages: int | None) -> tuple[Any, Any]:
    import torch

    from ._tensors import fill, place

    indptr = lists["kv_indptr"]
    for name, x in lists.items():
        if x.device != indptr.device:
            raise InvalidError(f"page_table: {name}: is on {x.device}, and kv_indptr on {indptr.device}: move one of them")
    if max_pages is None and indptr.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InvalidError(
            "page_table: max_pages: is None, which reads kv_indptr back, and the stream is being captured: give the most pages of an entry"
        )
    pages = _most_pages(indptr.diff() if max_pages is None else indptr, max_pages)
    table = indptr.new_empty(indptr.shape[0] - 1, pages, dtype=torch.int32)
    used = indptr.new_empty(indptr.shape[0] - 1, dtype=torch.int32)
    _call(fill, lists, page_size, table, used, *(place(indptr) if indptr.is_cuda else (capi.CPU, None)))
    return table, used
