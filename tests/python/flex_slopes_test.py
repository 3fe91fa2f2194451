"""flex_slopes_test.py: gradients of mods at ties and bounds are those of PyTorch's own flex_attention; functions that are made of others have
the values and slopes of PyTorch's to the last bits. Exits with 77 where torch is not installed."""

import math
import unittest

from with_torch import torch  # exits without torch, so first

import luattn  # noqa: F401
from luattn import flex
from eager_mods import Case, N

F = torch.nn.functional


def at(value, s, slope=1.0):
    """A value that depends on the score by its slope alone."""
    return slope * (s - s.detach()) + value


def several(s):
    return torch.stack([at(0.0, s), at(0.0, s, 2.0), at(0.0, s, 4.0)])


half = torch.tensor(0.5, dtype=torch.float64)
# Each at a point where it bends.
BENDS = {
    "maximum": lambda s: torch.maximum(at(0.0, s), at(0.0, s, 3.0)),
    "maximum beside a constant": lambda s: torch.maximum(at(0.0, s), torch.tensor(0.0)) + torch.minimum(at(2.0, s), torch.full_like(s, 2.0)),
    "maximum beside a captured number": lambda s: torch.maximum(at(0.5, s), half) + torch.minimum(half, at(0.5, s)),
    "a chain": lambda s: torch.maximum(torch.maximum(at(0.0, s), at(0.0, s, 2.0)), at(0.0, s, 3.0)),
    "amax, amin": lambda s: several(s).amax() + 2 * several(s).amin(0),
    "amax of an axis": lambda s: torch.stack([torch.stack([at(0.0, s), at(0.0, s, 2.0)]), torch.stack([at(1.0, s, 3.0), at(0.0, s)])]).amax(1).sum(),
    "max, min": lambda s: several(s).max() + 2 * several(s).min(),
    "max of an axis": lambda s: several(s).max(0).values + 2 * several(s).min(0)[0],
    "amax of many": lambda s: torch.where(torch.arange(20) < 7, at(0.0, s), at(-1.0, s)).amax(),
    "clamp": lambda s: at(0.0, s).clamp(min=0.0) + 2 * at(0.0, s).clamp(max=0.0) + 4 * at(0.0, s).clamp(0.0, 1.0) + 8 * at(1.0, s).clamp(0.0, 1.0),
    "clamp_": lambda s: at(0.0, s).clamp_(0.0, 1.0) + 2 * at(0.0, s).clamp_min_(0.0) + 4 * torch.clip(at(0.0, s), 0.0, 3.0),
    "clamp by tensors": lambda s: torch.clamp(at(0.5, s), min=half) + 2 * torch.clamp(at(0.5, s), min=half - 1, max=half),
    "clamp by learned bounds": lambda s: torch.clamp(at(0.0, s), min=at(0.0, s, 2.0)) + 8 * torch.clamp(at(0.0, s), at(0.0, s, 2.0), at(1.0, s, 3.0)),
    "clamp by equal bounds": lambda s: torch.clamp(at(0.0, s), at(0.0, s, 2.0), at(0.0, s, 3.0)) + 8 * torch.clamp(at(-1.0, s), at(0.0, s, 2.0), at(0.0, s, 3.0)),
    "clamp by crossed bounds": lambda s: torch.clamp(at(0.0, s), at(1.0, s, 2.0), at(-1.0, s, 3.0)) + 8 * torch.clamp(s, 1.0, -1.0),
    "relu": lambda s: at(0.0, s).relu() + 2 * F.relu6(at(0.0, s)) + 4 * F.relu6(at(6.0, s)) + 8 * F.leaky_relu(at(0.0, s), 0.25),
    "hardtanh": lambda s: F.hardtanh(at(1.0, s)) + 2 * F.hardtanh(at(-1.0, s)) + 4 * F.hardsigmoid(at(3.0, s)) + 8 * F.hardsigmoid(at(-3.0, s)),
    "hardswish": lambda s: F.hardswish(at(3.0, s)) + 2 * F.hardswish(at(-3.0, s)),
    "elu": lambda s: F.elu(at(0.0, s), 2.0) + 2 * F.celu(at(0.0, s), 2.0) + 4 * F.selu(at(0.0, s)) + 8 * F.threshold(at(0.0, s), 0.0, 5.0),
    "shrink": lambda s: F.softshrink(at(0.5, s)) + 2 * F.softshrink(at(-0.5, s)) + 4 * F.hardshrink(at(0.5, s)) + 8 * F.softsign(at(0.0, s)),
    "abs": lambda s: at(0.0, s).abs() + 2 * F.logsigmoid(at(0.0, s)) + 4 * torch.xlogy(at(0.0, s), s * 0 + 2) + 8 * several(s).softmax(0)[1],
    "logsumexp": lambda s: several(s).logsumexp(0) + torch.stack([s, s * 2, s * 3]).masked_fill(torch.tensor([True, False, True]), -torch.inf).amax(),
    "of no axes": lambda s: s.mean() + 2 * s.sum(0) + 4 * s.amax() + 8 * s.prod() * (s > 0).any() + F.mse_loss(s, s.detach() - 1) + F.l1_loss(s, s.detach() - 1),
    "fmax": lambda s: torch.fmax(at(0.0, s), at(0.0, s, 2.0)) + 4 * torch.fmin(at(0.0, s), torch.tensor(0.0)) + 0.1 * s,
}  # fmt: skip


class Bends(Case):
    def test_each(self):
        for name, f in BENDS.items():
            with self.subTest(name):
                self.same(lambda s, b, h, i, j: f(s) + 0.25 * s)

    def test_numbers_that_change(self):
        """A clamp keeps its slope where its bound has become an argument."""
        for bound in (0.5, 0.25, 0.75):
            self.same(lambda s, b, h, i, j: at(bound, s).clamp(min=bound) + 2 * torch.clamp(at(bound, s), max=bound) + 0.25 * s)
            self.same(lambda s, b, h, i, j: torch.clamp_min(at(bound, s), bound) + torch.clamp(at(bound, s), bound, bound + 1) + 0.25 * s)

    def test_learned(self):
        """Ties of learned numbers: the share of each."""
        table = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        low = torch.zeros((), dtype=torch.float64, requires_grad=True)
        for mod in (
            lambda s, b, h, i, j: s + table.amax() * (i - j),
            lambda s, b, h, i, j: s + torch.stack([table[i % 4], table[j % 4], table[0]]).amax() * (i - j),
            lambda s, b, h, i, j: torch.maximum(s, table[h]) + torch.maximum(table[i % 4], low),
            lambda s, b, h, i, j: s + torch.clamp(table[i % 4], min=low) * i + torch.clamp(table[j % 4], max=low) * j,
        ):
            self.same(mod, learned=(table, low))


EVERYWHERE = (-1e30, -5.0, -2.41421356, -2.4142136, -1.0, -0.6, -0.414213562373095, -0.1, -1e-8, 0.0, 1e-12, 0.3, 0.45, 0.5, 1.0, 1.5, 2.5, 7.0, 12.0, 1e8)
FUNCTIONS = {
    "atan": (torch.atan, EVERYWHERE), "asin": (torch.asin, (-0.99, -0.5, -1e-9, 0.0, 0.3, 0.70711)), "acos": (torch.acos, (-0.99, -0.5, 0.0, 0.3, 0.99)),
    "asinh": (torch.asinh, EVERYWHERE), "acosh": (torch.acosh, (1.001, 1.5, 3.0, 1e9, 1e30)), "atanh": (torch.atanh, (-0.99, -0.5, -1e-12, 0.0, 1e-9, 0.9)),
    "expm1": (torch.expm1, EVERYWHERE[:-3]), "log1p": (torch.log1p, EVERYWHERE[7:]), "sinh": (torch.sinh, EVERYWHERE[1:-3]), "cosh": (torch.cosh, EVERYWHERE[1:-3]),
    "erfc": (torch.erfc, (-3.0, -0.5, 0.0, 0.9, 1.0, 1.1, 2.5, 5.0, 7.9, 8.1)), "sinc": (torch.sinc, (-3.3, -0.5, 0.0, 0.3, 2.5)),
    "atan2 of y": (lambda x: torch.atan2(x, torch.full_like(x, -2.0)), EVERYWHERE), "atan2 of x": (lambda x: torch.atan2(torch.full_like(x, -2.0), x), EVERYWHERE),
    "hypot": (lambda x: torch.hypot(x, torch.full_like(x, 3.0)), EVERYWHERE[1:-1]), "copysign": (lambda x: torch.copysign(x, torch.full_like(x, -1.0)), EVERYWHERE[1:-1]),
    "copysign of a number": (lambda x: torch.copysign(x, -2.0) + torch.copysign(torch.full_like(x, 2.0), x), EVERYWHERE[1:-1]),
    "nan_to_num": (torch.nan_to_num, EVERYWHERE[1:-1]), "signbit": (lambda x: torch.where(torch.signbit(x), 3.0, x), EVERYWHERE[1:-1]),
    "logit": (torch.logit, (0.01, 0.1, 0.3, 0.9)), "logit with eps": (lambda x: torch.logit(x, 0.15), (0.01, 0.1, 0.3, 0.9)), "sgn": (torch.sgn, EVERYWHERE),
}  # fmt: skip


class Functions(unittest.TestCase):
    def scores(self, f, x):
        """A function of numbers: the normaliser of one key each."""
        zeros = torch.zeros(len(x), 1, 1, 8, dtype=x.dtype)
        return flex.flex_attention(zeros, zeros, zeros, lambda s, b, h, i, j: f(x[b]), return_lse=True)[1].flatten()

    def test_values_and_slopes(self):
        # Some 40 operations of half an ulp each, of which erfc's x * x counts 64 times; slopes of float32 pass exp() of the score once more.
        for dtype, error, of_slope in ((torch.float64, 1e-14, 1e-13), (torch.float32, 2e-5, 4e-5)):
            for name, (f, points) in FUNCTIONS.items():
                x = torch.tensor(points, dtype=dtype, requires_grad=True)
                exact = x.detach().double().requires_grad_()
                got, want = self.scores(f, x), f(exact)
                slopes = torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), exact)[0]
                with self.subTest(name, dtype=dtype):
                    torch.testing.assert_close(got.double(), want, rtol=error, atol=0)
                    torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=of_slope, atol=1e-12 if dtype == torch.float64 else 1e-6)

    def test_ends(self):
        """What is no number, infinite, or a zero with a sign. The score has to be finite."""
        x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0], dtype=torch.float64)
        for f, first in (
            (lambda x: torch.nan_to_num(x, 1.5, 2.5, -3.5), 0), (lambda x: torch.isnan(x).double(), 0), (lambda x: torch.signbit(x).double(), 1),
            (torch.atan, 1), (lambda x: torch.atan2(x, -torch.ones_like(x)), 1), (lambda x: torch.copysign(torch.full_like(x, 2.0), x), 1),
            (lambda x: torch.isfinite(x).double() + 2 * torch.isinf(x).double() + 4 * torch.isposinf(x).double() + 8 * torch.isneginf(x).double(), 0),
            (lambda x: torch.fmin(torch.fmax(x, torch.full_like(x, 0.25)), torch.full_like(x, 2.0)), 0),
        ):  # fmt: skip
            torch.testing.assert_close(self.scores(f, x[first:]), f(x[first:]))

    def test_of_arrays(self):
        """Element by element, each operation once."""
        x, rows = torch.randn(5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
        got = self.scores(lambda one: (torch.atan2(rows[0] + one, rows[1]) + torch.asinh(rows[2] * one)).sum() + torch.erfc(rows[3] + one).amax(), x)
        want = [(torch.atan2(rows[0] + one, rows[1]) + torch.asinh(rows[2] * one)).sum() + torch.erfc(rows[3] + one).amax() for one in x]
        torch.testing.assert_close(got, torch.stack(want))

    def test_long_chains(self):
        """Of many operations, each of which is read twice."""
        x = torch.randn(5, dtype=torch.float64)

        def mod(one):
            y = one
            for _ in range(20):
                y = torch.maximum(y, torch.zeros_like(y)) * 0.5 + y.clamp(-2.0, 2.0) * 0.4
            return y

        torch.testing.assert_close(self.scores(mod, x), mod(x))
        rows = torch.zeros(1, 1, 4, 8)
        many = flex.flex_attention(rows, rows, rows, lambda s, b, h, i, j: s + sum([(i + j * k).abs() for k in range(60)]) * 0.0)
        self.assertEqual(many.shape, rows.shape)

    def test_integers(self):
        self.assertEqual(N, 12)
        x = torch.arange(5)
        got = self.scores(lambda one: torch.atan(one) + torch.hypot(one, one + 1) + torch.asinh(one), x.double())
        torch.testing.assert_close(got, (torch.atan(x) + torch.hypot(x.double(), x + 1.0) + torch.asinh(x)).double(), rtol=1e-6, atol=0)


if __name__ == "__main__":
    unittest.main()
