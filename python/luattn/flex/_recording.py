"""Records a mod by running it.

A mod runs once for each call, as plain Python: what it reads through attributes, modules, classes, caches or `.item()` is read anew, and
nothing is guessed from its code. What it does with scores and indices becomes an entry. What it does with captured tensors
alone happens at once, with gradients, and the result is an input. Equal recordings have one spec.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import Error
from ._metas import Meta, Several, meta_of
from ._signs import FLOATS, INTS, TENSORS, VALUES, Entry, Kept, Sign, lifts, plain
from ._trace import CALLERS, DETACHING, Mod, NotTranslatable, ReturnLine, in_function, is_of_transform, place_of, place_of_error, stop_gradient, user_line
from ._values import MEMORY, Lazy, Value, check_index, has_value, is_late, real, role_of, title, writes

_make: Any = Tensor._make_subclass
_BASE = torch.empty(())
# What is equal in an entry where it is equal in Python. Numbers are not: 1, 1.0 and True are.
_CONSTANTS = (str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Held:
    """The tensors that the mods of a call have to do with, in the order in which they come up."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._index: dict[int, int] = {}

    def sign(self, t: Tensor) -> Sign:
        index = self._index.setdefault(id(t), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(t)
        return TENSORS.of(index)

    def key(self) -> Any:
        """What a spec depends on. Inside of a mod attributes of tensors would be asked of the recording."""
        return tuple([(t.dtype, t.shape, t.device.type, t.requires_grad) for t in self.tensors])


@functools.cache
def _parameters(dtype: torch.dtype | None) -> tuple[tuple[Entry, ...], list[Any]]:
    """The first entries, and what is known of them."""
    types = [torch.int32] * 4 if dtype is None else [dtype, *[torch.int32] * 4]
    return tuple([("parameter", (x,), ()) for x in types]), [Meta(x, ()) for x in types]


class _Recorder(TorchFunctionMode):
    def __init__(self, recording: "Recording") -> None:
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recording.call(func, args, kwargs or {})


class Recording:
    """What one mod does with scores and indices."""

    def __init__(
        self, mod: Mod, held: Held, dtype: torch.dtype | None, device: torch.device, lines: bool = False
    ) -> None:
        """dtype: of the score; None for a mask_mod. lines: whether to note where in Python each entry was made."""
        self.mod, self.held, self.device = mod, held, device
        entries, metas = _parameters(dtype)
        self.metas: list[Any] = [*metas]  # of the first entries, as far as they are known
        self.entries: list[Entry] = [*entries]
        self.numbers: list[Any] = []  # operands, which may change without another spec
        self.lines: list[str] | None = [place_of(mod)] * len(entries) if lines else None
        self.grad = torch.is_grad_enabled()
        self.result: Any = self.run([self.value(at) for at in range(len(entries))])
        self.key = (tuple(self.entries), self.result)

    def run(self, given: list[Value]) -> Any:
        if not callable(self.mod):
            raise NotTranslatable(f"a {type(self.mod).__name__} as a mod: expected a function of scores and indices")
        try:
            with _Recorder(self):
                found = plain(self.mod(*given))
                if not isinstance(found, (Tensor, bool, int, float)):
                    with contextlib.suppress(Exception), ReturnLine() as line:
                        self.mod(*given)
                    what = f"returns a {type(found).__name__}, expected a tensor of no dimensions"
                    raise NotTranslatable(f"{line.place or place_of(self.mod)}: {what}")
                return self.sign(found, True)
        except Error:
            raise
        except Exception as e:
            what = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
            if is_of_transform(e):
                what = "torch.vmap or torch.func inside of a mod: write what it computes with the mod's own indices"
            raise NotTranslatable(f"{place_of_error(self.mod, e)}: {what}") from e

    def value(self, at: int) -> Value:
        made: Value = _make(Value, _BASE, False)
        made._of, made._at = self, at
        return made

    def entry(self, func: Any, args: tuple[Any, ...], named: tuple[Any, ...] = ()) -> Value:
        """A new entry, whose arguments are signs already."""
        entries = self.entries
        entries.append((func, args, named))
        if self.lines is not None:
            self.lines.append(user_line() or place_of(self.mod))
        made: Value = _make(Value, _BASE, False)
        made._of, made._at = self, len(entries) - 1
        return made

    def add(self, func: Any, args: tuple[Any, ...], named: tuple[Any, ...] = ()) -> Value:
        """An entry whose result is one tensor: a constant to backward under no_grad()."""
        made = self.entry(func, args, named)
        if self.grad and not torch.is_grad_enabled():
            return self.without_grad(func, made)
        return made

    def without_grad(self, func: Any, made: Value) -> Value:
        if in_function():  # gradients are those of what it computes
            return made
        if writes(func):
            raise self.refusal(f"{title(func)} writes in place under torch.no_grad(): give its result another name, y = ..")
        return self.entry(stop_gradient, (VALUES.of(made._at),))

    def refusal(self, what: str) -> NotTranslatable:
        return NotTranslatable(f"{user_line() or place_of(self.mod)}: {what}")

    # --- arguments ---

    def sign(self, x: Any, lift: bool = False) -> Any:
        """What stands for x in an entry. lift: x is an operand."""
        kind = type(x)
        if kind is Value or kind is Lazy:
            return self.sign_of_value(x)
        if kind is Tensor or isinstance(x, Tensor):
            return self.held.sign(x)
        if kind is int or kind is float:
            if lift and lifts(x):
                self.numbers.append(x)
                return (INTS if kind is int else FLOATS).of(len(self.numbers) - 1)
            return (kind, x if kind is int else x.hex())
        if kind is bool:
            return (bool, x)
        if x is None or x is Ellipsis or kind in _CONSTANTS:
            return x
        if kind is slice:
            return (slice, self.sign(x.start), self.sign(x.stop), self.sign(x.step))
        if isinstance(x, (tuple, list)):
            return (list if kind is list else tuple, *[self.sign(y, lift) for y in x])
        if isinstance(x, dict):
            return (dict, *[(tuple, self.sign(k), self.sign(y)) for k, y in x.items()])
        number = plain(x)
        if number is not x:
            return self.sign(number, lift)
        if type(x).__module__ == "numpy":
            raise self.refusal(
                f"a NumPy array of shape {x.shape} beside a value of the mod: torch.from_numpy(array), outside of the mod"
            )
        return Kept(x)

    def sign_of_value(self, x: Value) -> Any:
        if x._of is not self:
            raise self.refusal(
                "a value of another call of a mod, kept in a cache, an attribute or a global: compute it inside of the mod each time"
            )
        if type(x) is Lazy:
            if x._real is not None:
                return self.held.sign(x._real)
            if x._at < 0:
                func, args, named = x._source
                x._at = self.entry(func, *self.signs(func, args, named))._at
        return VALUES.of(x._at)

    def signs(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if func is Tensor.__getitem__:
            check_index(*args)
            return (self.sign(args[0]), self.sign(args[1], True)), ()
        role = role_of(func)
        lift = role.lifts and not (role.divides and any(type(x) is int and x == 0 for x in args))
        by_name = tuple([(k, self.sign(x, lift and k != "alpha")) for k, x in named.items()]) if named else ()
        return tuple([self.sign(x, lift) for x in args]), by_name

    # --- functions ---

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """A function of PyTorch that the mod calls."""
        role = role_of(func)
        if not has_value(args) and not (named and has_value(named.values())):
            # Under no_grad() at once, so that no gradient reaches what it reads.
            if role.may_be_late and torch.is_grad_enabled() == self.grad and is_late(func, args, named):
                if func is Tensor.__getitem__:
                    check_index(*args)
                return Lazy.of(self, func, tuple(args), named)
            if role.writes or named.get("out") is not None:
                self.check_unread(func, real(_target(args, named)))
            return func(*[real(x) for x in args], **{k: real(x) for k, x in named.items()})
        if func in MEMORY:
            raise self.refusal(f"{title(func)} asks where a value of the mod lies, which has no memory: compute with the value itself")
        if role.decides:
            raise self.refusal(
                "a decision of Python on a value of the mod (if, and, or, not, int()): write torch.where, &, | or ~"
            )
        if role.writes or named.get("out") is not None:
            self.check_target(func, _target(args, named))
        signs, by_name = self.signs(func, args, named)
        if role.is_single:
            return self.add(func, signs, by_name)
        return self.typed(func, signs, by_name)

    def check_unread(self, func: Any, x: Any) -> None:
        """x: what is written to at once, which no entry has read before."""
        if isinstance(x, Tensor) and any(t.untyped_storage()._cdata == x.untyped_storage()._cdata for t in self.held.tensors):
            raise self.refusal(f"{title(func)} writes into a tensor that the mod has read before: write into a copy, x.clone()")

    def check_target(self, func: Any, x: Any) -> None:
        """x: what is written to."""
        if type(x) is Value and x._of is self:
            if self.entries[x._at][0] in DETACHING:
                raise self.refusal(f"{title(func)} writes into what detach() returned: write into a copy, x.detach().clone()")
            return
        if type(x) is Lazy and x._real is None and not x.is_of_captured:
            x._written = True
            return
        raise self.refusal(f"{title(func)} writes a value of the mod into a tensor that is none, captured or made by the mod: choose by torch.where(..), or make one of values, torch.stack([..])")

    def typed(self, func: Any, args: tuple[Any, ...], named: tuple[Any, ...]) -> Any:
        """A function of which only its result says what it is: a tensor, several, or something of Python."""
        made = self.entry(func, args, named)
        meta = meta_of(self, made._at)
        if isinstance(meta, Meta):
            return self.without_grad(func, made) if self.grad and not torch.is_grad_enabled() else made
        if isinstance(meta, Several):
            sign = VALUES.of(made._at)
            parts = [
                self.add(part, (sign, (int, i))) if isinstance(one, Meta) else one for i, one in enumerate(meta.parts)
            ]
            return meta.kind(parts)
        if not writes(func):  # it asked for a size, a type, ..
            for of_entries in (self.entries, self.metas, self.lines):
                if of_entries is not None:
                    of_entries.pop()
        return meta

    def meta_of(self, at: int) -> Any:
        return meta_of(self, at)


def _target(args: Sequence[Any], named: dict[str, Any]) -> Any:
    """What a function writes to."""
    return named["out"] if named.get("out") is not None else args[0] if args else None


def part(several: Any, index: int) -> Any:
    """An entry: one of several results."""
    return several[index]


CALLERS.add(Recording.run.__code__)
