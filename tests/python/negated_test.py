"""Tensors that torch has negated in name alone, as the imaginary part of a conjugate is: their memory holds the negative. Every call computes with their values."""

import unittest

from problems import torch  # exits without torch, so first

import luattn
from luattn import fla, flash_attn, flex, natten


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def negated(x):
    """-x, whose memory holds x."""
    made = torch.complex(torch.zeros_like(x), x).conj().imag
    assert made.is_neg()
    return made


def bias(s, b, h, i, j):
    return s + 0.25 * (i - j)


def taps(q, k, v):
    return natten.na1d_av(natten.na1d_qk(q, k, 3).softmax(-1), v, 3)


def merged(q, k, v):
    whole = luattn.attention("causal")
    parts = [whole(q, k, v, return_lse=True), whole(q, k * 2, v + 1, return_lse=True)]
    return luattn.merge([o for o, _ in parts], [lse for _, lse in parts])[0]


def with_state(q, k, v, g, beta, state):
    o, last = fla.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True)
    return torch.cat([o.flatten(), last.flatten()])


CALLS = {
    "attention": (luattn.attention("causal"), [rand(2, 4, 5, 8), rand(2, 2, 5, 8), rand(2, 2, 5, 8)]),
    "flash": (lambda q, k, v, s: flash_attn.flash_attn_func(q, k, v, alibi_slopes=s), [rand(2, 5, 2, 8), rand(2, 6, 2, 8), rand(2, 6, 2, 8), rand(2)]),
    "flex": (lambda q, k, v: flex.flex_attention(q, k, v, bias), [rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8)]),
    "neighborhood": (lambda q, k, v: natten.na1d(q, k, v, 3), [rand(1, 6, 2, 8), rand(1, 6, 2, 8), rand(1, 6, 2, 8)]),
    "taps": (taps, [rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8)]),
    "merge": (merged, [rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8)]),
    "linear": (with_state, [rand(2, 5, 2, 8), rand(2, 5, 2, 8), rand(2, 5, 2, 8), -rand(2, 5, 2).abs(), rand(2, 5, 2), rand(2, 2, 8, 8)]),
}


class Negated(unittest.TestCase):
    def same(self, a, b):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def test_arguments_and_their_gradients(self):
        for name, (call, given) in CALLS.items():
            for i, x in enumerate(given):
                with self.subTest(call=name, argument=i), torch.no_grad():
                    self.same(call(*given[:i], negated(x), *given[i + 1 :]), call(*given[:i], -x, *given[i + 1 :]))
                with self.subTest(call=name, gradient=i):
                    found = []
                    for negate in (negated, torch.neg):
                        leaf = x.clone().requires_grad_()
                        call(*given[:i], negate(leaf), *given[i + 1 :]).square().sum().backward()
                        found.append(leaf.grad)
                    self.same(*found)

    def test_what_backward_is_given(self):
        for name, (call, given) in CALLS.items():
            with self.subTest(call=name):
                leaves = [x.clone().requires_grad_() for x in given]
                o = call(*leaves)
                d = torch.randn_like(o)
                for _ in range(2):  # the second one has a signature that is known
                    for a, b in zip(torch.autograd.grad(o, leaves, negated(d), retain_graph=True), torch.autograd.grad(o, leaves, -d, retain_graph=True)):
                        self.same(a, b)

    def test_caches(self):
        names = "q", "k_cache", "v_cache", "k", "v"
        given = [rand(2, 1, 2, 8), rand(2, 8, 2, 8), rand(2, 8, 2, 8), rand(2, 1, 2, 8), rand(2, 1, 2, 8)]
        lengths = torch.tensor([3, 5], dtype=torch.int32)
        for i, name in enumerate(names):
            for _ in range(2):
                found = []
                for negate in (negated, torch.neg):
                    args = [x.clone() for x in given]
                    args[i] = negate(args[i])
                    o = flash_attn.flash_attn_with_kvcache(*args, cache_seqlens=lengths)
                    found.append((o, args[1], args[2]))
                with self.subTest(argument=name):
                    for a, b in zip(*found):
                        self.same(a, b)

    def test_rows_of_a_cache(self):
        causal, k, v, rows = luattn.attention("causal"), rand(1, 2, 8, 8), rand(1, 2, 8, 8), rand(1, 2, 2, 8)
        used = torch.tensor([3], dtype=torch.int32)
        causal.append(k, v, negated(rows), rows, seqused_k=used)
        self.same(k[:, :, 3:5], -rows)
        with self.assertRaisesRegex(luattn.InvalidError, "append: kernels cannot write to k or v as they lie: .*negated view"):
            causal.append(negated(k), v, rows, rows, seqused_k=used)


if __name__ == "__main__":
    unittest.main()
