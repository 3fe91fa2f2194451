"""Functions of PyTorch that a spec has no op for, made of others: to the last bits of float32 and of float64, also near 0 and where a plain
formula overflows or cancels, and with the slopes of the function itself.

They are decompositions of a trace. Conditions are of one comparison each: `and` and `or` make a spec branch. An argument of a branch that is not taken is a number for which the branch has a value and a slope."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_where = torch.where
# Cephes, erfc: exp(-x * x) times P / Q from 1 to 8, R / S from there.
_ERFC_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1, 1.96520832956077098242e2,
    5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_ERFC_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2, 1.82390916687909736289e3,
    2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_ERFC_R = (5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195, 7.40974269950448939160, 2.97886665372100240670)
_ERFC_S = (
    1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1, 1.70814450747565897222e1, 9.60896809063285878198, 3.36907645100081516050,
)  # fmt: skip
# Cephes, atan: a rational function of x * x for |x| <= tan(pi / 8), to 2e-16.
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2, -6.485021904942025371773e1)
_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2, 1.945506571482613964425e2)


def slope_of(f: Callable[[Tensor], Tensor], at: float) -> float:
    """What this version of PyTorch makes the slope of a function at a point, asked outside of the trace that runs."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        x = torch.full((), at, dtype=torch.float64, device="cpu", requires_grad=True)
        return float(torch.autograd.grad(f(x), x)[0])


def _polynomial(x: Tensor, coefficients: Any) -> Tensor:
    first, *rest = coefficients
    found = torch.full_like(x, first)
    for c in rest:
        found = found * x + c
    return found


def _real(x: Tensor, *others: Tensor) -> Tensor:
    """Integers as PyTorch computes with them here."""
    return x if x.is_floating_point() else x.to(next((t.dtype for t in others if t.is_floating_point()), torch.get_default_dtype()))


def _atan_of_ratio(a: Tensor, b: Tensor) -> Tensor:
    """atan(a / b) for |a| <= |b|, of the magnitude of a / b: above tan(pi / 8) by (a - b) / (a + b)."""
    is_same = (a < 0) == (b < 0)
    signed = _where(is_same, b, -b)  # of the sign of a
    far = a.abs() > 0.41421356237309503 * b.abs()
    denominator = _where(far, signed + a, signed)
    t = _where(far, a - signed, a) / _where(denominator == 0, 1.0, denominator)
    square = t * t
    small = t + t * square * (_polynomial(square, _ATAN_P) / _polynomial(square, _ATAN_Q))
    found = _where(far, math.pi / 4, 0.0) + small
    return _where(is_same, found, -found)


def _atan(x: Tensor) -> Tensor:
    x = _real(x)
    return _atan2(x, torch.ones_like(x))


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = _real(y, x), _real(x, y)
    both = torch.minimum(y.abs(), x.abs()) == math.inf  # whose ratio is 1
    a, b = _where(both, _where(y < 0, -1.0, 1.0), y), _where(both, _where(x < 0, -1.0, 1.0), x)
    steep = a.abs() > b.abs()
    angle = _atan_of_ratio(_where(steep, b, a), _where(steep, a, b))
    below = torch.signbit(y)
    turned = _where(torch.signbit(x), _where(below, -math.pi, math.pi), 0.0)
    return _where(steep, _where(below, -math.pi / 2, math.pi / 2) - angle, angle + turned)


def _asin(x: Tensor) -> Tensor:
    x = _real(x)
    return _atan2(x, ((1 - x) * (1 + x)).sqrt())


def _acos(x: Tensor) -> Tensor:
    x = _real(x)
    return 2 * _atan2((1 - x).sqrt(), (1 + x).sqrt())


def _odd(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """f for numbers of at least 0, and -f(-x) for others."""

    def of_all(x: Tensor) -> Tensor:
        x = _real(x)
        found = f(_where(x < 0, -x, x))
        return _where(x < 0, -found, found)

    return of_all


def _large_log(x: Tensor, large: Tensor, small: Tensor) -> Tensor:
    """log(2 * x) where x is large, whose square is not to be made."""
    return _where(large, _where(large, x, 1.0).log() + math.log(2), small)


def _asinh(x: Tensor) -> Tensor:
    large = x > 1e8
    t = _where(large, 1.0, x)
    return _large_log(x, large, (t + t * t / (1 + (1 + t * t).sqrt())).log1p())


def _acosh(x: Tensor) -> Tensor:
    x = _real(x)
    large = x > 1e8
    t = _where(large, 1.0, x - 1)
    return _large_log(x, large, (t + (t * (t + 2)).sqrt()).log1p())


def _atanh(x: Tensor) -> Tensor:
    return 0.5 * (2 * x / (1 - x)).log1p()


def _sinh(x: Tensor) -> Tensor:
    x = _real(x)
    near = x.abs() < 1
    t, found = _where(near, x, 0.0), torch.ones_like(x)
    square = t * t
    for n in range(18, 0, -2):
        found = 1 + found * square / (n * (n + 1))
    far = _where(near, 1.0, x)
    return _where(near, t * found, 0.5 * (far.exp() - (-far).exp()))


def _cosh(x: Tensor) -> Tensor:
    x = _real(x)
    near = x.abs() < 1
    half, far = _sinh(_where(near, 0.5 * x, 0.0)), _where(near, 1.0, x)
    return _where(near, 1 + 2 * half * half, 0.5 * (far.exp() + (-far).exp()))


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = _real(x, y).abs(), _real(y, x).abs()
    more = x > y
    large, less = _where(more, x, y), _where(more, y, x)
    ratio = less / _where(large == 0, 1.0, _where(large == math.inf, 1.0, large))
    return large * (1 + ratio * ratio).sqrt()


def _copysign(x: Tensor, y: Any) -> Tensor:
    x = _real(x)
    if not isinstance(y, Tensor):
        return -x.abs() if math.copysign(1.0, y) < 0 else x.abs()
    return _where(torch.signbit(_real(y)), -x.abs(), x.abs())


def _nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    if not x.is_floating_point():
        return x.clone()
    ends = torch.finfo(x.dtype)
    high, low = (end if given is None else float(given) for end, given in ((ends.max, posinf), (ends.min, neginf)))
    found = _where(x == math.inf, high, _where(x == -math.inf, low, x))
    return _where(torch.isnan(x), 0.0 if nan is None else float(nan), found).to(x.dtype)


def _erfc(x: Tensor) -> Tensor:
    x = _real(x)
    near, far = x < 1, x > 8
    a, b = _where(near, 1.0, _where(far, 1.0, x)), _where(far, x, 8.0)
    tail = _where(far, _polynomial(b, _ERFC_R) / _polynomial(b, _ERFC_S), _polynomial(a, _ERFC_P) / _polynomial(a, _ERFC_Q))
    t = _where(near, 1.0, x)
    return _where(near, 1 - x.erf(), (-t * t).exp() * tail)


def _sinc(x: Tensor) -> Tensor:
    x = _real(x)
    at_0 = x == 0
    angle = _where(at_0, 1.0, x) * math.pi
    return _where(at_0, 1.0, angle.sin() / angle)


def _of_tie(x: Tensor, y: Tensor, is_first: Tensor, halves: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The first of equal ones has all of the slope in PyTorch 2.11, and a half in 2.15."""
    return _where(is_first, x, y) if _first_has_all() else halves(x, y)


@functools.cache
def _first_has_all() -> bool:
    return slope_of(lambda x: torch.fmax(x, x.detach()), 0.0) == 1


def _fmax(x: Tensor, y: Tensor) -> Tensor:
    """The number where the other one is none."""
    return _where(torch.isnan(x), y, _where(torch.isnan(y), x, _of_tie(x, y, x >= y, torch.maximum)))


def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return _where(torch.isnan(x), y, _where(torch.isnan(y), x, _of_tie(x, y, x <= y, torch.minimum)))


def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axes = [*range(x.dim())] if dim is None else [dim]
    return x.amin(axes, keepdim), x.amax(axes, keepdim)


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return _where(x > 0, x, weight * x)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * b.sigmoid()


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By the ops of PyTorch."""
    made: dict[str, Callable[..., Any]] = {
        "atan": _atan, "atan2": _atan2, "asin": _asin, "acos": _acos, "asinh": _odd(_asinh), "acosh": _acosh, "atanh": _odd(_atanh),
        "sinh": _sinh, "hypot": _hypot, "copysign.Tensor": _copysign, "copysign.Scalar": _copysign, "nan_to_num": _nan_to_num, "cosh": _cosh,
        "sinc": _sinc, "erfc": _erfc, "fmax": _fmax, "fmin": _fmin, "aminmax": _aminmax, "_prelu_kernel": _prelu, "glu": _glu,
    }  # fmt: skip
    found = {}
    for name, f in made.items():
        packet, _, overload = name.partition(".")
        op = getattr(torch.ops.aten, packet, None)
        if op is not None:
            found[getattr(op, overload or "default")] = f
    return found
