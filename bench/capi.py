"""capi.py: ctypes structs of luattn's C API, with the fields in include/luattn. Standard library only."""

import ctypes as c


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
    _fields_ = [("name", c.c_char_p), ("tensor", c.POINTER(DLTensor)), ("grad", c.POINTER(DLTensor))]


TENSORS = ("q", "k", "v", "o", "lse", "saved", "dout", "dlse", "dq", "dk", "dv")


class Args(c.Structure):
    _fields_ = (
        [("struct_size", c.c_size_t)]
        + [(name, c.POINTER(DLTensor)) for name in TENSORS]
        + [
            ("inputs", c.POINTER(Input)),
            ("num_inputs", c.c_size_t),
            ("scalars", c.c_void_p),
            ("num_scalars", c.c_size_t),
            ("scalar_grads", c.POINTER(DLTensor)),
            ("scale", c.c_double),
            ("workspace", c.c_void_p),
            ("workspace_size", c.c_size_t),
            ("num_splits", c.c_int),
            ("skip", c.c_int),
            ("batch", c.c_void_p),
            ("num_threads", c.c_int),
            ("large_scores", c.c_int),
        ]
    )


class BatchOptions(c.Structure):
    _fields_ = (
        [("struct_size", c.c_size_t), ("q_offset", c.c_int64), ("kv_offset", c.c_int64)]
        + [("q_offsets", c.c_void_p), ("kv_offsets", c.c_void_p)]
        + [(name, c.c_int64) for name in ("q_len", "kv_len", "head_offset", "heads", "heads_kv")]
        + [("cu_seqlens_q", c.c_void_p), ("cu_seqlens_k", c.c_void_p)]
        + [("max_seqlen_q", c.c_int64), ("max_seqlen_k", c.c_int64)]
    )


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
    ]


class SpecInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("num_inputs", c.c_size_t),
        ("num_scalars", c.c_size_t),
        ("num_saved", c.c_size_t),
        ("inputs", c.c_void_p),
        ("scalar_names", c.c_void_p),
        ("scalar_defaults", c.c_void_p),
        ("has_lse", c.c_int),
        ("has_mask", c.c_int),
        ("hash", c.c_uint64 * 2),
        ("axis_names", c.c_void_p),
        ("has_backward", c.c_int),
        ("why_no_backward", c.c_char_p),
        ("num_saved_large_scores", c.c_size_t),
    ]
