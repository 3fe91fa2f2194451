"""prepare: compiles kernels before the calls that need them."""

import ctypes
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _capi as capi
from ._arguments import Arguments, take, what
from ._call import DECODE, pads
from ._library import call
from ._spec import Spec
from ._typed import for_names, undeclared
from .engine import engine_of, wants_deterministic
from .errors import InvalidError
from .progress import progress_bar

if TYPE_CHECKING:
    from .attention import Attention

OF_PREPARE = Arguments(
    dtype="dtype", head_dim="integer", head_dim_v="integer", input_dtype="any", device="integer", scalars="flag", decode="flag", threads="integer"
)


class ToCome:
    """A luattn_call of one head, whose tensors have no data. inputs: the types of those that the spec has."""

    def __init__(
        self, spec: Spec, backward: bool, dtype: str, dims: tuple[int, int], rows: int, keys: int, inputs: Mapping[str, str], scalars: bool = False
    ) -> None:
        self._kept: list[Any] = []
        ones = [1] * (spec.dims - 2)  # over a grid all places lie along its last axis
        q, k, v = (self._tensor(dtype, *ones, n, d) for n, d in ((rows, dims[0]), (keys, dims[0]), (keys, dims[1])))
        args = self._args = capi.Args(ctypes.sizeof(capi.Args), q, k, v)
        args.decode = DECODE.index("never") if rows > capi.DECODE_MANY + 1 else 0
        if backward:
            args.dq, args.dk, args.dv = q, k, v
            args.scalar_grads = self._tensor("float32", len(spec.scalars)) if scalars and spec.scalars else None
        given = (capi.Input * len(spec.inputs))()
        for one, info in zip(given, spec.inputs):
            at = self._tensor(inputs[info.name], *[1] * len(info.axes), data=256)  # a gradient without data is not wanted
            one.name, one.tensor, one.grad = info.name.encode(), at, at if backward and info.grad else None
        args.inputs, args.num_inputs = ctypes.addressof(given), len(given)
        self._kept.append(given)
        self.call = capi.Call(ctypes.sizeof(capi.Call), spec.pointer, capi.BACKWARD if backward else capi.FORWARD, ctypes.addressof(args))

    def _tensor(self, dtype: str, *sizes: int, data: int | None = None) -> int:
        shape = (ctypes.c_int64 * len(sizes))(*sizes)
        tensor = capi.DLTensor(data, capi.DLDevice(2, 0), len(sizes), capi.DLDataType(*capi.DL_CODES[dtype], 1), shape, None, 0)
        self._kept += shape, tensor
        return ctypes.addressof(tensor)


# Queries and keys of calls of both classes of lengths, and of those with few queries, of each of whose tiles one is here.
_LENGTHS = ((capi.SHORT_MAX, capi.SHORT_MAX), (capi.SHORT_MAX + 1, capi.SHORT_MAX + 1))
_FEW = tuple((rows, 1 << 16) for rows in (capi.DECODE_TILE, capi.DECODE_MANY, capi.DECODE_MANY + 1))


def prepare(
    attentions: "Iterable[Attention]",
    dtype: Any,
    head_dim: int,
    head_dim_v: int = 0,
    *,
    input_dtype: Any = None,
    device: int = 0,
    scalars: bool = False,
    decode: bool = False,
    threads: int = 0,
) -> None:
    """Attention.prepare for several at once, which share the threads. On a terminal tqdm, if installed, shows a bar."""
    dtype, head_dim, head_dim_v, input_dtype, device, scalars, decode, threads = OF_PREPARE.take(
        "prepare", dtype, head_dim, head_dim_v, input_dtype, device, scalars, decode, threads
    )
    name = _type_of("dtype", dtype)
    attentions = take("prepare", "attentions", "parts", attentions)
    for attention in attentions:
        if not _is_attention(attention):
            raise InvalidError(f"prepare: attentions: has {what(attention)}, expected what luattn.attention() returns")
    made: list[ToCome] = []
    for attention in attentions:
        for types in _input_types(attention._spec, name, input_dtype):
            made += _calls(attention._spec, name, (head_dim, head_dim_v or head_dim), types, scalars, decode)
    engine = engine_of(device, wants_deterministic())
    calls = (ctypes.POINTER(capi.Call) * len(made))(*(ctypes.pointer(x.call) for x in made))
    with progress_bar(len(made)) as progress:
        call("luattn_prepare_calls", engine, calls, len(made), threads, progress, None)


def _is_attention(x: Any) -> bool:
    from .attention import Attention

    return isinstance(x, Attention)


def _type_of(argument: str, dtype: Any) -> str:
    name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    if name not in capi.DTYPES:
        raise InvalidError(f"prepare: {argument}: is {name}, expected one of {', '.join(capi.DTYPES)}")
    return name


def _input_types(spec: Spec, dtype: str, given: Any) -> list[dict[str, str]]:
    """The type of each input, once for each kernel. Those that declare none come as what the caller says, else as float32 or as q."""
    declared = {info.name: info.dtype for info in spec.inputs}
    free = [name for i, (name, x) in enumerate(declared.items()) if x == "any" or i in undeclared(spec)]
    if isinstance(given, Mapping):
        said = {name: _type_of(f"input_dtype['{name}']", take("prepare", f"input_dtype['{name}']", "dtype", x)) for name, x in given.items()}
        return [declared | {name: said.get(name, "float32") for name in free}]
    names = ("float32", dtype) if given is None else (_type_of("input_dtype", take("prepare", "input_dtype", "dtype", given)),)
    return [declared | dict.fromkeys(free, x) for x in (dict.fromkeys(names) if free else names[:1])]


def _calls(spec: Spec, dtype: str, dims: tuple[int, int], types: dict[str, str], scalars: bool, decode: bool) -> list[ToCome]:
    """Those that a spec with inputs of these types has, of head dims as kernels have them."""
    if dtype in ("bfloat16", "float16") and pads(spec, *dims):
        dims = dims[0] + -dims[0] % 8, dims[1] + -dims[1] % 8
    spec = for_names(spec, types)
    made = [ToCome(spec, False, dtype, dims, *sizes, types) for sizes in (*_LENGTHS, *(_FEW if decode else ()))]
    return made + [ToCome(spec, True, dtype, dims, *sizes, types, scalars) for sizes in _LENGTHS if spec.has_backward]
