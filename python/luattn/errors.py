"""What luattn refuses, as exceptions. Each carries the library's message: location, cause and fix."""

import re


class Error(RuntimeError):
    """Any error of luattn. `status` is the number of its luattn_status."""

    status = 9  # LUATTN_INTERNAL


class InvalidError(Error, ValueError):
    """An argument that cannot be: a shape, a type, a stride, a name. The message names the tensor."""

    status = 2


class SpecError(Error, ValueError):
    """An error in a spec. `file` and `line` say where; line is None where no one line is to blame."""

    status = 3

    def __init__(self, message: str) -> None:
        super().__init__(message)
        place = re.match(r"(.*?):(\d+): ", message)
        self.file = place[1] if place else message.partition(":")[0]
        self.line = int(place[2]) if place else None


class Unsupported(Error, NotImplementedError):
    """What this version, device or spec does not do, though it could be asked for."""

    status = 4


class NotTranslatable(Unsupported):
    """A FlexAttention mod that a spec cannot say. The message starts with the file and the line of the user's Python."""


class CompileError(Error):
    """NVRTC is missing, or rejected the generated source."""

    status = 5


class CudaError(Error):
    """There is no driver or no GPU, or a launch failed."""

    status = 6


class OutOfMemory(Error, MemoryError):
    """No memory, of the host or of a GPU."""

    status = 1


class FileError(Error, OSError):
    """A file cannot be read or written."""

    status = 7


# Where people import them from: so they are printed and pickled.
for _public in (Error, InvalidError, SpecError, Unsupported, NotTranslatable, CompileError, CudaError, OutOfMemory, FileError):
    _public.__module__ = "luattn"

_CLASSES = {
    e.status: e
    for e in (OutOfMemory, InvalidError, SpecError, Unsupported, CompileError, CudaError, FileError)
}

# Ways out that the library names, in the words of Python.
_IN_PYTHON = {"use the CPU path (luattn_cpu_forward, or --device cpu)": "move the tensors to the CPU, where every call runs"}


def in_python(message: str) -> str:
    """The library's message with Python's words for ways out."""
    for said, word in _IN_PYTHON.items():
        message = message.replace(said, word)
    return message


def error_of(status: int, message: str) -> Error:
    """The exception for a luattn_status and its message."""
    message = in_python(message)
    if status in _CLASSES:
        return _CLASSES[status](message)
    error = Error(message)
    error.status = status
    return error
