"""Structs and constants of include/luattn for ctypes, field by field. Nothing else in the package knows a layout."""

import ctypes as c

CPU = -1  # LUATTN_CPU
FORWARD, BACKWARD = 0, 1
WANT_DQ, WANT_DK, WANT_DV, WANT_INPUTS, WANT_SCALARS = 1, 2, 4, 8, 16
WANT_ALL = 31

# luattn_dtype and luattn_input_dtype, in their order. ANY: as the tensor is.
DTYPES = ("float64", "float32", "bfloat16", "float16")
INPUT_DTYPES = (*DTYPES, "int32", "bool", "int64", "int16", "uint8", "any")
# luattn_axis, by its negative.
AXES = ("", "b", "h", "hkv", "q", "kv")

# DLDataType of each: code and bits.
DL_CODES = {
    "float64": (2, 64),
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "float16": (2, 16),
    "int64": (0, 64),
    "int32": (0, 32),
    "int16": (0, 16),
    "int8": (0, 8),
    "uint8": (1, 8),
    "bool": (6, 8),
}


class DLDevice(c.Structure):
    _fields_ = [("device_type", c.c_int32), ("device_id", c.c_int32)]


class DLDataType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class DLTensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device", DLDevice),
        ("ndim", c.c_int32),
        ("dtype", DLDataType),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 1020)]


class Input(c.Structure):
    _fields_ = [("name", c.c_char_p), ("tensor", c.c_void_p), ("grad", c.c_void_p)]


class Scalar(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_double)]


# The tensors of luattn_args, in its order.
TENSORS = ("q", "k", "v", "o", "lse", "saved", "dout", "dlse", "dq", "dk", "dv")


class Args(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_void_p) for name in TENSORS),
        ("inputs", c.c_void_p),
        ("num_inputs", c.c_size_t),
        ("scalars", c.c_void_p),
        ("num_scalars", c.c_size_t),
        ("scalar_grads", c.c_void_p),
        ("scale", c.c_double),
        ("workspace", c.c_void_p),
        ("workspace_size", c.c_size_t),
        ("num_splits", c.c_int),
        ("skip", c.c_int),
        ("batch", c.c_void_p),
        ("num_threads", c.c_int),
        ("large_scores", c.c_int),
        ("random", c.c_void_p),
        ("decode", c.c_int),
        ("keys_modified", c.c_int),
        ("append", c.c_void_p),
        ("out_f32", c.c_int),
        ("grad_f32", c.c_int),
        ("tangents", c.c_void_p),
        ("query_tile_size", c.c_uint64),
        ("key_tile_size", c.c_uint64),
        ("spare_multiprocessors", c.c_int),
    ]


class Tangents(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_void_p) for name in ("q", "k", "v")),
        ("inputs", c.c_void_p),
        ("num_inputs", c.c_size_t),
        ("scalars", c.c_void_p),
        ("num_scalars", c.c_size_t),
        *((name, c.c_void_p) for name in ("o", "lse", "dout", "dlse", "dq", "dk", "dv", "scalar_grads")),
    ]


# The tensors of luattn_linear_args, in its order.
LINEAR_TENSORS = ("q", "k", "v", "o", "dout", "dq", "dk", "dv")
FORM_LINEAR = 1  # LUATTN_FORM_LINEAR
STATE_LAYOUTS = {"vk": 1, "kv": 2}  # luattn_state_layout


RING_TENSORS = ("ring_k", "ring_u", "ring_decays", "ring_e", "ring_y", "ring_used")  # likewise


class LinearArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_void_p) for name in LINEAR_TENSORS),
        ("inputs", c.c_void_p),
        ("num_inputs", c.c_size_t),
        ("scalars", c.c_void_p),
        ("num_scalars", c.c_size_t),
        ("scalar_grads", c.c_void_p),
        ("scale", c.c_double),
        *((name, c.c_void_p) for name in ("cu_seqlens", "initial_state", "final_state")),
        ("state_layout", c.c_int),
        *((name, c.c_void_p) for name in ("state_indices", "dfinal_state", "dinitial_state")),
        ("num_threads", c.c_int),
        ("workspace", c.c_void_p),
        ("workspace_size", c.c_size_t),
        *((name, c.c_void_p) for name in RING_TENSORS),
        ("intermediate_states", c.c_void_p),
        ("states_every", c.c_int64),
        ("kept", c.c_void_p),
        ("kept_size", c.c_size_t),
    ]


class Random(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("seed", c.c_uint64),
        ("offset", c.c_uint64),
        ("seed_at", c.c_void_p),
        ("offset_at", c.c_void_p),
    ]


MERGE_MAX = 16  # LUATTN_MERGE_MAX


class AppendArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_void_p) for name in ("k", "v", "new_k", "new_v", "batch")),
        ("inputs", c.c_void_p),
        ("num_inputs", c.c_size_t),
        ("scalars", c.c_void_p),
        ("num_scalars", c.c_size_t),
    ]


class Part(c.Structure):
    _fields_ = [(name, c.c_void_p) for name in ("o", "lse", "d_o", "d_lse")]


class MergeArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("parts", c.c_void_p),
        ("num_parts", c.c_size_t),
        *((name, c.c_void_p) for name in ("o", "lse", "dout", "dlse", "spec", "states", "state", "saved")),
    ]


class NaWindow(c.Structure):
    _fields_ = [("rank", c.c_int), ("kernel_size", 3 * c.c_int64), ("dilation", 3 * c.c_int64), ("is_causal", 3 * c.c_int)]


class NaQkArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("window", NaWindow),
        *((name, c.c_void_p) for name in ("query", "key", "rel_pos_bias", "attn", "d_attn", "d_query", "d_key", "d_rel_pos_bias")),
    ]


class NaAvArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("window", NaWindow),
        *((name, c.c_void_p) for name in ("attn", "value", "out", "d_out", "d_attn", "d_value")),
    ]


class PageLists(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_void_p) for name in ("kv_indptr", "kv_indices", "kv_last_page_len")),
        ("page_size", c.c_int64),
    ]


class BatchOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("q_offset", c.c_int64),
        ("kv_offset", c.c_int64),
        ("q_offsets", c.c_void_p),
        ("kv_offsets", c.c_void_p),
        ("q_len", c.c_int64),
        ("kv_len", c.c_int64),
        ("head_offset", c.c_int64),
        ("heads", c.c_int64),
        ("heads_kv", c.c_int64),
        ("cu_seqlens_q", c.c_void_p),
        ("cu_seqlens_k", c.c_void_p),
        ("max_seqlen_q", c.c_int64),
        ("max_seqlen_k", c.c_int64),
        ("seqused_q", c.c_void_p),
        ("seqused_k", c.c_void_p),
        ("block_table", c.c_void_p),
        ("q_chunks", c.c_void_p),
        ("kv_chunks", c.c_void_p),
        ("chunk_rows", c.c_int64),
    ]


LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p)  # luattn_log
PROGRESS = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t)  # luattn_progress


class EngineOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("device", c.c_int),
        ("cache_dir", c.c_char_p),
        ("family", c.c_int),
        ("no_tuned", c.c_int),
        ("lengths", c.c_int),
        ("packs", c.c_void_p),
        ("num_packs", c.c_size_t),
        ("never_compile", c.c_int),
        ("deterministic", c.c_int),
        ("nvrtc", c.c_char_p),
        ("cpu_relaxed", c.c_int),
        ("log", LOG),
        ("log_user", c.c_void_p),
    ]


class InputInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char * 64),
        ("dtype", c.c_uint32),
        ("num_axes", c.c_uint32),
        ("axis", c.c_int32 * 4),
        ("grad", c.c_uint32),
        ("pairs", c.c_uint32),
    ]


class SpecInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("num_inputs", c.c_size_t),
        ("num_scalars", c.c_size_t),
        ("num_saved", c.c_size_t),
        ("inputs", c.POINTER(InputInfo)),
        ("scalar_names", c.POINTER(c.c_char_p)),
        ("scalar_defaults", c.POINTER(c.c_double)),
        ("has_lse", c.c_int),
        ("has_mask", c.c_int),
        ("hash", c.c_uint64 * 2),
        ("axis_names", c.POINTER(c.c_char_p)),
        ("has_backward", c.c_int),
        ("why_no_backward", c.c_char_p),
        ("num_saved_large_scores", c.c_size_t),
    ]


class MaskCounts(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_int) for name in ("means", "may_evaluate", "tile_m", "tile_n")),
        *((name, c.c_double) for name in ("scores", "kept", "kept_error", "tiles", "full", "partial", "computed_error", "needed", "needed_error")),
        ("q_box", 4 * c.c_int), ("kv_box", 4 * c.c_int),
    ]


LONG, SHORT = 0, 1  # luattn_lengths
SHORT_MAX = 2048


class DeviceInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char * 128),
        ("arch", c.c_int),
        ("multiprocessors", c.c_int),
        ("shared_bytes_per_block", c.c_int),
        ("memory", c.c_size_t),
    ]


class MaskPlaces(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("batch", c.c_int),
        ("head", c.c_int),
        *((name, 4 * c.c_int) for name in ("query", "q_box", "kv_box")),
        ("places", c.c_void_p),
        ("axes", c.c_int),
        *((name, 4 * c.c_int) for name in ("q_extent", "kv_extent")),
        ("boxes", 3 * c.c_int),
    ]


class MaskPicture(c.Structure):
    _fields_ = [
        ("title", c.c_char_p),
        ("classes", c.c_char_p),
        *((name, c.c_int) for name in ("q_len", "kv_len", "tile_m", "tile_n")),
    ]


class Tiles(c.Structure):
    _fields_ = [(name, c.c_int) for name in ("tile_m", "tile_n", "threads", "stages", "warps_n", "chunk_m")]


class BoxPair(c.Structure):
    _fields_ = [("query_tile_size", c.c_uint64), ("key_tile_size", c.c_uint64), ("boxes", c.c_int), *((name, c.c_double) for name in ("kept", "computed", "full", "predicted"))]


class Target(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("pass_", c.c_int),
        ("dtype", c.c_int),
        ("head_dim", c.c_int),
        ("head_dim_v", c.c_int),
        ("arch", c.c_int),
        ("wants", c.c_uint),
        ("family", c.c_int),
        ("tile_m", c.c_int),
        ("tile_n", c.c_int),
        ("cache_dir", c.c_char_p),
        ("nvrtc", c.c_char_p),
        ("lengths", c.c_int),
        ("device", c.c_char_p),
        ("tiles", c.c_void_p),
        ("ptx", c.c_int),
        ("deterministic", c.c_int),
        ("one_code", c.c_int),
        ("driver_version", c.c_int64),
        ("packed", c.c_int),
        ("offsets", c.c_int),
        ("input_types", c.c_uint64),
        ("large_scores", c.c_int),
        ("decode", c.c_int),
        ("pages", c.c_int64),
        ("weights", c.c_int),
        ("keys_modified", c.c_int),
        ("many_rows", c.c_int),
        ("out_f32", c.c_int),
        ("grad_f32", c.c_int),
        ("boxes", c.c_int),
        ("query_tile_size", c.c_uint64),
        ("key_tile_size", c.c_uint64),
        ("tangents", c.c_uint64),
    ]


class CompileReport(c.Structure):
    _fields_ = [
        ("cache_hit", c.c_int),
        ("is_kept", c.c_int),
        ("trace_ms", c.c_double),
        ("plan_ms", c.c_double),
        ("nvrtc_ms", c.c_double),
        ("cache_ms", c.c_double),
        ("plan", c.c_char * 4096),
        ("tiles", Tiles),
        ("every_length", c.c_int),
    ]


DECODE_TILE, DECODE_MANY = 16, 32  # LUATTN_DECODE_TILE, LUATTN_DECODE_MANY


class Call(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("spec", c.c_void_p), ("pass_", c.c_int), ("args", c.c_void_p)]


class Request(c.Structure):
    _fields_ = [
        ("spec", c.c_void_p),
        ("pass_", c.c_int),
        ("dtype", c.c_int),
        ("head_dim", c.c_int),
        ("head_dim_v", c.c_int),
        ("wants", c.c_uint),
    ]


# luattn/parallel.h
TILE, MAX_RANKS, MAX_CHUNKS = 128, 1024, 2048
PARTITIONS = ("contiguous", "zigzag", "by counts", "by time")  # luattn_partition
SCHEDULES = ("auto", "stages", "gathered")  # luattn_schedule
COPIES = ("peer", "group", "auto")  # luattn_copies, by the transport that moves rows so
PARAMETER_MASKS, PARAMETER_OF_SCORES, PARAMETER_OF_ROWS = 1, 2, 4  # luattn_parameter
MASK_BY_BATCH, MASK_BY_HEAD = 1, 2  # luattn_mask_differs


class ParallelRates(c.Structure):
    _fields_ = [*((name, c.c_double) for name in ("forward", "backward", "peer", "network", "memory", "stage")), ("node", c.c_int), ("launch", c.c_double), ("exchange", c.c_double), ("copies", c.c_int * 2)]


class ParallelLayers(c.Structure):
    _fields_ = [("tiles", c.c_void_p), ("weight", c.c_double)]


class ParallelProblem(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        *((name, c.c_int) for name in ("ranks", "chunks", "chunk_rows", "num_layers")),
        ("layers", c.c_void_p),
        *((name, c.c_int) for name in ("heads", "heads_kv", "head_dim", "head_dim_v", "elem_bytes")),
        ("rates", ParallelRates),
        ("schedule", c.c_int),
    ]


class ParallelCandidate(c.Structure):
    _fields_ = [
        ("partition", c.c_int),
        ("chunk_rows", c.c_int),
        *((name, c.c_double) for name in ("forward", "backward", "imbalance", "seconds", "received", "memory")),
    ]


class ParallelLevels(c.Structure):
    _fields_ = [("across", c.c_int), *((name, c.c_double) for name in ("forward", "backward", "exchanged"))]


class ParallelPlan(c.Structure):
    _fields_ = [
        *((name, c.c_int) for name in ("ranks", "chunks", "chunk_rows")),
        ("rank_of", c.POINTER(c.c_int)),
        ("num_candidates", c.c_int),
        ("chosen", c.c_int),
        ("candidates", c.POINTER(ParallelCandidate)),
        ("gathered", c.POINTER(c.c_int)),
        ("overlapped", c.POINTER(c.c_int)),
        ("num_levels", c.c_int),
        ("levels", c.POINTER(ParallelLevels)),
    ]
