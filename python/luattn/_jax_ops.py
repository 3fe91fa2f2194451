"""luattn_forward and luattn_backward as functions of JAX: with gradients (custom_vjp) and a rule for vmap, for jit, shard_map, checkpoint and
export. What a call says beside its arrays is a Call, by which these functions are made, and found again."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.sharding import NamedSharding, PartitionSpec

from ._call import CHOICES
from ._jax_specs import computes_with_entry
from .errors import InvalidError, Unsupported

Array = Any  # jax.Array, or what traces one
_MOST = 1024  # functions that are kept


@dataclass(frozen=True)
class Call:
    """A call without its arrays, which come in this order: q, k, v, `inputs`, `arrays`."""

    name: str
    text: str
    place: str
    inputs: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]  # of the inputs
    grads: tuple[bool, ...]  # whether an input has a gradient
    arrays: tuple[str, ...]  # of luattn_batch_options, and seed
    scalars: tuple[float, ...]
    numbers: tuple[tuple[str, int], ...]  # attributes that are not 0
    scale: float
    has_lse: bool
    num_saved: int
    return_lse: bool
    why_no_backward: str

    @property
    def bshd(self) -> bool:
        return ("bshd", 1) in self.numbers

    @property
    def names(self) -> tuple[str, ...]:
        return ("q", "k", "v", *(f"@{name}" for name in self.inputs), *self.arrays)


def _struct(shape: Sequence[int], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    """Of a result that varies over the axes of shard_map over which `like` does."""
    of = jax.typeof(like)
    sharding = None if of.sharding.mesh.empty else NamedSharding(of.sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding, manual_axis_type=of.manual_axis_type)


def _rows_type(q: Array) -> Any:
    return jnp.float64 if q.dtype == jnp.float64 else jnp.float32


def _rows(call: Call, q: Array) -> tuple[int, ...]:
    """Of lse."""
    if q.ndim == 3:
        return q.shape[1], q.shape[0]
    b, *rest = q.shape[:3]
    return (b, *(reversed(rest) if call.bshd else rest))


def _launch(call: Call, target: str, operands: dict[str, Array], results: dict[str, Any]) -> tuple[Array, ...]:
    """Calls the handler. In packed tensors rows may be of no sequence, which kernels leave as they are: 0, and lse -inf."""
    operands, aliases = dict(operands), {}
    if "cu_seqlens_q" in call.arrays:
        first = len(operands)
        for i, (name, of) in enumerate(results.items()):
            operands[f"initial{i}"] = _varying_as(jnp.full(of.shape, -jnp.inf if name == "lse" else 0, of.dtype), operands["q"])
            aliases[first + i] = i
    attributes: dict[str, Any] = {name: np.int64(x) for name, x in call.numbers}
    if call.scalars:
        attributes["scalars"] = np.array(call.scalars, np.float64)
    run = jax.ffi.ffi_call(target, list(results.values()), input_output_aliases=aliases)
    made = run(
        *operands.values(), spec=call.text, scale=np.float64(call.scale), results=" ".join(results),
        operands=" ".join("initial" if name.startswith("initial") else name for name in operands), **attributes,
    )  # fmt: skip
    return tuple(made)


def _varying_as(x: Array, like: Array) -> Array:
    axes = tuple(jax.typeof(like).manual_axis_type.varying - jax.typeof(x).manual_axis_type.varying)
    return jax.lax.pcast(x, axes, to="varying") if axes else x


# --- vmap: the mapped axis goes into the batch where that gives the same, else the mapped entries are computed one after another ---

_ROWS = ("q", "k", "v", "o", "dout", "lse", "dlse", "dq", "dk", "dv")


def _batch_axis(call: Call, name: str) -> int | None:
    """Where the batch is among the axes of an operand or a result. None: nowhere."""
    if name in _ROWS:
        return 0
    if name == "saved":
        return 1
    if name.startswith("@"):
        axes = call.axes[call.inputs.index(name[1:])]
        return axes.index("b") if "b" in axes else None
    return None


def _merges(call: Call, names: Sequence[str], mapped: Sequence[bool], wanted: Sequence[str]) -> bool:
    if call.arrays or computes_with_entry(call.text, call.place):
        return False
    return all(_batch_axis(call, name) is not None for name, is_mapped in zip(names, mapped) if is_mapped or name in wanted)


def _merged(call: Call, name: str, x: Array, is_mapped: bool, size: int, batch: int, is_wanted: bool) -> Array:
    """An operand with the mapped axis in its batch."""
    axis = _batch_axis(call, name)
    if axis is None or (not is_mapped and x.shape[axis] == 1 and name.startswith("@") and not is_wanted):
        return x  # the same for all
    if not is_mapped:
        x = jnp.broadcast_to(x, (size, *x.shape))
    x = jnp.moveaxis(x, 0, axis)
    shape = list(x.shape)
    if name.startswith("@"):
        shape[axis + 1] = batch
        x = jnp.broadcast_to(x, shape)
    return x.reshape(*shape[:axis], size * shape[axis + 1], *shape[axis + 2 :])


def _split(call: Call, name: str, x: Array, size: int, wide: int | None) -> Array:
    """A result by mapped entry. wide: the size of an input's axis "b"; 1: its gradient is summed over it."""
    axis = _batch_axis(call, name) or 0
    x = x.reshape(*x.shape[:axis], size, x.shape[axis] // size if size else 0, *x.shape[axis + 1 :])
    if wide == 1:
        x = x.sum(axis + 1, keepdims=True)
    return jnp.moveaxis(x, axis, 0)


def _map(call: Call, run: Callable[..., Any], names: Sequence[str], results: Sequence[str], size: int, mapped: Sequence[bool], flat: Sequence[Array]) -> Any:
    """The rule of vmap for run(*flat), whose operands and results have these names."""
    wanted = [name for name in results if name.startswith("@")]
    if not _merges(call, names, mapped, wanted):
        some = [x for x, is_mapped in zip(flat, mapped) if is_mapped]

        def one(entries: Sequence[Array]) -> Any:
            rest = iter(entries)
            return run(*(next(rest) if is_mapped else x for x, is_mapped in zip(flat, mapped)))

        return jax.lax.map(one, some), (True,) * len(results)
    q = flat[0]
    batch = q.shape[1 if mapped[0] else 0]
    made = run(*(_merged(call, name, x, m, size, batch, name in wanted) for name, x, m in zip(names, flat, mapped)))
    sizes = {name: x.shape[(_batch_axis(call, name) or 0) + m] for name, x, m in zip(names, flat, mapped) if name in wanted}
    return tuple(_split(call, name, x, size, sizes.get(name)) for name, x in zip(results, made)), (True,) * len(results)


# --- both passes ---


def _differentiated_once(call: Call, run: Callable[..., Any]) -> Any:
    """run, whose own derivative, which a second one of attention asks for, is refused in luattn's words."""

    @jax.custom_jvp
    def once(*flat: Array) -> Any:
        return run(*flat)

    @once.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise Unsupported(f"{call.name}: there are no second derivatives yet: keep to one jax.grad, or pass jax.lax.stop_gradient of the gradient on")

    return once


@functools.lru_cache(maxsize=_MOST)
def _forward(call: Call, results: tuple[str, ...]) -> Any:
    """The function of q, k, v, inputs and arrays that gives these: o, lse, saved."""

    @custom_vmap
    def run(*flat: Array) -> tuple[Array, ...]:
        q, v = flat[0], flat[2]
        rows = _rows(call, q)
        shapes = {"o": (*q.shape[:-1], v.shape[-1]), "lse": rows, "saved": (call.num_saved, *rows)}
        return _launch(
            call, "luattn_forward", dict(zip(call.names, flat)),
            {name: _struct(shapes[name], q.dtype if name == "o" else _rows_type(q), q) for name in results},
        )  # fmt: skip

    @run.def_vmap
    def _(size: int, mapped: Sequence[bool], *flat: Array) -> Any:
        return _map(call, run, call.names, results, size, mapped, flat)

    return _differentiated_once(call, run)


@functools.lru_cache(maxsize=_MOST)
def _backward(call: Call, given: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """The function of q, k, v, inputs, arrays and `given` that gives these: dq, dk, dv, "@name" of inputs."""
    names = (*call.names, *given)

    @custom_vmap
    def run(*flat: Array) -> tuple[Array, ...]:
        of = dict(zip(names, flat))
        q = flat[0]
        made = {name: of[name if name.startswith("@") else name[1:]] for name in results}
        return _launch(
            call, "luattn_backward", of, {name: _struct(x.shape, _rows_type(q) if name.startswith("@") else x.dtype, q) for name, x in made.items()}
        )

    @run.def_vmap
    def _(size: int, mapped: Sequence[bool], *flat: Array) -> Any:
        return _map(call, run, names, results, size, mapped, flat)

    return _differentiated_once(call, run)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """What goes from forward to backward and is no array."""

    value: Any


@functools.lru_cache(maxsize=_MOST)
def attend(call: Call) -> Any:
    """The function of q, k, v, tuples of inputs and arrays that gives o, or (o, lse)."""
    saved = ("saved",) if call.num_saved else ()  # written in any case
    plain = ("o", "lse", *saved) if call.return_lse else ("o", *saved)
    kept = ("o", "lse", *saved) if call.has_lse else ("o", *saved)

    @jax.custom_vjp
    def f(q: Array, k: Array, v: Array, inputs: Sequence[Array], arrays: Sequence[Array]) -> Any:
        made = _forward(call, plain)(q, k, v, *inputs, *arrays)
        return made[:2] if call.return_lse else made[0]

    def forward(*primals: Any) -> Any:
        wants = jax.tree.map(lambda x: x.perturbed, primals, is_leaf=lambda x: hasattr(x, "perturbed"))
        q, k, v, inputs, arrays = jax.tree.map(lambda x: x.value, primals, is_leaf=lambda x: hasattr(x, "perturbed"))
        _check_gradients(call, wants[3], inputs)
        made = dict(zip(kept, _forward(call, kept)(q, k, v, *inputs, *arrays)))
        result = (made["o"], made["lse"]) if call.return_lse else made["o"]
        return result, (_Static(wants), q, k, v, inputs, arrays, made)

    def backward(residuals: Any, cotangents: Any) -> Any:
        wants, q, k, v, inputs, arrays, made = residuals
        dout, dlse = cotangents if call.return_lse else (cotangents, None)
        given = dict(made)
        if not isinstance(dlse, SymbolicZero) and dlse is not None:
            given["dlse"] = dlse
        elif isinstance(dout, SymbolicZero):
            return (None,) * 5
        given["dout"] = jnp.zeros_like(made["o"]) if isinstance(dout, SymbolicZero) else dout
        want_rows, want_inputs = wants.value[:3], wants.value[3]
        results = [f"d{x}" for x, want in zip("qkv", want_rows) if want]
        results += [f"@{name}" for name, want, has in zip(call.inputs, want_inputs, call.grads) if want and has]
        if not results:
            return (None,) * 5
        found = dict(zip(results, _backward(call, tuple(given), tuple(results))(q, k, v, *inputs, *arrays, *given.values())))
        dinputs = tuple(found[f"@{name}"].astype(x.dtype) if f"@{name}" in found else None for name, x in zip(call.inputs, inputs))
        return found.get("dq"), found.get("dk"), found.get("dv"), dinputs, (None,) * len(arrays)

    f.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(f)


def _check_gradients(call: Call, wanted: Sequence[bool], inputs: Sequence[Array]) -> None:
    """That there is what is asked for: no gradient is 0 without a word."""
    if call.why_no_backward:
        raise Unsupported(call.why_no_backward)
    for name, lacks in CHOICES.items():
        if (name, 1) in call.numbers:
            raise Unsupported(f"{call.name}: {name}: is True, and there is no backward over {lacks}")
    if "block_table" in call.arrays or ("seqused_k" in call.arrays and "cu_seqlens_k" not in call.arrays):
        raise Unsupported(f"{call.name}: seqused_k: there is no backward over pages or a cache: take gradients of packed or plain tensors")
    for name, want, has, x in zip(call.inputs, wanted, call.grads, inputs):
        if want and not has and jnp.issubdtype(x.dtype, jnp.floating):
            raise InvalidError(
                f"{call.name}: input '{name}': is differentiated, and the spec gives it no gradient: declare grad = true, or pass jax.lax.stop_gradient({name})"
            )
