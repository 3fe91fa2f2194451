"""Scales that kernels do not take: 0, negative ones, and those with a gradient. The spec's score_mod multiplies by them instead."""

from collections.abc import Sequence
from typing import Any

from ._spec import PARTS, Spec, spec_of
from .errors import InvalidError

NAME = "luattn_scale"
_DECLARED = {"scalars": "1", "inputs": '{ axes = {}, dtype = "any", grad = true }'}


def is_plain(scale: Any) -> bool:
    """Whether the library takes it: a positive number, whose size it checks."""
    return type(scale) is float and 0 < scale < float("inf")


def scaled(text: str, place: str, kind: str) -> Spec:
    """The spec of this text, with one more of its `kind` ("scalars" or "inputs"), by which scores are multiplied first."""
    spec = spec_of(text, place)
    if kind in spec.scaled:
        return spec.scaled[kind]
    # In one line, so that those of the spec stay what they are.
    wrap = (
        f"local attention = (function(make) return function(t) local mod = t.score_mod; t.{kind} = t.{kind} or {{}}; t.{kind}.{NAME} = "
        f"{_DECLARED[kind]}; if mod == nil then t.score_mod = function(score) return score * {NAME} end else t.score_mod = function(score, b, h, "
        f"q_idx, kv_idx) return mod(score * {NAME}, b, h, q_idx, kv_idx) end end; return make(t) end end)(attention); "
    )
    if text.startswith(PARTS):
        made = scaled(text.removeprefix(PARTS), place, kind).parts()
    else:
        made = spec_of(wrap + text, place)
    made.titles = spec.titles
    spec.scaled[kind] = made
    return made


def check_scale(name: str, scale: float, what: str = "scale") -> float:
    """A scale that is a number."""
    number = float(scale)
    if not abs(number) < float("inf"):
        raise InvalidError(f"{name}: {what}: is {number:g}, expected a number, or None for head_dim ** -0.5")
    return number


def with_scale(spec: Spec, inputs: Sequence[Any], scalars: Sequence[Any], scale: float | None) -> tuple[Spec, Sequence[Any], Sequence[Any], float]:
    """The spec, inputs, scalars and scale of a call that the library takes, where 0.0 is the default."""
    if scale is None:
        return spec, inputs, scalars, 0.0
    scale = check_scale(spec.name, scale)
    if scale > 0:
        return spec, inputs, scalars, scale
    return multiplied(scaled(spec.text, spec.place, "scalars"), "scalars", inputs, scalars, scale)


def multiplied(made: Spec, kind: str, inputs: Sequence[Any], scalars: Sequence[Any], scale: Any) -> tuple[Spec, Sequence[Any], Sequence[Any], float]:
    """What with_scale returns, of a spec that scaled() made, and a number or a tensor of no dimensions."""
    if kind == "inputs":
        inputs = _merged([one.name for one in made.inputs], inputs, scale)
    else:
        scalars = _merged(list(made.scalars), scalars, scale)
    return made, inputs, scalars, 1.0


def _merged(names: list[str], given: Sequence[Any], scale: Any) -> list[Any]:
    rest = iter(given)
    return [scale if name == NAME else next(rest) for name in names]
