"""linear_attention(spec): linear attention from a spec, as a callable."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _linear_call
from ._arguments import is_dense, is_tensor, take, what
from ._inputs import scalar_of
from ._linear_call import Between
from ._scale import check_scale
from ._spec import Spec, load, spec_of
from .errors import InvalidError, Unsupported


CHUNK = 64  # LUATTN_CHUNK


def linear_attention(spec: str | os.PathLike[str]) -> "LinearAttention":
    """Loads a spec of linear attention: the path of a Lua file, the name of one of examples(), or its text. Errors: SpecError, with the
    file and the line; FileNotFoundError."""
    loaded = load(take("linear_attention", "spec", "source", spec))
    if not loaded.is_linear:
        raise InvalidError(f"linear_attention: spec: '{loaded.name}' is of attention; call luattn.attention")
    return LinearAttention(loaded)


def _again(text: str, place: str) -> "LinearAttention":
    return LinearAttention(spec_of(text, place))


class LinearAttention:
    """What a spec of linear attention computes: q and k [batch, tokens, heads, head_dim], v and o [batch, tokens, heads_v, head_dim_v]. On
    the CPU, token by token, in double precision. On a GPU of float32, bfloat16 and float16: what kernels do not
    take is refused by name."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.name, self.inputs, self.scalars = spec.name, spec.inputs, dict(spec.scalars)

    def __repr__(self) -> str:
        inputs = "".join(f", {one.name}[{', '.join(one.axes)}]" for one in self.inputs)
        scalars = "".join(f", {name}={value:g}" for name, value in self.scalars.items())
        return f"<luattn.LinearAttention {self.name}(q, k, v{inputs}{scalars})>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._spec.text, self._spec.place)

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        cu_seqlens: Any = None,
        initial_state: Any = None,
        output_final_state: bool = False,
        final_state: Any = None,
        state_layout: str | None = None,
        state_indices: Any = None,
        states_every: int | None = None,
        recompute: bool = False,
        **given: Any,
    ) -> Any:
        """o, or (o, final state) with output_final_state, and with states_every one more, last: the intermediate states. given: the spec's inputs and scalars by name.

        cu_seqlens: packed sequences in a batch of 1: the first row of each, and the end. initial_state: the state before the first token,
        0 if left out. state_layout: "vk" for states [entries, heads_v, head_dim_v, head_dim], "kv" for [.., head_dim, head_dim_v]. A new
        final state has the type of initial_state, else float32 (float64 with q of float64); final_state: where it goes instead, which may
        be initial_state itself, then updated in place. state_indices: which row of them is each entry's, -1: none.

        states_every: a multiple of 64: the states before token 0, states_every, 2 * states_every, .. of each entry, [batch, count, heads_v, ..],
        without a gradient. With cu_seqlens [1, tokens // states_every + entries, ..], where those of entry i begin at cu_seqlens[i] // states_every + i, and
        what lies between is 0.

        recompute: of calls whose gradients are wanted: nothing is kept for backward but what is given. Left out, updates that erase (decays of
        channels excepted) keep states of chunks where kernels of chunks take them, some 0.9 times the bytes of q, k, v and o, and backward is faster."""
        call = _Call(self._spec, q, k, v, given)
        call.check_states(state_layout, state_indices, initial_state, final_state, output_final_state)
        own = call.arrays(cu_seqlens=cu_seqlens, initial_state=initial_state, state_indices=state_indices)
        every = call.check_every(states_every, state_layout)
        keeps = not take(self.name, "recompute", "flag", recompute)
        return call.forward(own, call.scale(scale), state_layout, output_final_state, call.written(final_state), every, keeps)

    def step(
        self,
        q: Any,
        k: Any,
        v: Any,
        state: Any,
        *,
        state_layout: str,
        state_indices: Any = None,
        ring: "Ring | None" = None,
        scale: float | None = None,
        **given: Any,
    ) -> Any:
        """Decoding: o of a few tokens, 1 to 16, behind a state, which is updated in place, or its rows state_indices of it. Without gradients. It may be captured
        into a CUDA graph.

        With a ring, on a GPU, the state is a checkpoint: the tokens go to the ring's rows, and count once ring.accept() says how many of them do.
        Where they do not fit, the rows that count are folded into the state in the same launch."""
        call = _Call(self._spec, q, k, v, given)
        call.check_states(state_layout, state_indices, state, state, True)
        own = call.arrays(cu_seqlens=None, initial_state=state, state_indices=state_indices)
        if ring is not None:
            if not isinstance(ring, Ring):
                raise InvalidError(f"{self.name}: ring: is {what(ring)}, expected what ring() of this attention returns, or None")
            own.update(ring._arrays())
        o, _ = call.forward(own, call.scale(scale), state_layout, True, call.written(state))
        if ring is not None:
            ring._tried = call.qkv[0].shape[1]
        return o

    def ring(self, state: Any, entries: int, *, state_layout: str, rows: int = 16, dtype: Any = None) -> "Ring":
        """An empty ring of so many rows behind each row of `state`, a torch tensor on a GPU, for calls of so many entries. dtype: of its rows, else bfloat16."""
        return Ring(self._spec, state, entries, state_layout, rows, dtype)

    def gradients(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        cu_seqlens: Any = None,
        initial_state: Any = None,
        dfinal_state: Any = None,
        state_layout: str | None = None,
        **given: Any,
    ) -> dict[str, Any]:
        """Gradients by name of q, k, v, initial_state if it is given, inputs that the spec marks, and scalars. dout, dfinal_state: those of o
        and the final state; None: 0. For NumPy arrays; torch's autograd does this for tensors."""
        call = _Call(self._spec, q, k, v, given)
        call.check_states(state_layout, None, initial_state, dfinal_state, False)
        own = call.arrays(dout=dout, cu_seqlens=cu_seqlens, initial_state=initial_state, dfinal_state=dfinal_state)
        return call.gradients(own, call.scale(scale), state_layout)


class Ring:
    """Rows that stand for the tokens since a state, which decoding then reads and does not write. used: int32 [entries], how many of them count; tokens that a
    model takes back are not accepted, and nothing is copied for them."""

    def __init__(self, spec: Spec, state: Any, entries: int, layout: str, rows: int, dtype: Any) -> None:
        import torch

        name = spec.name
        if not isinstance(state, torch.Tensor) or state.dim() != 4:
            raise InvalidError(f"{name}: ring: state: is {what(state)}; give a torch tensor of 4 dimensions")
        if layout not in ("vk", "kv"):
            raise InvalidError(f"{name}: ring: state_layout: is {what(layout)}; give 'vk' for [.., head_dim_v, head_dim] or 'kv'")
        for what_of, number in (("rows", rows), ("entries", entries)):
            if take(name, f"ring: {what_of}", "integer", number) < (what_of == "rows"):
                raise InvalidError(f"{name}: ring: {what_of}: is {number}, expected at least {int(what_of == 'rows')}")
        if dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
            raise InvalidError(f"{name}: ring: dtype: is {what(dtype)}; give torch.float32, torch.bfloat16 or torch.float16")
        heads = state.shape[:2]
        dims = state.shape[2:] if layout == "kv" else state.shape[:1:-1]
        decays, erases = spec.ring(int(dims[0]))
        kind: dict[str, Any] = {"dtype": dtype or torch.bfloat16, "device": state.device}
        self.rows, self._tried, self._name = rows, 0, name
        self.k, self.u = (torch.zeros(*heads, rows, d, **kind) for d in dims)
        self.e, self.y = (torch.zeros(*heads, rows, d, **kind) if erases else None for d in dims)
        self.decays = torch.zeros(*heads, rows, decays, dtype=torch.float32, device=state.device) if decays else None
        self.used = torch.zeros(entries, dtype=torch.int32, device=state.device)

    def _arrays(self) -> dict[str, Any]:
        named = {"k": self.k, "u": self.u, "decays": self.decays, "e": self.e, "y": self.y, "used": self.used}
        return {f"ring_{name}": t for name, t in named.items() if t is not None}

    def accept(self, tokens: Any = None) -> None:
        """Says how many of the last step's tokens count: of each entry (int32 [entries] on the GPU) or of all; None: every token. Waits for nothing."""
        tried = self._tried
        if tokens is not None and not is_tensor(tokens) and not 0 <= take(self._name, "ring: accept: tokens", "integer", tokens) <= tried:
            raise InvalidError(f"{self._name}: ring: accept: tokens: is {tokens}, and the last step had {tried}; give 0 to {tried}, or None for all")
        shape = tuple(self.used.shape)
        if is_tensor(tokens) and (tokens.is_floating_point() or tuple(tokens.shape) not in ((), shape)):
            raise InvalidError(f"{self._name}: ring: accept: tokens: is {what(tokens)}, of shape {tuple(tokens.shape)}, expected integers, of shape {shape}")
        kept = self.used.masked_fill(self.used + tried > self.rows, 0)
        self.used.copy_(kept + (tried if tokens is None else tokens))


class _Call:
    """Arguments of a call, checked, in the spec's order."""

    def __init__(self, spec: Spec, q: Any, k: Any, v: Any, given: Mapping[str, Any]) -> None:
        self.spec = spec
        self.is_torch = is_tensor(q)
        self.device = q.device if is_tensor(q) else None
        names = [one.name for one in spec.inputs]
        for name in given:
            if name not in names and name not in spec.scalars:
                takes = ", ".join((*names, *spec.scalars)) or "none"
                raise InvalidError(f"{spec.name}: {name}: is neither an input nor a scalar of the spec, which has {takes}")
        for name in names:
            if name not in given:
                raise InvalidError(f"{spec.name}: input '{name}': is missing; give {name}=")
        self.inputs = [self._array(f"input '{name}'", given[name]) for name in names]
        self.scalars = [scalar_of(spec.name, name, given.get(name, default), q) for name, default in spec.scalars.items()]
        for name, x in zip(spec.scalars, self.scalars):
            if is_tensor(x) and x.numel() != 1:
                raise InvalidError(f"{spec.name}: scalar '{name}': has shape {tuple(x.shape)}, expected one element, or a number")
        self.qkv = self._array("q", q), self._array("k", k), self._array("v", v)
        for name, t in zip("qkv", self.qkv):
            if len(t.shape) != 4:
                axes = "heads_v and head_dim_v" if name == "v" else "heads and head_dim"
                raise InvalidError(f"{spec.name}: {name}: has {len(t.shape)} dimensions, expected 4: batch, tokens, {axes}")

    def _array(self, name: str, t: Any) -> Any:
        if not is_dense(t) or is_tensor(t) != self.is_torch:
            wanted = "a torch tensor, as q is" if self.is_torch else "a NumPy array or a torch tensor" if name == "q" else "a NumPy array, as q is"
            raise InvalidError(f"{self.spec.name}: {name}: is {what(t)}; give {wanted}")
        if not self.is_torch:
            return t
        if t.is_meta:
            raise InvalidError(f"{self.spec.name}: {name}: is {what(t)}; give one on the CPU")
        if t.device != self.device:
            raise InvalidError(f"{self.spec.name}: {name}: is on {t.device}, and q on {self.device}: move one of them")
        if t.device.type not in ("cpu", "cuda"):
            raise Unsupported(f"{self.spec.name}: {name}: is on {t.device}, and linear attention runs on the CPU and on CUDA devices; move it there")
        return t.resolve_neg()

    def arrays(self, **given: Any) -> dict[str, Any]:
        """Arguments that may be None, as the library reads them."""
        made = {name: None if t is None else self._array(name, t) for name, t in given.items()}
        cu = made["cu_seqlens"]
        if cu is not None and (len(cu.shape) != 1 or cu.shape[0] == 0):
            raise InvalidError(f"{self.spec.name}: cu_seqlens: has shape {tuple(cu.shape)}, expected (entries + 1,): the first row of each, and the end")
        return made

    def written(self, final: Any) -> Any:
        """final_state, in whose own memory the result goes."""
        name = self.spec.name
        if final is not None and self._array("final_state", final) is not final:
            raise InvalidError(f"{name}: final_state: is the negative of what its memory holds; pass final_state.resolve_neg()")
        if final is not None and not self.is_torch and not final.flags.writeable:
            raise InvalidError(f"{name}: final_state: is an array that may not be written to; pass a copy of it")
        return final

    def scale(self, scale: Any) -> float:
        """0.0: the spec's."""
        name = self.spec.name
        if scale is None:
            return 0.0
        if is_tensor(scale) and scale.requires_grad:
            raise InvalidError(f"{name}: scale: requires a gradient, and has none; multiply by a scalar of the spec in query_mod, or pass scale.item()")
        number = check_scale(name, take(name, "scale", "real", scale))
        if number == 0:
            raise InvalidError(f"{name}: scale: is 0, which leaves nothing of the state; give another number, or None for the spec's")
        return number

    def check_states(self, layout: Any, indices: Any, initial: Any, final: Any, output: bool) -> None:
        name = self.spec.name
        if layout is not None and layout not in ("vk", "kv"):
            raise InvalidError(f"{name}: state_layout: is {what(layout)}; give 'vk' for [.., head_dim_v, head_dim] or 'kv'")
        if layout is None and (initial is not None or final is not None or output):
            raise InvalidError(
                f"{name}: state_layout: is missing, and there is a state; give 'vk' for [entries, heads_v, head_dim_v, head_dim] or 'kv' for [.., head_dim, head_dim_v]"
            )
        if indices is not None and initial is None and final is None:
            raise InvalidError(f"{name}: state_indices: is given, and there is no pool of states; give initial_state or final_state")
        if indices is not None and output and final is None:
            raise InvalidError(f"{name}: output_final_state: with state_indices states are rows of a pool; give it as final_state")

    def check_every(self, every: Any, layout: Any) -> int:
        """0: none are wanted."""
        if every is None:
            return 0
        name = self.spec.name
        if take(name, "states_every", "integer", every) < CHUNK or every % CHUNK:
            raise InvalidError(f"{name}: states_every: is {every}, expected a multiple of {CHUNK} tokens, or None")
        if layout is None:
            raise InvalidError(f"{name}: state_layout: is missing, and states_every asks for states; give 'vk' for [.., head_dim_v, head_dim] or 'kv'")
        return int(every)

    def _entries(self, own: Mapping[str, Any]) -> int:
        return int(self.qkv[0].shape[0] if own["cu_seqlens"] is None else own["cu_seqlens"].shape[0] - 1)

    def _state_shape(self, layout: str) -> tuple[int, ...]:
        q, _, v = self.qkv
        dims = (v.shape[3] + int(self.spec.normalizes), q.shape[3])
        return (v.shape[2], *(dims if layout == "vk" else dims[::-1]))

    def final_shape(self, own: Mapping[str, Any], layout: str) -> tuple[int, ...]:
        return (self._entries(own), *self._state_shape(layout))

    def between_shape(self, own: Mapping[str, Any], layout: str, every: int) -> tuple[int, ...]:
        batch, tokens = self.qkv[0].shape[:2]
        count = -(-tokens // every) if own["cu_seqlens"] is None else tokens // every + self._entries(own)
        return (batch, count, *self._state_shape(layout))

    def forward(self, own: dict[str, Any], scale: float, layout: str | None, output: bool, final: Any, every: int = 0, keeps: bool = False) -> Any:
        shape = self.final_shape(own, layout) if output and final is None and layout else None
        between = Between(self.between_shape(own, layout, every), every) if every and layout else None
        if self.is_torch:
            from . import _torch_linear

            o, last, states = _torch_linear.forward(self.spec, *self.qkv, self.inputs, self.scalars, own, scale, layout, shape, final, between, keeps)
        else:
            o, last, states = _numpy_forward(self, own, scale, layout, shape, final, between)
        made = (o, *((last,) if output else ()), *((states,) if every else ()))
        return made if len(made) > 1 else o

    def gradients(self, own: dict[str, Any], scale: float, layout: str | None) -> dict[str, Any]:
        if self.is_torch:
            raise InvalidError(f"{self.spec.name}: gradients: q is a torch tensor; autograd has them: call backward() on the result")
        return _numpy_gradients(self, own, scale, layout)


def _numpy_forward(
    call: _Call, own: Mapping[str, Any], scale: float, layout: str | None, shape: Sequence[int] | None, final: Any, between: Between | None
) -> tuple[Any, Any, Any]:
    import numpy as np

    from ._numpy import fill

    q, k, v = call.qkv
    o = np.zeros(v.shape, v.dtype)  # rows of no sequence stay 0
    first = own["initial_state"]
    kind = first.dtype if first is not None else np.float64 if q.dtype == np.float64 else np.float32
    if shape is not None:
        final = np.empty(shape, kind)
    states = None if between is None else np.zeros(between.shape, kind)
    tensors = {"q": q, "k": k, "v": v, "o": o, "final_state": final, "intermediate_states": states, **own}
    every = 0 if between is None else between.every
    _linear_call.run(call.spec, False, fill, tensors, call.inputs, [float(x) for x in call.scalars], scale, layout, states_every=every)
    return o, final, states


def _numpy_gradients(call: _Call, own: Mapping[str, Any], scale: float, layout: str | None) -> dict[str, Any]:
    import numpy as np

    from ._numpy import fill

    q, k, v = call.qkv
    first = own["initial_state"]
    made = {name: np.empty(t.shape, t.dtype) for name, t in zip(("dq", "dk", "dv"), call.qkv)}
    if first is not None:
        made["dinitial_state"] = np.zeros(first.shape, first.dtype)
    row = np.float64 if q.dtype == np.float64 else np.float32
    grads = [np.empty(x.shape, row) if info.grad else None for info, x in zip(call.spec.inputs, call.inputs)]
    scalar_grads = np.empty(len(call.scalars), row)
    tensors = {"q": q, "k": k, "v": v, "scalar_grads": scalar_grads, **own, **made}
    _linear_call.run(call.spec, True, fill, tensors, call.inputs, [float(x) for x in call.scalars], scale, layout, grads)
    found = {name.removeprefix("d"): t for name, t in made.items()}
    found.update({info.name: t for info, t in zip(call.spec.inputs, grads) if t is not None})
    return {**found, **dict(zip(call.spec.scalars, scalar_grads))}
