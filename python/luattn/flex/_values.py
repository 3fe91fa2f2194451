"""What a mod is run on: tensors of no data, which have a recording note what is done with them."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ._signs import VALUES
from ._trace import NotTranslatable, user_line

if TYPE_CHECKING:
    from ._recording import Recording

_BASE = torch.empty(())  # what every value is to PyTorch's C++, which never gets to see it


class Value(Tensor):
    """A score, an index, or what has been computed of them."""

    __slots__ = ("_of", "_at")
    _of: "Recording"
    _at: int  # of which entry it is the result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """An operation that went past the recording."""
        if func in _IDENTITIES and isinstance(args[0], Value):
            return args[0]._of.call(func if func is _DETACH else _ALIAS, args[:1], {})
        raise NotTranslatable(
            f"{user_line() or 'a mod'}: {func} inside of a mod, where PyTorch's functions are hidden (torch.func, a compiled function, a "
            "library in C++): call PyTorch's functions from Python"
        )

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        found: torch.dtype = self._of.meta_of(self._at).dtype
        return found

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size(self._of.meta_of(self._at).shape)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.shape)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._of.device

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.unbind(self))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "a value of a mod"

    def __format__(self, _: str) -> str:
        return repr(self)


class Lazy(Value):
    """A view of a captured tensor, or a number that the mod makes: a part of the recording beside values, else computed at once."""

    __slots__ = ("_source", "_real", "_written")
    _source: tuple[Any, tuple[Any, ...], dict[str, Any]]
    _real: Tensor | None
    _written: bool  # in place: it is what the recording says, and no longer what its source is

    @classmethod
    def of(cls, recording: "Recording", func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> "Lazy":
        made: Lazy = Tensor._make_subclass(cls, _BASE, False)  # type: ignore[assignment]
        made._of, made._at, made._source, made._real, made._written = recording, -1, (func, args, named), None, False
        return made

    def computed(self) -> Tensor:
        if self._real is None:
            func, args, named = self._source
            # Not by the recording, which would make another one of this; with gradients, as where it was made.
            with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self._of.grad):
                self._real = func(*[real(x) for x in args], **named)
        return self._real

    @property
    def is_of_captured(self) -> bool:
        return self._source[0] is Tensor.__getitem__

    dtype = property(lambda self: self.computed().dtype)  # type: ignore[assignment]
    shape = property(lambda self: self.computed().shape)  # type: ignore[assignment]
    device = property(lambda self: self.computed().device)  # type: ignore[assignment]

    @property
    def is_value(self) -> bool:
        """Whether it has been written in place, or is a view of what has."""
        return self._written or has_value(self._source[1])

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.unbind(self) if self.is_value else self.computed())


def real(x: Any) -> Any:
    """x with tensors in the place of what is computed late."""
    if type(x) is Lazy:
        return x.computed()
    if isinstance(x, (tuple, list)) and any(type(y) is Lazy for y in x):
        return type(x)(map(real, x))
    return x


def has_value(args: Iterable[Any]) -> bool:
    for x in args:
        if type(x) is Value or type(x) is Lazy and x.is_value:
            return True
        if isinstance(x, (tuple, list)) and has_value(x):
            return True
        if type(x) is slice and has_value((x.start, x.stop, x.step)):
            return True
    return False


# --- functions ---


def _named(words: str) -> frozenset[Any]:
    """Functions of these names, of torch, of tensors, and of torch.nn.functional."""
    places = (torch, Tensor, torch.nn.functional, torch.special)
    return frozenset(
        func for name in words.split() for place in places if (func := getattr(place, name, None)) is not None
    )


_BINARY = (
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ "
    "__rpow__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ "
    "__rshift__ __rrshift__"
)
_UNARY = "__neg__ __abs__ __invert__ __pos__"
_WRITING = "__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __setitem__"
_OPERATIONS = (
    "add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power maximum minimum where "
    "clamp clamp_min clamp_max clip eq ne lt le gt ge greater greater_equal less less_equal not_equal masked_fill bitwise_and bitwise_or "
    "bitwise_xor bitwise_left_shift bitwise_right_shift"
)
# Whose numbers are operands, which may become arguments of kernels.
LIFTING = _named(f"{_BINARY} {_WRITING} {_OPERATIONS} __getitem__ tensor scalar_tensor")
# Of which a divisor 0 is an error, which an argument would not be.
DIVISIONS = _named(
    "__floordiv__ __rfloordiv__ __mod__ __rmod__ __ifloordiv__ __imod__ floor_divide remainder fmod div divide"
)
# Whose result is one tensor, whatever the arguments are.
SINGLE = _named(
    f"{_BINARY} {_UNARY} {_OPERATIONS} {_WRITING.replace('__setitem__', '')} __getitem__ "
    "abs absolute neg negative exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sigmoid relu silu gelu erf erfc sin cos tan floor ceil "
    "round trunc sign square reciprocal softplus logical_and logical_or logical_not logical_xor bitwise_not to float double half bfloat16 "
    "int long bool type_as clone detach contiguous zeros_like ones_like full_like new_zeros new_ones new_full arange tensor scalar_tensor "
    "full zeros ones view reshape unsqueeze squeeze expand transpose permute flatten sum mean any all amax amin dot matmul searchsorted "
    "bucketize"
)
# Which ask a value for what it is.
DECISIONS = _named(
    "__bool__ __int__ __float__ __complex__ __index__ __contains__ __array__ item tolist numpy is_nonzero equal allclose nonzero"
)
# Which ask for its memory.
MEMORY = _named("data_ptr storage untyped_storage _typed_storage")
_FACTORIES = _named("arange tensor scalar_tensor zeros ones full")
_IN_PLACE = _named(_WRITING)
_MOST = 512  # elements of what a mod makes itself and kernels compute; more of them are a captured tensor
_DETACH, _ALIAS = torch.ops.aten.detach.default, torch.ops.aten.alias.default
_IDENTITIES = (_DETACH, _ALIAS, torch.ops.aten.view_as.default, torch.ops.aten.view.default)


def title(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def writes(func: Any) -> bool:
    name = title(func)
    return func in _IN_PLACE or name.endswith("_") and not name.endswith("__")


class Role(NamedTuple):
    """What a function is to a recording."""

    decides: bool
    writes: bool
    lifts: bool
    divides: bool
    is_single: bool
    may_be_late: bool


@functools.lru_cache(maxsize=4096)
def role_of(func: Any) -> Role:
    return Role(
        func in DECISIONS or func in MEMORY, writes(func), func in LIFTING, func in DIVISIONS, func in SINGLE,
        func is Tensor.__getitem__ or func in _FACTORIES,
    )  # fmt: skip


def is_late(func: Any, args: Any, named: dict[str, Any]) -> bool:
    """Whether this makes a Lazy."""
    if func is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(type(x) in (int, slice) or x is None or x is Ellipsis for x in index)
    if named.get("out") is not None or named.get("requires_grad") or not args:
        return False
    numbers = [y for x in args for y in (x if isinstance(x, (tuple, list)) else (x,))]
    if not all(type(x) in (int, float, bool) for x in numbers):
        return False
    name = title(func)
    if name in ("tensor", "scalar_tensor"):
        return not isinstance(args[0], (tuple, list))
    if name == "arange":
        ends = [x for x in numbers if type(x) is int]
        return len(ends) == len(numbers) and max(map(abs, ends)) <= _MOST
    sizes = args[0] if isinstance(args[0], (tuple, list)) else args[:1] if name == "full" else args
    return math.prod(sizes) == 1


def check_index(t: Tensor, index: Any) -> None:
    """An integer that is an argument of kernels is clamped there."""
    steps = index if type(index) is tuple else (index,)
    if not any(type(x) is int for x in steps) or any(isinstance(x, (Tensor, list)) and type(x) is not Value for x in steps):
        return  # nothing that may become an argument, or flags, which stand for several axes
    axis, shape = 0, t.shape
    for k, x in enumerate(steps):
        if x is Ellipsis:
            axis = len(shape) - sum(1 for y in steps[k + 1 :] if y is not None)
        elif type(x) is int and axis < len(shape) and not -shape[axis] <= x < shape[axis]:
            raise IndexError(f"index {x} is out of bounds for dimension {axis} with size {shape[axis]}")
        axis += x is not None and x is not Ellipsis


# --- Python's operators ---


def _binary(func: Any) -> Callable[[Any, Any], Any]:
    divides = func in DIVISIONS

    def operator(self: Value, other: Any) -> Any:
        kind = type(other)
        recording = self._of
        if kind is Value and other._of is recording:
            return recording.add(func, (VALUES.of(self._at), VALUES.of(other._at)))
        if (kind is int and (other or not divides)) or kind is float or kind is Tensor:
            return recording.add(func, (VALUES.of(self._at), recording.sign(other, True)))
        return recording.call(func, (self, other), {})

    return operator


def _unary(func: Any) -> Callable[[Any], Any]:
    return lambda self: self._of.add(func, (VALUES.of(self._at),))


def _late(func: Any) -> Callable[..., Any]:
    return lambda self, *args: self._of.call(func, (self, *args), {})


for _name in _BINARY.split():
    setattr(Value, _name, _binary(getattr(Tensor, _name)))
for _name in _UNARY.split():
    setattr(Value, _name, _unary(getattr(Tensor, _name)))
for _name in f"{_BINARY} {_UNARY}".split():
    setattr(Lazy, _name, _late(getattr(Tensor, _name)))
