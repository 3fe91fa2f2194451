"""Specs by what mods do: equal recordings have one, and a number that changes becomes an argument of it.

A number is a constant of the first spec. Once it has had a second value it is an argument: a float a scalar, an integer, which kernels
then have exactly and may index with, an input of one element. Where a spec cannot have it so (a shift, a size), each value is a spec.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .. import _capi as capi
from .._call import give_back, take_frame
from .._spec import Spec, spec_of
from .._tangents import outside_levels
from .._tensors import fill
from ..engine import engine_of
from ..errors import Error
from . import _blame
from ._elements import MOST_FACTOR
from ._hook import Captured
from ._metas import Replay
from ._ranges import Limits
from ._recording import Held, Recording
from ._trace import Lines, Mod, NotTranslatable, code_of, place_of
from ._translate import Extras, translate

_MOST = 256  # specs that are kept
MOST_UNREAD = 1 << 24  # what integers of a tensor on a GPU count as after the first call, as for a spec
_MOST_SIZES = 4096  # of calls, which are remembered
_MOST_TITLES = 4  # that a message has
_MOST_NUMBERS = 16  # that become arguments of one spec

_lock = threading.RLock()  # torch.fx has global state
_clock = itertools.count()


@dataclass
class _Variant:
    """A spec, which of tensors, extras and numbers its inputs are, and which numbers its scalars. factors: tensors whose integers have to
    be small, and where in Python they are multiplied."""

    spec: Spec
    inputs: list[int | str]
    scalars: list[int]
    factors: dict[int, str]
    limits: list[Limits] = field(default_factory=list)  # of integers
    of_tensors: list[int] = field(default_factory=list)  # which tensors those of limits are; -1 - i: the number i
    fits: set[tuple[int, ...]] = field(default_factory=set)  # sizes for which limits that ask no tensor have been looked at
    used: int = 0


@dataclass
class _Program:
    """What mods do, whatever their numbers are. seen: the first ones."""

    seen: list[Any]
    varying: list[int] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)  # which no spec has as arguments
    variants: dict[Any, _Variant] = field(default_factory=dict)

    def key(self, numbers: list[Any]) -> Any:
        """Of a variant: constants by value, and which of the others are equal, so that one argument serves them."""
        if not self.varying:
            return tuple(numbers)
        varying = [numbers[i] for i in self.varying]
        constants = tuple([x for i, x in enumerate(numbers) if i not in self.varying])
        return (tuple(self.varying), tuple(map(varying.index, varying)), constants)

    def find(self, numbers: list[Any]) -> _Variant | None:
        if numbers != self.seen and any(
            x != y and i not in self.fixed and i not in self.varying for i, (x, y) in enumerate(zip(numbers, self.seen))
        ):
            return None
        return self.variants.get(self.key(numbers))

    def note(self, numbers: list[Any]) -> None:
        for i, (x, y) in enumerate(zip(numbers, self.seen)):
            if x != y and i not in self.fixed and i not in self.varying and len(self.varying) < _MOST_NUMBERS:
                self.varying.append(i)
            elif x != y and i not in self.varying:
                self.fixed.add(i)


def _title(mod: Mod | None) -> str:
    """Stands for the file of a spec in messages: the mod, and where it is."""
    code = code_of(mod)
    name = getattr(mod, "__qualname__", "flex_attention" if mod is None else type(mod).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


_programs: dict[Any, _Program] = {}


def specs() -> list[Spec]:
    """Those that are kept."""
    return [variant.spec for program in [*_programs.values()] for variant in [*program.variants.values()]]


def clear() -> None:
    with _lock:
        _programs.clear()


class _Call:
    """The mods of a call, recorded."""

    def __init__(self, mods: tuple[Mod | None, Mod | None], extras: Extras, dtype: torch.dtype, device: torch.device, lines: bool) -> None:
        self.held, self.extras, self.dtype, self.device = Held(), extras, dtype, device
        score_mod, mask_mod = mods
        self.score = None if score_mod is None else Recording(score_mod, self.held, dtype, device, lines)
        self.mask = None if mask_mod is None else Recording(mask_mod, self.held, None, device, lines)
        self.numbers = [*(self.score.numbers if self.score else ()), *(self.mask.numbers if self.mask else ())]
        keys = (self.score and self.score.key, self.mask and self.mask.key)
        self.key = (keys, self.held.key(), extras.key, dtype, device.type)


def find(
    score_mod: Mod | None, mask_mod: Mod | None, extras: Extras, dtype: torch.dtype, device: torch.device, sizes: tuple[int, ...] | None = None
) -> tuple[Spec, list[Tensor], list[float]]:
    """The spec of mods, its inputs and its scalars. sizes: the numbers that b, h, q_idx and kv_idx stay below; None: of no call."""
    call = _Call((score_mod, mask_mod), extras, dtype, device, False)
    is_new, title = False, _title(score_mod or mask_mod)
    try:
        program = _programs.get(call.key)
        variant = None if program is None else program.find(call.numbers)
        if variant is None:
            with _lock:
                variant = _learn(call, title)
        is_new = variant.used == 0
        _check(variant, call, sizes, is_new)
    except Error as e:
        raise blamed(e, score_mod, mask_mod, extras, dtype, device, sizes, is_new) from e.__cause__
    variant.used = next(_clock)
    titles = variant.spec.titles
    if title not in titles and len(titles) < _MOST_TITLES:
        titles.append(title)
    return _given(variant, call)


def _check(variant: _Variant, call: "_Call", sizes: tuple[int, ...] | None, waits: bool) -> None:
    if variant.limits and sizes is not None:
        _check_limits(variant, call, sizes, waits)
    for i, place in variant.factors.items():
        _check_factor(call.held.tensors[i], place, False)


def _given(variant: _Variant, call: "_Call") -> tuple[Spec, list[Tensor], list[float]]:
    numbers, tensors, device = call.numbers, call.held.tensors, call.device
    found: list[Tensor | str] = [
        x if isinstance(x, str) else tensors[x] if x >= 0 else _integer(numbers[-1 - x], device) for x in variant.inputs
    ]
    return variant.spec, call.extras.placed(found, device), [numbers[i] for i in variant.scalars]


def blamed(
    error: Error, score_mod: Mod | None, mask_mod: Mod | None, extras: Extras, dtype: torch.dtype, device: torch.device,
    sizes: tuple[int, ...] | None = None, waits: bool = False, again: Callable[[Spec, list[Tensor], list[float]], Any] | None = None,
) -> Error:  # fmt: skip
    """The error with the line of Python that is to blame. The mods run once more for it, which notes where each step is made, and so does what
    failed: again, a call of their spec, or else what find() does."""
    title = _title(score_mod or mask_mod)
    if score_mod is mask_mod or again is not None and not _blame.names_a_part(error, title):
        return error
    held = Captured(marks=True)

    def run() -> None:
        with _lock, _no_hooks():
            try:
                call = _Call((score_mod, mask_mod), extras, dtype, device, True)
            except Error:  # it does another thing than before: what it was refused for stands
                return
            variant = _translated(call, [], title, held)
        if again is not None:
            again(*_given(variant, call))
        else:
            _check(variant, call, sizes, waits)

    return _blame.blamed_again(error, title, held, run, place_of(score_mod or mask_mod))


def _no_hooks() -> Any:
    """So that those of a checkpoint see the mod once, in each pass."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def _learn(call: _Call, title: str) -> _Variant:
    program = _programs.get(call.key)
    if program is None:
        program = _Program(call.numbers)
    program.note(call.numbers)
    while True:
        key = program.key(call.numbers)
        variant = program.variants.get(key)
        if variant is not None:
            return variant
        try:
            variant = _translated(call, program.varying, title)
            break
        except Error:
            if not program.varying:
                raise
        _settle(call, program, title)
    _make_room()
    program.variants[key] = variant
    _programs[call.key] = program
    return variant


def _settle(call: _Call, program: _Program, title: str) -> None:
    """Some of the numbers are no arguments of a spec: finds out which."""
    tried, program.varying = program.varying, []
    for i in tried:
        try:
            _translated(call, [*program.varying, i], title)
            program.varying.append(i)
        except Error:
            program.fixed.add(i)


def _make_room() -> None:
    """Leaves out what has not been used for longest."""
    held = [(variant.used, k, key) for k, program in _programs.items() for key, variant in program.variants.items()]
    if len(held) < _MOST:
        return
    for _, k, key in sorted(held, key=lambda x: x[0])[: _MOST // 8]:
        del _programs[k].variants[key]
        if not _programs[k].variants:
            del _programs[k]


def _translated(call: _Call, varying: list[int], title: str, captured: Captured | None = None) -> _Variant:
    """A spec with some of the numbers as arguments. It leaves no trace in autograd, whose hooks may count what is saved. captured: an empty one."""
    numbers: list[Any] = list(call.numbers)
    captured = captured or Captured()
    of_tensors, of_numbers = list(range(len(call.held.tensors))), list[int]()  # -1 - i: the number i
    with outside_levels(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        for t in call.held.tensors:
            captured.hold(t)
        tensors = list(captured.tensors)
        for i in varying:
            x = call.numbers[i]
            first = next(j for j in varying if call.numbers[j] == x and type(call.numbers[j]) is type(x))
            if first != i:
                numbers[i] = numbers[first]
                continue
            dtype = torch.int64 if type(x) is int else torch.float64
            numbers[i] = torch.zeros((), dtype=dtype, device=call.device)
            if type(x) is int:
                captured.hold(numbers[i])
                numbers[i] = captured.tensors[-1]
                of_tensors.append(-1 - i)
            else:
                captured.numbers.append(numbers[i])
                captured.values.append(x)
                of_numbers.append(i)
        replays: list[Replay | None] = []
        for recording in (call.score, call.mask):
            count = 0 if recording is None else len(recording.numbers)
            replays.append(None if recording is None else Replay(recording, tensors, numbers[:count], call.dtype))
            numbers = numbers[count:]
        try:
            text = translate(replays[0], replays[1], call.extras, call.dtype, call.device, captured)
        finally:
            Lines.given = None
    spec = spec_of(text, title)
    if varying:
        _check_kernel(spec, call.dtype)
    inputs, scalars = captured.order(spec)
    factors = {of_tensors[i]: place for i, place in captured.factors.items() if of_tensors[i] >= 0}
    for i, place in factors.items():
        _check_factor(call.held.tensors[i], place, True)
    return _Variant(
        spec, [x if isinstance(x, str) else of_tensors[x] for x in inputs], [of_numbers[i] for i in scalars], factors, captured.limits, of_tensors
    )


def _check_limits(variant: _Variant, call: _Call, sizes: tuple[int, ...], waits: bool) -> None:
    """Raises where an integer would leave 32 bits, which PyTorch wraps."""
    if sizes in variant.fits or torch._C._len_torch_dispatch_stack():
        return
    depends = False  # on more than sizes

    def of_tensor(i: int) -> tuple[float, float]:
        nonlocal depends
        at = variant.of_tensors[i]
        if at < 0:
            depends = True
            return call.numbers[-1 - at], call.numbers[-1 - at]
        t = call.held.tensors[at]
        depends = depends or t.device.type == "cpu" or waits
        known = t.numel() and (t.device.type == "cpu" or waits and not torch.cuda.is_current_stream_capturing())
        least, most = (int(x) for x in t.aminmax()) if known else (-MOST_UNREAD, MOST_UNREAD)
        return least, most

    for limits in variant.limits:
        found = limits.find(sizes, of_tensor)
        if found is not None:
            place, wrong = found
            raise NotTranslatable(f"{place or variant.spec.place}: {wrong}")
    if not depends:
        if len(variant.fits) >= _MOST_SIZES:
            variant.fits.clear()
        variant.fits.add(sizes)


def _check_kernel(spec: Spec, dtype: torch.dtype) -> None:
    """Raises where no kernel computes with numbers that may have any value: integers that leave 32 bits, as shifts of any width do. It is the
    same for each device."""
    like = torch.empty(1, 1, 1, 8, dtype=dtype, device="cpu")
    frame = take_frame(spec)
    try:
        frame.set(fill, (like, like, like, None, None, None))
        frame.plan(engine_of(capi.CPU))
    finally:
        give_back(frame)


def _check_factor(t: Tensor, place: str, waits: bool) -> None:
    """Raises where a product would not be exact. waits: whether for a tensor on a GPU, too."""
    if t.numel() == 0 or not (waits or t.device.type == "cpu") or torch._C._len_torch_dispatch_stack():
        return
    if t.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    least, most = (int(x) for x in t.aminmax())
    if max(-least, most) > MOST_FACTOR:
        raise NotTranslatable(
            f"{place}: multiplies integers of a tensor of {str(t.dtype).partition('.')[2]} that holds {most if most >= -least else least}; kernels "
            f"multiply such integers up to {MOST_FACTOR}, and any of int64: write tensor.long()"
        )


_integers: dict[Any, Tensor] = {}


def _integer(x: int, device: torch.device) -> Tensor:
    """An input of one element, made once for the layers of a step."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if torch._C._len_torch_dispatch_stack() or stream and torch.cuda.is_current_stream_capturing():
        return torch.full((), x, dtype=torch.int64, device=device)
    found = _integers.get((x, device, stream))
    if found is None:
        with torch.inference_mode(False):
            found = torch.full((), x, dtype=torch.int64, device=device)
        if len(_integers) >= _MOST:
            _integers.clear()
        _integers[x, device, stream] = found
    return found
