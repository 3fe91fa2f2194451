"""Forward mode in torch: which tensors have tangents here, and functions of one level of torch.func."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .errors import Unsupported

_functorch = torch._C._functorch
_transform, _is_batch = _functorch.maybe_current_level, _functorch.is_batchedtensor
_num_modes, _is_excluded = torch._C._len_torch_dispatch_stack, torch._C._dispatch_tls_is_dispatch_key_excluded


@functools.cache
def uncompiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """run, of whose functions torch.compile makes no graphs. Where it finds a tensor with a tangent, it leaves the graph, and makes others of the functions
    that are called from there: one that ends in make_dual would drop the tangent. Nothing of it is imported before it is in use."""
    aside: list[Any] = []

    @functools.wraps(run)
    def call(*args: Any, **given: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return run(*args, **given)
        if not aside:
            aside.append(torch.compiler.disable(run))  # type: ignore[no-untyped-call]
        return aside[0](*args, **given)

    return call


def _level() -> int:
    """Of forward mode: torch has one, 0, which graphs of torch.compile enter past forward_ad, which counts levels. What it counts is read all the same, so that
    a graph that is made where none is open is not taken where one is."""
    return max(forward_ad._current_level, 0)


def is_dual_level() -> bool:
    """Whether a level of forward mode may be open. Tensors say it for sure, and alone where torch.compile traces, which cannot count modes."""
    return forward_ad._current_level >= 0 or torch.compiler.is_compiling() or _transform() is not None or _num_modes() > 0


def tangent_of(t: Tensor | None) -> Tensor | None:
    """That of the innermost level of forward mode; of a tensor that torch.func.vmap has a batch of, that of the whole batch, as torch has no vmap of unpack_dual."""
    while t is not None and _is_batch(t):
        t = _functorch.get_unwrapped(t)
    return None if t is None else forward_ad.unpack_dual(t, level=_level()).tangent  # type: ignore[no-untyped-call]


def have_tangents(tensors: Sequence[Tensor | None]) -> bool:
    return any(tangent_of(t) is not None for t in tensors)


def split(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Primals, and tangents."""
    pairs = [(None, None) if t is None else forward_ad.unpack_dual(t, level=_level()) for t in tensors]  # type: ignore[no-untyped-call]
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


def join(primal: Tensor, tangent: Tensor) -> Tensor:
    made: Tensor = forward_ad.make_dual(primal, tangent, level=_level())  # type: ignore[no-untyped-call]
    return made


def mark_level() -> Tensor | None:
    """Something by which is_open knows this level of forward mode again; None: there is none, or one of torch.func, whose levels see backward themselves."""
    if forward_ad._current_level < 0 or is_transformed():
        return None
    made: Tensor = forward_ad.make_dual(torch.zeros(()), torch.ones(()))  # type: ignore[no-untyped-call]
    return made


def is_open(mark: Tensor | None) -> bool:
    return mark is not None and tangent_of(mark) is not None


def _has_one(t: Tensor | None) -> bool:
    """Whether t has a tangent, of any level of torch.func that is open, or of forward mode. What torch calls for each level is asked of its own alone, and so
    are functions that are compiled: their operators are called for each level."""
    if tangent_of(t) is not None:
        return True
    if t is None or not is_transformed() or _is_excluded("FuncTorchDynamicLayerFrontMode") or torch.compiler.is_compiling():
        return False
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    below_it = _functorch.get_unwrapped(t) if _functorch.maybe_get_level(t) == _transform() else t
    with temporarily_pop_interpreter_stack():  # type: ignore[no-untyped-call]
        return _has_one(below_it)


def refuse(said: str, tensors: Sequence[Tensor | None], instead: str) -> None:
    """Where a tangent would be dropped without a word."""
    if any(map(_has_one, tensors)):
        raise Unsupported(f"{said}: has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad): {instead}")


def refuse_in(said: str, given: Any) -> None:
    """The same of all that is in tuples, lists and dicts."""
    if not is_dual_level():
        return
    if isinstance(given, dict):
        given = tuple(given.values())
    for x in given if isinstance(given, (tuple, list)) else (given,):
        if isinstance(x, (dict, tuple, list)):
            refuse_in(said, x)
        elif isinstance(x, Tensor):
            refuse(said, (x,), "detach what has a tangent")


def _wrappers(t: Any) -> Iterator[Tensor]:
    """What the levels of torch.func have made of a tensor, the innermost level first."""
    while isinstance(t, Tensor) and _functorch.is_functorch_wrapped_tensor(t):
        yield t
        t = _functorch.get_unwrapped(t)


def refuse_levels(said: str, given: Sequence[Any], instead: str, *, maps: bool = False, needs_memory: bool = False) -> None:
    """Where a transform of torch.func would find a derivative of 0. maps: torch.vmap of the call is right. needs_memory: the call writes bytes of its tensors,
    which those of a transform have not. A level wraps constants and detached tensors too: what it differentiates requires a gradient there."""
    is_wrapped = False
    if torch.compiler.is_compiling():  # which sees no wrappers, but what they say
        is_refused = _is_level_open() and torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)
    else:
        found = [wrapper for x in given for wrapper in _wrappers(x)]
        is_refused = any(not maps if _is_batch(x) else x.requires_grad and torch.is_grad_enabled() for x in found)
        is_wrapped = bool(found)
    if is_refused:
        raise Unsupported(f"{said}: transforms of torch.func ({'grad, vjp' if maps else 'grad, vjp, vmap'}) do not exist for it: {instead}")
    if is_wrapped and needs_memory:
        raise Unsupported(
            f"{said}: it writes rows in place, and a transform of torch.func has wrapped a tensor, whose memory cannot be written so: "
            "call it outside of the transform, with tensors that were made there"
        )


def is_transformed() -> bool:
    """Whether a transform of torch.func is running: its levels have autograd of their own."""
    return _transform() is not None


@contextlib.contextmanager
def outside_levels() -> Iterator[None]:
    """Without the levels of torch.func that are open, which would wrap tensors that are made."""
    with contextlib.ExitStack() as stack:
        if is_transformed():
            from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

            while is_transformed():
                stack.enter_context(temporarily_pop_interpreter_stack())  # type: ignore[no-untyped-call]
        yield


def _is_level_open() -> bool:
    """is_transformed(), for functions that torch.compile traces: it opens the levels itself, and guards its graphs by them."""
    return is_transformed()


_is_level_open._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does, after seconds of imports


def _find_level() -> tuple[Any, Callable[[], Any]] | None:
    """What makes a function of one level of torch.func, which torch keeps to itself; None: this version has it not."""
    try:
        from torch._functorch.autograd_function import enable_single_level_autograd_function  # type: ignore[attr-defined]
        from torch.autograd.function import _SingleLevelFunction
    except ImportError:
        return None
    return _SingleLevelFunction, enable_single_level_autograd_function


_LEVEL = _find_level()


def of_level(rules: type) -> Any:
    """The torch.autograd.Function of these rules, for a kernel that torch.func calls once for each of its levels."""
    return None if _LEVEL is None else type(f"{rules.__name__}OfLevel", (rules, _LEVEL[0]), {})


def apply(said: str, function: Any, level: Any, *args: Any) -> Any:
    """function.apply, or, within torch.func, level.apply."""
    if not is_transformed():
        return function.apply(*args)
    if _LEVEL is None:
        raise Unsupported(
            f"{said}: torch {torch.__version__} has no torch.autograd.function._SingleLevelFunction, without which transforms of torch.func "
            "(grad, vjp, jvp) cannot call it: use torch.autograd and torch.autograd.forward_ad, or luattn.jvp"
        )
    modes = getattr(_modes, "kept", None)
    _modes.kept = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    try:
        with _LEVEL[1]():
            return level.apply(*args)
    finally:
        _modes.kept = modes


_modes = threading.local()  # of the caller of the innermost apply: a function's forward has none of either mode


@contextlib.contextmanager
def below() -> Iterator[None]:
    """Below autograd: within torch.func the next level, with the modes that this one was called in."""
    with torch._C._AutoDispatchBelowAutograd():
        if not is_transformed():
            yield
            return
        backward, forward = _modes.kept
        with torch.set_grad_enabled(backward), forward_ad._set_fwd_grad_enabled(forward):
            yield
