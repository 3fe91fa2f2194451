"""Attention of a spec over arrays of JAX, on the CPU and on GPUs.

    import luattn.jax

    gemma2 = luattn.jax.attention("gemma2")
    o = jax.jit(gemma2)(q, k, v)
    dq = jax.grad(lambda q: gemma2(q, k, v, cap=30.0).sum())(q)

XLA calls libluattn_jax.so, without Python. docs/jax.md has what goes with which transformation, and what is refused.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _scale, _typed
from ._arguments import take, what
from ._call import CHOICES, DECODE, WHOLE, pads
from ._jax_check import check
from ._jax_library import register
from ._jax_ops import Array, Call, _varying_as, attend
from ._jax_specs import with_learned
from ._spec import Spec
from .attention import Attention as _Attention
from .attention import attention as _attention
from .errors import InvalidError, Unsupported

register()

# For jax.export.export(.., disabled_checks=luattn.jax.export_checks): JAX asks who vouches for a target of another library. The spec's text and all options are
# in the program, and one of a later luattn that an earlier one does not know is refused by name.
export_checks = [jax.export.DisabledSafetyCheck.custom_call(f"luattn_{name}") for name in ("forward", "backward")]

_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table")
_NUMBERS = ("max_seqlen_q", "max_seqlen_k", "q_len", "kv_len", "head_offset", "heads", "heads_kv")
_REFUSED = {
    "out": "arrays of JAX are not written to: jax.jit with donate_argnums reuses memory",
    "batch": "XLA plans memory, and no tile bits outlive a call: leave it out, and masks from data are evaluated in each call",
    "return_state": "states of parts are not known here yet: use return_lse, or torch",
    "out_dtype": "o is of q's type here yet: leave it out, or use torch",
    "grad_dtype": "gradients are of the arrays' types here yet: leave it out, or use torch",
}


def attention(spec: str | os.PathLike[str]) -> "Attention":
    """Loads a spec, as luattn.attention does: the path of a Lua file, the name of one of luattn.examples(), or its text."""
    return Attention(_attention(spec))


class Attention:
    """A spec as a function of q, k and v of JAX; made by attention(). Inputs and scalars of the spec are keyword arguments."""

    def __init__(self, of: _Attention) -> None:
        if of._spec.grid:
            raise Unsupported(f"{of.name}: its places lie on a grid of {', '.join(of._spec.grid)}, which calls of JAX do not have; call it by luattn.attention")
        self._of = of
        self.name, self.text, self.inputs, self.scalars = of.name, of.text, of.inputs, of.scalars
        self.__name__ = of.name  # of a jitted function

    def __reduce__(self) -> tuple[Any, ...]:
        return Attention, (self._of,)

    def __repr__(self) -> str:
        return repr(self._of).replace("luattn.Attention", "luattn.jax.Attention")

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        scale: Any = None,
        return_lse: bool = False,
        layout: str = "bhsd",
        seed: Any = None,
        keys_modified: bool = False,
        decode: str = "auto",
        **given: Any,
    ) -> Any:
        """Computes o, with return_lse (o, lse). Arguments are those of luattn.Attention: q is [batch, heads, length, head_dim], with layout="bshd"
        [batch, length, heads, head_dim], beside cu_seqlens_q [all lengths, heads, head_dim].

        Scalars and scale are numbers, or arrays of one: an array has a gradient and may be traced, and a number of Python is a constant of the
        traced program. max_seqlen_q and max_seqlen_k are numbers, and needed on a GPU.

        seed: of a spec with dropout or random(): a number, two (a seed and an offset), or a key of jax.random, also a uint32 [2] as PRNGKey makes it."""
        spec, name = self._of._spec, self.name
        q, k, v = (_array_of(name, at, x) for at, x in (("q", q), ("k", k), ("v", v)))
        numbers = dict(self._numbers_of(layout, keys_modified, decode, given))
        arrays = self._arrays_of(q, given, numbers)
        if take(name, "return_lse", "flag", return_lse) and not spec.has_lse:
            raise Unsupported(f"{name}: return_lse: its online function has no lse")
        if seed is not None or spec.draws:
            arrays["seed"] = _seed_of(name, spec, seed)
        spec, inputs, scalars, scale = self._spec_of(q, given, scale)
        d, d_v = q.shape[-1:], v.shape[-1:]
        if q.dtype.itemsize == 2 and d and d_v and pads(spec, d[0], d_v[0]):
            scale = scale or d[0] ** -0.5
            q, k, v = map(_padded, (q, k, v))
        of = (q, k, v, *inputs, *arrays.values())
        call = Call(
            name, spec.text, spec.place, tuple(x.name for x in spec.inputs), tuple(x.axes for x in spec.inputs), tuple(x.grad for x in spec.inputs),
            tuple(arrays), tuple(scalars), tuple(numbers.items()), scale, spec.has_lse, spec.num_saved, bool(return_lse),
            "" if spec.has_backward else spec.why_no_backward,
        )  # fmt: skip
        check(call, tuple((x.shape, x.dtype.name) for x in of))
        for x in of[1:]:
            q = _varying_as(q, x)
        of = tuple(_varying_as(x, q) for x in of)
        result = attend(call)(*of[:3], of[3 : 3 + len(inputs)], of[3 + len(inputs) :])
        o = result[0] if return_lse else result
        if o.shape[-1:] != d_v:
            o = o[..., : d_v[0]]
        return (o, result[1]) if return_lse else o

    def _numbers_of(self, layout: Any, keys_modified: Any, decode: Any, given: dict[str, Any]) -> dict[str, int]:
        """Attributes of the call, less those that are 0."""
        for refused, why in _REFUSED.items():
            x = given.pop(refused, None)
            if x is not None and x is not False:
                raise Unsupported(f"{self.name}: {refused}: {why}")
        if take(self.name, "layout", "layout", layout) not in ("bhsd", "bshd"):
            raise InvalidError(f"{self.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        if not isinstance(decode, str) or decode not in DECODE:
            raise InvalidError(f"{self.name}: decode: is {what(decode)}, expected 'auto', 'always' or 'never'")
        found = {"bshd": int(layout == "bshd"), "keys_modified": int(take(self.name, "keys_modified", "flag", keys_modified))}
        found["decode"] = DECODE.index(decode)
        # What torch.use_deterministic_algorithms is to torch.
        found["deterministic"] = int("--xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", ""))
        for name in _NUMBERS:
            found[name] = _static(self.name, name, given.pop(name, None))
        return {name: x for name, x in found.items() if x}

    def _arrays_of(self, q: Array, given: dict[str, Any], numbers: dict[str, int]) -> dict[str, Array]:
        """Arrays of the call by their names in luattn_batch_options. Offsets that are numbers become `numbers`."""
        arrays = {name: _array_of(self.name, name, given.pop(name)) for name in _ARRAYS if given.get(name) is not None}
        for name in _ARRAYS:
            given.pop(name, None)
        self._check_packed(arrays, numbers)
        for name in WHOLE[:2]:
            x = given.pop(name, None)
            if x is None or not isinstance(x, (jax.Array, np.ndarray)) or isinstance(x, np.ndarray) and not x.ndim:
                number = _static(self.name, name, x)
                if number:
                    numbers[name] = number
                continue
            x = _array_of(self.name, name, x)
            entries = arrays["cu_seqlens_q"].shape[0] - 1 if "cu_seqlens_q" in arrays else q.shape[0]
            arrays[f"{name}s"] = x if x.ndim else jnp.broadcast_to(x.astype(jnp.int32), (entries,))
        return arrays

    def _check_packed(self, arrays: dict[str, Array], numbers: dict[str, int]) -> None:
        is_paged = "block_table" in arrays or ("seqused_k" in arrays and "cu_seqlens_k" not in arrays)
        if not is_paged and ("cu_seqlens_q" in arrays) != ("cu_seqlens_k" in arrays):
            raise InvalidError(f"{self.name}: cu_seqlens_q, cu_seqlens_k: one is missing: packed sequences need both")
        for x in "q" if is_paged else "qk":
            for name in (f"seqused_{x}", f"max_seqlen_{x}"):
                if f"cu_seqlens_{x}" not in arrays and (name in arrays or name in numbers):
                    raise InvalidError(f"{self.name}: {name}: is of packed sequences, and cu_seqlens_{x} is missing")
        if "cu_seqlens_q" in arrays and not is_paged:
            numbers.pop("bshd", None)  # packed rows lie alike in both layouts

    def _spec_of(self, q: Array, given: dict[str, Any], scale: Any) -> tuple[Spec, list[Array], list[float], float]:
        """The spec for these inputs, scalars and scale, with its inputs and scalars in its order."""
        spec, name = self._of._spec, self.name
        arrays, numbers = dict[str, Any](), dict[str, float]()
        for at, info in self.inputs.items():
            if at not in given:
                raise InvalidError(f"{name}: input '{at}' is missing: pass {at}=")
            arrays[at] = _input_of(name, info, given.pop(at), q)
        for at, default in self.scalars.items():
            x = given.pop(at, default)
            if isinstance(x, jax.Array):
                arrays[at] = _one_of(name, f"scalar '{at}'", x, q)
            else:
                numbers[at] = take(name, f"scalar '{at}'", "real", x)
        for unknown in given:
            known = ", ".join([*self.inputs, *self.scalars]) or "no inputs or scalars"
            raise InvalidError(f"{name}: there is no argument '{unknown}'; the spec declares {known}")
        if any(arrays[info.name].dtype.name in _typed._NAMES for info in spec.inputs if info.dtype == "float32"):
            spec = _typed.typed(spec.text, spec.place)
        learned = tuple(at for at in self.scalars if at in arrays)
        if learned:
            spec = with_learned(spec.text, spec.place, learned)
        if isinstance(scale, jax.Array):
            arrays[_scale.NAME] = _one_of(name, "scale", scale, q)
            spec, scale = _scale.scaled(spec.text, spec.place, "inputs"), 1.0
        else:
            scale = None if scale is None else take(name, "scale", "real", scale)
            spec, _, ordered, scale = _scale.with_scale(spec, (), [numbers[at] for at in spec.scalars], scale)
            numbers = dict(zip(spec.scalars, ordered))
        return spec, [arrays[info.name] for info in spec.inputs], [numbers[at] for at in spec.scalars], scale


def _array_of(place: str, name: str, x: Any) -> Array:
    """An array of JAX, or one of NumPy, whose type JAX has."""
    if isinstance(x, jax.Array):
        return x
    if not isinstance(x, (np.ndarray, np.generic)):
        raise InvalidError(f"{place}: {name}: is {what(x)}, expected an array of JAX or NumPy")
    if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        raise InvalidError(
            f"{place}: {name}: is {x.dtype.name}, which JAX would make {jax.dtypes.canonicalize_dtype(x.dtype).name}: "
            f'jax.config.update("jax_enable_x64", True), or pass .astype(..)'
        )
    return jnp.asarray(x)


def _input_of(place: str, info: Any, x: Any, q: Array) -> Array:
    if isinstance(x, (bool, int, float)) and not info.axes:
        dtype = ("float64" if q.dtype == jnp.float64 else "float32") if info.dtype == "any" else info.dtype
        x = np.asarray(x, dtype)
    return _array_of(place, f"input '{info.name}'", x)


def _one_of(place: str, name: str, x: Array, q: Array) -> Array:
    """An array of one number, as an input without axes."""
    if x.size != 1:
        raise InvalidError(f"{place}: {name}: has shape {tuple(x.shape)}, expected one element, or a number")
    return x.reshape(()).astype(jnp.float64 if q.dtype == jnp.float64 else jnp.float32)


def _static(place: str, name: str, x: Any) -> int:
    """A number that kernels are launched by."""
    if isinstance(x, jax.core.Tracer):
        raise InvalidError(f"{place}: {name}: is traced, and launches need the number: name it in static_argnames of jax.jit")
    return take(place, name, "integer?", x) or 0


def _seed_of(name: str, spec: Spec, seed: Any) -> Array:
    """Four u32: seed and offset, low word first."""
    if not spec.draws:
        raise InvalidError(f"{name}: seed: the spec draws no random numbers: leave it out")
    if seed is None:
        raise InvalidError(f"{name}: seed: is missing: the spec draws random numbers, and JAX keeps none of its own: pass seed=, a number or a key of jax.random")
    if isinstance(seed, jax.Array):
        is_key = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
        if is_key and seed.shape:
            raise InvalidError(f"{name}: seed: has {seed.size} keys of shape {seed.shape}, expected one: take seed[i], or jax.vmap")
        if is_key or (seed.dtype == jnp.uint32 and seed.shape == (2,)):  # the second as jax.random.PRNGKey makes them
            return jax.random.bits(seed, (4,), jnp.uint32)
        if not jnp.issubdtype(seed.dtype, jnp.integer) or seed.shape not in ((), (2,)):
            raise InvalidError(f"{name}: seed: is {seed.dtype.name} {seed.shape}, expected an integer, two (a seed and an offset), or a key of jax.random.key")
        return jnp.stack([word for x in jnp.atleast_1d(seed) for word in _words(x)] + [jnp.uint32(0)] * (0 if seed.ndim else 2))
    found = take(name, "seed", "seed", seed)
    pair = found if isinstance(found, tuple) else (found, 0)
    for x in pair:
        if not -(2**63) <= x < 2**64:
            raise InvalidError(f"{name}: seed: is {seed!r}, expected an integer of 64 bits, or two: a seed and an offset")
    return jnp.asarray(np.array([x % 2**64 for x in pair], np.uint64).view(np.uint32))


def _words(x: Array) -> tuple[Array, Array]:
    """The low and the high 32 bits of an integer of any type, a negative one modulo 2^64."""
    low = x.astype(jnp.uint32)
    high = (x >> 32).astype(jnp.uint32) if x.dtype.itemsize == 8 else jnp.where(x < 0, jnp.uint32(2**32 - 1), jnp.uint32(0))
    return low, high


def _padded(x: Array) -> Array:
    """With zeros behind the last channel: kernels in half precision read 8 at once."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 8)])
