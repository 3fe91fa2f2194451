"""flex_lines_test.py: each refusal of a mod of luattn.flex begins with the file and the line that are to blame, and prints nothing.
Exits with 77 where torch is not installed."""

import functools
import linecache
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

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
from eager_mods import Case, N  # noqa: E402

BLAMED = 4  # the line of each mod that is written below
HELD = {
    "torch": torch, "np": np, "F": torch.nn.functional, "array": np.ones(N), "row": torch.randn(N), "table": torch.randn(N, N), "one": torch.zeros(()),
    "large": torch.full((N,), 2**30, dtype=torch.int32), "small": torch.zeros(N, dtype=torch.uint8), "zero": torch.zeros(N, dtype=torch.int64),
    "none": torch.zeros(0), "five": torch.zeros(2, 2, 2, 2, 2), "meta": torch.zeros(N, device="meta"), "complex": torch.zeros(N, dtype=torch.complex64),
    "learned": torch.randn(N, 300, requires_grad=True), "many": [torch.randn(N) for _ in range(13)],
}  # fmt: skip
# What no score_mod may do, and a part of what is said.
SCORES = (
    ("x = torch.erfinv(score)", "has no counterpart"), ("x = F.softplus(score, 2.0)", "softplus with a beta"), ("x = torch.round(score, decimals=2)", "round.. with decimals"),
    ("x = torch.norm(torch.stack([score, score]), p=3)", "norm of another order"), ("x = torch.sort(torch.stack([score, score]))[0][0]", "sort"),
    ("x = torch.lgamma(score)", "no counterpart"), ("x = torch.rand_like(score)", "rand_like"), ("x = F.dropout(score, 0.5)", "no counterpart"),
    ("x = torch.linalg.inv(torch.stack([torch.stack([score, score])] * 2))[0, 0]", "inv"), ("x = torch.div(score, 2, rounding_mode='nope')", "rounding_mode"),
    ("x = score if score > 0 else -score", "a decision of Python"), ("x = score.item()", "a decision of Python"), ("x = [1, 2, 3][q_idx]", "a decision of Python"),
    ("x = range(q_idx)", "a decision of Python"), ("x = score + undefined", "NameError"), ("x = score.nosuch()", "AttributeError"), ("x = score + array", "a NumPy array"),
    ("x = score + 'a'", "__add__ of a value of the mod and an object of type str"), ("x = 'a' * score", "TypeError"), ("row[0] = score", "torch.where"),
    ("x = score + row[99]", "IndexError"), ("x = score + row[kv_idx, q_idx]", "too many indices|IndexError"), ("x = torch.arange(600) * score; y = x.sum()", "at most 512"),
    ("x = score * small[kv_idx].add(1)", "PyTorch cuts to its bits"), ("x = score + (large[kv_idx] + large[q_idx])", "add of int32 may reach"),
    ("x = score + q_idx ** 99", "pow of int32 may reach"), ("x = score * 2 + (q_idx << 40)", "'<<' may reach"), ("x = score + q_idx.long() * 6000000000", "does not fit|may reach"),
    ("x = score + (score * 1e6).int() * 2000000000", "may reach"), ("x = score + q_idx % 0", "divided by zero"), ("x = score + q_idx // (zero[kv_idx] * 0)", "divided by zero"),
    ("x = score + q_idx // kv_idx", "divided by zero"), ("x = score + q_idx % (kv_idx - 2)", "divided by zero"), ("x = score + torch.fmod(q_idx, -h)", "divided by zero"),
    ("x = score + torch.div(q_idx, kv_idx * 2, rounding_mode='trunc')", "divided by zero"), ("x = torch.where(kv_idx > 0, q_idx // kv_idx, 0) * score", "divided by zero"),
    ("x = score + q_idx // (q_idx - kv_idx)", "divided by zero"), ("x = score + q_idx % zero[kv_idx]", "divided by zero"), ("x = score + q_idx // (small[kv_idx].int() + 3 - 3)", "divided by zero"),
    ("x = score + table[kv_idx]", "returns a tensor of 12 elements"), ("x = torch.where(score > 0, table, 0.0)", "returns a tensor of 12x12 elements"),
    ("x = F.embedding(q_idx, table)", "returns a tensor of 12 elements"), ("x = torch.stack([score, score])", "returns a tensor of 2 elements"),
    ("x = score + five[b, h, 0, 0, 0]", "5 axes"), ("x = score + complex[q_idx].real", "complex64"), ("x = score + none[q_idx]", "none: leave the read out"),
    ("x = score + meta[q_idx]", "is on meta, and q on cpu"), ("x = sum((t[q_idx] * score for t in many), score)", "more than 12 entries"),
    ("x = (learned[q_idx] * score).sum()", "300 parameters with a gradient"), ("return score, y", "returns a tuple"), ("return None", "returns a NoneType"),
    ("x = score.half()", "half rounds to float16"), ("x = score.to(torch.bfloat16) * 3", "to rounds to bfloat16"), ("x = row[q_idx].type(torch.float16)", "type rounds to float16"),
    ("x = score + score.view(torch.int32)", "view reads the bits of float32 as int32"), ("x = q_idx.view(torch.float32)", "view reads the bits of int32 as float32"),
    ("x = torch.sum(score, dtype=torch.float16)", "sum rounds to float16"), ("x = torch.ops.aten._to_copy(score, dtype=torch.bfloat16)", "rounds to bfloat16"),
    ("x = torch.tensor(score, dtype=torch.float16)", "tensor rounds to float16"), ("x = score.type_as(row.half())", "type_as rounds to float16"),
    ("x = torch.zeros((), dtype=torch.float16).add_(score)", "add_ rounds to float16"), ("x = torch.full_like(score, 0.1, dtype=torch.float16) * score", "full_like rounds"),
    ("x = torch.where(score)", "where of these arguments gives a tuple"), ("x = score.data_ptr()", "data_ptr asks where"), ("x = score.storage()", "storage asks where"),
    ("x = q_idx ** -1", "an integer to a negative power"), ("x = score.to('cuda')", "to moves a value of the mod to cuda"), ("x = score.to('meta')", "to moves a value of the mod to meta"),
)  # fmt: skip
MASKS = (
    ("x = q_idx if q_idx > kv_idx else kv_idx", "a decision of Python"), ("x = q_idx * 2000000000", "mul of int32 may reach"), ("x = kv_idx % 0", "divided by zero"), ("x = kv_idx % q_idx", "divided by zero"),
    ("x = table[kv_idx]", "returns a tensor of 12 elements"), ("x = q_idx + meta[kv_idx]", "is on meta"), ("x = torch.special.i0(q_idx * 1.0)", "no counterpart"),
    ("x = row[kv_idx].half()", "half rounds to float16"), ("return None", "returns a NoneType"),
)  # fmt: skip


def here(name):
    """The place in this file of the line that ends with # NAME."""
    with open(__file__, encoding="utf-8") as file:
        return next(f"{__file__}:{n}: " for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {name}"))


class Method:
    def mod(self, s, b, h, i, j):
        s = s * 1.0
        s = s + i % 0  # method
        return s + j

    def __call__(self, s, b, h, i, j):
        s = s * 1.0
        s = torch.lgamma(s)  # called
        return s + j


class Module(torch.nn.Module):
    def forward(self, s, b, h, i, j):
        s = s * 1.0
        s = s + HELD["table"][i]  # forward
        return s + j


def causal(b, h, i, j):
    return i >= j


def divides(b, h, i, j):
    keep = i >= j
    keep = keep & (j % 0 == 1)  # divides
    return keep & (i >= 0)


class Lines(Case):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = (torch.randn(1, 2, N, 8, requires_grad=True) for _ in "qkv")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.printed = tempfile.TemporaryFile()
        self.addCleanup(self.printed.close)
        before = os.dup(2)
        os.dup2(self.printed.fileno(), 2)
        self.addCleanup(lambda: (os.dup2(before, 2), os.close(before)))

    def refuses(self, place, what, score_mod=None, mask_mod=None):
        with self.subTest(what), self.assertRaises(luattn.Error) as caught:
            self.ours(score_mod, mask_mod)
        message = str(caught.exception)
        self.assertTrue(message.startswith(place), f"{message}, expected {place}")
        self.assertRegex(message, what)
        self.printed.seek(0)
        self.assertEqual(self.printed.read().decode(), "")

    def written(self, line, parameters, number):
        """A mod in a file of its own, whose line BLAMED is this."""
        path = f"{self.folder.name}/mod{number}.py"
        returned = "z" if parameters.startswith("score") else "z > 0"
        text = f"def mod({parameters}):\n    y = {parameters.partition(',')[0]} * 1.0\n    x = y\n    {line}\n    z = x + y\n    return {returned}\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        linecache.checkcache()
        names = dict(HELD)
        exec(compile(text, path, "exec"), names)
        return f"{path}:{BLAMED}: ", names["mod"]

    def test_score_mods(self):
        for number, (line, what) in enumerate(SCORES):
            place, mod = self.written(line, "score, b, h, q_idx, kv_idx", number)
            self.refuses(place, what, mod)

    def test_mask_mods(self):
        for number, (line, what) in enumerate(MASKS):
            place, mod = self.written(line, "b, h, q_idx, kv_idx", number)
            self.refuses(place, what, mask_mod=mod)
            if line != "return None":  # of which and_masks knows no more than that one of them does
                self.refuses(place, what, mask_mod=flex.and_masks(causal, mod))
            self.refuses(place, what, lambda s, b, h, i, j: s + HELD["row"][i], mod)

    def test_both_say_where(self):
        place, mod = self.written("x = score + q_idx % 0", "score, b, h, q_idx, kv_idx", 0)
        self.refuses(place, rf"{BLAMED}: mod \(.*mod0.py:1\):\d+: %: an integer is divided by zero", mod)
        with self.assertRaisesRegex(flex.NotTranslatable, place):
            flex.to_lua(mod)

    def test_kinds_of_functions(self):
        scale = HELD["row"]

        def closure(s, b, h, i, j):
            s = s * scale[i]
            s = s + (i.long() * 6000000000)  # closure
            return s + scale[j]

        lines = lambda s, b, h, i, j: (  # noqa: E731
            s * 2.0
            + i % 0  # lambda
            + scale[j]
        )
        helps, helper = self.written("x = torch.lgamma(score)", "score", 0)

        def calls(s, b, h, i, j):
            return helper(s) + j

        for mod, place in (
            (closure, here("closure")), (lines, here("lambda")), (Method().mod, here("method")), (Method(), here("called")), (Module(), here("forward")),
            (functools.partial(Method.mod, None), here("method")), (calls, helps),
        ):  # fmt: skip
            self.refuses(place, ".", mod)
        for mask in (divides, flex.and_masks(causal, divides), flex.or_masks(divides, causal), functools.partial(divides)):
            self.refuses(here("divides"), "divided by zero", mask_mod=mask)

    def test_warm_calls(self):
        """What the first call of a mod accepts, and a later one does not."""
        ids, factor = torch.arange(N, dtype=torch.int32), 3

        def sums(b, h, i, j):
            keep = i >= j
            keep = keep & (ids[i] + ids[j] > 3)  # sums
            return keep | (i == 0)

        def factors(s, b, h, i, j):
            far = i * factor  # factors
            return s + far * 0.5

        def pages(s, b, h, i, j):
            s = s * 1.0
            page = ids[j] * 16  # pages
            return s + page * 1e-9

        for mod in (factors, pages):
            self.ours(mod)
        self.ours(mask_mod=sums)
        ids[3] = 2**31 - 5
        self.refuses(here("sums"), "add of int32 may reach", mask_mod=sums)
        self.refuses(here("pages"), "multiplies integers|may reach", pages)
        for factor in (5, 7, 2000000000):
            if factor < 10:
                self.ours(factors)
        self.refuses(here("factors"), "mul of int32 may reach", factors)

    def test_a_mod_that_does_another_thing_later(self):
        """A refused mod runs once more, and what it is refused for stays what it was."""
        steps = iter([lambda s, i: s + i % 0])

        def mod(s, b, h, i, j):
            return next(steps, lambda s, i: s.sin())(s, i)

        def ends(s, b, h, i, j):
            return next(steps)(s, i)

        with self.assertRaisesRegex(flex.NotTranslatable, r"flex_lines_test.py:\d+: .*: an integer is divided by zero"):
            self.ours(mod)
        steps = iter([lambda s, i: s + i % 0])
        with self.assertRaisesRegex(flex.NotTranslatable, r"flex_lines_test.py:\d+: .*: an integer is divided by zero"):
            self.ours(ends)

    def test_backward(self):
        """What backward refuses begins with the line of the mod, whatever the refusal is: one that no line of the spec has, or the library's."""
        learned = torch.randn(N, requires_grad=True)

        def mod(s, b, h, i, j):  # mod
            return s * learned[i]

        def same(s, b, h, i, j):  # same
            return s * learned[i]

        def third(scale=None):
            g = flex.flex_attention(self.q, self.k, self.v, mod, scale=scale)
            for _ in range(2):
                g = torch.autograd.grad(g.square().sum(), self.q, create_graph=True)[0]
            g.sum().backward()

        def refused():
            o = flex.flex_attention(self.q, self.k, self.v, mod)
            with mock.patch.object(luattn._tensors, "fill_backward", side_effect=luattn.Unsupported("backward of 'm': it takes 9 times as long to compile as causal")):
                o.sum().backward()

        place, scaled = here("mod").removesuffix(": "), torch.tensor(-1.0)
        for call, what in (
            (third, "there are no third derivatives"), (lambda: third(scaled), "there are no third derivatives"), (refused, "backward of 'm': it takes 9 times"),
            (lambda: torch.vmap(lambda x: flex.flex_attention(self.q, self.k, self.v, mod, scale=x))(torch.ones(2)), "torch.vmap: "),
        ):  # fmt: skip
            with self.subTest(what), self.assertRaisesRegex(luattn.Unsupported, rf"^{re.escape(place)}: .*mod: {what}"):
                call()
        flex.flex_attention(self.q, self.k, self.v, same)  # which has the same spec
        other = here("same").removesuffix(": ")
        with self.assertRaisesRegex(luattn.Unsupported, rf"^{re.escape(place)} or {re.escape(other)}: .*mod: there are no third"):
            third()

    def test_compiled(self):
        run = torch.compile(flex.flex_attention, backend="eager", fullgraph=True)
        for number, line in enumerate(("x = score + q_idx % 0", "x = score.half()", "x = score + meta[q_idx]", "x = score + table[kv_idx]")):
            place, mod = self.written(line, "score, b, h, q_idx, kv_idx", number)
            torch._dynamo.reset()
            with self.subTest(line), self.assertRaisesRegex(Exception, place):
                run(self.q, self.k, self.v, mod)

    def test_divisors_that_are_never_zero(self):
        sizes = torch.tensor([3, -1, 2, 5] * (N // 4))
        for divisor in (
            lambda i, j: j + 1, lambda i, j: torch.where(j == 0, 1, j), lambda i, j: j.clamp(min=1), lambda i, j: 2 * j - 3, lambda i, j: i - j - N, lambda i, j: sizes[j],
            lambda i, j: torch.maximum(j, i + 1), lambda i, j: sizes[j] * (i + 1), lambda i, j: 3 - sizes[j] * 2,
        ):  # fmt: skip
            self.same(lambda s, b, h, i, j: s + i // divisor(i, j) - j % divisor(i, j) * 0.5)  # noqa: B023

    def test_what_converts_nothing(self):
        row = torch.randn(N).half()
        self.same(lambda s, b, h, i, j: s.to(torch.float32).view(torch.float32).cpu() + row[j].float() + s.view(()).to(s.device))
        q, k, v = (t.detach().bfloat16() for t in (self.q, self.k, self.v))
        slopes = torch.randn(2)
        o = flex.flex_attention(q, k, v, lambda s, b, h, i, j: (s.float() + slopes[h] * (i - j)).to(s.dtype))
        torch.testing.assert_close(o, flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (i - j)))


if __name__ == "__main__":
    unittest.main()
