"""The rule of torch.vmap: a mapped dimension becomes a part of the batch."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ._spec import Spec
from .errors import Unsupported

Dims = Sequence[Any]


def _refuse(spec: Spec, what: str) -> NoReturn:
    raise Unsupported(f"{spec.said}: torch.vmap: {what.removesuffix(';')}: put the mapped dimension into the batch yourself")


def _merged(t: Tensor | None, dim: int | None, n: int, at: int = 0) -> Tensor | None:
    """A tensor whose batch, dimension `at`, has n times as many entries: those of each index of the mapped dimension together."""
    if t is None or t.dim() <= at:
        return t
    t = t.unsqueeze(at).expand(*t.shape[:at], n, *t.shape[at:]) if dim is None else t.movedim(dim, at)
    return t.flatten(at, at + 1)


def _input(spec: Spec, i: int, t: Tensor | None, dim: int | None, n: int, batch: int, is_mapped: bool) -> Tensor | None:
    """batch: entries of each index of the mapped dimension. is_mapped: the input is, or its tangent, whose shapes are the same."""
    axes = spec.inputs[i].axes
    if t is None or ("b" not in axes and dim is None):
        return t
    if "b" not in axes:
        _refuse(spec, f"input '{spec.inputs[i].name}' is mapped, and has no axis b; give it one, or")
    at = axes.index("b")
    if dim is None and t.shape[at] == 1:
        if not is_mapped:
            return t
        t = t.expand(*t.shape[:at], batch, *t.shape[at + 1 :])
    if _broadcasts(axes, t, dim):  # within an index, of which each has its own
        assert dim is not None
        t, dim = t.movedim(dim, 0), 0
        t = t.expand(*t.shape[: at + 1], batch, *t.shape[at + 2 :])
    return _merged(t, dim, n, at)


def _broadcasts(axes: Sequence[str], t: Tensor | None, dim: int | None) -> bool:
    """Whether a mapped input has one entry for all of an index."""
    if t is None or dim is None or "b" not in axes:
        return False
    sizes = list(t.shape)
    del sizes[dim]
    return sizes[axes.index("b")] == 1


class _Call:
    """One call under vmap. Its tensors come in the order of the op's arguments."""

    def __init__(self, spec: Spec, info: Any, given: dict[str, Any], learned_dims: Sequence[Any]) -> None:
        self.spec, self.n = spec, info.batch_size
        if self.n == 0:
            _refuse(spec, "the mapped dimension has size 0; leave the call out, or")
        for name, x in given.items():
            if isinstance(x, Tensor) and (name not in ("seed", "offset") or torch._C._functorch.is_batchedtensor(x)):
                _refuse(spec, f"{name} is given, and such calls are not mapped yet;")
        if spec.reads_batch:
            _refuse(spec, "the spec computes with b, the batch entry's number, or reads another entry;")
        if spec.draws and info.randomness != "different":
            _refuse(spec, f"the spec draws random numbers, and randomness is '{info.randomness}'; give randomness='different', or")
        if any(dim is not None for dim in learned_dims):
            _refuse(spec, "a scalar is mapped;")

    def rows(self, tensors: Sequence[Tensor | None], dims: Dims) -> list[Tensor | None]:
        return [_merged(t, dim, self.n) for t, dim in zip(tensors, dims)]

    def saved(self, t: Tensor, dim: Any) -> Tensor:
        made = _merged(t, dim, self.n, 1)
        assert made is not None
        return made

    def inputs(self, tensors: Sequence[Tensor | None], dims: Dims, q: Tensor | None, others: Dims = ()) -> list[Tensor | None]:
        """q: with its batch of all indices. others: the mapped dimensions of their tangents, or of what these tangents are of."""
        assert q is not None
        return [
            _input(self.spec, i, t, dim, self.n, q.shape[0] // self.n, dim is not None or bool(others and others[i] is not None))
            for i, (t, dim) in enumerate(zip(tensors, dims))
        ]

    def apart(self, t: Tensor, at: int = 0) -> tuple[Tensor, int | None]:
        """A result, and its mapped dimension. An empty one stands for None."""
        return (t, None) if t.dim() <= 1 else (t.view(*t.shape[:at], self.n, t.shape[at] // self.n, *t.shape[at + 1 :]), at)


def _results(call: _Call, made: Sequence[Tensor], saved: int) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    pairs = [call.apart(t, int(i == saved)) for i, t in enumerate(made)]
    return tuple(t for t, _ in pairs), tuple(dim for _, dim in pairs)


def _forward(op: Any, spec: Spec, info: Any, dims: Dims, text: str, q: Tensor, k: Tensor, v: Tensor, inputs: Any, scalars: Any, learned: Any, scale: Any, **given: Any) -> Any:
    call = _Call(spec, info, given, dims[6:7])
    rows = call.rows((q, k, v), dims[1:4])
    made = op(text, *rows, call.inputs(inputs, dims[4], rows[0]), scalars, learned, scale, **given)
    return call.apart(made) if isinstance(made, Tensor) else _results(call, made, 2)  # of weights, or o, lse and saved


def _along(call: _Call, tangents: Any, dims: Any, rows: int, q: Tensor | None, of_inputs: Dims) -> list[Any]:
    if dims[rows] is not None:
        _refuse(call.spec, "the tangent of a scalar is mapped;")
    return [*call.rows(tangents[:rows], dims[:rows]), tangents[rows], *call.inputs(tangents[rows + 1 :], dims[rows + 1 :], q, of_inputs)]


def _forward_jvp(op: Any, spec: Spec, info: Any, dims: Dims, text: str, q: Tensor, k: Tensor, v: Tensor, tangents: Any, inputs: Any, scalars: Any, learned: Any, scale: Any, **given: Any) -> Any:
    call = _Call(spec, info, given, dims[7:8])
    rows = call.rows((q, k, v), dims[1:4])
    made = op(text, *rows, _along(call, tangents, dims[4], 3, rows[0], dims[5]), call.inputs(inputs, dims[5], rows[0], dims[4][4:]), scalars, learned, scale, **given)
    return _results(call, made, 2)


def _check_wants(call: _Call, inputs: Any, dims: Dims, wants: int, want_inputs: Any) -> None:
    """Gradients of what all entries share are sums over them, and here would be one for each index of the mapped dimension."""
    if call.spec.scalars and wants >> 4 & 1:
        _refuse(call.spec, "a scalar has a gradient;")
    for i, wanted in enumerate(want_inputs or [bool(wants >> 3 & 1)] * len(inputs)):
        axes = call.spec.inputs[i].axes
        if wanted and ("b" not in axes or (dims[i] is None and inputs[i].shape[axes.index("b")] == 1)):
            _refuse(call.spec, f"input '{call.spec.inputs[i].name}' has a gradient, and is the same for all entries;")


def _gradients(call: _Call, made: Any, inputs: Any, dims: Dims) -> Any:
    *first, found = made
    pairs, of_inputs = [call.apart(t) for t in first], []
    for info, t, x, of_x in zip(call.spec.inputs, found, inputs, dims):
        d, dim = call.apart(t, info.axes.index("b")) if "b" in info.axes else (t, None)
        of_inputs.append((d.sum(dim + 1, keepdim=True) if dim is not None and _broadcasts(info.axes, x, of_x) else d, dim))
    return (*(t for t, _ in pairs), [t for t, _ in of_inputs]), (*(d for _, d in pairs), [d for _, d in of_inputs])


def _backward(op: Any, spec: Spec, info: Any, dims: Dims, text: str, dout: Any, dlse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, saved: Any, inputs: Any, scalars: Any, learned: Any, scale: Any, *, wants: int = 31, want_inputs: Any = (), **given: Any) -> Any:
    call = _Call(spec, info, given, dims[11:12])
    _check_wants(call, inputs, dims[9], wants, want_inputs)
    rows = call.rows((dout, dlse, q, k, v, o, lse), dims[1:8])
    merged = call.inputs(inputs, dims[9], rows[2])
    made = op(text, *rows, call.saved(saved, dims[8]), merged, scalars, learned, scale, wants=wants, want_inputs=want_inputs, **given)
    return _gradients(call, made, inputs, dims[9])


def _backward_jvp(op: Any, spec: Spec, info: Any, dims: Dims, text: str, dout: Any, dlse: Any, q: Any, k: Any, v: Any, tangents: Any, inputs: Any, scalars: Any, learned: Any, scale: Any, *, wants: int = 31, want_inputs: Any = (), **given: Any) -> Any:
    call = _Call(spec, info, given, dims[9:10])
    rows = call.rows((dout, dlse, q, k, v), dims[1:6])
    along = _along(call, tangents, dims[6], 5, rows[2], dims[7])
    _check_wants(call, inputs, dims[7], wants, want_inputs)
    made = op(text, *rows, along, call.inputs(inputs, dims[7], rows[2], dims[6][6:]), scalars, learned, scale, wants=wants, want_inputs=want_inputs, **given)
    return _gradients(call, made, inputs, dims[7])


RULES: dict[str, Callable[..., Any]] = {"forward": _forward, "weights": _forward, "forward_jvp": _forward_jvp, "backward": _backward, "backward_jvp": _backward_jvp}


def kernel(op: Any, rule: Callable[..., Any], spec_of: Callable[[str], Spec]) -> Callable[..., Any]:
    """Of the key FuncTorchBatched. Torch keeps the helper to itself."""

    def run(text: str, *args: Any, **given: Any) -> Any:
        spec = spec_of(text)
        try:
            from torch._functorch.autograd_function import custom_function_call_vmap_helper as helper
            from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter as interpreter
        except ImportError:
            _refuse(spec, f"torch {torch.__version__} has no torch._functorch.autograd_function.custom_function_call_vmap_helper;")

        def mapped(info: Any, dims: Any, text: str, *args: Any, **given: Any) -> Any:
            return rule(op, spec, info, dims, text, *args, **given)

        at: Any = interpreter()
        return helper(at, mapped, op, text, *args, **given)

    return run
