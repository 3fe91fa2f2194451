"""A loaded spec: what it declares, and the frames of calls that use it. Found again by its text, and freed after its last user."""

import ctypes
import gc
import json
import os
import re
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from . import _capi as capi
from ._examples import path_of
from ._library import call, lib
from .engine import opened
from .errors import Error


@dataclass(frozen=True)
class InputInfo:
    """How a spec declares an input: the names of its axes, its type ("any": the tensor's), whether it has a gradient."""

    name: str
    axes: tuple[str, ...]
    dtype: str
    grad: bool


_MOD = re.compile(r"(.+) \((.+:\d+)\)")  # flex's title of a mod
_CHANNELS = re.compile(r"\b(query_mod|key_mod|value_mod|head_dim)\b")
PARTS = "-- parts of\n"  # before the text of a spec: that of its parts (luattn_spec_parts)

_unused: list[int] = []  # pointers of specs
_freeing = threading.Lock()


class _Handle:
    """A luattn_spec. When nobody has it any more it goes on a list, and is freed when the next spec is loaded: not here, where Python
    collects garbage, which may be while the library calls back. of: the handle that has to outlive this one."""

    def __init__(self, pointer: int, of: "_Handle | None") -> None:
        self.pointer, self.of = pointer, of

    def __del__(self, unused: list[int] = _unused) -> None:
        unused.append(self.pointer)


def free_unused() -> None:
    """Frees what nobody has any more, and its kernels. With a GPU many at once, because launches that use them have to be over."""
    devices = [device for device in opened.values() if device != capi.CPU]
    if len(_unused) < (16 if devices else 1) or not _freeing.acquire(blocking=False):
        return
    try:
        if not all(map(_has_finished, devices)):
            return
        for pointer in _unused[:]:  # parts come before what they are parts of
            for engine in [*opened]:
                call("luattn_engine_forget", engine, pointer)
            _unused.remove(pointer)
            lib.luattn_spec_free(pointer)
    finally:
        _freeing.release()


def _has_finished(device: int) -> bool:
    """Waits for what runs on a GPU. False: a CUDA graph is being captured, by whatever thread: waiting and unloading kernels would break it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        if _is_capturing(torch):
            return False
        torch.cuda.synchronize(device)
        return not _is_capturing(torch)  # another thread may have begun meanwhile
    for engine, of in [*opened.items()]:
        if of == device:
            call("luattn_synchronize", lib.luattn_engine_driver(engine), device, None)
    return True


def _is_capturing(torch: Any) -> bool:
    """Whether any stream that Python has is being captured. CUDA tells of one stream at a time, and torch of the current one of this thread."""
    if torch.cuda.is_current_stream_capturing():
        return True
    for stream in [x for x in gc.get_objects() if issubclass(type(x), torch.cuda.Stream)]:
        with torch.cuda.stream(stream):
            if torch.cuda.is_current_stream_capturing():
                return True
    return False


class Spec:
    """A luattn_spec, which is freed when its last user is gone: attentions, batches, calls that wait for backward, graphs. It is
    copied, and goes to other processes, by its text."""

    def __init__(self, name: str, text: str) -> None:
        self.text, self.place = text, name
        self.titles = [name]  # of flex's mods that do the same, and so have this spec
        # What stands for it in the ops of torch. Inductor writes arguments of ops into comments, which a new line would end.
        self.line = json.dumps(text, ensure_ascii=False)
        self.frames: tuple[list[Any], ...] = ([], [], [])  # of _call.py, by Frame.pool: those that no call uses
        self.signatures: dict[Any, Any] = {}  # of _signature.py
        self._parts: Spec | None = None
        self.scaled: dict[str, Spec] = {}  # of _scale.py
        self.typed: Spec | None = None  # of _typed.py
        free_unused()
        data = text.encode()
        pointer = ctypes.c_void_p()
        whole: _Handle | None = None
        if text.startswith(PARTS):
            of = spec_of(text.removeprefix(PARTS), name)
            whole = of._handle
            call("luattn_spec_parts", of.pointer, ctypes.byref(pointer))
        else:
            call("luattn_spec_load_text", name.encode(), data, len(data), None, ctypes.byref(pointer))
        assert pointer.value
        self._handle: _Handle = _Handle(pointer.value, whole)
        self.pointer: int = pointer.value
        info = capi.SpecInfo()
        lib.luattn_spec_get_info(self.pointer, ctypes.byref(info))
        self.name: str = info.name.decode()
        self.inputs = tuple(
            InputInfo(
                one.name.decode(),
                tuple(info.axis_names[4 * i + axis].decode() for axis in range(one.num_axes)),
                capi.INPUT_DTYPES[one.dtype],
                bool(one.grad),
            )
            for i, one in enumerate(info.inputs[: info.num_inputs])
        )
        self.input_names = tuple(f"input {one.name}" for one in self.inputs)  # as _signature.py has them
        self.scalars = {
            info.scalar_names[i].decode(): float(info.scalar_defaults[i]) for i in range(info.num_scalars)
        }
        self.num_saved: int = info.num_saved
        self.num_saved_large_scores: int = info.num_saved_large_scores
        self.has_lse = bool(info.has_lse)
        self.has_mask = bool(info.has_mask)
        self.has_backward = bool(info.has_backward)
        self.why_no_backward: str = info.why_no_backward.decode() if info.why_no_backward else ""
        self.is_linear = hasattr(lib, "luattn_spec_form") and lib.luattn_spec_form(self.pointer) == capi.FORM_LINEAR
        self.normalizes = self.is_linear and bool(lib.luattn_spec_normalizes(self.pointer))  # states have one channel of v more
        self.draws = bool(lib.luattn_spec_draws(self.pointer))  # random numbers, of a seed
        self.reads_batch = bool(lib.luattn_spec_reads_batch(self.pointer))  # computes with an entry's number, or reads another entry
        self.wants: int = lib.luattn_spec_wants(self.pointer)
        self.row_passes: int = lib.luattn_spec_row_passes(self.pointer)  # before backward, which then needs all keys of a row in one call
        names = ctypes.POINTER(ctypes.c_char_p)()
        axes = lib.luattn_spec_grid(self.pointer, ctypes.byref(names)) if hasattr(lib, "luattn_spec_grid") else 0
        self.grid = tuple((names[i] or b"").decode() for i in range(axes)) if axes > 1 else ()  # its axes, in the place of a length
        self.dims = 3 + max(len(self.grid), 1)  # of q, k, v and o
        self.merged_saved = 0 if self.row_passes else self.num_saved  # numbers of a row that gradients of a part read
        self.saves = self.has_lse, self.num_saved  # what decides the results of a call
        self.pads = _CHANNELS.search(text) is None  # whether channels of zeros behind the last one change nothing

    def ring(self, head_dim: int) -> tuple[int, bool]:
        """Of a ring of linear attention: numbers of a row's decays, and whether it has rows of what is erased."""
        decays, erases = ctypes.c_int(), ctypes.c_int()
        lib.luattn_spec_ring(self.pointer, head_dim, ctypes.byref(decays), ctypes.byref(erases))
        return decays.value, bool(erases.value)

    def __reduce__(self) -> tuple[Any, ...]:
        return spec_of, (self.text, self.place)

    @property
    def rows(self) -> str:
        """What is between heads and the head dim of a tensor, for messages."""
        return f"the axes {', '.join(self.grid)} of the grid" if self.grid else "length"

    @property
    def said(self) -> str:
        """How messages begin that are no line's: the spec's name, or where the mods are that it was made of."""
        found = [x for x in map(_MOD.fullmatch, self.titles) if x]
        return f"{' or '.join(x[2] for x in found)}: {found[0][1]}" if found else self.name

    def blamed(self, error: Error) -> Error:
        """An error of backward, which begins with the mod's line where the spec was made of one."""
        if self.said == self.name or str(error).startswith(self.said):
            return error
        kind: Any = type(error)
        made: Error = kind(f"{self.said}: {error}")
        return made

    def parts(self) -> "Spec":
        """The spec of its parts."""
        if self._parts is None:
            self._parts = spec_of(PARTS + self.text, self.place)
        return self._parts

    def pin(self) -> None:
        """Keeps it as long as the process runs: a CUDA graph that was captured has its kernels."""
        _pinned.add(self)


_pinned: set[Spec] = set()
_loading = threading.RLock()
_loaded: "weakref.WeakValueDictionary[str, Spec]" = weakref.WeakValueDictionary()  # by the text, and by Spec.line
# Those that ops were called with and nobody else had, as in graphs of torch.export; the last one is the last that was asked for.
_in_graphs: dict[str, Spec] = {}
_MOST_IN_GRAPHS = 128


def spec_of(text: str, name: str = "spec") -> Spec:
    """The spec of this text, or of its Spec.line, which all that ask for it share. `name` stands in messages in the place of a file."""
    spec = _loaded.get(text)
    if spec is not None:
        return spec
    with _loading:
        spec = _loaded.get(text) or _of_line(text, name)
        if spec is None:
            spec = Spec(name, text)
            _loaded[text] = _loaded[spec.line] = spec
        return spec


def spec_in_graph(text: str) -> Spec:
    """The spec that an op is called with. The last of them stay loaded, whoever else has them."""
    spec = _loaded.get(text)
    if spec is None or text in _in_graphs:
        with _loading:
            spec = _in_graphs.pop(text, None) or spec_of(text)
            _in_graphs[text] = spec
            while len(_in_graphs) > _MOST_IN_GRAPHS:
                _in_graphs.pop(next(iter(_in_graphs)), None)
    return spec


def _of_line(text: str, name: str) -> Spec | None:
    """The spec if text is a Spec.line: no Lua begins with a string."""
    if not text.startswith('"'):
        return None
    try:
        return spec_of(json.loads(text), name)
    except json.JSONDecodeError:
        return None


def load(source: str | os.PathLike[str]) -> Spec:
    """A spec from its path, the name of an example, or its text, which is a string of more than one line or with a `{`."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return spec_of(source)
    path = path_of(os.fspath(source))
    with open(path, encoding="utf-8") as file:
        return spec_of(file.read(), path)
