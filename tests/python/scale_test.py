"""scale_test.py: every number as a scale, and tensors with their gradient, wherever a call takes one."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import flex
from luattn.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, varlen_attn

capped = luattn.attention(
    "return attention { block_mask = causal(), scalars = { cap = 3.0 }, inputs = { slope = { axes = { 'h' }, dtype = 'any', grad = true } }, "
    "score_mod = function(score, b, h, q_idx, kv_idx) return cap * tanh(score / cap) - slope[h] * (q_idx - kv_idx) end }"
)
turned = luattn.attention("return attention { query_mod = function(x, b, h, pos, d) return x * x + 1 end, online_func = softmax_one }")
SCALES = (0, 0.0, -0.0, -0.7, -2, 3, 1e-30, torch.tensor(-0.4), torch.tensor([[0.3]], dtype=torch.float64))


def rand(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def reference(q, k, v, scale, mod=lambda s: s, keep=None):
    s = mod(q @ k.transpose(-1, -2) * scale)
    return (s if keep is None else s.masked_fill(~keep, -torch.inf)).softmax(-1) @ v


def compiled(call):
    def run(scale):
        torch._dynamo.reset()  # which has a limit of scales
        return torch.compile(call, backend="aot_eager", fullgraph=True)(scale)

    return run


class Scales(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.qkv = [rand(2, 2, 6, 8) for _ in "qkv"]
        i = torch.arange(6)
        self.past, self.distance = i[:, None] >= i, i[:, None] - i

    def same(self, call, want, leaves=None, scales=SCALES):
        """Results and gradients of call and want, functions of a scale, at each scale, learned and not."""
        leaves = self.qkv if leaves is None else leaves
        for scale in scales:
            with self.subTest(scale=scale):
                o, expected = call(scale), want(float(scale))
                torch.testing.assert_close(o, expected)
                dout = torch.randn_like(o)
                for a, b in zip(torch.autograd.grad(o, leaves, dout), torch.autograd.grad(expected, leaves, dout)):
                    torch.testing.assert_close(a, b)
            learned, twin = (torch.tensor(float(scale), dtype=torch.float64, requires_grad=True) for _ in range(2))
            with self.subTest(learned=float(scale)):
                got = torch.autograd.grad(call(learned), [learned, *leaves], dout)
                for a, b in zip(got, torch.autograd.grad(want(twin), [twin, *leaves], dout)):
                    torch.testing.assert_close(a, b)

    def test_attention(self):
        slope = rand(2)

        def mod(s):
            return 3.0 * torch.tanh(s / 3.0) - slope[:, None, None] * self.distance

        call = lambda scale: capped(*self.qkv, slope=slope, scale=scale)  # noqa: E731
        self.same(call, lambda scale: reference(*self.qkv, scale, mod, self.past), [*self.qkv, slope])
        self.same(compiled(call), lambda scale: reference(*self.qkv, scale, mod, self.past), [*self.qkv, slope], (0.0, -2))
        q, k, v = self.qkv
        one = torch.zeros(2, 1, 6, 1, dtype=torch.float64), torch.zeros(2, 1, 1, 8, dtype=torch.float64)
        self.same(
            lambda scale: turned(*self.qkv, scale=scale),
            lambda scale: (torch.cat(((q * q + 1) @ k.transpose(-1, -2) * scale, one[0].expand(2, 2, 6, 1)), -1).softmax(-1))
            @ torch.cat((v, one[1].expand(2, 2, 1, 8)), 2),
        )

    def test_flex(self):
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6)
        mod = lambda s, b, h, i, j: s - (i - j).abs()  # noqa: E731
        call = lambda scale: flex.flex_attention(*self.qkv, mod, mask, scale=scale)  # noqa: E731
        for f, scales in ((call, SCALES), (compiled(call), (0.0, -2))):
            self.same(f, lambda scale: reference(*self.qkv, scale, lambda s: s - self.distance.abs(), self.past), scales=scales)

    def test_flash_attn(self):
        q, k, v = (t.transpose(1, 2) for t in self.qkv)
        self.same(
            lambda scale: flash_attn_func(q, k, v, softmax_scale=scale, causal=True).transpose(1, 2),
            lambda scale: reference(*self.qkv, scale, keep=self.past),
        )
        cu = torch.tensor([0, 6, 12], dtype=torch.int32)

        def packed(f, **given):
            return lambda scale: f(*(t.transpose(1, 2).flatten(0, 1) for t in self.qkv), cu, cu, 6, 6, **{next(iter(given)): scale}).view(2, 6, 2, 8).transpose(1, 2)

        for f in (packed(flash_attn_varlen_func, softmax_scale=0), packed(varlen_attn, scale=0)):
            self.same(f, lambda scale: reference(*self.qkv, scale))
        with torch.no_grad():
            for scale in SCALES:
                got = flash_attn_with_kvcache(q, k, v, softmax_scale=scale).transpose(1, 2)
                torch.testing.assert_close(got, reference(*self.qkv, float(scale)))
                o, _, kept = flash_attn_func(q, k, v, 0.5, softmax_scale=scale, return_attn_probs=True)
                torch.testing.assert_close(kept.abs(), reference(*self.qkv[:2], torch.eye(6, dtype=torch.float64), float(scale)))
                torch.testing.assert_close(o.transpose(1, 2), kept.clamp(min=0) * 2 @ self.qkv[2])

    def test_on_a_device(self):
        """The spec of a scale that is a tensor on a GPU: one more input, which has the same gradient."""
        spec, slope = capped._spec, rand(2)
        made = [torch.tensor(-0.4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        inputs = luattn._scale.multiplied(luattn._scale.scaled(spec.text, spec.place, "inputs"), "inputs", [slope], [3.0], made[0])
        o, _ = luattn._attend.attend(inputs[0], *self.qkv, *inputs[1:])
        want = capped(*self.qkv, slope=slope, scale=made[1])
        torch.testing.assert_close(o, want)
        got = torch.autograd.grad(o.sum(), [made[0], slope, *self.qkv])
        for a, b in zip(got, torch.autograd.grad(want.sum(), [made[1], slope, *self.qkv])):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)

    def test_parts(self):
        """By state, and their gradients."""
        q, k, v = (t.detach() for t in self.qkv)
        for scale in (-0.5, 0.0, torch.tensor(0.3)):
            parts = [turned(q, k[:, :, i : i + 3], v[:, :, i : i + 3], scale=scale, return_state=True) for i in (0, 3)]
            o, lse, saved = turned.merge(*zip(*parts), return_saved=True)
            torch.testing.assert_close(o, turned(q, k, v, scale=scale))
            made = [turned.gradients(torch.ones_like(o), q, k[:, :, i : i + 3], v[:, :, i : i + 3], o, lse, saved, scale=scale) for i in (0, 3)]
            learned = torch.tensor(float(scale), dtype=torch.float64, requires_grad=True)
            want = torch.autograd.grad(turned(*self.qkv, scale=learned).sum(), [learned, *self.qkv])
            torch.testing.assert_close(sum(g[0] for g in made), want[1])
            self.assertEqual([*made[0][3]], ["scale"] if isinstance(scale, torch.Tensor) else [])
            if made[0][3]:
                torch.testing.assert_close(sum(g[3]["scale"] for g in made), want[0], check_dtype=False)

    def test_numpy(self):
        try:
            import numpy as np
        except ImportError:
            return
        q, k, v = (t.detach().numpy() for t in self.qkv)
        for scale in (*SCALES, np.float32(-0.25), np.array(0.5)):
            o = capped(q, k, v, slope=np.zeros(2), scale=scale)
            want = reference(*self.qkv, float(scale), lambda s: 3.0 * torch.tanh(s / 3.0), self.past)
            torch.testing.assert_close(torch.from_numpy(o), want.detach())

    def test_refused(self):
        q = self.qkv[0]
        for scale, what in (
            (torch.nan, "scale: is nan, expected a number"), (-torch.inf, "scale: is -inf"), (torch.tensor(torch.inf), "scale: is inf"),
            (torch.ones(2, 1, 1), r"scale: has shape \(2, 1, 1\), expected one element, or a number: for one of each head"),
        ):  # fmt: skip
            for call in (lambda: turned(q, q, q, scale=scale), lambda: flex.flex_attention(q, q, q, scale=scale)):
                with self.assertRaisesRegex(luattn.InvalidError, what):
                    call()
        with self.assertRaisesRegex(luattn.InvalidError, "scale: is 1e-40, expected 1.1"):
            turned(q.float(), q.float(), q.float(), scale=1e-40)

    def test_names_and_lines_stay(self):
        """The spec of a scale is the same with one thing more."""
        spec = luattn.attention("return attention {\n\n  score_mod = function(s) return s end }")._spec
        made = luattn._scale.scaled(spec.text, spec.place, "scalars")
        self.assertEqual((made.name, list(made.scalars)), (spec.name, ["luattn_scale"]))
        self.assertEqual(made.text.count("\n"), spec.text.count("\n"))
        self.assertIs(luattn._scale.scaled(spec.text, spec.place, "scalars"), made)


if __name__ == "__main__":
    unittest.main()
