"""A loaded spec: what it declares, and the frames of calls that use it. Found again by its text."""

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any

from . import _capi as capi
from ._library import call, lib


@dataclass(frozen=True)
class InputInfo:
    """How a spec declares an input: the names of its axes, its type ("any": the tensor's), whether it has a gradient."""

    name: str
    axes: tuple[str, ...]
    dtype: str
    grad: bool


PARTS = "-- parts of\n"  # before the text of a spec: that of its parts (luattn_spec_parts)


class Spec:
    """A luattn_spec. It stays loaded as long as the process runs, because engines and graphs refer to it."""

    def __init__(self, name: str, text: str) -> None:
        self.text = text
        # What stands for it in the ops of torch. Inductor writes arguments of ops into comments, which a new line would end.
        self.line = json.dumps(text, ensure_ascii=False)
        self.frames: tuple[list[Any], list[Any]] = ([], [])  # of _call.py, by pass: those that no call uses
        data = text.encode()
        pointer = ctypes.c_void_p()
        if text.startswith(PARTS):
            call("luattn_spec_parts", spec_of(text.removeprefix(PARTS), name).pointer, ctypes.byref(pointer))
        else:
            call("luattn_spec_load_text", name.encode(), data, len(data), None, ctypes.byref(pointer))
        assert pointer.value
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
        self.scalars = {
            info.scalar_names[i].decode(): float(info.scalar_defaults[i]) for i in range(info.num_scalars)
        }
        self.num_saved: int = info.num_saved
        self.num_saved_large_scores: int = info.num_saved_large_scores
        self.has_lse = bool(info.has_lse)
        self.has_mask = bool(info.has_mask)
        self.has_backward = bool(info.has_backward)
        self.why_no_backward: str = info.why_no_backward.decode() if info.why_no_backward else ""
        self.draws = bool(lib.luattn_spec_draws(self.pointer))  # random numbers, of a seed
        self.wants: int = lib.luattn_spec_wants(self.pointer)

    def parts(self) -> "Spec":
        """The spec of its parts."""
        return spec_of(PARTS + self.text, self.name)


_loaded: dict[str, Spec] = {}


def spec_of(text: str, name: str = "spec") -> Spec:
    """The spec of this text, or of its Spec.line, loaded once in a process. `name` stands in messages in the place of a file."""
    spec = _loaded.get(text)
    if spec is None:
        spec = _loaded.setdefault(text, _of_line(text, name) or Spec(name, text))
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
    """A spec from its path, or from its text, which is a string of more than one line or with a `{`."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return spec_of(source)
    path = os.fspath(source)
    with open(path, encoding="utf-8") as file:
        return spec_of(file.read(), path)
