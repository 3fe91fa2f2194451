"""head_dims_test.py: head dims that kernels in half precision do not read, values of another one, and tensors without elements."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import flex
from luattn.flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache, varlen_attn

causal = luattn.attention("return attention { block_mask = causal() }")
plain = luattn.attention("return attention {}")
DIMS = ((100, 100), (20, 12), (20, 28), (24, 9), (9, 24), (1, 1))


def rand(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype).requires_grad_()


def reference(q, k, v, is_causal=True):
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)
    return s.softmax(-1) @ v


class HeadDims(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def same(self, o, want, leaves):
        self.assertEqual(o.shape, want.shape)
        torch.testing.assert_close(o.double(), want, rtol=2e-2, atol=2e-2)
        dout = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(o, leaves, dout.to(o.dtype)), torch.autograd.grad(want, leaves, dout)):
            self.assertEqual(a.shape, b.shape)
            torch.testing.assert_close(a.double(), b.double(), rtol=5e-2, atol=5e-2)

    def test_attention(self):
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6)
        for d, d_v in DIMS:
            for dtype in (torch.bfloat16, torch.float16):
                leaves = [rand(2, h, 6, n, dtype=dtype) for h, n in ((4, d), (2, d), (2, d_v))]
                compiled = torch.compile(lambda q, k, v: causal(q, k, v), backend="aot_eager", fullgraph=True)
                for call in (causal, compiled, lambda q, k, v: flex.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)):
                    self.same(call(*leaves), reference(*leaves), leaves)
                torch._dynamo.reset()
            single = [t.detach().float().requires_grad_() for t in leaves]
            with torch.autocast("cpu", torch.bfloat16):
                o, lse = causal(*single, return_lse=True)
            self.assertEqual((o.dtype, lse.shape), (torch.bfloat16, (2, 4, 6)))
            self.same(o, reference(*single), single)

    def test_flash_attn(self):
        for d, d_v in DIMS:
            leaves = [rand(1, h, 6, n) for h, n in ((4, d), (2, d), (2, d_v))]
            heads_last = [t.transpose(1, 2) for t in leaves]
            packed, cu = [t[0].transpose(0, 1) for t in leaves], torch.tensor([0, 6], dtype=torch.int32)
            self.same(flash_attn_func(*heads_last, causal=True).transpose(1, 2), reference(*leaves), leaves)
            for o in (
                flash_attn_varlen_func(*packed, cu, cu, 6, 6, causal=True),
                varlen_attn(*packed, cu, cu, 6, 6, window_size=(-1, 0), enable_gqa=True),
            ):
                self.same(o.transpose(0, 1)[None], reference(*leaves), leaves)
            o, lse, kept = flash_attn_func(*heads_last, 0.5, causal=True, return_attn_probs=True)
            self.assertEqual((o.shape[-1], kept.shape), (d_v, (1, 4, 6, 6)))
            o = flash_attn_with_kvcache(*heads_last, cache_seqlens=6, causal=True)
            torch.testing.assert_close(o.transpose(1, 2).double(), reference(*leaves), rtol=2e-2, atol=2e-2)
        kv = rand(1, 6, 2, 2, 20)
        leaves = [rand(1, 4, 6, 20), kv]
        o = flash_attn_kvpacked_func(leaves[0].transpose(1, 2), kv, causal=True).transpose(1, 2)
        self.same(o, reference(leaves[0], *(t.transpose(1, 2) for t in kv.unbind(2))), leaves)

    def test_parts(self):
        q, k, v = (rand(1, 2, 6, n).detach() for n in (20, 20, 12))
        sink = luattn.attention("return attention { online_func = softmax_one }")
        parts = [sink(q, k[:, :, i : i + 3], v[:, :, i : i + 3], return_state=True) for i in (0, 3)]
        self.assertEqual(parts[0][0].shape, (1, 2, 6, 12))
        o, lse, saved = sink.merge(*zip(*parts), return_saved=True)
        torch.testing.assert_close(o, sink(q, k, v), rtol=2e-2, atol=2e-2)
        dq, dk, dv, _ = sink.gradients(torch.ones_like(o), q, k, v, o, lse, saved)
        leaves = [t.double().requires_grad_() for t in (q, k, v)]
        want = torch.autograd.grad(sink(*leaves).sum(), leaves)
        for a, b in zip((dq, dk, dv), want):
            torch.testing.assert_close(a.double(), b, rtol=5e-2, atol=5e-2)

    def test_said_and_refused(self):
        q = rand(1, 2, 6, 20)
        self.assertIn("padded with zeros before each call, 20 of q, k to 24 and 20 of v to 24", causal.plan(q, q, q))
        self.assertNotIn("padded", causal.plan(*[q.float()] * 3))
        self.assertNotIn("padded", causal.plan(*[rand(1, 2, 6, 24)] * 3))
        turned = luattn.attention("return attention { query_mod = function(x, b, h, pos, d) return x + 1 end }")
        for call in (lambda: turned(q, q, q), lambda: torch.ops.luattn.forward("return attention {}", q, q, q, [], [], None, 0.0)):
            with self.assertRaisesRegex(luattn.Unsupported, "head_dim: is 20"):
                call()
        for call in (causal, lambda q, k, v: flash_attn_with_kvcache(*(t.transpose(1, 2) for t in (q, k, v)))):
            with self.assertRaisesRegex(luattn.InvalidError, "head.?dim"):
                call(q, rand(1, 2, 6, 18), q)


class Nothing(unittest.TestCase):
    def test_without_queries_or_keys(self):
        for b, n, m in ((2, 0, 6), (2, 6, 0), (0, 6, 6), (2, 0, 0)):
            rows, columns = torch.zeros(b, n, dtype=torch.int32), torch.zeros(b, m, dtype=torch.int32)
            learned = torch.zeros(2, m, requires_grad=True)
            for dtype, d in ((torch.float32, 8), (torch.bfloat16, 20)):
                leaves = [rand(b, 2, length, d, dtype=dtype) for length in (n, m, m)]
                mask = flex.create_block_mask(lambda b, h, i, j: rows[b, i] == columns[b, j], None, None, n, m)
                for o in (
                    plain(*leaves), causal(*leaves), flash_attn_func(*(t.transpose(1, 2) for t in leaves)).transpose(1, 2),
                    flex.flex_attention(*leaves, block_mask=mask),
                    flex.flex_attention(*leaves, lambda s, b, h, i, j: s + learned[h, j]),
                ):  # fmt: skip
                    with self.subTest(b=b, n=n, m=m, dtype=dtype):
                        self.assertEqual(o.shape, leaves[0].shape)
                        self.assertTrue((o == 0).all())
                        o.sum().backward()
                        for t in leaves:
                            self.assertTrue(t.grad.shape == t.shape and (t.grad == 0).all())
            if learned.grad is not None:
                self.assertTrue((learned.grad == 0).all())

    def test_packed(self):
        cu, none = torch.tensor([0, 0, 0], dtype=torch.int32), rand(0, 2, 8, dtype=torch.float32)
        for o in (causal(none, none, none, cu_seqlens_q=cu, cu_seqlens_k=cu), flash_attn_varlen_func(none, none, none, cu, cu, 1, 1)):
            self.assertEqual(o.shape, (0, 2, 8))
            o.sum().backward()
        k = torch.zeros(2, 16, 2, 8)
        for lengths in (0, torch.zeros(2, dtype=torch.int32)):
            o = flash_attn_with_kvcache(torch.randn(2, 3, 2, 8), k, k, cache_seqlens=lengths)
            self.assertTrue((o == 0).all())
        self.assertEqual(flash_attn_with_kvcache(torch.randn(2, 0, 2, 8), k, k, cache_seqlens=3).shape, (2, 0, 2, 8))


if __name__ == "__main__":
    unittest.main()
