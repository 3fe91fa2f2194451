"""luattn_args of one call, filled from tensors of any library. The one place that knows how arguments are laid out."""

import ctypes
import functools
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _capi as capi
from ._library import lib, raise_error, thrown
from ._spec import Spec
from .errors import InvalidError, Unsupported

_SIZE = ctypes.sizeof(capi.DLTensor)
_NUM = len(capi.TENSORS)

# Writes the DLTensor of a tensor to an address. It may point into the tensor, which the caller keeps until the call returns.
Fill = Callable[[Any, int], Any]

# Shape and strides of the DLTensor at an address, where the library of the tensor has no place for them.
KEPT: dict[int, Any] = {}


class Tensors:
    """Places for DLTensors, and what is kept for them."""

    at: Sequence[int] = ()  # of one that torch.compile has made without __init__

    def __init__(self, count: int) -> None:
        self.array = (capi.DLTensor * count)()
        first = ctypes.addressof(self.array)
        self.at = [first + i * _SIZE for i in range(count)]

    def own(self, at: int) -> None:
        """Gives the DLTensor at this address, which is filled, a shape and strides that are not the tensor's."""
        t = capi.DLTensor.from_address(at)
        n = t.ndim
        sizes = KEPT[at] = (ctypes.c_int64 * (2 * n))(*t.shape[:n], *t.strides[:n])
        t.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        t.strides = ctypes.cast(ctypes.addressof(sizes) + 8 * n, ctypes.POINTER(ctypes.c_int64))

    def __del__(self, kept: dict[int, Any] = KEPT) -> None:
        for at in self.at:
            kept.pop(at, None)


@functools.cache  # an import in each call takes its time
def _of_batches() -> tuple[Any, Any]:
    from .batch import bits_of, splits_of

    return bits_of, splits_of


class Frame:
    """luattn_args of a pass, and all that it points to. Made once and filled again, which takes a quarter of the time. It keeps
    the tensors that it is filled with until it is cleared."""

    def __init__(self, spec: Spec, backward: bool) -> None:
        n, num_scalars = len(spec.inputs), len(spec.scalars)
        self.spec: Spec = spec  # while a call has it: see give_back
        self.backward = backward
        self.pool = int(backward)  # of spec.frames
        # In this order: TENSORS, the inputs, their gradients, scalar_grads, then arrays of the batch, its chunks, and of new rows, as in ROWS.
        self._tensors = Tensors(_NUM + 2 * n + 1 + len(ARRAYS) + len(CHUNKS) + len(ROWS))
        self._at_arrays = self._tensors.at[_NUM + 2 * n + 1 : -len(ROWS)]
        self._at = self._tensors.at
        inputs, scalars = (capi.Input * n)(), (capi.Scalar * num_scalars)()
        for i, one in enumerate(spec.inputs):
            inputs[i] = capi.Input(one.name.encode(), self._at[_NUM + i], None)
        for i, name in enumerate(spec.scalars):
            scalars[i].name = name.encode()
        self._args = capi.Args(
            struct_size=ctypes.sizeof(capi.Args),
            inputs=ctypes.addressof(inputs) if n else None,
            num_inputs=n,
            scalars=ctypes.addressof(scalars) if num_scalars else None,
            num_scalars=num_scalars,
        )
        # Members by their place, which takes a third of the time of their names: q to dv, every grad, every value.
        self._slots = (ctypes.c_void_p * _NUM).from_buffer(self._args, capi.Args.q.offset)
        self._grads = (ctypes.c_void_p * (3 * n)).from_buffer(inputs)
        self._values = (ctypes.c_double * (2 * num_scalars)).from_buffer(scalars)
        self._kept = (inputs, scalars)
        self._held: Any = None  # the tensors of the call
        self._held_inputs: Any = None
        self._held_others: Any = None
        self._owns_batch = False
        self._shared: Any = None  # a luattn.Batch, and what it has for this call, which another thread may prepare again
        self._missing: list[int] = []  # inputs
        self._random = capi.Random(struct_size=ctypes.sizeof(capi.Random))
        self._options: Any = None  # of luattn_batch_open, where this frame opens one
        self._rows: Any = None  # luattn_append_args, and the options of its batch
        self._err = capi.Error()
        self._warned = (ctypes.c_byte * 1).from_buffer(self._err, capi.Error.message.offset)  # the first letter
        self._size = ctypes.c_size_t()
        self._pass = capi.BACKWARD if backward else capi.FORWARD
        self._run = lib.luattn_backward if backward else lib.luattn_forward
        self.args = ctypes.addressof(self._args)
        self._err_at = ctypes.addressof(self._err)
        self._size_at = ctypes.addressof(self._size)

    def set(self, fill: Fill, tensors: Sequence[Any]) -> None:
        """Gives these, in the order of capi.TENSORS; a call has as many as the last. None: is not given."""
        slots, at = self._slots, self._at
        self._held = tensors
        for i, tensor in enumerate(tensors):
            if tensor is None:
                slots[i] = None
            else:
                slots[i] = address = at[i]
                fill(tensor, address)

    def set_inputs(self, fill: Fill, inputs: Sequence[Any], grads: Sequence[Any] = ()) -> None:
        """The inputs in the spec's order (None: is not given), and where their gradients go (None, or no grads: not wanted)."""
        n = len(inputs)
        self._held_inputs = inputs, grads
        for i, tensor in enumerate(inputs):
            if tensor is None:
                self._missing.append(i)
                self._grads[3 * i + 1] = None
                continue
            fill(tensor, self._at[_NUM + i])
            grad = grads[i] if grads else None
            if grad is None:
                self._grads[3 * i + 2] = None
            else:
                fill(grad, self._at[_NUM + n + i])
                self._grads[3 * i + 2] = self._at[_NUM + n + i]

    def set_numbers(self, scale: float, scalars: Sequence[float]) -> None:
        """The scale (0: the default), and the scalars in the spec's order."""
        self._args.scale = scale
        self.set_scalars(scalars)

    def set_scalars(self, scalars: Sequence[float]) -> None:
        for i, value in enumerate(scalars):
            self._values[2 * i + 1] = value

    def set_options(self, **numbers: int) -> None:
        """Members of luattn_args that are numbers: skip, num_splits, num_threads, large_scores. They stay for later calls."""
        for name, value in numbers.items():
            setattr(self._args, name, value)

    def set_choices(self, given: Mapping[str, Any]) -> None:
        """CHOICES and RESULTS, for this call, whose q is set."""
        for name in CHOICES:
            if given.get(name):
                setattr(self._args, name, 1)
        for name in RESULTS:
            if given.get(name) and capi.DLTensor.from_address(self._at[0]).dtype.bits == 16:  # other results are float32 by themselves
                setattr(self._args, name, 1)

    def set_scalar_grads(self, fill: Fill, grads: Any) -> None:
        """Where the scalars' gradients go; None: not wanted."""
        at = self._at[_NUM + 2 * len(self.spec.inputs)]
        if grads is not None:
            self._held_others = grads
            fill(grads, at)
        self._args.scalar_grads = None if grads is None else at

    def set_batch(self, fill: Fill, given: Mapping[str, Any]) -> None:
        """The luattn_batch of a call: WHOLE's numbers as given["whole"], ARRAYS, and max_seqlen_q and max_seqlen_k; or the
        handle with tile bits that given["batch"] stands for."""
        self._held_others = self._held_others, given
        if given.get("batch") is not None and self.share_batch(given):
            return
        _check_range(given)
        self._options = options = capi.BatchOptions(ctypes.sizeof(capi.BatchOptions), **dict(zip(WHOLE, given.get("whole") or ())))
        options.max_seqlen_q, options.max_seqlen_k = (given.get(f"max_seqlen_{x}") or 0 for x in "qk")
        options.chunk_rows = given.get("chunk_rows") or 0
        for (name, option), at in zip((*ARRAYS.items(), *zip(CHUNKS, CHUNKS)), self._at_arrays):
            array = given.get(name)
            if array is not None:
                fill(array, at)
                setattr(options, option, at)
        self.open_batch()

    def set_rows(self, fill: Fill, given: Mapping[str, Any]) -> None:
        """ROWS: new rows, which the call writes to its k and v first, and of its batch seqused_k before them, and block_table."""
        options = capi.BatchOptions(ctypes.sizeof(capi.BatchOptions))
        rows = capi.AppendArgs(ctypes.sizeof(capi.AppendArgs))
        for (name, option), at in zip(ROWS.items(), self._at[-len(ROWS) :]):
            if given.get(name) is not None:
                fill(given[name], at)
                setattr(rows if hasattr(rows, option) else options, option, at)
        rows.batch = self._open(options)
        self._rows, self._args.append = (rows, options), ctypes.addressof(rows)

    def has_options(self) -> bool:
        """Whether its calls open a luattn_batch of their own."""
        return self._options is not None

    def open_batch(self) -> None:
        """Opens a luattn_batch of the options that set_batch filled in, and one of those of set_rows."""
        self._args.batch = self._open(self._options)
        self._owns_batch = True
        if self._rows is not None:
            self._rows[0].batch = self._open(self._rows[1])

    def _open(self, options: capi.BatchOptions) -> int:
        batch = ctypes.c_void_p()
        self.check(lib.luattn_batch_open(ctypes.byref(options), ctypes.byref(batch), self._err_at))
        assert batch.value
        return batch.value

    def close_batch(self) -> None:
        if self._owns_batch:
            lib.luattn_batch_close(self._args.batch)
        self._args.batch, self._owns_batch, self._shared = None, False, None
        if self._rows is not None:
            lib.luattn_batch_close(self._rows[0].batch)
            self._rows[0].batch = None

    def use_batch(self, handle: int) -> None:
        """A luattn_batch that the caller opened and closes."""
        self._args.batch, self._owns_batch = handle, False

    def set_seed(self, seed: int, offset: int, address: int | None = None) -> None:
        """What random numbers are drawn from: two numbers, or where they lie as int64 on the device."""
        random = self._random
        random.seed, random.offset = seed % 2**64, offset % 2**64
        random.seed_at, random.offset_at = address, address and address + 8
        self._args.random = ctypes.addressof(random)

    def keep_batch(self) -> int:
        """The handle of this call's luattn_batch, which the caller closes from now on."""
        handle: int = self._args.batch
        self._owns_batch = False
        return handle

    def share_batch(self, given: Mapping[str, Any]) -> bool:
        """Takes what the luattn.Batch of a call has for it. False: nothing, and the call opens a luattn_batch of its own."""
        bits_of, splits_of = _of_batches()
        made: Any
        token = given["batch"]
        if is_paged(given):
            batch, made = splits_of(token, self.spec, given, (*ARRAYS, "whole", "max_seqlen_q", "max_seqlen_k"))
            if made is None:
                return False
        else:
            for name in ("whole", *ARRAYS):
                if given.get(name) is not None and len(given[name]) > 0:
                    raise Unsupported(
                        f"{self.spec.name}: batch: goes with neither packed sequences nor parts of a whole yet; leave out batch"
                    )
            batch, made = bits_of(token, self.spec)
        if made is not None:
            self._shared, self._args.batch = (batch, made), made.handle
        return True

    def note_capture(self) -> None:
        """Says that a CUDA graph will use the kernel of this call, and what a luattn.Batch has for it."""
        self.spec.pin()
        if self._shared is not None:
            batch, made = self._shared
            batch.capture(made)

    def _kernel(self, engine: int) -> int:
        """The kernel of these arguments."""
        kernel = ctypes.c_void_p()
        self.check(
            lib.luattn_engine_kernel(
                engine, self.spec.pointer, self._pass, self.args, ctypes.byref(kernel), self._err_at
            )
        )
        assert kernel.value
        return kernel.value

    def tiles_size(self, engine: int) -> tuple[int, int]:
        """A kernel of these arguments, and the bytes of its table of packed tiles."""
        kernel = self._kernel(engine)
        self.check(lib.luattn_batch_tiles_size(kernel, self.args, self._size_at, self._err_at))
        return kernel, self._size.value

    def prepare_tiles(self, kernel: int, memory: int, size: int, stream: int) -> None:
        """Makes the table for this frame's batch, of the lengths that are on the device."""
        batch = self._args.batch
        self.check(lib.luattn_batch_prepare_tiles(batch, kernel, self.args, memory, size, stream, self._err_at))

    def mask_size(self, engine: int) -> tuple[int, int]:
        """A kernel of these arguments, and the bytes of its mask's tile bits."""
        kernel = self._kernel(engine)
        self.check(lib.luattn_batch_mask_size(kernel, self.args, self._size_at, self._err_at))
        return kernel, self._size.value

    def prepare_mask(self, batch: int, kernel: int, memory: int, size: int, stream: int) -> None:
        """Evaluates the mask into this memory."""
        self.check(lib.luattn_batch_prepare_mask(batch, kernel, self.args, memory, size, stream, self._err_at))

    def append(self, engine: int, fill: Fill, k: Any, v: Any, stream: int | None) -> None:
        """Writes rows to this frame's k and v, where its batch says, through the spec's mods with keys_modified."""
        rows = Tensors(2)
        for t, at in zip((k, v), rows.at):
            fill(t, at)
        cache = self._slots[1], self._slots[2]
        own = self._args
        read = own.inputs, own.num_inputs, own.scalars, own.num_scalars
        args = capi.AppendArgs(ctypes.sizeof(capi.AppendArgs), *cache, *rows.at, own.batch, *read)
        self.check(lib.luattn_append(self._kernel(engine), ctypes.byref(args), stream, self._err_at))

    def has_batch(self) -> bool:
        return bool(self._args.batch)

    def batch_size(self) -> int:
        """Bytes of device memory for arrays of the batch that are in host memory."""
        self.check(lib.luattn_batch_size(self._args.batch, self._size_at, self._err_at))
        return self._size.value

    def prepare_batch(self, engine: int, device: int, memory: int, size: int, stream: int) -> None:
        """Copies these arrays to the device."""
        driver = lib.luattn_engine_driver(engine)
        batch = self._args.batch
        self.check(lib.luattn_batch_prepare(batch, driver, device, memory, size, stream, self._err_at))

    def workspace_size(self, engine: int) -> int:
        status = lib.luattn_engine_workspace_size(
            engine, self.spec.pointer, self._pass, self.args, self._size_at, self._err_at
        )
        if status or self._warned[0] or thrown:
            self.check(status)
        return self._size.value

    def weights_size(self, engine: int) -> int:
        self.check(lib.luattn_weights_workspace_size(engine, self.spec.pointer, self.args, self._size_at, self._err_at))
        return self._size.value

    def run_weights(self, engine: int, fill: Fill, weights: Any, stream: int | None) -> None:
        """Writes the weights of v."""
        to = Tensors(1)
        fill(weights, to.at[0])
        self.check(lib.luattn_weights(engine, self.spec.pointer, self.args, to.at[0], stream, self._err_at))

    def run_jvp(
        self, run: Callable[[], int], fill: Fill, tensors: Mapping[str, Any], inputs: Sequence[Any], grads: Sequence[Any], scalars: Sequence[float]
    ) -> None:
        """Calls `run` with luattn_tangents: its tensors by name, tangents of the inputs (None: it has none), where the tangents of their gradients go
        (None: nowhere), and tangents of the scalars."""
        n = len(self.spec.inputs)
        given = [*tensors.values(), *inputs, *(grads or [None] * n)]
        places = Tensors(len(given))
        found: list[int | None] = []
        for t, at in zip(given, places.at):
            if t is not None:
                fill(t, at)
            found.append(None if t is None else at)
        of_inputs = found[len(tensors) :]
        pairs = [(info.name.encode(), at, grad) for info, at, grad in zip(self.spec.inputs, of_inputs[:n], of_inputs[n:]) if at is not None or grad is not None]
        numbers = [(name.encode(), x) for name, x in zip(self.spec.scalars, scalars) if x != 0]
        kept = (capi.Input * len(pairs))(*(capi.Input(*pair) for pair in pairs)), (capi.Scalar * len(numbers))(*(capi.Scalar(*pair) for pair in numbers))
        made = capi.Tangents(
            struct_size=ctypes.sizeof(capi.Tangents), inputs=ctypes.addressof(kept[0]), num_inputs=len(pairs), scalars=ctypes.addressof(kept[1]),
            num_scalars=len(numbers), **dict(zip(tensors, found)),
        )  # fmt: skip
        self._args.tangents = ctypes.addressof(made)
        try:
            self.check(run())
        finally:
            self._args.tangents = None

    def run_backward_jvp(self, engine: int, stream: int | None, memory: Callable[[int], Any], *rest: Any) -> None:
        """memory: of so many bytes, for a workspace."""

        def run() -> int:
            self.check(lib.luattn_backward_jvp_workspace_size(engine, self.spec.pointer, self.args, self._size_at, self._err_at))
            if self._size.value:
                workspace = memory(self._size.value)
                self.set_workspace(workspace.data_ptr(), self._size.value)
            status: int = lib.luattn_backward_jvp(engine, self.spec.pointer, self.args, stream, self._err_at)
            return status

        self.run_jvp(run, *rest)

    def set_workspace(self, address: int, size: int) -> None:
        self._args.workspace, self._args.workspace_size = address, size

    def try_run(self, engine: int, stream: int | None) -> bool:
        """As run. False: the library refuses the call, or a callback has raised something, which the next call raises."""
        if self._run(engine, self.spec.pointer, self.args, stream, self._err_at) or thrown:
            return False
        if self._warned[0]:
            self.check(0)
        return True

    def run(self, engine: int, stream: int | None) -> None:
        """Launches the pass on a stream; on the CPU computes it."""
        status = self._run(engine, self.spec.pointer, self.args, stream, self._err_at)
        if status or self._warned[0] or thrown:
            self.check(status)

    def check(self, status: int) -> None:
        """Raises the error of the last call, or what a callback raised in it, or passes its warning on."""
        if status or thrown:
            raise_error(status, self._err)
        if self._warned[0]:
            warnings.warn(self._err.message.decode("utf-8", "replace"), RuntimeWarning, stacklevel=2)

    def plan(self, engine: int) -> str:
        text = ctypes.c_char_p()
        at = ctypes.byref(text)
        self.check(lib.luattn_engine_plan(engine, self.spec.pointer, self._pass, self.args, at, self._err_at))
        return (text.value or b"").decode()

    def choice(self, engine: int) -> str:
        """Which of forward's kernels these arguments take, and why, in one line; nothing where there is no choice."""
        text = ctypes.create_string_buffer(1000)
        self.check(lib.luattn_engine_choice(engine, self.spec.pointer, self._pass, self.args, text, len(text), self._err_at))
        return text.value.decode()

    def slots(self) -> dict[str, int]:
        """Addresses of the DLTensors that are filled, by name: one of capi.TENSORS, "input NAME", "gradient NAME", "scalar_grads", or one of ARRAYS."""
        n, given, at = len(self.spec.inputs), self._options, self._at
        found = [(name, self._slots[i], at[i]) for i, name in enumerate(capi.TENSORS)]
        for i, info in enumerate(self.spec.inputs):
            found.append((f"input {info.name}", self._grads[3 * i + 1], at[_NUM + i]))
            found.append((f"gradient {info.name}", self._grads[3 * i + 2], at[_NUM + n + i]))
        found.append(("scalar_grads", self._args.scalar_grads, at[_NUM + 2 * n]))
        found += [(name, given and getattr(given, option), x) for (name, option), x in zip(ARRAYS.items(), self._at_arrays)]
        found += [(name, any(getattr(x, option, None) for x in self._rows or ()), x) for (name, option), x in zip(ROWS.items(), at[-len(ROWS) :])]
        return {name: x for name, is_given, x in found if is_given}

    def pointers(self) -> dict[str, int]:
        """Where the tensors of slots() lie; 0: in no memory."""
        filled = {name: capi.DLTensor.from_address(at) for name, at in self.slots().items()}
        return {name: (t.data or 0) + t.byte_offset for name, t in filled.items()}

    def keep(self) -> dict[str, int]:
        """Makes this the frame of calls that differ from the one that it was filled for in addresses and scalars alone: shapes and strides are its own
        from now on, and it has no tensor. The result is where in `data` addresses are to be set before each launch: all of slots()."""
        found = self.slots()
        for at in found.values():
            self._tensors.own(at)
        self.data = (ctypes.c_void_p * (_SIZE // 8 * len(self._at))).from_buffer(self._tensors.array)
        self._held = self._held_inputs = self._held_others = None
        return {name: (at - self._at[0]) // 8 for name, at in found.items()}

    def clear(self) -> None:
        """Forgets what only some calls set."""
        args = self._args
        args.random, args.num_splits, args.decode = None, 0, 0
        args.query_tile_size = args.key_tile_size = 0
        args.spare_multiprocessors = 0
        for name in (*CHOICES, *RESULTS):
            setattr(args, name, 0)
        if args.workspace:
            args.workspace, args.workspace_size = None, 0
        while self._missing:
            i = self._missing.pop()
            self._grads[3 * i + 1] = self._at[_NUM + i]
        if args.batch:
            self.close_batch()
        self._options = None
        self._held = self._held_inputs = self._held_others = None


# Numbers of luattn_batch_options, in the order in which the ops of torch take them.
WHOLE = ("q_offset", "kv_offset", "q_len", "kv_len", "head_offset", "heads", "heads_kv")
# Its arrays, by the names of the ops' arguments.
ARRAYS = {
    "q_offset": "q_offsets",
    "kv_offset": "kv_offsets",
    "cu_seqlens_q": "cu_seqlens_q",
    "cu_seqlens_k": "cu_seqlens_k",
    "seqused_q": "seqused_q",
    "seqused_k": "seqused_k",
    "block_table": "block_table",
}

# And those of chunks of a whole, which parallel's calls have with a number, chunk_rows: ops do not take them.
CHUNKS = ("q_chunks", "kv_chunks")

# New rows of a call, by the names of members of luattn_append_args and of its batch's options.
ROWS = {"new_k": "new_k", "new_v": "new_v", "seqused_k before": "seqused_k", "block_table before": "block_table"}

# Arguments that are members of luattn_args, 0 or 1 (CALL_CHOICE in abi/kernel_facts.def), and what there is then no backward over.
CHOICES = {"keys_modified": "keys that key_mod has changed already: leave it out, and pass k and v as they were before"}
# Likewise, of results that are float32 beside q, k and v of half types.
RESULTS = ("out_f32", "grad_f32")

# Which of forward's kernels, in luattn_decode's order.
DECODE = ("auto", "always", "never")

# Arguments of the ops that do not exist yet.
LATER = ("exact_rows",)


# Arguments of calls that say nothing of a plan, or of a mask, and their kinds.
_OF_RESULTS = {"scale": "scale?", "return_lse": "flag", "return_state": "flag", **dict.fromkeys(CHOICES, "flag"), "out_dtype": "dtype?"}
NOT_OF_PLANS = {**_OF_RESULTS, "grad_dtype": "dtype?", "seed": "seed?", "out": "any"}
NOT_OF_MASKS = {**_OF_RESULTS, "layout": "layout", "decode": "any", "out": "any"}

# Arguments that say nothing of what luattn_batch holds.
IN_NO_BATCH = frozenset(("boxes", "decode", "deterministic", "exact_rows", "num_splits", "seed", "spare_multiprocessors", *CHOICES, *RESULTS))


FIXED_AXES = frozenset(("b", "h", "hkv", "q", "kv"))  # of inputs: of the lengths of q and k


def is_fixed(axis: str) -> bool:
    """Also along an axis of a grid, as q.y."""
    return axis.partition(".")[0] in FIXED_AXES


def is_paged(given: Mapping[str, Any]) -> bool:
    """Whether k and v are pages, or a cache of which entries use a part."""
    return given.get("block_table") is not None or (
        given.get("seqused_k") is not None and given.get("cu_seqlens_k") is None
    )


def weights_shape(q: Any, k: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Of the weights of v: of packed sequences those of the longest ones, over a grid those of all its places."""
    cu = given.get("cu_seqlens_q")
    if cu is None or is_paged(given):
        return (*q.shape[:2], math.prod(q.shape[2:-1]), math.prod(k.shape[2:-1]))
    longest = (min(given.get(f"max_seqlen_{x}") or _longest(given[f"cu_seqlens_{x}"]), t.shape[0]) for x, t in (("q", q), ("k", k)))
    return (max(len(cu.reshape(-1)), 1) - 1, q.shape[1], *longest)


def _longest(cu: Any) -> int:
    """Of arrays that the library refuses, too: 0."""
    ends = cu.reshape(-1).tolist()
    return int(max((b - a for a, b in zip(ends, ends[1:]) if b > a), default=0))


def _check_range(given: Mapping[str, Any]) -> None:
    """Members of 64 bits would take the low ones of larger numbers."""
    for name, x in (*zip(WHOLE, given.get("whole") or ()), *((name, given.get(name) or 0) for name in ("max_seqlen_q", "max_seqlen_k"))):
        if x.bit_length() > 63:
            raise InvalidError(f"{name}: is {x}, expected 0 to {2**31 - 1}")


def check_seed(spec: Spec, given: Mapping[str, Any]) -> None:
    """That there is a seed where the spec draws, and only there."""
    if spec.draws and given.get("seed") is None:
        raise InvalidError(f"{spec.name}: seed: is missing: the spec drops weights at random; pass seed=, a number or two in a tensor")
    if not spec.draws and given.get("seed") is not None:
        raise InvalidError(f"{spec.name}: seed: the spec draws no random numbers: leave it out")


def numbers_of(seed: Any) -> tuple[int, int]:
    """The seed and the offset that a user gave as a number, or as two."""
    given = seed.tolist() if hasattr(seed, "tolist") else seed
    pair = given if isinstance(given, (tuple, list)) else (given, 0)
    for x in pair:
        if not hasattr(x, "__index__") or not -(2**63) <= x < 2**64:
            raise InvalidError(f"seed: is {seed!r}, expected an integer of 64 bits, or two: a seed and an offset")
    if len(pair) != 2:
        raise InvalidError(f"seed: has {len(pair)} numbers, expected one, or two: a seed and an offset")
    return operator.index(pair[0]), operator.index(pair[1])


def refuse_later(name: str, given: Mapping[str, Any]) -> None:
    for later in LATER:
        if given.get(later) is not None and given[later] is not False:
            raise Unsupported(f"{name}: {later}: there is no such argument yet; leave it out")


def pads(spec: Spec, head_dim: int, head_dim_v: int) -> bool:
    """Whether calls in half precision pad these head dims with zeros, because kernels read 16 bytes of a row at once. What a spec does to
    channels could tell them from others: such a spec is refused by the library, as in C."""
    return (head_dim % 8 != 0 or head_dim_v % 8 != 0) and spec.pads


def padding_line(head_dim: int, head_dim_v: int) -> str:
    """Says in a plan that head dims are padded."""
    sizes = " and ".join(f"{d} of {name} to {d + -d % 8}" for name, d in (("q, k", head_dim), ("v", head_dim_v)) if d % 8)
    return f"head dim: padded with zeros before each call, {sizes}, as kernels in half precision take multiples of 8; o is cut\n"


def take_frame(spec: Spec, backward: bool = False) -> Frame:
    """A frame that no other call has: neither of another thread, nor one that this one interrupts. Give it back."""
    try:
        frame: Frame = spec.frames[backward].pop()
    except IndexError:
        return Frame(spec, backward)
    frame.spec = spec
    return frame


def give_back(frame: Frame) -> None:
    frame.clear()
    frames = frame.spec.frames[frame.pool]
    del frame.spec  # which has it, and would otherwise stay for the garbage collector
    frames.append(frame)


def is_numpy(tensor: Any) -> bool:
    return type(tensor).__module__ == "numpy"


def fill_of(tensor: Any) -> Fill:
    """What fills the DLTensor of a torch tensor or a NumPy array. Neither library is loaded for the other."""
    if is_numpy(tensor):
        from . import _numpy

        return _numpy.fill
    from . import _tensors

    return _tensors.fill
