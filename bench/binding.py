"""binding.py: calls luattn's C API through ctypes, as far as benchmarks need it, with torch tensors."""

import ctypes as c
import functools

import torch

from capi import Args, BatchOptions, CompileReport, DLDataType, DLDevice, DLTensor, EngineOptions
from capi import Error, Input, SpecInfo, Target


SKIP_NEVER = 2  # the value in luattn_skip


FAMILIES = ("simt", "sm80", "sm90")  # in luattn_family's order
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # in luattn_dtype's order
CODES = {
    torch.float64: (2, 64),
    torch.float32: (2, 32),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.int32: (0, 32),
    torch.bool: (1, 8),
}


class Kept:
    """A DLTensor that owns its shape and strides and keeps the torch tensor alive."""

    def __init__(self, t):
        n = t.dim()
        self.torch = t
        self.shape = (c.c_int64 * n)(*t.shape)
        self.strides = (c.c_int64 * n)(*t.stride())
        code, bits = CODES[t.dtype]
        self.dl = DLTensor(
            t.data_ptr(),
            DLDevice(2, t.device.index or 0),
            n,
            DLDataType(code, bits, 1),
            self.shape,
            self.strides,
            0,
        )


class Luattn:
    def __init__(self, library, family=None, deterministic=False, offsets=None, large_scores=False, bits=False):
        """family: of FAMILIES, for every kernel; None: the plan chooses. offsets: with kernels that take
        tensors as parts of a whole (luattn/batch.h), at offset 0, from "numbers" or "arrays". large_scores:
        luattn_args.large_scores. bits: masks from data are evaluated once, before the launches that are timed."""
        self.bits = bits
        self.path, self.of_family, self.is_deterministic = library, family, deterministic
        self.offsets, self.large_scores = offsets, large_scores
        self.lib = c.CDLL(library)
        self.err = Error()
        self.engine = c.c_void_p()
        self.family = 0 if family is None else 1 + FAMILIES.index(family)
        options = EngineOptions(
            struct_size=c.sizeof(EngineOptions), family=self.family, deterministic=int(deterministic)
        )
        self._call("luattn_engine_open", c.byref(options), c.byref(self.engine))

    @functools.cache
    def deterministic(self):
        """The same library with an engine whose backward gives the same bits in every run."""
        return Luattn(self.path, self.of_family, True, self.offsets, self.large_scores, self.bits)

    def _call(self, name, *args):
        if getattr(self.lib, name)(*args, c.byref(self.err)) != 0:
            raise RuntimeError(f"{name}: {self.err.message.decode()}")

    @functools.cache
    def batch(self, entries, heads):
        """The handle for tensors of so many entries and query heads, and the array that it reads."""
        batch, zeros = c.c_void_p(), None
        whole = BatchOptions(struct_size=c.sizeof(BatchOptions))
        if self.offsets == "numbers":
            whole.heads = heads  # without any offset or total, a batch selects plain kernels
        if self.offsets == "arrays":
            zeros = Kept(torch.zeros(entries, dtype=torch.int32, device="cuda"))
            whole.q_offsets = whole.kv_offsets = c.addressof(zeros.dl)
        if self.offsets:
            self._call("luattn_batch_open", c.byref(whole), c.byref(batch))
        return batch, zeros

    def evaluated(self, spec, backward, args):
        """Makes the tile bits of a mask from data. Returns the batch that has them, and their memory."""
        batch, kernel, size = c.c_void_p(), c.c_void_p(), c.c_size_t()
        options = BatchOptions(struct_size=c.sizeof(BatchOptions))
        self._call("luattn_batch_open", c.byref(options), c.byref(batch))
        self._call("luattn_engine_kernel", self.engine, spec, int(backward), c.byref(args), c.byref(kernel))
        self._call("luattn_batch_mask_size", kernel, c.byref(args), c.byref(size))
        memory = torch.empty(size.value + 256, dtype=torch.uint8, device="cuda")
        at = c.c_void_p((memory.data_ptr() + 255) // 256 * 256)
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call("luattn_batch_prepare_mask", batch, kernel, c.byref(args), at, size, stream)
        return batch, memory

    def spec(self, name, text):
        spec, text = c.c_void_p(), text.encode()
        self._call("luattn_spec_load_text", name.encode(), text, c.c_size_t(len(text)), None, c.byref(spec))
        return spec

    def has_lse(self, spec):
        info = SpecInfo()
        self.lib.luattn_spec_get_info(spec, c.byref(info))
        return bool(info.has_lse)

    def num_saved(self, spec):
        info = SpecInfo()
        self.lib.luattn_spec_get_info(spec, c.byref(info))
        return info.num_saved_large_scores if self.large_scores else info.num_saved

    def plan(self, spec, q, v, backward, gradients=False):
        """Returns the plan of the engine's kernel as text: family, tiles, and the reasons for them."""
        major, minor = torch.cuda.get_device_capability()
        counted = v.shape[2] if backward else q.shape[2]  # the length that luattn_lengths_of reads
        target = Target(
            struct_size=c.sizeof(Target),
            pass_=int(backward),
            dtype=DTYPES.index(q.dtype),
            head_dim=q.shape[-1],
            head_dim_v=v.shape[-1],
            arch=10 * major + minor,
            wants=15 if gradients else 7,
            family=self.family,
            lengths=int(counted <= 2048),
            device=torch.cuda.get_device_name().encode(),
            deterministic=int(self.is_deterministic),
        )
        image, report = c.c_void_p(), CompileReport()
        self._call("luattn_compile", spec, c.byref(target), c.byref(image), c.byref(report))
        self.lib.luattn_image_free(image)
        return report.plan.decode()

    def bind(self, spec, backward=False, inputs=None, every_tile=False, batch=None, **tensors):
        """Returns a function without arguments that launches one pass on torch's current stream. batch: a
        luattn_batch in place of the one for `offsets`."""
        kept = {name: Kept(t) for name, t in tensors.items()}
        given = [
            (name, Kept(t), Kept(g) if g is not None else None) for name, (t, g) in (inputs or {}).items()
        ]
        array = (Input * max(1, len(given)))(
            *[Input(n.encode(), c.addressof(t.dl), c.addressof(g.dl) if g else None) for n, t, g in given]
        )
        args = Args(struct_size=c.sizeof(Args), inputs=c.addressof(array), num_inputs=len(given))
        args.skip = SKIP_NEVER if every_tile else 0
        batch = (batch, None) if batch is not None else self.batch(*tensors["q"].shape[:2])
        args.batch = batch[0]
        args.large_scores = int(self.large_scores)
        for name, k in kept.items():
            setattr(args, name, c.addressof(k.dl))
        if self.bits:
            batch = self.evaluated(spec, backward, args)
            args.batch = batch[0]
        size = c.c_size_t()
        self._call(
            "luattn_engine_workspace_size", self.engine, spec, int(backward), c.byref(args), c.byref(size)
        )
        workspace = torch.empty(size.value + 256, dtype=torch.uint8, device="cuda")
        args.workspace = (workspace.data_ptr() + 255) // 256 * 256
        args.workspace_size = size.value
        call = "luattn_backward" if backward else "luattn_forward"

        def launch(keep=(kept, given, array, workspace, batch)):
            self._call(
                call, self.engine, spec, c.byref(args), c.c_void_p(torch.cuda.current_stream().cuda_stream)
            )

        return launch
