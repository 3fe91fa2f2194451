"""luattn.jvp: the second call of a signature makes one launch, past forward mode of torch, and gives what the first way gives, gradients too."""

import sys
import unittest
from unittest import mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import _jvp_calls

SPEC = luattn.attention("""return attention { name = "known", scalars = { cap = 3.0 }, inputs = { bias = { axes = {"h", "kv"}, dtype = "f32", grad = true } },
    score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) + bias[{h, kv}] end, block_mask = causal_bottom_right() }""")
FULL = luattn.attention('return attention { name = "full" }')


def flat(made):
    return [t for x in made for t in (x if isinstance(x, tuple) else (x,))]


class Known(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.q, self.k, self.v, *self.along = (torch.randn(2, 3, 5, 8) for _ in range(6))
        self.bias, self.bias_along = torch.randn(2, 3, 5)
        FULL._spec.signatures.clear(), SPEC._spec.signatures.clear()

    def general(self, attention, *args, **given):
        """What forward mode of torch gives, of tensors that lie elsewhere."""
        with mock.patch.object(_jvp_calls, "find", lambda *args: None):
            return flat(luattn.jvp(attention, *args, **given))

    def known(self, attention, *args, **given):
        with mock.patch.object(sys.modules["luattn.jvp"], "_by_forward_mode", side_effect=AssertionError("goes the general way")):
            return flat(luattn.jvp(attention, *args, **given))

    def compare(self, attention, *args, **given):
        """The second call, and one with other numbers in other memory."""
        luattn.jvp(attention, *args, **given)
        primals, tangents = args
        again = {name: t * 1.5 if isinstance(t, torch.Tensor) and t.is_floating_point() else t for name, t in given.items()}
        along = {name: None if t is None else t * 0.5 if isinstance(t, torch.Tensor) else t for name, t in tangents.items()}
        for args, given in (((primals, tangents), given), (([t * 0.75 for t in primals], along), again)):
            for a, b in zip(self.known(attention, *args, **given), self.general(attention, *args, **given), strict=True):
                self.assertEqual((a.shape, a.stride(), a.dtype), (b.shape, b.stride(), b.dtype))
                torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_calls(self):
        primals, along = (self.q, self.k, self.v), dict(zip("qkv", self.along))
        for given in ({}, {"return_lse": True}, {"layout": "bshd"}, {"layout": "bshd", "return_lse": True}, {"scale": 0.25}, {"q_offset": 2, "kv_offset": 1}):
            with self.subTest(given=given):
                self.compare(FULL, primals, along, **given)
                self.compare(FULL, primals, {"k": self.along[1], "v": None}, **given)

    def test_views(self):
        """Tangents that lie in memory otherwise."""
        first, second = torch.randn(2, 2, 5, 3, 3, 8).permute(0, 3, 1, 4, 2, 5)
        luattn.jvp(FULL, (self.q, self.k, self.v), first.unbind())
        for a, b in zip(self.known(FULL, (self.q, self.k, self.v), second.unbind()), self.general(FULL, (self.q, self.k, self.v), second.unbind())):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_inputs_and_scalars(self):
        along = {"q": self.along[0], "bias": self.bias_along}
        self.compare(SPEC, (self.q, self.k, self.v), along, bias=self.bias, return_lse=True)
        self.compare(SPEC, (self.q, self.k, self.v), {**along, "cap": 0.5}, bias=self.bias, cap=2.0)
        for cap, of_cap in ((2.5, 0.5), (2.5, 0.25), (2.0, 1)):  # a scalar is set anew, and its tangent is of the signature
            call = SPEC, (self.q, self.k, self.v), {**along, "cap": of_cap}
            luattn.jvp(*call, bias=self.bias, cap=cap)
            for a, b in zip(self.known(*call, bias=self.bias, cap=cap), self.general(*call, bias=self.bias, cap=cap)):
                torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_packed(self):
        cu = torch.tensor([0, 3, 10], dtype=torch.int32)
        q, k, v, *along = (torch.randn(10, 2, 8) for _ in range(6))
        self.compare(FULL, (q, k, v), dict(zip("qkv", along)), cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
        other = torch.tensor([0, 8, 10], dtype=torch.int32)
        call = FULL, (q, k, v), dict(zip("qkv", along))
        for a, b in zip(self.known(*call, cu_seqlens_q=other, cu_seqlens_k=other, return_lse=True), self.general(*call, cu_seqlens_q=other, cu_seqlens_k=other, return_lse=True)):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_others_go_the_general_way(self):
        call = FULL, (self.q, self.k, self.v), self.along
        luattn.jvp(*call)
        with self.assertRaisesRegex(luattn.InvalidError, "tangents: 'q': has shape"):
            luattn.jvp(FULL, call[1], (self.along[0][:1], None, None))
        with self.assertRaisesRegex(luattn.InvalidError, "there is no argument 'bias'"):
            luattn.jvp(*call, bias=self.bias)
        with torch.autograd.forward_ad.dual_level(), self.assertRaisesRegex(luattn.Unsupported, "within forward mode"):
            luattn.jvp(*call)
        q = self.q.clone().requires_grad_()
        _, tangent = luattn.jvp(FULL, (q, self.k, self.v), self.along)
        self.assertTrue(tangent.requires_grad)
        with torch.no_grad():
            luattn.jvp(FULL, (q, self.k, self.v), self.along)
            self.known(FULL, (q, self.k, self.v), self.along)
        with torch.inference_mode():
            made = luattn.jvp(*call)
        self.assertFalse(made[0].is_inference())

    def gradients(self, how, attention, primals, along, weights, **given):
        """Of a sum of all results, and of one of o alone."""
        leaves = [t.detach().clone().requires_grad_() for t in (*primals, *along.values(), *given.values()) if isinstance(t, torch.Tensor)]
        n, m = len(primals), len(primals) + len(along)
        made = how(attention, leaves[:n], dict(zip(along, leaves[n:m])), **{**given, **dict(zip([x for x, t in given.items() if isinstance(t, torch.Tensor)], leaves[m:]))})
        sums = [(w[: t.numel()].reshape(t.shape) * t).sum() for w, t in zip(weights, made)]
        found = [torch.autograd.grad(x, leaves, retain_graph=True, allow_unused=True) for x in (sum(sums), sums[0])]
        return [*made, *found[0], *found[1]]

    def test_gradients(self):
        primals, weights = (self.q, self.k, self.v), torch.randn(4, 2 * 3 * 5 * 8)
        cases = (
            (FULL, dict(zip("qkv", self.along)), {}),
            (FULL, {"k": self.along[1]}, {"return_lse": True, "scale": 0.25}),
            (FULL, dict(zip("qkv", self.along)), {"q_offset": 2, "kv_offset": 1, "return_lse": True}),
            (SPEC, {"q": self.along[0], "bias": self.bias_along}, {"bias": self.bias, "return_lse": True}),
            (SPEC, {"v": self.along[2]}, {"bias": self.bias, "cap": 2.0}),
        )
        for attention, along, given in cases:
            with self.subTest(given=[*given]):
                self.gradients(self.general_remembered, attention, primals, along, weights, **given)
                for scale in (1, 0.5):  # other numbers in other memory
                    call = attention, [t * scale for t in primals], {name: t * scale for name, t in along.items()}, weights
                    for a, b in zip(self.gradients(self.known, *call, **given), self.gradients(self.general, *call, **given), strict=True):
                        self.assertEqual(a is None, b is None)
                        if a is not None:
                            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def general_remembered(self, *args, **given):
        return flat(luattn.jvp(*args, **given))

    def test_a_gradient_of_what_has_none_is_refused(self):
        plain = luattn.attention("""return attention { name = "plain", inputs = { bias = { axes = {"h", "kv"}, dtype = "f32" } },
            score_mod = function(s, b, h, q, kv) return s + bias[{h, kv}] end }""")
        q, bias = self.q.clone().requires_grad_(), self.bias.clone().requires_grad_()
        for _ in range(2):
            luattn.jvp(plain, (q, self.k, self.v), {"q": self.along[0]}, bias=self.bias)
            with self.assertRaisesRegex(luattn.InvalidError, "requires a gradient"):
                luattn.jvp(plain, (q, self.k, self.v), {"q": self.along[0]}, bias=bias)

    def test_a_scalar_that_is_a_tensor(self):
        call = SPEC, (self.q, self.k, self.v), {"q": self.along[0]}
        for cap in (2.0, 4.0):
            made = luattn.jvp(*call, bias=self.bias, cap=torch.tensor(cap))
            for a, b in zip(flat(made), self.general(*call, bias=self.bias, cap=cap)):
                torch.testing.assert_close(a, b, rtol=0, atol=0)


if __name__ == "__main__":
    unittest.main()
