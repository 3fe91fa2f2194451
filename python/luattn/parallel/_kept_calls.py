"""Calls of passes that are known: passes of one schedule whose tensors differ in nothing but where they lie. The first of them finds what
each call takes before its launch, a filled frame and sizes (_signature.py); those that follow set addresses, which are those of the pass's
tensors and a distance each, and make one call of the library a launch.

The host starts a pass with many short calls no faster than this: what a call is given anew takes longer than some of them run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _capi as capi
from .. import _fit, _scale
from .. import _tensors as tensors
from .._call import Frame
from .._signature import Signature, is_plain, signature_of
from .._spec import Spec
from ._call_streams import fork

MOST = 64  # kinds of passes that are kept

# Of a call: o, lse and saved, or dq, dk, dv, none, and the gradients of inputs; None: it lies in memory of the pass, or there is none.
Made = list[Tensor | None]


class KeptCall:
    """One call. It has its frame, and an open batch, for itself: one pass at a time has it."""

    def __init__(self, spec: Spec, signature: Signature, named: Mapping[str, Tensor], bases: Mapping[str, Tensor], given: Mapping[str, Any]) -> None:
        (self.frame,), names = signature.frames, [*named]
        self._given = given  # with arrays of chunks, which the batch reads
        self._words = [(at, names[i], named[names[i]].data_ptr() - bases[names[i]].data_ptr()) for i, at in signature.words]
        self._results, self._engine, self.size = signature.results, signature.engine, signature.size
        self.frame.spec = spec
        if signature.opens_batch:
            self.frame.open_batch()

    def __del__(self) -> None:
        if hasattr(self, "frame"):
            self.frame.close_batch()

    def place(self, addresses: Mapping[str, int], new: Callable[..., Tensor], seed: Tensor | None) -> Made:
        """Sets where all lies. addresses: of the pass's tensors. The results, in new memory."""
        data, made = self.frame.data, Made()
        for at, name, distance in self._words:
            data[at] = addresses[name] + distance
        for result in self._results:
            if result is None:
                made.append(None)
            else:
                at, layout = result
                made.append(new(*layout))
                data[at] = made[-1].data_ptr()  # type: ignore[union-attr]
        if seed is not None:
            tensors.set_seed(self.frame, seed)
        return made

    def run(self, stream: int | None, workspace: Tensor | None) -> bool:
        """Whether the library has taken it."""
        if workspace is not None and self.size:
            self.frame.set_workspace(workspace.data_ptr(), self.size)
        return self.frame.try_run(self._engine, stream)

    def note_capture(self) -> None:
        self.frame.note_capture()


def run_kept(calls: Sequence[KeptCall], addresses: Mapping[str, int], q: Tensor, seed: Tensor | None, leaves_room: bool) -> list[Made] | None:
    """The results of calls that read and write nothing of each other's, for the current stream. None: the library refuses one of them, so
    that all are made the general way, which says why."""
    new = tensors.new_where(q)
    made = [call.place(addresses, new, seed) for call in calls]
    if not q.is_cuda:
        return made if all(call.run(None, None) for call in calls) else None
    with fork(q.device, 1 if leaves_room else len(calls)) as streams:
        n = len(streams)
        # All memory is the current stream's, and none of it is free before that one goes on.
        sizes = [max(call.size for call in calls[i::n]) for i in range(n)]
        rooms = [new((size,), (1,), torch.uint8) if size else None for size in sizes]
        for i, call in enumerate(calls):
            if not call.run(streams[i % n], rooms[i % n]):
                return None
    if tensors.is_capturing():
        for call in calls:
            call.note_capture()
    return made


# --- what is kept of a call that has run ---


def _kept(
    frame: Frame, spec: Spec, named: Mapping[str, Tensor], bases: Mapping[str, Tensor], fill: Callable[[Frame], None], made: Sequence[Tensor | None],
    given: Mapping[str, Any], sources: Mapping[str, str],
) -> KeptCall | None:  # fmt: skip
    signature = signature_of(frame, named, fill, made, given, sources)
    return None if signature is None else KeptCall(spec, signature, named, bases, given)


def _is_kept(spec: Spec, given: Sequence[Tensor | None], q: Tensor, v: Tensor, scale: Any) -> bool:
    """Whether the library gets these tensors as they are."""
    return (scale is None or _scale.is_plain(scale)) and is_plain(given) and not _fit.needs_padding(spec, q, v)


def keep_forward(
    spec: Spec, qkv: Sequence[Tensor], inputs: Sequence[Tensor], scalars: Sequence[float], scale: Any, given: Mapping[str, Any], made: Sequence[Tensor], out: Tensor | None,
    bases: Mapping[str, Tensor],
) -> KeptCall | None:  # fmt: skip
    """Keeps a call of attend_state, which has made o, lse and state. out: memory for o that it was given. bases: the pass's tensors, of which those of the
    call are parts. None: such calls go the general way."""
    if not _is_kept(spec, (*qkv, *inputs), qkv[0], qkv[2], scale):
        return None
    o, lse, state = made[0], made[1] if spec.has_lse else None, made[2] if spec.num_saved else None
    named = {**dict(zip("qkv", qkv)), **dict(zip(spec.input_names, inputs))}
    if o is out:
        named["o"] = o

    def fill(frame: Frame) -> None:
        tensors.fill_forward(frame, qkv, (o, lse, state), inputs, scalars, scale or 0.0, given)

    return _kept(Frame(spec, False), spec, named, bases, fill, (None if o is out else o, lse, state), given, {})


def keep_backward(
    spec: Spec, read: Mapping[str, Tensor | None], inputs: Sequence[Tensor], scalars: Sequence[float], scale: Any, given: Mapping[str, Any],
    made: tuple[Tensor, Tensor, Tensor, Mapping[str, Tensor]], out: Sequence[Tensor | None], bases: Mapping[str, Tensor], sources: Mapping[str, str],
) -> KeptCall | None:  # fmt: skip
    """Keeps a call of gradients_of. read: what it reads, q to dlse by name. sources: names among bases of those that have others there."""
    if spec.wants & capi.WANT_SCALARS and spec.scalars or not _is_kept(spec, (*read.values(), *inputs), read["q"], read["v"], scale):  # type: ignore[arg-type]
        return None
    *grads, by_name = made
    dinputs = [by_name[info.name] if info.grad else None for info in spec.inputs]
    named = {sources.get(name, name): t for name, t in read.items() if t is not None} | dict(zip(spec.input_names, inputs))
    for name, t, to in zip(("dq", "dk", "dv"), grads, out):
        if t is to:
            named[name] = t

    def fill(frame: Frame) -> None:
        tensors.fill_backward(frame, [*read.values()], (*grads, None, dinputs), inputs, scalars, scale or 0.0, given)

    results = [*(None if t is to else t for t, to in zip(grads, out)), None, *dinputs]
    return _kept(Frame(spec, True), spec, named, bases, fill, results, given, sources)
