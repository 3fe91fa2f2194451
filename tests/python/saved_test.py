"""saved_test.py: whatever backward reads is saved by autograd, which objects where it was written to in between."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn.flash_attn import flash_attn_varlen_func, varlen_attn

causal = luattn.attention("return attention { block_mask = causal() }")
drops = luattn.attention("return attention { online_func = dropout(0.5) }")
scaled = luattn.attention(
    "return attention { scalars = { a = 1.0 }, inputs = { slope = { axes = {'h'}, grad = true } }, "
    "score_mod = function(score, b, h, q_idx, kv_idx) return a * score + slope[h] * kv_idx end }"
)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


class Saved(unittest.TestCase):
    def check(self, call, leaves, written, change=lambda t: t.flatten()[1:2].add_(2)):
        """Gradients are those of before, and refused after each of `written` was written to."""
        dout = torch.randn_like(call())
        want = torch.autograd.grad(call(), leaves, dout)
        for a, b in zip(torch.autograd.grad(call(), leaves, dout), want):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        for name, t in written.items():
            with self.subTest(name):
                o, before = call(), t.detach().clone()
                with torch.no_grad():
                    change(t)
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    torch.autograd.grad(o, leaves, dout)
                with torch.no_grad():
                    t.copy_(before)

    def test_packed(self):
        leaves = [rand(8, 2, 8) for _ in "qkv"]
        cu_q, cu_k, used_q, used_k = int32(0, 3, 8), int32(0, 4, 8), int32(3, 4), int32(2, 4)
        arrays = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "seqused_q": used_q, "seqused_k": used_k}

        def by_op():
            text = causal.text
            return torch.ops.luattn.forward(text, *leaves, [], [], None, 0.0, max_seqlen_q=8, max_seqlen_k=8, **arrays)[0]

        for call in (lambda: causal(*leaves, **arrays), by_op):
            self.check(call, leaves, arrays, lambda t: t[1:2].sub_(1))
        cu = int32(0, 3, 8)
        for call in (
            lambda: flash_attn_varlen_func(*leaves, cu, cu, 8, 8, causal=True),
            lambda: varlen_attn(*leaves, cu, cu, 8, 8),
        ):
            self.check(call, leaves, {"cu_seqlens": cu})

    def test_dense(self):
        leaves = [rand(2, 2, 8, 8) for _ in "qkv"]
        q_offset, kv_offset = int32(3, 5), int32(1, 2)
        self.check(
            lambda: causal(*leaves, q_offset=q_offset, kv_offset=kv_offset), leaves,
            {"q_offset": q_offset, "kv_offset": kv_offset, "q": leaves[0], "v": leaves[2]},
        )  # fmt: skip
        seed = torch.tensor([5, 0])
        self.check(lambda: drops(*leaves, seed=seed), leaves, {"seed": seed})

    def test_inputs_and_results(self):
        leaves, slope, a = [rand(1, 2, 4, 8) for _ in "qkv"], rand(2).float(), rand(())
        self.check(lambda: scaled(*leaves, slope=slope, a=a), leaves, {"slope": slope})
        o, lse = scaled(*leaves, slope=slope, a=a, return_lse=True)
        with torch.no_grad():
            lse.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            o.sum().backward()
        # A scalar is read by the call: its gradient is of the value that it had.
        o = scaled(*leaves, slope=slope, a=a)
        want = torch.autograd.grad(scaled(*leaves, slope=slope, a=a).sum(), a)[0]
        with torch.no_grad():
            a.add_(1)
        torch.testing.assert_close(torch.autograd.grad(o.sum(), a)[0], want)

    def test_compiled(self):
        leaves, cu = [rand(8, 2, 8) for _ in "qkv"], int32(0, 3, 8)
        call = torch.compile(lambda cu: causal(*leaves, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=8, max_seqlen_k=8), backend="aot_eager", fullgraph=True)
        self.check(lambda: call(cu), leaves, {"cu_seqlens": cu})

    def test_merge(self):
        leaves = [rand(1, 2, 4, 8), rand(1, 2, 4, 8)]
        lses = [rand(1, 2, 4), rand(1, 2, 4)]
        self.check(lambda: luattn.merge(leaves, lses)[0], leaves, {"o": leaves[1], "lse": lses[0]})


if __name__ == "__main__":
    unittest.main()
