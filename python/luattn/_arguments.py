"""What arguments of public functions may be: one check of their kinds, which says in one way what is wrong, and takes numbers of Python, of
NumPy and in arrays of no axes as the same."""

import cmath
import numbers
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _capi as capi
from ._import_hook import when_imported
from .errors import InvalidError

_WRONG: Any = object()
ARCH = re.compile(r"(?:sm_)?(\d{2,3})a?")
is_compiling: Callable[[], bool] = lambda: False  # noqa: E731
is_dynamo_compiling: Callable[[], bool] = lambda: False  # noqa: E731
_strided: list[Any] = []


def _ask_torch() -> None:
    global is_compiling, is_dynamo_compiling
    compiler = sys.modules["torch"].compiler
    is_compiling, is_dynamo_compiling = compiler.is_compiling, compiler.is_dynamo_compiling
    _strided.append(sys.modules["torch"].strided)


when_imported("torch", _ask_torch)


# --- what a thing is ---


def what(x: Any) -> str:
    """In words, for messages."""
    kind, library = type(x), type(x).__module__.partition(".")[0]
    if x is None or x is Ellipsis or isinstance(x, (bool, int, float, complex)) and library == "builtins":
        return repr(x)
    if isinstance(x, (str, bytes)):
        return f"the string {x[:40]!r}"
    if isinstance(x, (list, tuple, dict, set)):
        is_short = len(x) <= 4 and all(type(y) in (bool, int, float) for y in x)
        return repr(x) if is_short and x else f"a {kind.__name__} of {len(x)}"
    if is_tensor(x):
        return _of_tensor(x)
    if library == "numpy" and hasattr(x, "dtype"):
        masked = "masked " if "MaskedArray" in kind.__name__ or "MaskedConstant" in kind.__name__ else ""
        axes = "" if getattr(x, "shape", ()) else " without axes"
        return f"a {masked}NumPy {'array' if hasattr(x, '__setitem__') else 'number'} of {x.dtype.name}{axes if hasattr(x, '__setitem__') else ''}"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    return f"a {kind.__qualname__ if library == 'builtins' else f'{kind.__module__}.{kind.__qualname__}'}"


def _of_tensor(x: Any) -> str:
    dtype = str(x.dtype).partition(".")[2]
    if x.is_nested:
        return f"a nested tensor of {dtype}"
    layout = "" if x.layout is sys.modules["torch"].strided else f"{str(x.layout).partition('.')[2].replace('sparse_coo', 'sparse')} "
    return f"a {layout}tensor of {dtype}{'' if x.dim() else ' without axes'}{' on meta, without data' if x.is_meta else ''}"


def is_tensor(x: Any) -> bool:
    """Of torch, which need not be loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_torch_dtype(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.dtype)


def _is_array(x: Any) -> bool:
    """A NumPy array with data of its own alone: a masked one has flags too, a matrix multiplies otherwise, and others' may have units."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(x, numpy.ndarray) and type(x).__module__ == "numpy" and not isinstance(x, (numpy.ma.MaskedArray, numpy.matrix))


def check_types(place: str, **tensors: Any) -> None:
    """That kernels read numbers of these types."""
    for name, t in tensors.items():
        said = str(getattr(t.dtype, "name", t.dtype)).removeprefix("torch.")
        if said.startswith(("float8", "float4")):
            of, var = "torch.bfloat16" if is_tensor(t) else "numpy.float32", name.split("'")[1] if "'" in name else name
            raise InvalidError(
                f"{place}: {name}: has type {said}, and no kernel reads {said[:6]}, of a cache neither: pass {var}.{'to' if is_tensor(t) else 'astype'}({of}), "
                f"and multiply it by its scale first if it has one; kernels read {', '.join(capi.DTYPES)}"
            )
        if said not in capi.DTYPES:
            raise InvalidError(f"{place}: {name}: has type {said}, expected one of {', '.join(capi.DTYPES)}")


def is_dense(x: Any) -> bool:
    """A tensor or array as the library can read it. Its type is looked at later, but for those that are no numbers."""
    if is_tensor(x):
        return x.layout is sys.modules["torch"].strided and not x.is_nested and not x.is_quantized and not x.is_complex()
    return _is_array(x) and x.dtype.name in capi.DL_CODES or _is_array(x) and x.dtype.kind in "biuf"


def _plain_number(x: Any) -> Any:
    """A number of Python: of one of Python or NumPy, or of an array of no axes of any library. _WRONG: it is none."""
    if isinstance(x, (bool, int, float)):
        return x
    if is_tensor(x):
        if x.dim() or x.is_meta or x.is_nested or x.is_complex():
            return _WRONG
        from ._tangents import refuse_in

        refuse_in("an argument that is a number", x)
        return x.item()
    if type(x).__name__ in ("MaskedArray", "MaskedConstant", "mvoid"):
        return _WRONG
    if getattr(x, "shape", None) == () and hasattr(x, "dtype"):  # NumPy, JAX, ..
        x = x.item()
        return x if isinstance(x, (bool, int, float)) else _WRONG
    if isinstance(x, numbers.Integral):
        return operator.index(x)
    return float(x) if isinstance(x, numbers.Real) else _WRONG


# --- kinds: functions that return what an argument stands for, or _WRONG ---


def _flag(x: Any) -> Any:
    x = _plain_number(x)
    return bool(x) if x is not _WRONG and not isinstance(x, float) and x in (0, 1) else _WRONG


def _integer(x: Any) -> Any:
    x = _plain_number(x)
    return x if isinstance(x, int) and not isinstance(x, bool) else _WRONG


def _real(x: Any) -> Any:
    x = _plain_number(x)
    return _WRONG if x is _WRONG or isinstance(x, bool) else float(x)


def _scale(x: Any) -> Any:
    """A tensor keeps its gradient, and its place."""
    if is_tensor(x):
        return _WRONG if x.is_complex() or x.dtype is sys.modules["torch"].bool or not is_dense(x) or x.is_meta else x
    return _real(x)


def _tensor(x: Any) -> Any:
    return x if is_dense(x) and len(x.shape) else _WRONG


def _data(x: Any) -> Any:
    return _WRONG if is_tensor(x) and x.is_meta else _tensor(x)


def _torch_tensor(x: Any) -> Any:
    return x if is_tensor(x) and is_dense(x) and x.dim() else _WRONG


def _input(x: Any) -> Any:
    return x if is_dense(x) else _WRONG


def _offset(x: Any) -> Any:
    """A number, or one of each batch entry. That of a GPU is not read back."""
    if getattr(x, "shape", ()) != () and is_dense(x):
        return x
    if is_tensor(x) and x.is_cuda and not (x.is_floating_point() or x.is_complex() or x.dtype is sys.modules["torch"].bool):
        return x
    return _integer(x)


def _length(x: Any) -> Any:
    return x if is_tensor(x) and (x.dim() or x.is_cuda) and is_dense(x) else _integer(x)


def _cap(x: Any) -> Any:
    """One that requires a gradient is refused later, in more words."""
    return x if is_tensor(x) and x.requires_grad and not x.is_complex() else _real(x)


def _pair(x: Any) -> Any:
    if is_tensor(x) or _is_array(x):
        x = x.tolist()
    if not isinstance(x, Sequence) or isinstance(x, (str, bytes)) or len(x) != 2:
        return _WRONG
    found = tuple(map(_integer, x))
    return _WRONG if _WRONG in found else found


def _size(x: Any) -> Any:
    found = _integer(x)
    return _pair(x) if found is _WRONG else found


def _seed(x: Any) -> Any:
    if is_tensor(x) and x.dim() and is_dense(x) and not x.is_meta:
        return x
    return _size(x)


def _dtype(x: Any) -> Any:
    if is_torch_dtype(x):
        return x
    name = x.__name__ if isinstance(x, type) and x.__module__.partition(".")[0] in ("numpy", "ml_dtypes") else getattr(x, "name", x)
    if not isinstance(x, str) and type(x).__module__.partition(".")[0] not in ("numpy", "builtins"):
        return _WRONG
    return x if isinstance(name, str) and name.removeprefix("torch.") in capi.DL_CODES else _WRONG


def _device(x: Any) -> Any:
    torch = sys.modules["torch"]
    if isinstance(x, (str, torch.device)):
        try:
            return torch.device(x)
        except RuntimeError:
            return _WRONG
    return _integer(x)


def _function(x: Any) -> Any:
    return x if callable(x) and not isinstance(x, type) else _WRONG


def _aux(x: Any) -> Any:
    """PyTorch's AuxRequest."""
    return x if isinstance(getattr(x, "lse", None), bool) else _WRONG


def _arch(x: Any) -> Any:
    return x if isinstance(x, str) and ARCH.fullmatch(x) else _WRONG


def _source(x: Any) -> Any:
    return x if isinstance(x, (str, os.PathLike)) else _WRONG


def _parts(x: Any) -> Any:
    """Several tensors."""
    if isinstance(x, (str, bytes, dict)) or not isinstance(x, Iterable) or is_tensor(x) or hasattr(x, "dtype"):
        return _WRONG
    return list(x)


_ONE = "a tensor of torch or a NumPy array"
_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tensor": (_tensor, _ONE),
    "data": (_data, f"{_ONE} with data"),
    "input": (_input, _ONE),
    "torch": (_torch_tensor, "a tensor of torch"),
    "flag": (_flag, "True or False"),
    "integer": (_integer, "an integer"),
    "real": (_real, "a number"),
    "cap": (_cap, "a number"),
    "scale": (_scale, "a number, or a tensor of one"),
    "offset": (_offset, "an integer, or int32 [batch]"),
    "length": (_length, "an integer, or an int32 tensor [batch]"),
    "pair": (_pair, "two integers, of which a negative one is no limit"),
    "size": (_size, "a number or (of queries, of keys)"),
    "seed": (_seed, "an integer of 64 bits, or two: a seed and an offset"),
    "dtype": (_dtype, f"one of {', '.join(capi.DTYPES)}"),
    "device": (_device, "a device of torch"),
    "layout": (lambda x: x if isinstance(x, str) else _WRONG, "'bhsd' or 'bshd'"),
    "function": (_function, "a function of scores and indices"),
    "aux": (_aux, "an AuxRequest"),
    "arch": (_arch, "an architecture, as 'sm_90a'"),
    "source": (_source, "the path of a Lua file, the name of an example, or its text"),
    "parts": (_parts, "a list of tensors"),
    "any": (lambda x: x, ""),
}
# Kinds which the type of an argument says as a whole, where it is one of these.
_TYPES: dict[str, tuple[type, ...]] = {
    "flag": (bool,), "integer": (int,), "real": (float,), "cap": (float,), "scale": (float,), "offset": (int,), "length": (int,), "seed": (int,), "size": (int,), "source": (str,), "layout": (str,),
}  # fmt: skip


def take(place: str, name: str, kind: str, x: Any) -> Any:
    """What an argument stands for. kind: one of _KINDS; with a ?, it may be None."""
    if x is None and kind.endswith("?"):
        return None
    convert, expected = _KINDS[kind.rstrip("?")]
    try:
        found = convert(x)
    except (TypeError, ValueError, AttributeError, OverflowError, RuntimeError):  # an object that only looks like a number
        found = _WRONG
    if found is _WRONG:
        if type(x).__module__ == "numpy" and len(getattr(x, "shape", ())) and x.dtype.name.startswith("float8"):
            check_types(place, **{name: x})
        remedy = f"; {_remedy(name, x)}" if ("tensor" in expected or "[batch]" in expected) and _remedy(name, x) else ""
        raise InvalidError(f"{place}: {name}: is {what(x)}, expected {expected}{' or None' if kind.endswith('?') else ''}{remedy}")
    return found


def _remedy(name: str, x: Any) -> str:
    if is_tensor(x):
        if x.is_nested:
            return "pad it, or pack its rows with cu_seqlens"
        if x.layout is not sys.modules["torch"].strided:
            return "pass .to_dense()"
        return "pass .dequantize()" if x.is_quantized else ""
    if "Masked" in type(x).__name__:
        return "pass .filled(..), and say what is masked in the spec"
    if hasattr(x, "__dlpack__") and not _is_array(x) and not isinstance(x, type):  # of JAX, CuPy, ..
        name = name.split("'")[1] if "'" in name else name
        is_of_numpy = any(kind.__module__ == "numpy" for kind in type(x).__mro__)
        return f"pass numpy.asarray({name})" if is_of_numpy else f"pass torch.from_dlpack({name}), which copies nothing"
    return ""


def _have_strides(given: Sequence[Any], places: Sequence[int]) -> bool:
    """Whether these tensors are dense, and have axes."""
    try:
        for i in places:
            t = given[i]
            if t.layout is not _strided[0] or t.is_quantized or not t.stride():
                return False
    except RuntimeError:  # nested
        return False
    return True


class Arguments:
    """The kinds of a function's arguments. Types are remembered, and the library looks at tensors of such types itself."""

    def __init__(self, **kinds: str) -> None:
        self._kinds = tuple(kinds.items())
        self.names = tuple(kinds)
        # Types of which no more is to be looked at than whether these, which are torch's, are dense.
        self._known: dict[tuple[type, ...], tuple[int, ...]] = {}

    def take(self, place: str, *given: Any) -> Sequence[Any]:
        """What they stand for. Inside of torch.compile they are taken as they are."""
        if is_dynamo_compiling():
            return given
        types = tuple(map(type, given))
        known = self._known.get(types)
        if known is not None and self._are_alike(given, known):
            return given
        if is_compiling():  # by fake tensors
            return given
        found = [take(place, name, kind, x) for (name, kind), x in zip(self._kinds, given)]
        self._check_library(place, given)
        if all(self._is_known(kind, x) for (_, kind), x in zip(self._kinds, given)):
            self._known[types] = tuple(i for i, x in enumerate(given) if is_tensor(x))
        return found

    def _are_alike(self, given: Sequence[Any], places: Sequence[int]) -> bool:
        """Whether tensors are all that the library, or the kinds of these types, ask of them."""
        return _have_strides(given, places)

    def _is_known(self, kind: str, x: Any) -> bool:
        if kind.rstrip("?") in ("tensor", "data", "torch", "any") or (x is None and kind.endswith("?")):
            return True
        if kind.rstrip("?") in ("offset", "length") and is_tensor(x):  # a number has no axes, which each call looks at
            return bool(x.dim())
        return type(x) in _TYPES.get(kind.rstrip("?"), ())

    def _check_library(self, place: str, given: Sequence[Any]) -> None:
        """That all are of the first one's, whose gradients go on, and that all have data or none has."""
        first: Any = None
        for (name, kind), x in zip(self._kinds, given):
            kind = kind.rstrip("?")
            if kind not in ("tensor", "data", "torch", "offset") or x is None or not (is_tensor(x) or _is_array(x)):
                continue
            if kind == "offset" and not x.shape:
                continue
            first = first or (name, x)
            if is_tensor(x) != is_tensor(first[1]):
                raise InvalidError(mixed(place, name, x, *first))
            if is_tensor(x) and x.is_meta != first[1].is_meta:
                raise InvalidError(f"{place}: {name}: is on {x.device}, and {first[0]} on {first[1].device}: move one of them")


class AllArguments(Arguments):
    """Of a function that reads less than a launch does: looks at all that kinds ask of tensors, each time."""

    def _are_alike(self, given: Sequence[Any], places: Sequence[int]) -> bool:
        return _have_strides(given, places) and not any(given[i].is_meta or given[i].is_complex() for i in places)

    def _is_known(self, kind: str, x: Any) -> bool:
        return not _is_array(x) and super()._is_known(kind, x)


def mixed(place: str, name: str, x: Any, other: str, first: Any) -> str:
    return f"{place}: {name}: is {what(x)}, and {other} {what(first)}: convert one of them, by torch.from_numpy or .numpy()"
