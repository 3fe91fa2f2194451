"""luattn::forward and luattn::backward, ops of torch, and their autograd.

A spec travels as its text, as JSON in one line or as it is, so that a graph of torch.export is whole in another process, and the
cache of torch.compile tells specs apart. Ops are defined by torch.library.Library: custom_op takes 240 us more for a call with gradients. Autograd
is a kernel of the op, not a wrapper around it: graphs keep the op itself, and a bare call has gradients too.

The schema has arguments for what does not exist yet. They come to life without a change to exported graphs.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from . import _capi as capi
from . import _tensors as tensors
from . import _allocate, _fit, _signature, _tangents, _vmap
from ._call import ARRAYS, CHOICES, RESULTS, Frame
from ._import_hook import when_imported
from ._signature import is_plain as is_plain
from ._signature import named_of
from ._spec import Spec, spec_in_graph
from .errors import InvalidError, Unsupported

_BATCH = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? block_table=None, Tensor? batch=None, Tensor? seed=None"
)
# learned: float64 [number of scalars] on the CPU, in the place of scalars, with a gradient.
# seed: int64 [2], the seed and an offset, where q is or on the CPU.
# num_splits: of decode kernels, how many blocks share the keys of a row; 0: the library chooses. decode: _call.DECODE.
# deterministic: of backward, beside torch.use_deterministic_algorithms; forward hands it on.
# boxes: over a grid, query_tile_size and key_tile_size of luattn_args, of forward, which hands them on, and of backward; or nothing.
# whole: _call.WHOLE, or nothing. q_offset, kv_offset: int32 [batch], in the place of whole's first two.
_SPEC = (
    "str spec, {}Tensor q, Tensor k, Tensor v, {}Tensor[] inputs, float[] scalars, Tensor? learned, float scale, *, "
    "SymInt[] whole=[], Tensor? q_offset=None, Tensor? kv_offset=None, " + _BATCH + ", {}bool deterministic=False, int[] boxes=[]"
)
_lib = torch.library.Library("luattn", "DEF")
_OF_CHOICES = "".join(f"bool {name}=False, " for name in CHOICES)
_OF_FORWARD = f"bool exact_rows=False, int num_splits=0, {_OF_CHOICES}bool out_f32=False, int decode=0, "
_OF_RESULTS = "".join(f"bool {name}=False, " for name in RESULTS)
_lib.define(f"forward({_SPEC.format('', '', _OF_FORWARD)}) -> (Tensor o, Tensor lse, Tensor saved)")
_lib.define(
    f"backward({_SPEC.format('Tensor dout, Tensor? dlse, ', 'Tensor o, Tensor lse, Tensor saved, ', _OF_RESULTS)}, "
    "int wants=31, bool[] want_inputs=[]) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscalars, Tensor[] dinputs)"
)
# Tangents of backward's results, along those of dout, dlse, q, k, v, learned and the inputs. It finds o, lse and saved itself, unless of_rows has o, lse
# and their tangents along the same, which may save it a part of the work.
_lib.define(
    f"backward_jvp({_SPEC.format('Tensor dout, Tensor? dlse, ', 'Tensor?[] tangents, ', _OF_RESULTS)}, "
    "int wants=31, bool[] want_inputs=[], Tensor[]? of_rows=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscalars, Tensor[] dinputs)"
)
# Writes rows to caches, as in graphs of torch.compile; eager calls go past it.
_lib.define(
    "append(str spec, Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor[] inputs, Tensor new_k, Tensor new_v, *, Tensor seqused_k, "
    "Tensor? block_table=None, Tensor? cu_seqlens_q=None" + "".join(f", bool {name}=False" for name in CHOICES) + ") -> ()"
)
_lib.define(f"weights({_SPEC.format('', '', _OF_CHOICES)}) -> Tensor")
# Forward, and tangents of o and lse along those of q, k, v, learned and the inputs; an empty tensor where there is no lse.
_lib.define(
    f"forward_jvp({_SPEC.format('', 'Tensor?[] tangents, ', _OF_FORWARD)}) -> (Tensor o, Tensor lse, Tensor saved, Tensor o_tangent, Tensor lse_tangent)"
)
forward_op = torch.ops.luattn.forward.default
forward_jvp_op = torch.ops.luattn.forward_jvp.default
backward_op = torch.ops.luattn.backward.default
backward_jvp_op = torch.ops.luattn.backward_jvp.default
weights_op = torch.ops.luattn.weights.default
_below_autograd = torch._C._AutoDispatchBelowAutograd


# --- the ops on the CPU and on a GPU. An op returns tensors alone: an empty one stands for None ---


def filled(q: Tensor, results: Sequence[Tensor | None]) -> list[Tensor]:
    return [q.new_empty((0,), dtype=torch.float32) if t is None else t for t in results]


def _given(t: Tensor | None) -> Tensor | None:
    return None if t is None or t.dim() == 1 else t


def values_of(scalars: Sequence[Any], learned: Tensor | None) -> Sequence[float]:
    values: Sequence[float] = scalars if learned is None else learned.tolist()
    return values


def _forward_kernel(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    made = tensors.forward(spec_in_graph(text), q, k, v, inputs, values_of(scalars, learned), scale, given)
    return tuple(filled(q, made))


def _forward_jvp_kernel(text, q, k, v, tangents, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    spec = spec_in_graph(text)
    *of_rows, of_learned = tangents[:4]
    along = [0.0] * len(spec.scalars) if of_learned is None else of_learned.tolist()
    made = tensors.forward_jvp(spec, q, k, v, inputs, values_of(scalars, learned), scale, [*of_rows, *tangents[4:]], along, given)
    return tuple(filled(q, made))


def _backward_kernel(text, dout, dlse, q, k, v, o, lse, saved, inputs, *rest, wants=31, want_inputs=(), **given):  # type: ignore[no-untyped-def]
    scalars, learned, scale = rest
    want_inputs = want_inputs or [False] * len(inputs)
    *made, dinputs = tensors.backward(
        spec_in_graph(text), dout, dlse, q, k, v, o, _given(lse), _given(saved), inputs, values_of(scalars, learned),
        scale, given, wants, want_inputs,
    )  # fmt: skip
    return (*filled(q, made), filled(q, dinputs))


def _backward_jvp_kernel(text, dout, dlse, q, k, v, tangents, inputs, scalars, learned, scale, wants=31, want_inputs=(), of_rows=None, **given):  # type: ignore[no-untyped-def]
    spec = spec_in_graph(text)
    *along_rows, of_learned = tangents[:6]
    along = [0.0] * len(spec.scalars) if of_learned is None else of_learned.tolist()
    *made, dinputs = tensors.backward_jvp(
        spec, dout, dlse, q, k, v, inputs, values_of(scalars, learned), scale, [*along_rows, *tangents[6:]], along, given, wants, want_inputs or [False] * len(inputs), of_rows or (),
    )  # fmt: skip
    return (*filled(q, made), filled(q, dinputs))


def _weights_kernel(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    return tensors.weights(spec_in_graph(text), q, k, v, inputs, values_of(scalars, learned), scale, given)


def _append_kernel(text, q, k, v, inputs, new_k, new_v, **given):  # type: ignore[no-untyped-def]
    spec = spec_in_graph(text)
    if not tensors.append(spec, q, k, v, inputs, given, new_k, new_v):
        raise InvalidError(f"{spec.name}: append: {tensors.NOT_ALIGNED}")


for _device in ("CPU", "CUDA"):
    _lib.impl("append", _append_kernel, _device)
    _lib.impl("forward", _forward_kernel, _device)
    _lib.impl("forward_jvp", _forward_jvp_kernel, _device)
    _lib.impl("weights", _weights_kernel, _device)
    _lib.impl("backward", _backward_kernel, _device)
    _lib.impl("backward_jvp", _backward_jvp_kernel, _device)


def _check_fake(text: str, inputs: Sequence[Tensor], q: Tensor, given: dict[str, Any], **others: Tensor | None) -> None:
    """A tensor on meta brings real ones here, too, which would get results that nobody computes."""
    if is_fake(q):
        return
    spec = spec_in_graph(text)
    named = {**others, **{f"input '{info.name}'": t for info, t in zip(spec.inputs, inputs)}}
    if not q.is_meta:
        named |= {name: t for name, t in given.items() if isinstance(t, Tensor) and name != "batch"}
    for name, t in named.items():
        if t is not None and not is_fake(t) and t.is_meta != q.is_meta:
            raise InvalidError(f"{spec.name}: {name}: is on {t.device}, and q on {q.device}: move one of them")


@torch.library.register_fake("luattn::forward", lib=_lib)
def _(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v)
    return tuple(filled(q, _allocate.fake_results(spec_in_graph(text), q, v, out_f32=given.get("out_f32", False))))


@torch.library.register_fake("luattn::forward_jvp", lib=_lib)
def _(text, q, k, v, tangents, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v)
    o, lse, saved = _allocate.fake_results(spec_in_graph(text), q, v, out_f32=given.get("out_f32", False))
    return tuple(filled(q, (o, lse, saved, torch.empty_like(o), None if lse is None else torch.empty_like(lse))))


@torch.library.register_fake("luattn::backward_jvp", lib=_lib)
def _(text, dout, dlse, q, k, v, tangents, inputs, *rest, wants=31, want_inputs=(), of_rows=None, **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v, dout=dout)
    *made, dinputs = _allocate.fake_gradients(spec_in_graph(text), q, k, v, inputs, wants, want_inputs or [False] * len(inputs), given.get("grad_f32", False))
    return (*filled(q, made), filled(q, dinputs))


@torch.library.register_fake("luattn::append", lib=_lib)
def _(text, q, k, v, inputs, new_k, new_v, **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v, new_k=new_k, new_v=new_v)


@torch.library.register_fake("luattn::weights", lib=_lib)
def _(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v)
    return tensors.fake_weights(q, k, given)


@torch.library.register_fake("luattn::backward", lib=_lib)
def _(text, dout, dlse, q, k, v, o, lse, saved, inputs, *rest, wants=31, want_inputs=(), **given):  # type: ignore[no-untyped-def]
    _check_fake(text, inputs, q, given, k=k, v=v, dout=dout, o=o)
    want_inputs = want_inputs or [False] * len(inputs)
    *made, dinputs = _allocate.fake_gradients(spec_in_graph(text), q, k, v, inputs, wants, want_inputs, given.get("grad_f32", False))
    return (*filled(q, made), filled(q, dinputs))


# --- autograd ---


_SAVED = frozenset((*ARRAYS, "seed"))


def swap(swapped: bool, *given: Any) -> Sequence[Any]:
    """Heads before lengths, or the other way round."""
    return [t if t is None else t.transpose(1, 2) for t in given] if swapped else given


class _Rules:
    """run(..), which computes o, lse and saved, with gradients. count: of these, how many are returned; 3: run is the op. swapped: q, k, v and o
    have lengths before heads. key to known: of _signature.py, with the call's tensors by name.
    One tuple has all that is no tensor: each argument takes its time in both passes."""

    @staticmethod
    def forward(ctx, call, q, k, v, learned, *inputs):  # type: ignore[no-untyped-def]
        run, count, spec, scalars, scale, given, swapped, key, named, known = call
        values = scalars if count == 3 else values_of(scalars, learned)  # the op reads them itself
        results = known and known.run(spec, named, values, given)
        if results is None:
            results = forward_anew(run, spec, q, k, v, inputs, values, scale, given, swapped, key, named, True)
        o, lse, saved = results
        # Tensors go through autograd alone, which objects where one is written to before backward reads it. A Batch is no
        # tensor: the library compares what it was prepared with.
        names = [name for name in given if name in _SAVED and given[name] is not None] if given else ()
        ctx.call = spec, scalars, scale, {name: x for name, x in given.items() if name not in _SAVED} if names else given, names, swapped
        ctx.save_for_backward(q, k, v, learned, o, lse, saved, *inputs, *(given[name] for name in names))
        ctx.set_materialize_grads(False)
        if count == 3:
            ctx.mark_non_differentiable(*([saved] if spec.has_lse else [lse, saved]))
        return o if count == 1 else tuple(results[:count])

    @staticmethod
    def backward(ctx, dout, dlse=None, _=None):  # type: ignore[no-untyped-def]
        spec, scalars, scale, given, names, swapped = ctx.call
        q, k, v, learned, o, lse, saved, *inputs = ctx.saved_tensors
        if names:
            given = given | dict(zip(names, inputs[-len(names) :]))
            del inputs[-len(names) :]
        for name, lacks in CHOICES.items():
            if given.get(name):
                raise Unsupported(f"{spec.name}: {name}: is True, and there is no backward over {lacks}")
        needs = ctx.needs_input_grad
        wants = needs[1] + 2 * needs[2] + 4 * needs[3] + 16 * needs[4]  # capi.WANT_DQ, .._DK, .._DV, .._SCALARS
        grads = [info.grad and need for info, need in zip(spec.inputs, needs[5:])] if inputs else ()
        if (dout is None and dlse is None) or not (wants or any(grads)):
            return (None,) * len(needs)
        if dout is None:
            dout = torch.zeros_like(o)
        if given and given.get("out_f32"):
            dout = dout.to(q.dtype)  # of an operand of the tensor cores
        made: Any = None
        if not torch.is_grad_enabled():
            tensors_of_rows = q, k, v, o, _given(lse), _given(saved), dout, dlse
            made = _backward_plainly(spec, tensors_of_rows, inputs, values_of(scalars, learned), scale, given, wants, grads, swapped)
        if made is None:
            lse, saved = filled(q, (lse, saved))
            dout, q, k, v, o = swap(swapped, dout, q, k, v, o)
            *made, dinputs = backward_op(
                spec.line, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale,
                **{name: x for name, x in given.items() if name not in ("exact_rows", "num_splits", "decode")}, wants=wants, want_inputs=grads,
            )  # fmt: skip
            made = *swap(swapped, *(d if need else None for d, need in zip(made[:3], needs[1:]))), made[3], *dinputs
        dq, dk, dv, dscalars, *dinputs = made
        first = (
            None, dq if needs[1] else None, dk if needs[2] else None, dv if needs[3] else None,
            dscalars.to("cpu", torch.float64) if needs[4] else None,
        )  # fmt: skip
        if not inputs:
            return first
        return (*first, *(d.to(t.dtype) if want else None for d, want, t in zip(dinputs, grads, inputs)))


class _Attention(_Rules, torch.autograd.Function):
    pass


_AttentionOfLevel = _tangents.of_level(_Rules)


class _GoesTheGeneralWay(Exception):
    pass


class _JvpRules:
    """Forward and tangents, with gradients of o and lse. After those of _Rules come tangents: of q, k, v, learned and the inputs. run: what computes o, lse,
    saved and the tangents, in place of the op; it may give None, which is raised."""

    @staticmethod
    def forward(ctx, call, q, k, v, learned, *rest):  # type: ignore[no-untyped-def]
        spec, scalars, scale, given, ctx.level, run = call
        n = len(spec.inputs)
        inputs, tangents = rest[:n], rest[n:]
        if run is not None:
            made = run()
            if made is None:
                raise _GoesTheGeneralWay
            made = tuple(filled(q, made))
        else:
            with _tangents.below():
                made = forward_jvp_op(spec.line, q, k, v, list(tangents), list(inputs), scalars, learned, scale, **given)
        o, lse, saved, o_tangent, lse_tangent = made
        names = [name for name in given if name in _SAVED and given[name] is not None]
        ctx.call = spec, scalars, scale, {name: x for name, x in given.items() if name not in _SAVED}, names, False
        ctx.save_for_backward(q, k, v, learned, o, lse, saved, o_tangent, lse_tangent, *inputs, *(given[name] for name in names), *tangents)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*([saved] if spec.has_lse else [lse, saved, lse_tangent]))
        return made

    @staticmethod
    def backward(ctx, dout, dlse=None, _=None, along_o=None, along_lse=None):  # type: ignore[no-untyped-def]
        spec, scalars, scale, given, names, _ = ctx.call
        n = len(spec.inputs)
        (q, k, v, learned, o, lse, saved, o_tangent, lse_tangent, *rest), needs = ctx.saved_tensors, ctx.needs_input_grad
        inputs, arrays, tangents = rest[:n], rest[n : n + len(names)], rest[n + len(names) :]
        given = {name: x for name, x in (given | dict(zip(names, arrays))).items() if name not in ("exact_rows", "num_splits", "decode")}
        of_tangents, asked = [None] * (4 + n), (scalars, scale, given, needs[1:5], needs[5 : 5 + n])
        of_rows = o, lse, o_tangent, lse_tangent
        if along_o is None and along_lse is None:
            primals, along = _tangents.split((dout, dlse)) if _tangents.is_open(ctx.level) else ((dout, dlse), None)
            of_o, of_lse = primals
            made = _gradients(spec, of_o, of_lse, (q, k, v, o, lse, saved, learned, *inputs), *asked)
            if along is not None:  # backward within the level whose tangents these are
                of_made = _gradient_tangents(spec, torch.zeros_like(o) if dout is None else of_o, of_lse, (q, k, v, learned, *inputs), (*along, *tangents), *asked, of_rows)
                made = [d if d is None or tangent is None else _tangents.join(d, tangent) for d, tangent in zip(made, of_made)]
        elif _tangents.is_open(ctx.level):
            raise Unsupported(f"{spec.said}: there are no tangents of gradients through tangents: call backward outside of the dual level")
        else:  # the gradients of tangents, and their tangents, which those of q, k, v, .. are
            along_o = torch.zeros_like(o) if along_o is None else along_o
            pulled = needs[5 + n : 9 + n], needs[9 + n :]
            of_tangents = _gradients(spec, along_o, along_lse, (q, k, v, o, lse, saved, learned, *inputs), scalars, scale, given, *pulled)
            made = _gradient_tangents(spec, along_o, along_lse, (q, k, v, learned, *inputs), (dout, dlse, *tangents), *asked, of_rows)
        return (None, *made, *of_tangents)


class _Jvp(_JvpRules, torch.autograd.Function):
    pass


_JvpOfLevel = _tangents.of_level(_JvpRules)
_apply_jvp = super(torch.autograd.Function, _Jvp).apply  # as apply_plain below


def known_jvp(spec: Spec, known: _signature.Signature, named: dict[str, Any], scalars: Sequence[float]) -> Sequence[Tensor] | None:
    """o, lse, saved, and the tangents of o and lse, of a call with gradients whose signature is known; None: it has to go the general way."""
    scale, given = known.backward
    inputs = [named[name] for name in spec.input_names]
    tangents = *(named.get(f"tangent {name}") for name in "qkv"), None, *(named.get(f"tangent {name}") for name in spec.input_names)
    run = functools.partial(known.run, known.spec or spec, named, scalars)
    try:
        made: Sequence[Tensor] = _apply_jvp((spec, list(scalars), scale, given, None, run), named["q"], named["k"], named["v"], None, *inputs, *tangents)
    except _GoesTheGeneralWay:
        return None
    return made


def forward_anew(run, spec, q, k, v, inputs, values, scale, given, swapped, key, named, needs_grad, want_lse=True, out=None):  # type: ignore[no-untyped-def]
    """o, lse and saved of tensors that may be swapped, whose signature is not known. out: memory for o, which is then no result of the signature."""
    views = swap(swapped, q, k, v)
    if out is not None:
        run = functools.partial(run, out=swap(swapped, out)[0])
    made = run(spec, *views, inputs, values, scale, given, *(() if want_lse else (False,)))
    results = (*swap(swapped, made[0]), *made[1:])
    if key is not None:

        def fill(frame: Frame) -> None:
            tensors.fill_forward(frame, views, made, inputs, values, scale, given)

        _signature.remember(spec.signatures, key, spec, False, named, fill, results if out is None else (None, *results[1:]), given, needs_grad)
    return results


def _backward_plainly(
    spec: Spec, given_tensors: Sequence[Any], inputs: Sequence[Tensor], values: Sequence[float], scale: float, given: dict[str, Any], wants: int,
    want_inputs: Sequence[bool], swapped: bool,
) -> Sequence[Tensor | None] | None:  # fmt: skip
    """dq, dk, dv, those of scalars and those of the inputs, of q, k, v, o, lse, saved, dout and dlse. None: these are for the op."""
    q, k, v, o, lse, saved, dout, dlse = given_tensors
    named, numbers = named_of(spec, q, k, v, inputs, given, o=o, lse=lse, saved=saved, dout=dout, dlse=dlse)
    key, known = _signature.find(spec.signatures, named, (*numbers, "backward", scale, wants, *want_inputs, swapped))
    found: list[Tensor | None] | None = known and known.run(spec, named, values, given)
    if found is not None:
        return found
    if not is_plain((*given_tensors, *inputs)):
        return None
    dout, q, k, v, o = views = swap(swapped, dout, q, k, v, o)
    made = tensors.backward(spec, dout, dlse, q, k, v, o, lse, saved, inputs, values, scale, given, wants, want_inputs)
    results = *swap(swapped, *made[:3]), made[3], *made[4]
    if key is not None:

        def fill(frame: Frame) -> None:
            dout, *first = views
            tensors.fill_backward(frame, (*first, lse, saved, dout, dlse), made, inputs, values, scale, given)

        _signature.remember(spec.signatures, key, spec, True, named, fill, results, given)
    return results


# Function.apply before PyTorch 2.15 looks at each argument for transforms, of which a plain call has none.
apply_plain = super(torch.autograd.Function, _Attention).apply


def _wanted(spec: Spec, needs: Sequence[bool], need_inputs: Sequence[bool]) -> tuple[int, list[bool]]:
    """wants and want_inputs, of q, k, v and learned, and of the inputs."""
    return sum(bit * bool(need) for bit, need in zip((1, 2, 4, 16), needs)), [info.grad and need for info, need in zip(spec.inputs, need_inputs)]


def _as_asked(spec, made, inputs, needs, wants):  # type: ignore[no-untyped-def]
    """Of q, k, v, learned and the inputs; None where nobody asks."""
    dq, dk, dv, dscalars, dinputs = made
    dlearned = dscalars.to("cpu", torch.float64) if needs[3] else None
    first = [d if need else None for d, need in zip((dq, dk, dv), needs)]
    return [*first, dlearned, *(d.to(t.dtype) if want else None for d, t, want in zip(dinputs, inputs, wants))]


def _gradients(spec, dout, dlse, tensors, scalars, scale, given, needs, need_inputs):  # type: ignore[no-untyped-def]
    """Of q, k, v, learned and the inputs, by the op."""
    q, k, v, o, lse, saved, learned, *inputs = tensors
    wants, want_inputs = _wanted(spec, needs, need_inputs)
    if (dout is None and dlse is None) or not (wants or any(want_inputs)):
        return [None] * (4 + len(inputs))
    dout = torch.zeros_like(o) if dout is None else dout
    lse, saved = filled(q, (_given(lse), _given(saved)))
    made = backward_op(spec.line, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given, wants=wants, want_inputs=want_inputs)
    return _as_asked(spec, made, inputs, needs, want_inputs)


def _gradient_tangents(spec, dout, dlse, tensors, tangents, scalars, scale, given, needs, need_inputs, of_rows=()):  # type: ignore[no-untyped-def]
    """Of the gradients of q, k, v, learned and the inputs, along tangents of dout, dlse and of these."""
    of_rows = {"of_rows": of_rows} if of_rows and spec.has_lse and not _tangents.is_transformed() else {}
    q, k, v, learned, *inputs = tensors
    wants, want_inputs = _wanted(spec, needs, need_inputs)
    if not (wants or any(want_inputs)):
        return [None] * (4 + len(inputs))
    made = backward_jvp_op(spec.line, dout, dlse, q, k, v, tangents, inputs, scalars, learned, scale, **given, wants=wants, want_inputs=want_inputs, **of_rows)
    return _as_asked(spec, made, inputs, needs, want_inputs)


class _BackwardRules:
    """The backward pass where its own gradient might be asked for. Backward is a function of q, k, v, .., dout and dlse: what it reads of o, lse and saved is
    counted as theirs."""

    @staticmethod
    def forward(ctx, said, given, *args):  # type: ignore[no-untyped-def]
        text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs = args
        with _tangents.below():
            *first, dinputs = backward_op(
                text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given
            )
        spec, given = spec_in_graph(text), {name: x for name, x in given.items() if name not in ("wants", "want_inputs")}
        names = [name for name in given if name in _SAVED and given[name] is not None]
        ctx.call = spec, scalars, scale, {name: x for name, x in given.items() if name not in _SAVED}, names
        ctx.save_for_backward(dout, dlse, q, k, v, learned, *inputs, *(given[name] for name in names))
        ctx.set_materialize_grads(False)
        return (*first, *dinputs)

    @staticmethod
    def backward(ctx, along_q, along_k, along_v, along_scalars, *along_inputs):  # type: ignore[no-untyped-def]
        spec, scalars, scale, given, names = ctx.call
        n, needs = len(spec.inputs), ctx.needs_input_grad
        dout, dlse, q, k, v, learned, *rest = ctx.saved_tensors
        inputs, given = rest[:n], given | dict(zip(names, rest[n:]))
        along = [
            along_q, along_k, along_v, None if along_scalars is None else along_scalars.to("cpu", torch.float64),
            *(None if d is None else d.to(t.dtype) for d, t in zip(along_inputs, inputs)),
        ]  # fmt: skip
        if learned is None and along[3] is not None:
            learned, scalars = torch.tensor(scalars, dtype=torch.float64, device="cpu"), []
        of_primals = needs[5:8] + needs[12:13]
        of_rows: tuple[Any, ...] = ()
        o_tangent = lse_tangent = None
        if needs[3] or needs[4]:
            of_forward = {name: x for name, x in given.items() if name != "grad_f32"}
            o, lse, _, o_tangent, lse_tangent = forward_jvp_op(spec.line, q, k, v, along, inputs, scalars, learned, scale, **of_forward)
            of_rows = o, lse, o_tangent, lse_tangent
        made = _gradient_tangents(spec, dout, dlse, (q, k, v, learned, *inputs), (None, None, *along), scalars, scale, given, of_primals, needs[14:], of_rows)
        dq, dk, dv, dlearned, *dinputs = made
        return (None, None, None, o_tangent, lse_tangent if needs[4] else None, dq, dk, dv, None, None, None, None, dlearned, None, *dinputs)


class _Backward(_BackwardRules, torch.autograd.Function):
    pass


_BackwardOfLevel = _tangents.of_level(_BackwardRules)


def _forward_autograd(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    spec, differentiable = spec_in_graph(text), (q, k, v, learned, *inputs)
    if _tangents.have_tangents(differentiable):
        return _forward_dual(spec, differentiable, scalars, scale, given)
    if any_needs_grad(spec, q, k, v, learned, inputs) or _tangents.is_transformed():
        run = functools.partial(_forward_below, learned)
        call = run, 3, spec, scalars, scale, given, False, None, None, None
        return _tangents.apply(spec.said, _Attention, _AttentionOfLevel, call, q, k, v, learned, *inputs)
    with _below_autograd():
        return forward_op(text, q, k, v, inputs, scalars, learned, scale, **given)


def _forward_dual(spec: Spec, differentiable: Sequence[Tensor | None], scalars: Sequence[float], scale: float, given: dict[str, Any]) -> Sequence[Tensor]:
    """o and lse with tangents: one call computes both."""
    (q, k, v, learned, *inputs), tangents = _tangents.split(differentiable)
    o, lse, saved, o_tangent, lse_tangent = forward_jvp_op(spec.line, q, k, v, tangents, inputs, scalars, learned, scale, **given)
    return _tangents.join(o, o_tangent), _tangents.join(lse, lse_tangent) if spec.has_lse else lse, saved


def _forward_jvp_autograd(text, q, k, v, tangents, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    spec = spec_in_graph(text)
    _tangents.refuse(spec.said, (q, k, v, learned, *inputs, *tangents), "its tangents have none of their own; take one derivative forwards")
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tangents)
    for info, t in zip(spec.inputs, tangents[4:]):
        if needs_grad and t is not None and t.requires_grad and not info.grad:
            raise InvalidError(f"{spec.name}: the tangent of input '{info.name}' requires a gradient, and the spec has none of the input: write {info.name} = {{ .., grad = true }}, or detach it")
    if any_needs_grad(spec, q, k, v, learned, inputs) or needs_grad or _tangents.is_transformed():
        return _tangents.apply(spec.said, _Jvp, _JvpOfLevel, (spec, scalars, scale, given, _tangents.mark_level(), None), q, k, v, learned, *inputs, *tangents)
    with _below_autograd():
        return forward_jvp_op(text, q, k, v, tangents, inputs, scalars, learned, scale, **given)


def _forward_below(learned, spec, q, k, v, inputs, scalars, scale, given):  # type: ignore[no-untyped-def]
    with _tangents.below():
        return forward_op(spec.line, q, k, v, list(inputs), scalars, learned, scale, **given)


def any_needs_grad(spec: Spec, q: Tensor, k: Tensor, v: Tensor, learned: Tensor | None, inputs: Sequence[Tensor]) -> bool:
    if not torch.is_grad_enabled():
        return False
    for info, t in zip(spec.inputs, inputs):
        if t.requires_grad and not info.grad:
            raise InvalidError(
                f"{spec.name}: input '{info.name}' requires a gradient, which the spec does not declare: "
                f"write {info.name} = {{ .., grad = true }}, or pass {info.name}.detach()"
            )
    return (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (learned is not None and learned.requires_grad)
        or any(t.requires_grad for t in inputs)
    )


def _backward_autograd(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    tensors = (dout, dlse, q, k, v, o, lse, saved, learned, *inputs)
    said = spec_in_graph(text).said
    if _tangents.have_tangents(tensors):
        return _backward_dual(text, tensors, scalars, scale, given)
    if _tangents.is_transformed() or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)):
        args = (text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs)
        *first, dinputs = _split(_tangents.apply(said, _Backward, _BackwardOfLevel, said, given, *args))
        return (*first, dinputs)
    with _below_autograd():
        return backward_op(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given)


def _backward_dual(text, tensors, scalars, scale, given):  # type: ignore[no-untyped-def]
    """Gradients with tangents. Those of o, lse and saved are of q, k, v, .., as forward has given them."""
    (dout, dlse, q, k, v, o, lse, saved, learned, *inputs), along = _tangents.split(tensors)
    made = backward_op(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given)
    tangents = backward_jvp_op(text, dout, dlse, q, k, v, [*along[:5], *along[8:]], inputs, scalars, learned, scale, **given)

    def joined(d: Tensor, tangent: Tensor) -> Tensor:
        return d if d.numel() == 0 else _tangents.join(d, tangent)

    *first, dinputs = made
    *of_first, of_inputs = tangents
    return (*map(joined, first, of_first), [joined(d, t) for d, t in zip(dinputs, of_inputs)])


def _backward_jvp_autograd(text, dout, dlse, q, k, v, tangents, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    every = (dout, dlse, q, k, v, learned, *inputs, *tangents)
    said = spec_in_graph(text).said
    _tangents.refuse(said, every, "there are no third derivatives; take two")
    if _tangents.is_transformed() or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in every)):
        args = (text, dout, dlse, q, k, v, scalars, learned, scale, len(inputs), *inputs, *tangents)
        *first, dinputs = _split(_tangents.apply(said, _Second, _SecondOfLevel, said, given, *args))
        return (*first, dinputs)
    with _below_autograd():
        return backward_jvp_op(text, dout, dlse, q, k, v, tangents, inputs, scalars, learned, scale, **given)


class _SecondRules:
    """Tangents of gradients, where their own gradient might be asked for."""

    @staticmethod
    def forward(ctx, said, given, *args):  # type: ignore[no-untyped-def]
        ctx.said = said
        text, dout, dlse, q, k, v, scalars, learned, scale, n, *rest = args
        with _tangents.below():
            *first, dinputs = backward_jvp_op(text, dout, dlse, q, k, v, rest[n:], rest[:n], scalars, learned, scale, **given)
        return (*first, *dinputs)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        raise Unsupported(f"{ctx.said}: there are no third derivatives: leave out create_graph=True, or detach the gradient; in place of torch.autograd.functional.hvp, call vhp")


class _Second(_SecondRules, torch.autograd.Function):
    pass


_SecondOfLevel = _tangents.of_level(_SecondRules)


def _without_tangents(op, text, *args, **given):  # type: ignore[no-untyped-def]
    """Of ops that have no derivative, which would drop a tangent."""
    flat = [t for x in (*args, *given.values()) for t in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(t, Tensor)]
    _tangents.refuse(spec_in_graph(text).said, flat, "detach what has a tangent")
    with _below_autograd():
        return op(text, *args, **given)


def _split(flat: Sequence[Tensor]) -> tuple[Any, ...]:
    return (*flat[:4], list(flat[4:]))


_lib.impl("append", functools.partial(_without_tangents, torch.ops.luattn.append.default), "Autograd")
_lib.impl("weights", functools.partial(_without_tangents, weights_op), "Autograd")
_lib.impl("forward", _tangents.uncompiled(_forward_autograd), "Autograd")
_lib.impl("forward_jvp", _tangents.uncompiled(_forward_jvp_autograd), "Autograd")
_lib.impl("backward", _tangents.uncompiled(_backward_autograd), "Autograd")
_lib.impl("backward_jvp", _tangents.uncompiled(_backward_jvp_autograd), "Autograd")


def _autocast(key: str, device: str) -> None:
    def cast(op, text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
        to, spec, dim_v = torch.get_autocast_dtype(device), spec_in_graph(text), v.size(-1)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):
            q, k, v = (t.to(to) if t.dtype != torch.float64 else t for t in (q, k, v))
            if _fit.needs_padding(spec, q, v):
                scale = _fit.scale_of(scale, q)
                q, k, v = _fit.padded(spec, q, k, v)
            made = op(text, q, k, v, inputs, scalars, learned, scale, **given)
        return made if isinstance(made, Tensor) else (_fit.columns(made[0], dim_v), *made[1:])

    _lib.impl("forward", functools.partial(cast, forward_op), key)
    _lib.impl("weights", functools.partial(cast, weights_op), key)


_autocast("AutocastCPU", "cpu")
_autocast("AutocastCUDA", "cuda")


for _name, _rule in _vmap.RULES.items():
    _lib.impl(_name, _vmap.kernel(getattr(torch.ops.luattn, _name).default, _rule, spec_in_graph), "FuncTorchBatched")


def _register_flops() -> None:
    from . import _flops as _flops  # registers formulas of the ops that are defined here


when_imported("torch.utils.flop_counter", _register_flops)  # which imports triton
