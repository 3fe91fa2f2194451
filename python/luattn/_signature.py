"""Calls of one signature: the same spec, pass and options, and tensors that differ in nothing but where they lie. What a call takes before its launch,
checks, shapes, sizes and a filled frame, is found by the first of them, and each one after it sets addresses, and makes one call of the library.

A frame that is kept so has shapes and strides of its own and holds no tensor; all of its addresses are set anew before each launch. One call has it at a
time. Where anything is refused, the call goes the general way, which says why."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _capi as capi
from . import _allocate
from . import _tensors as tensors
from ._call import Frame
from ._jvp_frame import JvpFrame
from ._spec import Spec

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
_num_dispatch_modes, _num_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_has_autocast, _trace = torch._C._is_any_autocast_enabled, torch._C._get_tracing_state
_transform = torch._C._functorch.maybe_current_level
_is_grad_enabled, _is_deterministic = torch.is_grad_enabled, torch.are_deterministic_algorithms_enabled

FORWARD = "o", "lse", "saved"
JVP = *FORWARD, "tangent o", "tangent lse"
BACKWARD = "dq", "dk", "dv", "scalar_grads"  # then the gradient of each input
_MOST = 256  # signatures of a spec
_NOTHING: dict[str, Any] = {}


def has_modes() -> bool:
    """Whether a mode, a transform or a trace stands between a call and the kernel, besides autograd."""
    if _num_dispatch_modes() or _num_function_modes() or _has_autocast() or forward_ad._current_level >= 0:
        return True
    return _transform() is not None or _trace() is not None


def is_plain(given: Sequence[Tensor | None]) -> bool:
    """Whether only autograd stands between a call and the kernel: no mode, transform, subclass or lazy negation. The
    dispatcher takes 3 us for each key that it asks."""
    if has_modes():
        return False
    first: Any = given[0]
    if not _PLAIN.issuperset(map(type, given)) or not (first.is_cuda or first.is_cpu):
        return False
    for t in given:  # the library refuses one that is not where the first is
        if t is not None and t.is_neg():
            return False
    return True


def named_of(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], given: Mapping[str, Any], **others: Tensor | None
) -> tuple[dict[str, Tensor | None], tuple[Any, ...]]:
    """The tensors of a call by their names in a frame, and all else that is given, but a luattn.Batch, which changes from step to step."""
    named: dict[str, Tensor | None] = {"q": q, "k": k, "v": v, **others}
    if inputs:
        named.update(zip(spec.input_names, inputs))
    numbers: list[Any] = []
    for name, x in given.items():
        if name == "batch":
            numbers.append(name)
        elif isinstance(x, Tensor):
            named[name] = x
        else:
            numbers += name, tuple(x) if type(x) is list else x
    return named, tuple(numbers)


def find(table: dict[Any, Any], named: Mapping[str, Any], numbers: tuple[Any, ...]) -> tuple[Any, Any]:
    """The key of a call's signature, and what the table has of it. The key has of tensors all but their addresses; None: the call has no signature.
    numbers: what else decides, as take() of _arguments.py returns it, so that 1, 1.0 and True are three."""
    if has_modes() or not _PLAIN.issuperset(map(type, named.values())):
        return None, None
    try:
        key = (
            *named, numbers, _is_grad_enabled(), _is_deterministic(), tensors.gpu_of(named["q"]),
            *[t if t is None else (t.shape, t.stride(), t.dtype, t.device, t.is_neg(), t.requires_grad) for t in named.values()],
        )  # fmt: skip
        return key, table.get(key)
    except (RuntimeError, TypeError):  # sparse, and what is no number
        return None, None


class Signature:
    """What calls of a signature share. spec: of a table that is not the spec's own."""

    __slots__ = ("frames", "words", "results", "gpu", "engine", "size", "opens_batch", "needs_grad", "is_stale", "spec", "backward")
    frames: list[Frame]
    words: list[tuple[int, int]]  # of each tensor, by its number among the call's: the place of its address in a frame
    results: list[Any]  # of each one that the call makes: that place, and its layout
    gpu: int
    engine: int
    size: int  # of the workspace
    opens_batch: bool
    needs_grad: bool
    is_stale: bool  # the library has refused a call
    spec: Spec | None
    backward: tuple[float, dict[str, Any]]  # of forward with tangents: the scale, and what is given besides tensors of the spec

    def run(
        self, spec: Spec, named: Mapping[str, Any], scalars: Sequence[float] = (), given: Mapping[str, Any] = _NOTHING
    ) -> list[Tensor | None] | None:
        """The results of such a call, in new memory. None: it has to go the general way."""
        try:
            frame = self.frames.pop()
        except IndexError:  # other threads have them
            return None
        frame.spec = spec
        try:
            return self._launch(frame, [*named.values()], scalars, given)
        except RuntimeError:  # of an allocation, or of a luattn.Batch
            return None
        finally:
            if self.opens_batch or given:
                frame.close_batch()
            del frame.spec  # which may have this signature
            self.frames.append(frame)

    def _launch(self, frame: Frame, values: list[Tensor], scalars: Sequence[float], given: Mapping[str, Any]) -> list[Tensor | None] | None:
        data, new, made = frame.data, tensors.new_where(values[0]), list[Tensor | None]()
        for i, at in self.words:
            data[at] = values[i].data_ptr()
        for result in self.results:
            if result is None:
                made.append(None)
            else:
                at, layout = result
                t = new(*layout)
                data[at] = t.data_ptr()
                made.append(t)
        if scalars:
            frame.set_scalars(scalars)
        if given.get("seed") is not None:
            tensors.set_seed(frame, given["seed"])
        is_shared = given.get("batch") is not None
        if not (is_shared and frame.share_batch(given)):
            if self.opens_batch:
                frame.open_batch()
            elif is_shared:  # the first call of this signature had what it shares
                return None
        stream = None
        if self.gpu != capi.CPU:
            stream, size = tensors.stream_of(self.gpu), frame.workspace_size(self.engine) if is_shared else self.size
            if size:
                workspace = new((size,), (1,), torch.uint8)
                frame.set_workspace(workspace.data_ptr(), size)
            elif is_shared:  # other calls of this frame may have had one
                frame.set_workspace(0, 0)
        if not frame.try_run(self.engine, stream):
            self.is_stale = True
            return None
        if stream is not None and tensors.is_capturing():
            frame.note_capture()
        return made


def remember(
    table: dict[Any, Signature | None],
    key: Any,
    spec: Spec,
    backward: bool,
    named: Mapping[str, Any],
    fill: Callable[[Frame], None],
    made: Sequence[Tensor | None],
    given: Mapping[str, Any],
    needs_grad: bool = False,
    sources: Mapping[str, str] = _NOTHING,
    jvp: bool = False,
) -> None:
    """Keeps what a call that has just run was found to be, or that its signature has nothing to keep. fill: what fills its frame. made: its results,
    as its caller gets them. sources: names of the frame's tensors that have another one in `named`."""
    known = table.get(key)
    if (known is None and key in table) or any(t is not None and t.is_neg() for t in named.values()):  # whose memory holds the negative
        return
    if known is not None and known.is_stale:  # others of its calls would be refused, too
        table[key] = None
        return
    if given.get("seqused_q") is not None or (backward and given.get("seqused_k") is not None):  # results are cleared first
        signature = None
    else:
        signature = signature_of(Frame(spec, backward) if not jvp else JvpFrame(spec), named, fill, made, given, sources)
    if known is not None and signature is not None and not known.frames:  # all are in use
        known.frames += signature.frames
        return
    if signature is not None:
        signature.needs_grad, signature.spec = needs_grad, None if table is spec.signatures else spec
    for oldest in [*table][: max(0, len(table) - _MOST + 1)]:  # a copy, as other threads may add some
        table.pop(oldest, None)
    table[key] = signature


def signature_of(
    frame: Frame,
    named: Mapping[str, Any],
    fill: Callable[[Frame], None],
    made: Sequence[Tensor | None],
    given: Mapping[str, Any],
    sources: Mapping[str, str],
) -> Signature | None:
    """What calls as this one share, whose frame, filled, becomes theirs. None: it made tensors of its own on its way, which others would have to make, too."""
    gradients = (*BACKWARD, *(f"gradient {one.name}" for one in frame.spec.inputs))
    results = gradients if frame.backward else JVP if isinstance(frame, JvpFrame) else FORWARD
    of_results = {name: t for name, t in zip(results, made) if t is not None}
    names, signature = [*named], Signature()
    try:
        fill(frame)
        gpu = signature.gpu = tensors.gpu_of(named["q"])
        engine = signature.engine = tensors.engine_at(gpu, given)
        signature.opens_batch, signature.is_stale = frame.has_options(), False
        if gpu != capi.CPU and frame.has_batch() and frame.batch_size():  # arrays on the host, which are copied
            return None
        signature.size = 0 if gpu == capi.CPU else frame.workspace_size(engine)
        for name, pointer in frame.pointers().items():
            t = of_results.get(name, named.get(sources.get(name, name)))
            if t is None or pointer == 0 or t.data_ptr() != pointer:
                return None
        at = frame.keep()
        signature.results = [None if t is None else (at.pop(name), _allocate.layout_of(t)) for name, t in zip(results, made)]
        signature.words = [(names.index(sources.get(name, name)), place) for name, place in at.items()]
        signature.frames = [frame]
        return signature
    finally:
        frame.close_batch()
        del frame.spec
