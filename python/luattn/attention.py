"""attention(spec): what a spec computes, as a callable."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import _by_library as by_library
from ._arguments import AllArguments, Arguments, is_dense, take, what
from ._call import CHOICES, DECODE, LATER, NOT_OF_MASKS, NOT_OF_PLANS, RESULTS, WHOLE, is_numpy, refuse_later
from ._inputs import ALIKE, input_of, scalar_of
from ._library import call
from ._options import is_in_f32, seed_of, whole_of
from ._plan import Given, check_shapes, plan_of
from ._prepare import prepare
from ._scale import is_plain
from ._spec import InputInfo, Spec, load, spec_of
from ._typed import for_types, undeclared
from .batch import Batch, take_batch
from .errors import InvalidError, Unsupported
from .mask import Entry, GridMask, Mask, grid_mask_of, mask_of
from .merge import merge, merge_states

if TYPE_CHECKING:
    from .explanation import Explanation

T = TypeVar("T")  # torch.Tensor or numpy.ndarray: results are of the library of q

_PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k", "block_table")
_RESERVED = ("self", "q", "k", "v", "scale", "return_lse", "return_state", "layout", *WHOLE, *_PACKED, "batch", "seed", *CHOICES, "decode", "out", "out_dtype", "grad_dtype", *LATER)
_NOTHING: dict[str, Any] = {}
_FLAGS = dict.fromkeys(CHOICES, "flag")
_TENSORS = {"q": "tensor", "k": "tensor", "v": "tensor"}
_ARRAYS = {name: "integer?" if name.startswith("max_") else "tensor?" for name in _PACKED}
_OFFSETS = {name: "offset?" if name.endswith("offset") and name != "head_offset" else "integer?" for name in WHOLE}
_OF_CALL = Arguments(**_TENSORS, scale="scale?", return_lse="flag", return_state="flag", layout="layout", **_FLAGS)
_OF_PART = Arguments(q="tensor", **_OFFSETS, **_ARRAYS)
_OF_APPEND = Arguments(
    k="data", v="data", new_k="data", new_v="data", seqused_k="data", block_table="data?", cu_seqlens_q="data?", max_seqlen_k="integer?",
    kv_offset="offset?", layout="layout", keys_modified="flag",
)  # fmt: skip
_OF_GRADIENTS = AllArguments(
    **{name: "torch" for name in ("dout", "q", "k", "v", "o", "lse")}, saved="torch?", dlse="torch?", scale="scale?", layout="layout"
)
_OF_PLAN = AllArguments(**{name: "data" for name in "qkv"}, backward="flag", layout="layout")
_OF_WEIGHTS = AllArguments(**{name: "data" for name in "qkv"}, layout="layout")
_OF_TUNE = AllArguments(**{name: "torch" for name in "qkv"}, backward="flag", layout="layout", scale="real?", time_limit="real")
_OF_MASK = Arguments(
    q_len="integer?", kv_len="integer?", batch="integer", head="integer", tile="integer", whole_q_len="integer?", whole_kv_len="integer?",
    **{name: kind for name, kind in _OFFSETS.items() if name not in ("q_len", "kv_len")}, **_ARRAYS,
)  # fmt: skip


def attention(spec: str | os.PathLike[str]) -> "Attention":
    """Loads a spec: the path of a Lua file, the name of one of examples(), or its text. Errors: SpecError, with the file and the line;
    FileNotFoundError."""
    loaded = load(take("attention", "spec", "source", spec))
    if loaded.is_linear:
        raise InvalidError(f"attention: spec: '{loaded.name}' is of linear attention; call luattn.linear_attention")
    return Attention(loaded)


def _again(text: str, place: str) -> "Attention":
    return Attention(spec_of(text, place))


class Attention:
    """A spec as a function of q, k and v; made by attention(). Inputs and scalars of the spec are keyword arguments."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.text = spec.text
        self.name = spec.name
        self.inputs: dict[str, InputInfo] = {info.name: info for info in spec.inputs}
        self.scalars: dict[str, float] = spec.scalars
        for name in (*self.inputs, *self.scalars):
            if name in _RESERVED:
                raise InvalidError(
                    f"{self.name}: '{name}' is an argument of every attention: rename what the spec declares"
                )
        self._defaults = list(spec.scalars.values())
        self._undeclared = undeclared(spec)
        self._merges = False  # not known yet

    def __repr__(self) -> str:
        names = ", ".join(
            ["q", "k", "v", *self.inputs, *(f"{name}={x:g}" for name, x in self.scalars.items())]
        )
        return f"<luattn.Attention {self.name}({names})>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.text, self._spec.place)

    @overload
    def __call__(self, q: T, k: Any, v: Any, *, return_lse: Literal[False] = ..., return_state: Literal[False] = ..., **given: Any) -> T: ...
    @overload
    def __call__(self, q: T, k: Any, v: Any, *, return_lse: Literal[True], return_state: Literal[False] = ..., **given: Any) -> tuple[T, T]: ...
    @overload
    def __call__(self, q: T, k: Any, v: Any, *, return_state: Literal[True], return_lse: bool = ..., **given: Any) -> tuple[T, T, T]: ...
    @overload
    def __call__(self, q: T, k: Any, v: Any, *, return_lse: bool = ..., return_state: bool = ..., **given: Any) -> T | tuple[T, ...]: ...
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: Any = None,
        return_lse: bool = False,
        return_state: bool = False,
        layout: str = "bhsd",
        q_offset: Any = None,
        kv_offset: Any = None,
        q_len: int | None = None,
        kv_len: int | None = None,
        head_offset: int | None = None,
        heads: int | None = None,
        heads_kv: int | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        seqused_q: Any = None,
        seqused_k: Any = None,
        block_table: Any = None,
        batch: Batch | None = None,
        seed: Any = None,
        keys_modified: bool = False,
        decode: str = "auto",
        out: Any = None,
        out_dtype: Any = None,
        **given: Any,
    ) -> Any:
        """Computes o, with return_lse (o, lse), and with return_state (o, lse, state), as merge takes them where these are some of the keys. Torch
        tensors have gradients, NumPy arrays do not.

        q is [batch, heads, length, head_dim], k and v have their own heads (a divisor of q's) and length; strides are
        free but for the last one. With layout="bshd" they are [batch, length, heads, head_dim], and so is o; beside cu_seqlens_q that says how
        keys in pages or a cache lie.
        lse is float32 (float64 for float64), [batch, heads, length], in natural log. scale: head_dim ** -0.5 if None;
        any number, or a tensor of one element, which has a gradient.

        An input is a tensor where q is, or a number if it has no axes; a scalar is a number, or a tensor of one element
        on the CPU.

        q_offset to heads_kv say of which whole the tensors are a part, as in luattn/batch.h. An offset is a number, or an
        int32 tensor [batch], which kernels read. cu_seqlens_q and cu_seqlens_k (int32 [batch + 1]) say that sequences
        are packed: q is [all lengths, heads, head_dim], and lse [heads, all lengths]. max_seqlen_q and max_seqlen_k are
        needed where cu_seqlens lie on a GPU. seqused_q and seqused_k (int32 [batch]): how many of a sequence's rows there are; o and
        gradients of the others are 0, and lse -inf.

        block_table (int32 [batch, max_pages]), with seqused_k: keys are in pages, k and v [pages, heads, rows of a page, head_dim], of which
        an entry has those that its line of the table names, and seqused_k rows of them (luattn/batch.h). q is [batch, heads, length, head_dim], or
        packed with cu_seqlens_q alone. seqused_k without cu_seqlens_k and block_table: of k[b] and v[b], a cache, so many rows are there. max_seqlen_k is an
        upper bound of seqused_k, or None. There are no gradients.

        keys_modified=True: k and v have been through the spec's key_mod and value_mod, as rows that append(.., keys_modified=True) wrote to a
        cache; query_mod is applied as ever. On a GPU a spec that has one of these needs it beside block_table and seqused_k. There are no
        gradients.

        batch: which tiles the mask keeps, found once for several calls (luattn.Batch).

        out: a tensor that the result is written to and which is returned: of o's shape and type, and memory of its own; without gradients, so under
        torch.no_grad() where an argument requires one.

        out_dtype: torch.float32, or NumPy's: o of half-precision q, k and v is float32, as kernels have summed it: for parts that are merged.
        None: o is of their type.

        decode: which of forward's kernels on a GPU in half precision: "auto", the one that a model predicts to be faster, which plan() tells;
        "always", that for few queries and many keys; "never", that for all lengths.

        seed: of a spec with dropout or random(), what its numbers depend on, beside batch entry, head and positions: a number, a seed
        and an offset, or these as an int64 tensor [2] where q is, which kernels read. None: torch's generator of q's device has it.
        """
        spec = self._spec
        q, k, v, scale, return_lse, return_state, layout, keys_modified = _OF_CALL.take(
            self.name, q, k, v, scale, return_lse, return_state, layout, keys_modified
        )
        if layout == "bshd":
            if cu_seqlens_q is None:
                self._check_axes(q=q, k=k, v=v)
            else:
                (k, v), layout = self._pool(k, v, cu_seqlens_k, seqused_k, block_table), "bhsd"
        elif layout != "bhsd":
            raise InvalidError(f"{self.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        if return_state:
            spec, return_lse = spec.parts(), True
        if return_lse and not spec.has_lse:
            raise Unsupported(f"{self.name}: return_lse: its online function has no lse")
        inputs: Sequence[Any] = ()
        scalars, options = self._defaults, _NOTHING
        if given or self.inputs:
            inputs, scalars, options = self._sort(given, q)
            if self._undeclared:
                spec = for_types(self._spec, self._undeclared, inputs)
                spec = spec.parts() if return_state else spec
        if not (
            q_offset is kv_offset is q_len is kv_len is head_offset is heads is heads_kv is None
            and cu_seqlens_q is cu_seqlens_k is max_seqlen_q is max_seqlen_k is seqused_q is seqused_k is block_table is None
        ):
            part = self._part_of(
                q, q_offset, kv_offset, q_len, kv_len, head_offset, heads, heads_kv,
                cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, block_table,
            )  # fmt: skip
            options = {**part, **options}
        if batch is not None:
            options = {**options, "batch": take_batch(self.name, batch).token}
        if keys_modified:
            options = {**options, "keys_modified": True}
        if out_dtype is not None and is_in_f32(self.name, "out_dtype", out_dtype, q):
            options = {**options, "out_f32": True}
        if decode != "auto":
            options = {**options, "decode": self._number_of(decode)}
        if seed is not None or spec.draws:
            options = {**options, "seed": seed_of(self.name, seed, q)}
        if return_state:
            if out is not None:
                raise Unsupported(f"{self.name}: out: goes with no return_state yet; leave it out")
            if layout == "bshd":
                q, k, v = map(_swap, (q, k, v))
            o, lse, state = by_library.attend_state_of(is_numpy(q))(spec, q, k, v, inputs, scalars, scale, options)
            return (_swap(o) if layout == "bshd" else o), lse, state
        o, lse = by_library.attend_of(is_numpy(q))(spec, q, k, v, inputs, scalars, scale, options, return_lse, layout == "bshd", out)
        return (o, lse) if return_lse else o

    def _part_of(self, q: Any, *given: Any) -> dict[str, Any]:
        """What WHOLE and _PACKED are to the ops."""
        if self._spec.grid:
            for name, x in zip((*WHOLE, *_PACKED), given):
                if x is not None:
                    axes = ", ".join(self._spec.grid)
                    raise Unsupported(f"{self.name}: {name}: is given, and calls over a grid of {axes} have no parts of a whole, packed sequences or pages; leave it out")
        _, *found = _OF_PART.take(self.name, q, *given)
        whole, packed = found[: len(WHOLE)], zip(_PACKED, found[len(WHOLE) :])
        return {**whole_of(q, found[len(WHOLE)], *whole), **{name: x for name, x in packed if x is not None}}

    def _check_names(self, place: str, own: Sequence[str]) -> None:
        """That no input or scalar is hidden by an argument of one method, as `own` are."""
        for name in own:
            if name in self.inputs or name in self.scalars:
                kind, method = "input" if name in self.inputs else "scalar", place.rpartition(" ")[2]
                raise InvalidError(f"{place}: {name}: is an argument of {method}, and a{'n' * (kind == 'input')} {kind} of the spec too: rename what the spec declares")

    def _needs_line(self, place: str) -> None:
        if self._spec.grid:
            raise Unsupported(f"{place}: its places lie on a grid of {', '.join(self._spec.grid)}, and {place.rpartition(' ')[2]} knows lengths alone")

    def _number_of(self, decode: Any) -> int:
        if decode not in DECODE:
            raise InvalidError(f"{self.name}: decode: is {what(decode)}, expected 'auto', 'always' or 'never'")
        return DECODE.index(decode)

    def _check_axes(self, **tensors: Any) -> None:
        if self._spec.grid:
            raise InvalidError(
                f"{self.name}: layout: is 'bshd', and tensors over a grid have heads before its axes; leave it out, and give views, "
                "q.movedim(-2, 1), which copy nothing"
            )
        for name, t in tensors.items():
            if len(t.shape) < 3:
                raise InvalidError(f"{self.name}: {name}: has {len(t.shape)} dimensions, expected 4: batch, length, heads and head dim")

    def _pool(self, k: Any, v: Any, cu_seqlens_k: Any, seqused_k: Any, block_table: Any) -> list[Any]:
        """Keys beside packed queries: these lie alike in both layouts, and so do packed keys. Of a cache or pages heads come before rows."""
        if cu_seqlens_k is not None or seqused_k is block_table is None:
            return [k, v]
        for name, t in (("k", k), ("v", v)):
            if len(t.shape) != 4:
                axes = "batch, length" if block_table is None else "pages, rows of a page"
                raise InvalidError(f"{self.name}: {name}: has {len(t.shape)} dimensions, expected 4: {axes}, heads and head dim")
        return [k.swapaxes(1, 2), v.swapaxes(1, 2)]

    def _heads_first(self, layout: str, q: Any, k: Any, v: Any, lengths: Mapping[str, Any]) -> list[Any]:
        """q, k and v as kernels have them. lengths: the call's cu_seqlens, seqused and block_table."""
        if layout == "bhsd":
            return [q, k, v]
        if layout != "bshd":
            raise InvalidError(f"{self.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        if lengths.get("cu_seqlens_q") is None:
            return self._swapped(q=q, k=k, v=v)
        return [q, *self._pool(k, v, *map(lengths.get, ("cu_seqlens_k", "seqused_k", "block_table")))]

    def _swapped(self, **tensors: Any) -> list[Any]:
        """Heads before lengths, or the other way round."""
        self._check_axes(**tensors)
        return [t.swapaxes(1, 2) for t in tensors.values()]

    def _without_derivative(self, place: str, instead: str, *given: Any, **levels: bool) -> None:
        """Refuses tensors with tangents, and those of torch.func's levels, for what has no derivative. levels: options of refuse_levels()."""
        if "torch" in sys.modules:
            from ._tangents import refuse_in, refuse_levels

            refuse_in(place, given)
            refuse_levels(place, [*given[:-1], *given[-1].values()], instead, **levels)

    def append(
        self,
        k: Any,
        v: Any,
        new_k: Any,
        new_v: Any,
        *,
        seqused_k: Any,
        block_table: Any = None,
        cu_seqlens_q: Any = None,
        max_seqlen_k: int | None = None,
        kv_offset: Any = None,
        layout: str = "bhsd",
        keys_modified: bool = False,
        **given: Any,
    ) -> None:
        """Writes new rows to a cache, in place: row i of entry b becomes its position seqused_k[b] + i. seqused_k does not change: calls that
        are to see the rows get a seqused_k that counts them.

        k and v are the cache, and block_table and seqused_k (before the new rows) as of a call. new_k and new_v are [batch, heads, rows,
        head_dim] (layout="bshd": [batch, rows, heads, head_dim], and the cache as of such a call), or packed [all rows, heads, head_dim],
        where cu_seqlens_q says which rows are of which entry. Kernels need the cache as it lies: contiguous rows, in half precision at multiples
        of 16 bytes.

        keys_modified=True: rows go through the spec's key_mod and value_mod first, at their positions, for calls with keys_modified=True;
        inputs and scalars that these read are keyword arguments. False: rows are copied as they are, for calls without it. Mixing the two
        applies mods twice, or never."""
        place = f"{self.name}: append"
        self._needs_line(place)
        self._check_names(place, ("new_k", "new_v"))
        self._without_derivative(place, "it writes rows in place; call it outside of the transform", k, v, new_k, new_v, given, needs_memory=True)
        k, v, new_k, new_v, seqused_k, block_table, cu_seqlens_q, max_seqlen_k, kv_offset, layout, keys_modified = _OF_APPEND.take(
            place, k, v, new_k, new_v, seqused_k, block_table, cu_seqlens_q, max_seqlen_k, kv_offset, layout, keys_modified
        )
        if layout == "bshd":
            k, v = self._swapped(k=k, v=v)
            if cu_seqlens_q is None:
                new_k, new_v = self._swapped(new_k=new_k, new_v=new_v)
        elif layout != "bhsd":
            raise InvalidError(f"{self.name}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        inputs, scalars, later = self._sort(given, new_k, some=True)
        if later:
            raise InvalidError(f"{self.name}: append: {', '.join(later)}: is of calls alone; leave it out")
        options = {} if kv_offset is None else whole_of(new_k, cu_seqlens_q, None, kv_offset)
        arrays = {"seqused_k": seqused_k, "block_table": block_table, "cu_seqlens_q": cu_seqlens_q, "max_seqlen_k": max_seqlen_k}
        options |= {name: x for name, x in arrays.items() if x is not None}
        if keys_modified:
            options["keys_modified"] = True
        numbers = [float(x) for x in scalars]
        if is_numpy(new_k):
            from ._numpy import append

            append(self._for(inputs), k, v, inputs, options, new_k, new_v, numbers)
            return
        from ._tensors import NOT_ALIGNED
        from ._tensors import append as of_torch

        if not of_torch(self._for(inputs), new_k, k, v, inputs, options, new_k, new_v, numbers):
            raise InvalidError(f"{self.name}: append: {NOT_ALIGNED}")

    @overload
    def merge(
        self, outs: Sequence[T], lses: Sequence[T], states: Sequence[T] | None = None, *, layout: str = ..., dtype: Any = ...,
        return_state: Literal[False] = ..., return_saved: Literal[False] = ...,
    ) -> tuple[T, T]: ...  # fmt: skip
    @overload
    def merge(
        self, outs: Sequence[T], lses: Sequence[T], states: Sequence[T] | None = None, *, layout: str = ..., dtype: Any = ...,
        return_state: bool = ..., return_saved: bool = ...,
    ) -> tuple[T, ...]: ...  # fmt: skip
    def merge(
        self,
        outs: Sequence[Any],
        lses: Sequence[Any],
        states: Sequence[Any] | None = None,
        *,
        layout: str = "bhsd",
        dtype: Any = None,
        return_state: bool = False,
        return_saved: bool = False,
    ) -> Any:
        """(o, lse) of all keys, of what this attention gave for up to 16 parts of them.

        Without states: luattn.merge, with gradients, for a spec whose parts merge by their lse. Errors: Unsupported, as for a
        spec with a sink, which each part would have; the message has a row that shows it.

        With the states that return_state=True gave: for every spec whose parts merge. lse is then that of all keys, or 0 where the spec has none,
        and -inf in rows that keep nothing. return_state adds the state of all parts, for another merge, and return_saved what gradients() takes. These
        are tensors without gradients."""
        self._needs_line(f"{self.name}: merge")
        for name, flag in (("return_state", return_state), ("return_saved", return_saved)):
            take(f"{self.name}: merge", name, "flag", flag)
        if states is not None:
            o, lse, state, saved = merge_states(self._spec, outs, lses, states, layout, dtype)
            return (o, lse, *([state] if return_state else []), *([saved] if return_saved else []))
        if return_state or return_saved:
            raise InvalidError(f"{self.name}: merge: states: are missing: give those of calls with return_state=True")
        if not self._merges:
            call("luattn_spec_merges", self._spec.pointer)
            self._merges = True
        return merge(outs, lses, layout=layout, dtype=dtype)

    def gradients(
        self,
        dout: Any,
        q: T,
        k: Any,
        v: Any,
        o: Any,
        lse: Any,
        saved: Any = None,
        *,
        dlse: Any = None,
        scale: Any = None,
        layout: str = "bhsd",
        grad_dtype: Any = None,
        **given: Any,
    ) -> tuple[T, T, T, dict[str, T]]:
        """(dq, dk, dv, {name: gradient}) of a part of the keys, given o, lse and saved of all of them, as merge(.., return_saved=True) gives them (saved may be left out where
        the spec saves nothing), and the gradients dout and dlse of that o and lse. dk and dv are those of these keys. dq is to be added up over the parts, and so are the gradients of
        inputs and scalars, unless they arise once a row, as a sink's does, and not from scores: these are whole in the result of each part that
        has keys. given: inputs, scalars, and what else the call of the part had. Torch tensors; of inputs those that say grad = true; "scale": of a scale
        that is a tensor. An o of float32 goes with q, k and v of half types too, and dout is then rounded to their type. grad_dtype: torch.float32, for dq, dk and
        dv in it, for sums over parts; None: of the type of q."""
        from ._attend import gradients_of

        self._check_names(f"{self.name}: gradients", ("dout", "o", "lse", "saved", "dlse"))
        instead = "it has no derivative of its own; take that of a call with all keys, or detach what it gives by torch.no_grad()"
        self._without_derivative(f"{self.name}: gradients", instead, dout, q, k, v, o, lse, saved, dlse, scale, given, maps=True)
        if is_numpy(q):
            raise Unsupported(f"{self.name}: gradients: q: NumPy arrays have none; pass tensors of torch")
        if self._spec.row_passes:
            raise Unsupported(f"{self.name}: gradients: backward takes a row pass, which needs all keys of a row in one call; call it with all keys")
        dout, q, k, v, o, lse, saved, dlse, scale, layout = _OF_GRADIENTS.take(f"{self.name}: gradients", dout, q, k, v, o, lse, saved, dlse, scale, layout)
        if saved is None and self._spec.num_saved:
            raise InvalidError(f"{self.name}: gradients: saved: is missing, and backward reads {self._spec.num_saved} numbers of a row; take it from merge(.., return_saved=True)")
        q, k, v = self._heads_first(layout, q, k, v, given)
        if layout == "bshd":
            dout, o = self._swapped(dout=dout, o=o)
        seed, part = given.pop("seed", None), self._part_of(q, *(given.pop(name, None) for name in (*WHOLE, *_PACKED)))
        inputs, scalars, later = self._sort(given, q)
        options = {**part, **later}
        if is_in_f32(f"{self.name}: gradients", "grad_dtype", grad_dtype, q):
            options["grad_f32"] = True
        if seed is not None or self._spec.draws:
            options["seed"] = seed_of(self.name, seed, q)
        numbers = [float(x) for x in scalars]
        first: Any = q
        made: Any = gradients_of(self._for(inputs), dout, dlse, first, k, v, o, lse, saved, inputs, numbers, scale, options)
        dq, dk, dv, named = made
        if layout == "bshd":
            dq, dk, dv = map(_swap, (dq, dk, dv))
        return dq, dk, dv, named

    def _grid_mask(self, place: str, batch: Any, head: Any, extents: tuple[Any, Any], boxes: Any, given: dict[str, Any], seed: Any) -> GridMask:
        query = given.pop("query", None)
        inputs, scalars, later = self._sort(given, None, some=True, reads=False)
        refuse_later(place, later)
        batch, head = take(place, "batch", "integer", batch), take(place, "head", "integer", head)
        numbers = [float(x) for x in scalars]
        return grid_mask_of(self._for(inputs), place, batch, head, extents, query, boxes, inputs, numbers, take(place, "seed", "seed?", seed))

    def _for(self, inputs: Sequence[Any]) -> Spec:
        """The spec, for inputs of these types."""
        return for_types(self._spec, self._undeclared, inputs)

    def _sort(
        self, given: dict[str, Any], q: Any, some: bool = False, reads: bool = True
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Inputs and scalars in the spec's order, and arguments that do not exist yet. some: inputs that are missing are None. reads: whether
        the library looks at them, and refuses what it cannot read."""
        inputs: list[Any] = []
        scalars, later = [], {}
        for name, info in self.inputs.items():
            if some and name not in given:
                inputs.append(None)
                continue
            if name not in given:
                raise InvalidError(f"{self.name}: input '{name}' is missing: pass {name}=")
            x = given[name]
            is_alike = reads and (type(x), type(q)) in ALIKE and (is_numpy(x) or is_dense(x))
            inputs.append(x if is_alike else input_of(self.name, info, x, q))
        for name, default in self.scalars.items():
            x = given.get(name, default)
            scalars.append(x if type(x) is float else scalar_of(self.name, name, x, q))
        for name, value in given.items():
            if name in LATER:
                later[name] = value
            elif name not in self.inputs and name not in self.scalars:
                known = ", ".join([*self.inputs, *self.scalars]) or "no inputs or scalars"
                raise InvalidError(f"{self.name}: there is no argument '{name}'; the spec declares {known}")
        return inputs, scalars, later

    def _given(self, place: str, own: Sequence[str], q: Any, k: Any, v: Any, layout: str, given: dict[str, Any], some: bool = True) -> Given:
        """What a call with these arguments has, of which `own` are others. some: inputs may be missing."""
        self._check_names(place, own)
        options = self._part_of(q, *(given.pop(name, None) for name in (*WHOLE, *_PACKED)))
        batch = given.pop("batch", None)
        if batch is not None:
            options["batch"] = take_batch(place, batch).token
        rest = {name: take(place, name, kind, given.pop(name, None)) for name, kind in NOT_OF_PLANS.items() if name in given}
        options |= {name: True for name in CHOICES if rest.get(name)}
        options |= {f"{name}_f32": True for name in ("out", "grad") if is_in_f32(place, f"{name}_dtype", rest.get(f"{name}_dtype"), q)}
        inputs, scalars, later = self._sort(given, q, some=some, reads=False)
        refuse_later(place, later)
        spec = self._for(inputs).parts() if rest.get("return_state") else self._for(inputs)
        spec, inputs, scalars, scale = by_library.scaled_of(is_numpy(q))(spec, q, inputs, scalars, rest.get("scale"))
        q, k, v = self._heads_first(layout, q, k, v, options)
        numbers = [float(x.detach() if hasattr(x, "detach") else x) for x in scalars]
        made = Given(spec, q, k, v, inputs, numbers, scale, options, rest.get("seed"))
        check_shapes(place, made)
        return made

    def plan(self, q: Any, k: Any, v: Any, *, backward: bool = False, layout: str = "bhsd", decode: str = "auto", **given: Any) -> str:
        """How a call with these arguments is computed, one fact a line: which of forward's kernels it takes, why, and what a Batch would
        change; then the kernel's tiles, and why. Compiles the kernel if it is new. given: inputs, and what else the call has of offsets, packed
        sequences, caches and a scale."""
        place = f"{self.name}: plan"
        q, k, v, backward, layout = _OF_PLAN.take(place, q, k, v, backward, layout)
        return plan_of(self._given(place, ("backward",), q, k, v, layout, given), backward, self._number_of(decode))

    def explain(
        self, q: Any, k: Any, v: Any, *, backward: bool = False, layout: str = "bhsd", decode: str = "auto", arch: str | None = None, **given: Any
    ) -> "Explanation":
        """What a call with these arguments computes and why, as a table in a notebook and as text by print: the kernel family, its tiles, which of
        them the mask leaves out and by what means, the least bytes and the operations. Computes nothing, and compiles the kernel if it is new. arch: of kernels for a GPU of this
        architecture, as "sm_90a", wherever the tensors are; None: of where q is. given: as plan takes it; an input that the mask reads is needed."""
        place = f"{self.name}: explain"
        q, k, v, backward, layout = _OF_PLAN.take(place, q, k, v, backward, layout)
        from .explanation import explain  # whose import takes 3 ms

        made = self._given(place, ("backward", "arch"), q, k, v, layout, given)
        return explain(made, backward, self._number_of(decode), take(place, "arch", "arch?", arch))

    def weights(self, q: T, k: Any, v: Any, *, layout: str = "bhsd", **given: Any) -> T:
        """The weights with which a call with these arguments adds up v, for pictures and tests: [batch, heads, queries, keys] (over a grid by the row-major numbers of places) in float32 (float64 for
        float64), without gradients; of packed sequences of as many as the longest has. They are 0 where the mask leaves out, and those that dropout drops
        are negative. It has all of them in memory, and takes a kernel of its own, which is not fast. luattn.plot_weights draws them. Errors: Unsupported (keys in
        pages or in a cache)."""
        place = f"{self.name}: weights"
        q, k, v, layout = _OF_WEIGHTS.take(place, q, k, v, layout)
        self._without_derivative(place, "weights have none; compute them under torch.no_grad()", q, k, v, given, maps=True)
        self._number_of(given.pop("decode", "auto"))
        made = self._given(place, (), q, k, v, layout, given, some=False)
        for name in RESULTS:
            made.options.pop(name, None)
        if made.seed is not None or made.spec.draws:
            made.options["seed"] = seed_of(self.name, made.seed, q)
        found: T = by_library.weights_of(is_numpy(q))(made.spec, made.q, made.k, made.v, made.inputs, made.scalars, made.scale, made.options)
        return found

    def prepare(
        self,
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
        """Compiles the kernels for a GPU that training will need, for short and long lengths, on `threads` threads (0: one a
        processor): before a CUDA graph is captured, or the first step. Backward is that of q, k, v and the inputs with
        gradients, and with scalars=True of the scalars. decode=True: also forward's for few queries and many keys. dtype: torch.bfloat16, or its name.
        input_dtype: of inputs that declare no type, or "any": a type, or one by each input's name; None: kernels for float32 and for `dtype`."""
        prepare(
            [self], dtype, head_dim, head_dim_v, input_dtype=input_dtype, device=device, scalars=scalars, decode=decode, threads=threads
        )

    def tune(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        backward: bool = False,
        layout: str = "bhsd",
        scale: float | None = None,
        time_limit: float = 60.0,
        **given: Any,
    ) -> str:
        """Measures the candidate tiles of these tensors' kernels on their GPU, compares their results, and remembers the
        fastest beside the kernel cache, for lengths of this class; returns what was found, a line for each pass. Takes up to
        `time_limit` seconds a pass, half of them for compiling. No call of this spec may be running."""
        from ._tune import tune

        self._check_names(f"{self.name}: tune", ("backward", "time_limit"))
        q, k, v, backward, layout, scale, time_limit = _OF_TUNE.take(f"{self.name}: tune", q, k, v, backward, layout, scale, time_limit)
        inputs, scalars, later = self._sort(given, q)
        if later:
            raise InvalidError(f"{self.name}: tune: {', '.join(later)}: kernels of such calls are not tuned; leave it out")
        q, k, v = self._heads_first(layout, q, k, v, {})
        if scale is not None and not is_plain(scale):
            raise InvalidError(f"{self.name}: tune: scale: is {scale:g}, expected a positive number: tiles do not depend on it")
        numbers = [float(x) for x in scalars]
        return tune(self._for(inputs), q, k, v, inputs, numbers, 0.0 if scale is None else scale, backward, time_limit)

    @overload
    def mask(self, q_len: int | None = ..., kv_len: int | None = ..., **given: Any) -> Mask: ...
    @overload
    def mask(self, q_len: Sequence[int], kv_len: Sequence[int] | None = ..., **given: Any) -> GridMask: ...
    def mask(
        self, q_len: Any = None, kv_len: Any = None, *, batch: int = 0, head: int = 0, tile: Any = 64, whole_q_len: int | None = None,
        whole_kv_len: int | None = None, seed: Any = None, **given: Any,
    ) -> Any:  # fmt: skip
        """Which tiles of `tile` x `tile` scores the mask leaves empty, full or partial, for one batch entry and head. A
        notebook shows it as a picture. given: inputs that the mask reads, as arrays or tensors on the CPU, scalars, and what the call has: cu_seqlens, seqused and
        block_table, which say the lengths of entry `batch`, so that q_len and kv_len may be left out, and offsets. whole_q_len and whole_kv_len are what q_len
        and kv_len are to a call: the lengths of the whole of which this is a part.

        Over a grid of several axes: which keys one query keeps, a GridMask, whose picture is of the grid. q_len and kv_len are extents, (24, 32) for two axes;
        query: coordinates, the middle if left out; tile: a pair of boxes, of queries and of keys, ((8, 8), (8, 16)), beside which boxes of keys are empty, full
        or partial; the default is of 64 places each."""
        place = f"{self.name}: mask"
        self._check_names(place, ("head", "tile", "whole_q_len", "whole_kv_len"))
        if self._spec.grid:
            return self._grid_mask(place, batch, head, (q_len, kv_len), None if tile == 64 else tile, given, seed)
        for name, kind in NOT_OF_MASKS.items():
            if name in given:
                take(place, name, kind, given.pop(name))
        own = [name for name in _OF_MASK.names[7:]]
        q_len, kv_len, batch, head, tile, whole_q_len, whole_kv_len, *rest = _OF_MASK.take(
            place, q_len, kv_len, batch, head, tile, whole_q_len, whole_kv_len, *(given.pop(name, None) for name in own)
        )
        part = {name: x for name, x in zip(("q_len", "kv_len", *own), (whole_q_len, whole_kv_len, *rest)) if x is not None}
        inputs, scalars, _ = self._sort(given, None, some=True, reads=False)
        return mask_of(self._for(inputs), Entry(self.name, batch, q_len, kv_len, part), head, tile, inputs, [float(x) for x in scalars], take(place, "seed", "seed?", seed))


def _swap(t: Any) -> Any:
    return t.swapaxes(1, 2)
