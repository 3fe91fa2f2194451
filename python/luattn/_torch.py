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
from torch.autograd import forward_ad

from . import _capi as capi
from . import _tensors as tensors
from . import _allocate, _fit, _out, _scale, _signature
from ._arguments import take
from ._call import ARRAYS, CHOICES, RESULTS, Frame, numbers_of
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
# whole: _call.WHOLE, or nothing. q_offset, kv_offset: int32 [batch], in the place of whole's first two.
_SPEC = (
    "str spec, {}Tensor q, Tensor k, Tensor v, {}Tensor[] inputs, float[] scalars, Tensor? learned, float scale, *, "
    "SymInt[] whole=[], Tensor? q_offset=None, Tensor? kv_offset=None, " + _BATCH + ", {}bool deterministic=False"
)
_lib = torch.library.Library("luattn", "DEF")
# keys_modified, of CHOICES: k and v have been through the spec's key_mod and value_mod; forward alone.
_OF_CHOICES = "".join(f"bool {name}=False, " for name in CHOICES)
_OF_FORWARD = f"bool exact_rows=False, int num_splits=0, {_OF_CHOICES}bool out_f32=False, int decode=0, "
_OF_RESULTS = "".join(f"bool {name}=False, " for name in RESULTS)
_lib.define(f"forward({_SPEC.format('', '', _OF_FORWARD)}) -> (Tensor o, Tensor lse, Tensor saved)")
_lib.define(
    f"backward({_SPEC.format('Tensor dout, Tensor? dlse, ', 'Tensor o, Tensor lse, Tensor saved, ', _OF_RESULTS)}, "
    "int wants=31, bool[] want_inputs=[]) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscalars, Tensor[] dinputs)"
)
# Writes rows to caches, as in graphs of torch.compile; eager calls go past it.
_lib.define(
    "append(str spec, Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor[] inputs, Tensor new_k, Tensor new_v, *, Tensor seqused_k, "
    "Tensor? block_table=None, Tensor? cu_seqlens_q=None, bool keys_modified=False) -> ()"
)
_lib.define(f"weights({_SPEC.format('', '', _OF_CHOICES)}) -> Tensor")
_forward = torch.ops.luattn.forward.default
_backward = torch.ops.luattn.backward.default
_weights = torch.ops.luattn.weights.default
_below_autograd = torch._C._AutoDispatchBelowAutograd


# --- the ops on the CPU and on a GPU. An op returns tensors alone: an empty one stands for None ---


def _filled(q: Tensor, results: Sequence[Tensor | None]) -> list[Tensor]:
    return [q.new_empty((0,), dtype=torch.float32) if t is None else t for t in results]


def _given(t: Tensor | None) -> Tensor | None:
    return None if t is None or t.dim() == 1 else t


def _numbers(scalars: Sequence[Any], learned: Tensor | None) -> Sequence[float]:
    values: Sequence[float] = scalars if learned is None else learned.tolist()
    return values


def _forward_kernel(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    made = tensors.forward(spec_in_graph(text), q, k, v, inputs, _numbers(scalars, learned), scale, given)
    return tuple(_filled(q, made))


def _backward_kernel(text, dout, dlse, q, k, v, o, lse, saved, inputs, *rest, wants=31, want_inputs=(), **given):  # type: ignore[no-untyped-def]
    scalars, learned, scale = rest
    want_inputs = want_inputs or [False] * len(inputs)
    *made, dinputs = tensors.backward(
        spec_in_graph(text), dout, dlse, q, k, v, o, _given(lse), _given(saved), inputs, _numbers(scalars, learned),
        scale, given, wants, want_inputs,
    )  # fmt: skip
    return (*_filled(q, made), _filled(q, dinputs))


def _weights_kernel(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    return tensors.weights(spec_in_graph(text), q, k, v, inputs, _numbers(scalars, learned), scale, given)


def _append_kernel(text, q, k, v, inputs, new_k, new_v, **given):  # type: ignore[no-untyped-def]
    spec = spec_in_graph(text)
    if not tensors.append(spec, q, k, v, inputs, given, new_k, new_v):
        raise InvalidError(f"{spec.name}: append: {tensors.NOT_ALIGNED}")


for _device in ("CPU", "CUDA"):
    _lib.impl("append", _append_kernel, _device)
    _lib.impl("forward", _forward_kernel, _device)
    _lib.impl("weights", _weights_kernel, _device)
    _lib.impl("backward", _backward_kernel, _device)


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
    return tuple(_filled(q, _allocate.fake_results(spec_in_graph(text), q, v, out_f32=given.get("out_f32", False))))


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
    return (*_filled(q, made), _filled(q, dinputs))


# --- autograd ---


_SAVED = frozenset((*ARRAYS, "seed"))


def _swap(swapped: bool, *given: Any) -> Sequence[Any]:
    """Heads before lengths, or the other way round."""
    return [t if t is None else t.transpose(1, 2) for t in given] if swapped else given


class _Attention(torch.autograd.Function):
    """run(..), which computes o, lse and saved, with gradients. count: of these, how many are returned; 3: run is the op. swapped: q, k, v and o
    have lengths before heads. key to known: of _signature.py, with the call's tensors by name.
    One tuple has all that is no tensor: each argument takes its time in both passes."""

    @staticmethod
    def forward(ctx, call, q, k, v, learned, *inputs):  # type: ignore[no-untyped-def]
        run, count, spec, scalars, scale, given, swapped, key, named, known = call
        values = scalars if count == 3 else _numbers(scalars, learned)  # the op reads them itself
        results = known and known.run(spec, named, values, given)
        if results is None:
            results = _forward_anew(run, spec, q, k, v, inputs, values, scale, given, swapped, key, named, True)
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
        if given.get("keys_modified"):
            raise Unsupported(
                f"{spec.name}: keys_modified: is True, and there is no backward over keys that key_mod has changed already: leave it out, "
                "and pass k and v as they were before"
            )
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
            made = _backward_plainly(spec, tensors_of_rows, inputs, _numbers(scalars, learned), scale, given, wants, grads, swapped)
        if made is None:
            lse, saved = _filled(q, (lse, saved))
            dout, q, k, v, o = _swap(swapped, dout, q, k, v, o)
            *made, dinputs = _backward(
                spec.line, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale,
                **{name: x for name, x in given.items() if name not in ("exact_rows", "num_splits", "decode")}, wants=wants, want_inputs=grads,
            )  # fmt: skip
            made = *_swap(swapped, *(d if need else None for d, need in zip(made[:3], needs[1:]))), made[3], *dinputs
        dq, dk, dv, dscalars, *dinputs = made
        first = (
            None, dq if needs[1] else None, dk if needs[2] else None, dv if needs[3] else None,
            dscalars.to("cpu", torch.float64) if needs[4] else None,
        )  # fmt: skip
        if not inputs:
            return first
        return (*first, *(d.to(t.dtype) if want else None for d, want, t in zip(dinputs, grads, inputs)))


def _forward_anew(run, spec, q, k, v, inputs, values, scale, given, swapped, key, named, needs_grad, want_lse=True, out=None):  # type: ignore[no-untyped-def]
    """o, lse and saved of tensors that may be swapped, whose signature is not known. out: memory for o, which is then no result of the signature."""
    views = _swap(swapped, q, k, v)
    if out is not None:
        run = functools.partial(run, out=_swap(swapped, out)[0])
    made = run(spec, *views, inputs, values, scale, given, *(() if want_lse else (False,)))
    results = (*_swap(swapped, made[0]), *made[1:])
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
    if key is None and not is_plain((*given_tensors, *inputs)):
        return None
    dout, q, k, v, o = views = _swap(swapped, dout, q, k, v, o)
    made = tensors.backward(spec, dout, dlse, q, k, v, o, lse, saved, inputs, values, scale, given, wants, want_inputs)
    results = *_swap(swapped, *made[:3]), made[3], *made[4]
    if key is not None:

        def fill(frame: Frame) -> None:
            dout, *first = views
            tensors.fill_backward(frame, (*first, lse, saved, dout, dlse), made, inputs, values, scale, given)

        _signature.remember(spec.signatures, key, spec, True, named, fill, results, given)
    return results


# Function.apply before PyTorch 2.15 looks at each argument for transforms, of which a plain call has none.
_apply_plain = super(torch.autograd.Function, _Attention).apply


class _Backward(torch.autograd.Function):
    """The backward pass where its own gradient might be asked for."""

    @staticmethod
    def forward(ctx, said, given, *args):  # type: ignore[no-untyped-def]
        ctx.said = said
        text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs = args
        with _below_autograd():
            *first, dinputs = _backward(
                text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given
            )
        return (*first, *dinputs)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        raise Unsupported(
            f"{ctx.said}: there are no second derivatives yet: leave out create_graph=True, or detach the gradient"
        )


def _refuse_transforms(text: str, tensors: Sequence[Tensor | None]) -> None:
    """Forward mode would drop tangents without a word, and torch.func needs rules of its own."""
    if torch._C._functorch.maybe_current_level() is not None:
        raise Unsupported(
            f"{spec_in_graph(text).said}: transforms of torch.func (grad, vjp, ..) do not exist for it yet: use torch.autograd"
        )
    if forward_ad._current_level >= 0:
        for t in tensors:
            if t is not None and forward_ad.unpack_dual(t).tangent is not None:
                raise Unsupported(
                    f"{spec_in_graph(text).said}: forward-mode derivatives (torch.func.jvp, torch.autograd.forward_ad) do not "
                    "exist yet: use backward"
                )


def _forward_autograd(text, q, k, v, inputs, scalars, learned, scale, **given):  # type: ignore[no-untyped-def]
    _refuse_transforms(text, (q, k, v, learned, *inputs))
    spec = spec_in_graph(text)
    if _needs_grad(spec, q, k, v, learned, inputs):
        run = functools.partial(_forward_below, learned)
        return _Attention.apply((run, 3, spec, scalars, scale, given, False, None, None, None), q, k, v, learned, *inputs)
    with _below_autograd():
        return _forward(text, q, k, v, inputs, scalars, learned, scale, **given)


def _forward_below(learned, spec, q, k, v, inputs, scalars, scale, given):  # type: ignore[no-untyped-def]
    with _below_autograd():
        return _forward(spec.line, q, k, v, list(inputs), scalars, learned, scale, **given)


def _needs_grad(spec: Spec, q: Tensor, k: Tensor, v: Tensor, learned: Tensor | None, inputs: Sequence[Tensor]) -> bool:
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
    _refuse_transforms(text, tensors)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        args = (text, dout, dlse, q, k, v, o, lse, saved, scalars, learned, scale, *inputs)
        *first, dinputs = _split(_Backward.apply(spec_in_graph(text).said, given, *args))
        return (*first, dinputs)
    with _below_autograd():
        return _backward(text, dout, dlse, q, k, v, o, lse, saved, inputs, scalars, learned, scale, **given)


def _split(flat: Sequence[Tensor]) -> tuple[Any, ...]:
    return (*flat[:4], list(flat[4:]))


_lib.impl("append", torch.library.fallthrough_kernel, "Autograd")
_lib.impl("forward", _forward_autograd, "Autograd")
_lib.impl("backward", _backward_autograd, "Autograd")


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

    _lib.impl("forward", functools.partial(cast, _forward), key)
    _lib.impl("weights", functools.partial(cast, _weights), key)


_autocast("AutocastCPU", "cpu")
_autocast("AutocastCUDA", "cuda")


def _refuse_vmap(text, *args, **given):  # type: ignore[no-untyped-def]
    raise Unsupported(
        f"{spec_in_graph(text).said}: torch.vmap does not exist for it yet: put the mapped dimension into the batch"
    )


_lib.impl("forward", _refuse_vmap, "FuncTorchBatched")
_lib.impl("backward", _refuse_vmap, "FuncTorchBatched")
_lib.impl("weights", _refuse_vmap, "FuncTorchBatched")


# --- what Attention calls ---


_NOTHING: dict[str, Any] = {}


def _tensors_in(given: dict[str, Any]) -> Sequence[Tensor]:
    return [x for x in given.values() if isinstance(x, Tensor)] if given else ()


_FLOATS = frozenset((float,))


def attend(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any] = _NOTHING,
    return_lse: bool = True,
    swapped: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The result and lse (None unless return_lse) of torch tensors, with gradients. scale: None: head_dim ** -0.5. given: keyword
    arguments of the op. swapped: q, k, v and the result have lengths before heads. out: where the result goes, without gradients."""
    key: Any = None
    named: Any = None
    known: Any = None
    if not torch.compiler.is_compiling() and (scale is None or _scale.is_plain(scale)) and _FLOATS.issuperset(map(type, scalars)):
        named, numbers = named_of(spec, q, k, v, inputs, given)
        if out is not None:
            named["o"] = out
        key, known = _signature.find(spec.signatures, named, (*numbers, scale, return_lse, swapped))
    if known is not None:
        if known.needs_grad:
            made = _apply_plain((tensors.forward, 1 + return_lse, spec, scalars, scale or 0.0, given, swapped, key, named, known), q, k, v, None, *inputs)
            return made if return_lse else (made, None)
        made = known.run(spec, named, scalars, given)
        if made is not None:
            return made[0] if out is None else out, made[1]
    if out is not None:
        return _attend_into(out, spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, key, named)
    return _attend_anew(spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, key, named)


def _attend_into(
    out: Tensor,
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any],
    return_lse: bool,
    swapped: bool,
    key: Any,
    named: Any,
) -> tuple[Tensor, Tensor | None]:
    """attend, into a tensor that is there: by the kernel itself, or by a copy where that makes o otherwise, or something stands between the call
    and the kernel."""
    take(spec.name, "out", "torch", out)
    if torch.is_grad_enabled():
        learned = [x for x in (*scalars, scale) if isinstance(x, Tensor)]
        if out.requires_grad or any(t.requires_grad for t in (q, k, v, *inputs, *learned)):
            raise InvalidError(f"{spec.name}: out: is given, and a gradient is asked for, which goes on to no tensor that is there: leave it out, or call under torch.no_grad()")
    compiling = torch.compiler.is_compiling()
    if not compiling:
        with_scale(spec, q, inputs, scalars, scale)  # refuses what is no scale before anything is written
    copies = compiling or _fit.needs_padding(spec, q, v) or given.get("seqused_q") is not None
    if copies or not is_plain((out, q, k, v, *inputs, *_tensors_in(given))):
        if not compiling:
            _out.check_apart(spec.name, out, {"q": q, "k": k, "v": v, **{f"input '{info.name}'": t for info, t in zip(spec.inputs, inputs)}})
        o, lse = attend(spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped)
        _out.check(spec.name, out, o, o, o.dtype)
        return out.copy_(o), lse
    _out.check(spec.name, out, q, v, _allocate.type_of(q, given.get("out_f32", False)))
    try:
        _, lse = _attend_anew(spec, q, k, v, inputs, scalars, scale, given, return_lse, swapped, key, named, out)
    except InvalidError as e:
        raise InvalidError(_out.renamed(str(e))) from None
    return out, lse


def _attend_anew(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any],
    return_lse: bool,
    swapped: bool,
    key: Any,
    named: Any,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """attend, of a call whose signature is not known. out: of a plain call without gradients."""
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale)
    if _fit.needs_padding(spec, q, v):
        wide = _fit.padded(spec, q, k, v)
        o, lse = attend(spec, wide[0], wide[1], wide[2], inputs, scalars, _fit.scale_of(scale, q), given, return_lse, swapped)
        return _fit.columns(o, v.size(-1)), lse
    if inputs:
        inputs = _fit.with_rows(spec, q, k, inputs)
    compiling = torch.compiler.is_compiling()
    learned = None
    # Under torch.compile a float in a list would be a constant of the graph, and each value another graph.
    if scalars and (compiling or any(isinstance(x, Tensor) for x in scalars)):
        learned = _stack(spec, scalars)
        scalars = []
    if compiling or not is_plain((q, k, v, learned, *inputs, *_tensors_in(given))):
        o, lse, _ = _forward(spec.line, *_swap(swapped, q, k, v), list(inputs), list(scalars), learned, scale, **given)
        return o.transpose(1, 2) if swapped else o, lse
    if _needs_grad(spec, q, k, v, learned, inputs):
        made = _apply_plain((tensors.forward, 1 + return_lse, spec, scalars, scale, given, swapped, key, named, None), q, k, v, learned, *inputs)
        return made if return_lse else (made, None)
    values = _numbers(scalars, learned)
    made = _forward_anew(tensors.forward, spec, q, k, v, inputs, values, scale, given, swapped, key, named, False, return_lse, out)
    return made[0], made[1]


def attend_state(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float | Tensor],
    scale: float | Tensor | None,
    given: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """o, lse and state of a spec of parts, without gradients."""
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale)
    if _fit.needs_padding(spec, q, v):
        wide = _fit.padded(spec, q, k, v)
        o, lse, state = attend_state(spec, wide[0], wide[1], wide[2], inputs, scalars, _fit.scale_of(scale, q), given)
        return _fit.columns(o, v.size(-1)), lse, state
    inputs = _fit.with_rows(spec, q, k, inputs)
    learned = _stack(spec, scalars) if any(isinstance(x, Tensor) for x in scalars) else None
    if _needs_grad(spec, q, k, v, learned, inputs):
        raise Unsupported(
            f"{spec.name}: return_state: is True, and there are no gradients through a state: call it under torch.no_grad(), and "
            "gradients() for each part after the merge"
        )
    if not torch.compiler.is_compiling() and is_plain((q, k, v, learned, *inputs, *_tensors_in(given))):
        o, lse, state = _filled(q, tensors.forward(spec, q, k, v, inputs, _numbers(scalars, learned), scale, given))
    else:
        values = [] if learned is not None else list(scalars)
        o, lse, state = _forward(spec.line, q, k, v, list(inputs), values, learned, scale, **given)
    return o, lse, lse.new_empty((0, *lse.shape)) if state.dim() == 1 else state


def gradients_of(
    spec: Spec,
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    saved: Tensor,
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    scale: float | Tensor | None,
    given: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Of all that has one, by backward from o, lse and saved of whole rows; of a scale that is a tensor too."""
    is_learned = isinstance(scale, Tensor)
    spec, inputs, scalars, scale = with_scale(spec, q, inputs, scalars, scale, is_learned)
    scalars, dim, dim_v = [float(x) for x in scalars], q.size(-1), v.size(-1)
    if _fit.needs_padding(spec, q, v):
        scale = _fit.scale_of(scale, q)
        q, k, v, o, dout = _fit.padded(spec, q, k, v, o, dout)
    if o.dtype is torch.float32:
        dout, given = dout.to(q.dtype), {**given, "out_f32": True}
    wants = [info.grad for info in spec.inputs]
    with torch.no_grad():
        dq, dk, dv, dscalars, dinputs = _backward(
            spec.line, dout, dlse if spec.has_lse else None, q, k, v, o, *_filled(q, (lse if spec.has_lse else None, saved if spec.num_saved else None)),
            list(inputs), scalars, None, scale, **given, wants=spec.wants, want_inputs=wants,
        )  # fmt: skip
    named = {info.name: d for info, d in zip(spec.inputs, dinputs) if info.grad}
    named |= {name: dscalars[i] for i, name in enumerate(spec.scalars)}
    of_scale = named.pop(_scale.NAME, None)
    dq, dk, dv = _fit.columns(dq, dim), _fit.columns(dk, dim), _fit.columns(dv, dim_v)
    return dq, dk, dv, named | ({"scale": of_scale} if is_learned and of_scale is not None else {})


def weights(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], scalars: Sequence[float | Tensor], scale: float, given: dict[str, Any]
) -> Tensor:  # fmt: skip
    """Those of v, negative where dropout drops them (_tensors.weights), for tests and pictures; without gradients. spec, inputs, scalars and scale
    are those of with_scale."""
    if _fit.needs_padding(spec, q, v):
        scale = _fit.scale_of(scale, q)
        q, k, v = _fit.padded(spec, q, k, v)
    inputs = _fit.with_rows(spec, q, k, inputs) if inputs else inputs
    learned = _stack(spec, scalars) if any(isinstance(x, Tensor) for x in scalars) else None
    numbers = [] if learned is not None else [float(x) for x in scalars]
    with torch.no_grad():
        made: Tensor = _weights(spec.line, q, k, v, list(inputs), numbers, learned, scale, **given)
    return made


def _find_scaled(text: str, place: str, kind: str) -> Spec:
    return _scale.scaled(text, place, kind)


# What torch.compiler.assume_constant_result does, after seconds of imports.
_find_scaled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def with_scale(
    spec: Spec, q: Tensor, inputs: Sequence[Any], scalars: Sequence[Any], scale: Any, is_learned: bool = False
) -> tuple[Spec, Sequence[Any], Sequence[Any], float]:
    """The spec, inputs, scalars and scale of an op, where 0.0 is the default. is_learned: whether a tensor has a gradient whatever it says."""
    if scale is None:
        return spec, inputs, scalars, 0.0
    if _scale.is_plain(scale):
        return spec, inputs, scalars, scale
    kind = "scalars"
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise InvalidError(
                f"{spec.name}: scale: has shape {tuple(scale.shape)}, expected one element, or a number: for one of each head declare an input, "
                'inputs = { temperature = { axes = {"h"}, grad = true } }, and multiply by it in score_mod'
            )
        scale = scale.reshape(()).to(torch.float64 if q.dtype is torch.float64 else torch.float32)
        if not (is_learned or scale.is_cuda or scale.requires_grad or torch.compiler.is_compiling()):
            return _scale.with_scale(spec, inputs, scalars, float(scale))
        if scale.is_cuda:
            kind = "inputs"
    else:
        scale = _scale.check_scale(spec.name, scale)
        if scale > 0:
            return spec, inputs, scalars, scale
    return _scale.multiplied(_find_scaled(spec.text, spec.place, kind), kind, inputs, scalars, scale)


def seed_of(seed: Any, q: Tensor) -> Tensor:
    """The ops' seed: of a number, of two, or as it is; None: the next of the generator of q's device, whose replays in CUDA graphs
    draw others."""
    if isinstance(seed, Tensor):
        return seed
    if seed is None:
        return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    return torch.tensor([(x + 2**63) % 2**64 - 2**63 for x in numbers_of(seed)], dtype=torch.int64, device="cpu")


def _stack(spec: Spec, scalars: Sequence[float | Tensor]) -> Tensor:
    numbers = []
    for name, x in zip(spec.scalars, scalars):
        if not isinstance(x, Tensor):
            x = torch.tensor(x, dtype=torch.float64, device="cpu")
        elif x.is_cuda:
            raise InvalidError(
                f"{spec.name}: scalar '{name}' is a tensor on {x.device}, for which every call would wait: "
                f"declare it as an input, inputs = {{ {name} = {{ axes = {{}}, grad = true }} }}, or pass float({name})"
            )
        elif x.numel() != 1:
            raise InvalidError(f"{spec.name}: scalar '{name}' has {x.numel()} elements, expected 1")
        numbers.append(x.to(torch.float64).reshape(()))
    return torch.stack(numbers)


def _register_flops() -> None:
    from . import _flops as _flops  # registers formulas of the ops that are defined here


when_imported("torch.utils.flop_counter", _register_flops)  # which imports triton
