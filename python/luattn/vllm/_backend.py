"""Backend: the classes that vLLM asks an attention backend for: what it supports, the metadata of a step, and a layer's forward.

The cache of a layer is [blocks, heads, rows of a block, 2 * head size], K beside V, in any order of memory; both halves are luattn's keys in
pages by strides. A step has packed queries (query_start_loc) of requests whose keys are in block_table, seq_lens of them with the new ones."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from ..errors import InvalidError, Unsupported
from . import NAME, Layer, chosen

_LARGEST = 256  # head size


class Backend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> "type[Impl]":
        return Impl

    @staticmethod
    def get_builder_cls() -> "type[Builder]":
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]  # which TMA reads as boxes

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= _LARGEST

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)


@dataclass
class Metadata:
    """Of a step, for all layers of a group. Its tensors stay where they are while CUDA graphs are replayed."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    offsets: Tensor  # of each request: the position of its first query
    slots: "Slots"


@dataclass
class Slots:
    """Where a step's new rows go, each as an entry of its own for append: a page, and the row there."""

    block_size: int
    pages: Tensor  # [tokens, 1]
    rows: Tensor
    ends: Tensor  # 0, 1, .., tokens
    kept: Tensor | None  # on the CPU: the tokens that have a slot; a kernel leaves the others out by itself


class Builder(AttentionMetadataBuilder[Metadata]):
    # A graph holds for as many requests, and as many queries of each at most; lengths are read on the device.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        scheduler = vllm_config.scheduler_config
        largest = getattr(vllm_config.compilation_config, "max_cudagraph_capture_size", None) or 0
        requests, tokens = max(scheduler.max_num_seqs, largest), max(scheduler.max_num_batched_tokens, largest)
        self._block_size = int(kv_cache_spec.block_size)
        self._offsets = torch.zeros(requests, dtype=torch.int32, device=device)
        self._slots = torch.zeros(2, tokens, dtype=torch.int32, device=device)
        self._ends = torch.arange(tokens + 1, dtype=torch.int32, device=device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise Unsupported("luattn.vllm: causal: is not True of this batch; choose another backend for models with bidirectional layers")
        starts, requests = common.query_start_loc, common.num_reqs
        if requests > len(self._offsets):  # chunks of requests, of which vLLM captures no graph
            self._offsets = self._offsets.new_zeros(requests)
        offsets = self._offsets[:requests]
        torch.sub(common.seq_lens, starts[1:] - starts[:-1], out=offsets)
        return Metadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=starts,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            offsets=offsets.clamp_(min=0),
            slots=self._slots_of(common.slot_mapping[: common.num_actual_tokens]),
        )

    def update_block_table(self, metadata: Metadata, blk_table: Tensor, slot_mapping: Tensor) -> Metadata:
        """Of another group, by its own builder."""
        other = copy.copy(metadata)
        other.block_table, other.slots = blk_table, self._slots_of(slot_mapping[: metadata.num_actual_tokens])
        return other

    def _slots_of(self, slot_mapping: Tensor) -> Slots:
        tokens, size = len(slot_mapping), self._block_size
        pages, rows = self._slots[:, :tokens]
        pages.copy_(slot_mapping.div(size, rounding_mode="floor"))  # -1 of a slot that is none
        rows.copy_(slot_mapping.remainder(size))
        kept = None if slot_mapping.is_cuda else (slot_mapping >= 0).nonzero()[:, 0]
        return Slots(size, pages[:, None], rows, self._ends[: tokens + 1], kept)


class Impl(AttentionImpl[Metadata]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise Unsupported(f"luattn.vllm: attn_type: is {getattr(attn_type, 'value', attn_type)}, expected decoder; choose another backend for these layers")
        if kv_cache_dtype not in Backend.supported_kv_cache_dtypes:
            known = ", ".join(Backend.supported_kv_cache_dtypes)
            raise Unsupported(f"luattn.vllm: kv_cache_dtype: is {kv_cache_dtype}, expected {known}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        layer = Layer(num_heads, self.num_kv_heads, head_size, sliding_window, logits_soft_cap or None, slopes, sinks)
        self.attention, given, self._of_whole = chosen(layer)
        self._given = {**(_shard_of(layer) if self._of_whole else {}), **given}

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query, key and value are [tokens, heads, head size], of which the first num_actual_tokens exist; so is output, which is returned."""
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("luattn.vllm: output_scale: results are not quantized; turn the fusion of attention and quantization off")
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        if kv_cache.dtype != query.dtype:
            raise InvalidError(f"luattn.vllm: kv_cache: is {kv_cache.dtype}, and query {query.dtype}: set kv_cache_dtype='auto'")
        meta, n = attn_metadata, attn_metadata.num_actual_tokens
        k_cache, v_cache = _halves(kv_cache, self.head_size)
        if key is not None and value is not None and self.kv_sharing_target_layer_name is None:
            self._write(k_cache, v_cache, key[:n], value[:n], meta.slots)
        self.attention(
            query[:n], k_cache, v_cache, scale=self.scale, cu_seqlens_q=meta.query_start_loc, max_seqlen_q=meta.max_query_len,
            seqused_k=meta.seq_lens, max_seqlen_k=meta.max_seq_len, block_table=meta.block_table,
            q_offset=meta.offsets if self._of_whole else None, out=output[:n], **self._inputs(query.device),
        )  # fmt: skip
        return output

    def _write(self, k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, slots: Slots) -> None:
        if k_cache.shape[2] != slots.block_size:
            raise InvalidError(f"luattn.vllm: kv_cache: has blocks of {k_cache.shape[2]} rows, and slots are of {slots.block_size}")
        pages, rows, ends = slots.pages, slots.rows, slots.ends
        if slots.kept is not None:
            key, value, pages, rows = (x[slots.kept] for x in (key, value, pages, rows))
            ends = ends[: len(slots.kept) + 1]
        if len(key):
            self.attention.append(k_cache, v_cache, key, value, seqused_k=rows, block_table=pages, cu_seqlens_q=ends)

    def _inputs(self, device: torch.device) -> dict[str, Any]:
        """Slopes came as a list, and are made before vLLM says where."""
        for name, x in self._given.items():
            if isinstance(x, Tensor) and x.device != device and name in self.attention.inputs:
                self._given[name] = x.to(device)
        return self._given


def _halves(kv_cache: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """K and V. An axis of one element may say any stride, which a TMA descriptor would take for one: it gets that of a whole row."""
    strides = kv_cache.stride()
    if 1 in kv_cache.shape:
        strides = tuple(kv_cache.shape[-1] if n == 1 else x for n, x in zip(kv_cache.shape, strides))
        kv_cache = kv_cache.as_strided(kv_cache.shape, strides)
    return kv_cache[..., :head_size], kv_cache[..., head_size:]


def _shard_of(layer: Layer) -> dict[str, int]:
    """Which of the model's heads a rank has, for hooks that compute with the number of a head."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed import parallel_state as parallel

    if not parallel.model_parallel_is_initialized() or parallel.get_tensor_model_parallel_world_size() == 1:
        return {}
    ranks, rank = parallel.get_tensor_model_parallel_world_size(), parallel.get_tensor_model_parallel_rank()
    heads_kv = get_current_vllm_config().model_config.get_total_num_kv_heads()  # fewer than those of all ranks where these have copies
    return {"head_offset": rank * layer.num_heads, "heads": ranks * layer.num_heads, "heads_kv": int(heads_kv)}
