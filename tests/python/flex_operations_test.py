"""flex_operations_test.py: what mods of luattn.flex may compute, what values say of themselves, and refusals with their lines.
Exits with 77 where torch is not installed."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import numpy as np
    import torch
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn import flex  # noqa: E402
from luattn.flex import _programs  # noqa: E402
from eager_mods import Case, N  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402


class Operations(Case):
    def test_in_place(self):
        doc, slopes = torch.tensor([0] * 5 + [1] * 7), torch.tensor([0.3, 0.7], dtype=torch.float64)

        def anded(b, h, i, j):
            keep = i >= j
            also = keep
            keep &= doc[i] == doc[j]
            also |= i == 3
            return keep

        def added(s, b, h, i, j):
            s = s * 1.0
            before = s
            s += slopes[h] * (i - j)
            s *= 0.5
            s.clamp_(-1, 1).sub_(before.tanh())
            return before + s

        def filled(s, b, h, i, j):
            s = s.clone()
            s.masked_fill_(i < j, -1e9)
            return s.masked_fill(i == j, 0.5)

        def parameter(s, b, h, i, j):
            s += i
            i -= j
            return s * i

        self.same(mask_mod=anded)
        self.same(added)
        self.same(parameter, eager_score=lambda s, b, h, i, j: (s + i) * (i - j))
        run = torch.compile(flex.flex_attention, backend="eager", fullgraph=True)
        for mod in (added, filled):
            torch._dynamo.reset()
            torch.testing.assert_close(run(self.q, self.k, self.v, mod), self.ours(mod))
        self.same(filled)

    def test_places_among_sorted_numbers(self):
        for n in (1, 3, 128, 129, 700):
            ends = torch.sort(torch.randint(0, N + 2, (n,), dtype=torch.int32)).values
            for right in (False, True):
                self.same(
                    mask_mod=lambda b, h, i, j: torch.searchsorted(ends, i, right=right)
                    <= torch.bucketize(j, ends, right=right)
                )
        some = torch.tensor([1, 4, 5])
        self.same(
            mask_mod=lambda b, h, i, j: torch.isin(j, some) | ~torch.isin(i, some[:0], invert=True) | (i == j),
            eager_mask=lambda b, h, i, j: (j == some).any() | (i == j),
        )
        rows = torch.sort(torch.randn(2, 5, dtype=torch.float64)).values
        self.same(lambda s, b, h, i, j: s + torch.searchsorted(rows[0], s) * 0.1)

    def test_what_is_left_out(self):
        """A tensor that is read where a flag of Python leaves it out."""
        table = torch.randint(0, 6, (2,))
        for flag in (False, True):
            self.same(mask_mod=lambda b, h, i, j: torch.where((i >= 0) & flag, table[h], 9) >= j)
            self.same(mask_mod=lambda b, h, i, j: ((table[h] >= j) | flag) & ~((i > 90) * flag))
            self.same(lambda s, b, h, i, j: s + torch.where(torch.tensor(flag), table[h] + 2, table[h] + table[0]))

    def test_functions(self):
        t = torch.randn(N, dtype=torch.float64)
        F = torch.nn.functional
        for mod in (
            lambda s, b, h, i, j: s + torch.fmod(i - j, 5) + torch.fmod(j - i, -3) * 0.1 + torch.fmod(s * 7, 2.5),
            lambda s, b, h, i, j: s + torch.div(i - j, 5, rounding_mode="trunc") + torch.div(s * 9, -2, rounding_mode="trunc"),
            lambda s, b, h, i, j: torch.expm1(s) + torch.log10(s.abs() + 1) + torch.erfc(s) + torch.trunc(s * 5) + torch.frac(s * 3),
            lambda s, b, h, i, j: s + torch.round(s * 5) + torch.round((i - j) * 0.5) + (i - j).round(),
            lambda s, b, h, i, j: s.sinh() + s.cosh() + torch.hypot(s, i + 1.0),
            lambda s, b, h, i, j: F.leaky_relu(s, 0.2) + F.elu(s) + F.hardtanh(s) + F.hardsigmoid(s) + F.hardswish(s) + F.mish(s),
            lambda s, b, h, i, j: torch.lerp(s, t[i], 0.3) + torch.addcmul(s, t[i], t[j], value=0.5),
            lambda s, b, h, i, j: torch.logaddexp(s, t[i]) + torch.xlogy(t[i].abs(), s.abs() + 1),
            lambda s, b, h, i, j: F.logsigmoid(s) + F.threshold(s, 0.1, 0.5) + F.softsign(s) + F.selu(s) + F.celu(s),
            lambda s, b, h, i, j: torch.where(torch.isinf(s / 0.0), s, 2 * s) + 2**s + torch.pow(2.0, -(h + 1).float()),
            lambda s, b, h, i, j: torch.stack([s, t[i], t[j]]).amax() + torch.stack([t[j], t[i]])[h],
            lambda s, b, h, i, j: s + torch.cat([t[:2], t[i][None]])[j % 3] + t.view(3, 4).softmax(-1)[i % 3, j % 4],
        ):
            self.same(mod)

    def test_boolean_logic(self):
        flag = torch.rand(N) > 0.5
        for mod in (
            lambda b, h, i, j: torch.logical_and(i >= j, flag[j]) | ~flag[i],
            lambda b, h, i, j: (i >= j) ^ flag[j],
            lambda b, h, i, j: torch.logical_xor(i > 3, j) | torch.logical_not(i - j),
            lambda b, h, i, j: (i >= j) & True | False,
            lambda b, h, i, j: (i >= j) == flag[j],
            lambda b, h, i, j: (i >= j) * flag[j],
            lambda b, h, i, j: (i >= j + 3) + flag[j] + (i == 2),
            lambda b, h, i, j: torch.maximum(i >= j, flag[j]) & torch.minimum(i > 1, flag[i] + True),
            lambda b, h, i, j: torch.add(i >= j, flag[j]) & (((i >= j) + 1 + flag[i]) > 1),
            lambda b, h, i, j: torch.where(flag[i], i >= j, i <= j),
        ):
            self.same(mask_mod=mod)

    def test_what_values_say_of_themselves(self):
        def mod(s, b, h, i, j):
            assert isinstance(s, torch.Tensor) and s.dim() == 0 and s.shape == () and i.numel() == 1
            assert s.dtype == torch.float64 and (i - j).dtype == torch.int32 and (i >= j).dtype == torch.bool
            assert s.device == torch.device("cpu") and s.is_floating_point() and not i.requires_grad
            row = table[h]
            assert row.shape == (3,) and len(row) == 3 and row.size(-1) == 3 and repr(s)
            first, *rest = row
            values, places = row.max(0)
            low, high = torch.stack([s, s + 1]).chunk(2)
            left, right = torch.cat([row, table[0]]).split([2, 4])
            return s + first * rest[0] + rest[1] - values + low[0] * high.sum() + left[i % 2] * right[j % 4]

        table = torch.randn(2, 3, dtype=torch.float64)
        self.same(mod)

    def test_what_a_mod_makes_and_writes(self):
        def filled(s, b, h, i, j):
            total = torch.zeros((), dtype=torch.float64)
            total.add_(s)
            return total * 2 + total[None][0]

        def out(s, b, h, i, j):
            total = torch.zeros((), dtype=torch.float64)
            torch.add(s, 1, out=total)
            return total * 3

        self.same(filled, eager_score=lambda s, b, h, i, j: s * 3)
        self.same(out, eager_score=lambda s, b, h, i, j: (s + 1) * 3)
        self.same(lambda s, b, h, i, j: torch.add(s, i, out=None), eager_score=lambda s, b, h, i, j: s + i)

    def test_slopes_where_functions_bend(self):
        points = torch.randn(N, 3, dtype=torch.float64).requires_grad_()
        self.same(lambda s, b, h, i, j: s - (points[i] - points[j]).norm(), learned=(points,))

        def detached(s, b, h, i, j):
            with torch.no_grad():
                offset = j - s
            return torch.nn.functional.logsigmoid(s + offset)  # of exactly 0 for the first key

        self.same(detached)

    def test_names(self):
        self.assertEqual([x for x in theirs.__all__ if not hasattr(flex, x)], [])
        for name in ("create_mask", "and_masks", "or_masks", "noop_mask"):
            self.assertIs(getattr(flex, name), getattr(theirs, name))
        self.assertEqual([x for x in flex.__all__ if not hasattr(flex, x)], [])


class Refusals(Case):
    """Each names the line of the mod, the thing, and what to do."""

    def test_lines(self):
        kept = []

        def keeps(s, b, h, i, j):
            kept.append(s)
            return s + kept[0]

        def writes(s, b, h, i, j):
            table[h] = s
            return s

        def writes_fresh(s, b, h, i, j):
            made = torch.zeros(3, dtype=torch.float64)
            made[1] = s * 2
            return made.sum()

        table, array = torch.zeros(2, dtype=torch.float64), np.zeros(N)
        here = r"flex_operations_test.py:\d+: "
        for mod, message in (
            (lambda s, b, h, i, j: s if s > 0 else -s, "a decision of Python on a value of the mod"),
            (lambda s, b, h, i, j: s * s.item(), "a decision of Python on a value of the mod"),
            (lambda s, b, h, i, j: s + [1, 2, 3][i], "a decision of Python on a value of the mod"),
            (lambda s, b, h, i, j: s + array, r"a NumPy array of shape \(12,\) .* torch.from_numpy"),
            (lambda s, b, h, i, j: None, "returns a NoneType, expected a tensor of no dimensions"),
            (lambda s, b, h, i, j: (s, s), "returns a tuple, expected a tensor"),
            (lambda s, b, h, i, j: s + undefined, "NameError: name 'undefined' is not defined"),  # noqa: F821
            (lambda s, b, h, i, j: torch.special.i0(s), "aten.*i0.* has no counterpart in a spec"),
            (lambda s, b, h, i, j: torch.vmap(lambda x: x * 2)(s[None])[0], "torch.vmap or torch.func inside of a mod"),
            (writes_fresh, "__setitem__ writes a value of the mod into a tensor that is none"),
            (writes, "__setitem__ writes a value of the mod into a tensor that is none, captured or made by the mod: choose by torch.where"),
        ):
            with self.subTest(message):
                self.refuses(here + message, mod)
        with self.assertRaisesRegex(flex.NotTranslatable, here + "a value of another call of a mod, kept in a cache"):
            for _ in "ab":
                _programs.clear()
                self.ours(keeps)
        with self.assertRaisesRegex(luattn.InvalidError, "score_mod: is the string .causal., expected a function"):
            self.ours("causal")

    def test_integers_that_wrap(self):
        small = torch.arange(N, dtype=torch.uint8)
        for mod, what in (
            (lambda s, b, h, i, j: s + (small[i] - small[j] < 100), "sub of uint8"),
            (lambda s, b, h, i, j: s + (i - j).to(torch.int16), "_to_copy of int16"),
            (lambda s, b, h, i, j: s + ~small[i], "bitwise_not of uint8"),
        ):
            self.refuses(rf"flex_operations_test.py:\d+: {what}, which PyTorch cuts to its bits: .* tensor.to\(torch.int32\)", mod)
        self.same(lambda s, b, h, i, j: s + (small[i].int() - small[j].int()) * 0.25)

    def test_integers_beyond_32_bits(self):
        """PyTorch wraps what it computes in int32: refused by the values and lengths of a call, and right where these fit, or in 64 bits."""
        ids = torch.arange(N, dtype=torch.int32) * 1000
        for mod, name in (
            (lambda b, h, i, j: (ids[i] + ids[j]) > 0, "add"),
            (lambda b, h, i, j: (ids[i] - (-1 - ids[j])) > 0, "sub"),
            (lambda b, h, i, j: torch.add(ids[i], ids[j], alpha=2) > j, "add"),
            (lambda b, h, i, j: torch.where(ids[i] > 5, ids[i] + i, 3) + ids[j] > j, "add"),
            (lambda b, h, i, j: (ids[i].abs() + ids[j].clamp(min=0)) % 1000 > j, "add"),
        ):
            before = ids.clone()
            self.same(mask_mod=mod)
            ids[1:] += 2**31 - 20000  # the same recording
            self.refuses(rf"flex_operations_test.py:\d+: {name} of int32 may reach -?[0-9]+, and PyTorch wraps it at 2\^31.* x.long\(\)", mask_mod=mod)
            ids.copy_(before)
        wide = ids.long() + 2**31 - 20000
        self.same(mask_mod=lambda b, h, i, j: (wide[i] + wide[j]) > 2**32 - 30000)
        for mod, name in (
            (lambda b, h, i, j: i * 2000000000 > 0, "mul"), (lambda b, h, i, j: i * 30000 * (j + 70000) > 12345, "mul"), (lambda b, h, i, j: i**12 > j, "pow"),
            (lambda b, h, i, j: (i.long() * 2000000000).int() > j, "_to_copy"), (lambda b, h, i, j: (i + 2000000000) + j * 30000000 > 0, "add"),
        ):  # fmt: skip
            self.refuses(rf"{name} of int32 may reach", mask_mod=mod)
        for factor in (1000, 3000, 5000, 2000000000):  # an argument of the kernel by then
            mod = lambda b, h, i, j: i * factor - j > 7000  # noqa: B023, E731
            if factor < 2000000000:
                self.same(mask_mod=mod)
            else:
                self.refuses("mul of int32 may reach", mask_mod=mod)
        self.same(mask_mod=lambda b, h, i, j: ((i * 1000000007 + j * 40503) & 65535) % 7 < 4)
        self.same(mask_mod=lambda b, h, i, j: ((i ^ (j + 5)) + (i | j) + (i >> 1) * 3) % 5 > 1)  # bounded by their bits

    def test_written_after_it_was_read(self):
        count = torch.zeros((), dtype=torch.float64)

        def mod(s, b, h, i, j):
            s = s * count
            count.add_(1)
            return s

        self.refuses(r"flex_operations_test.py:\d+: add_ writes into a tensor that the mod has read before", mod)

    def test_factors_beyond_32_bits(self):
        pages = torch.arange(N, dtype=torch.int32)

        def mod(s, b, h, i, j):
            return s + 1e-6 * (pages[i] * 5 - j).double()

        self.same(mod)
        pages[3] = -(1 << 21)  # the same recording
        self.refuses(
            r"flex_operations_test.py:\d+: multiplies integers of a tensor of int32 that holds -2097152; .* write tensor.long\(\)", mod
        )
        pages = pages.long()
        self.same(mod)


if __name__ == "__main__":
    unittest.main()
