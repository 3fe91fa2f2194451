"""out_dtype_test.py: out_dtype= of calls and grad_dtype= of gradients(): o, dq, dk and dv in float32 beside half-precision q, k and v, cold and warm, of packed sequences, states
and merged parts, through autograd, torch.compile and autocast; and what is refused. On the CPU. Exits with 77 without torch."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
import numpy as np

causal = luattn.attention("return attention { name = 'causal', block_mask = causal_bottom_right() }")
sunk = luattn.attention("return attention { name = 'sunk', online_func = softmax_one, block_mask = causal_bottom_right() }")
f32, bf16 = torch.float32, torch.bfloat16


def inputs(dtype=bf16, d=16, grad=False):
    return [torch.randn(2, h, n, d).to(dtype).requires_grad_(grad) for h, n in ((4, 12), (2, 20), (2, 20))]


def doubles(*tensors):
    return [t.detach().double() for t in tensors]


def parts_of(k, v, count=4):
    """Slices of keys, and where they begin."""
    n = k.shape[2] // count
    return [(i * n, k[:, :, i * n : (i + 1) * n], v[:, :, i * n : (i + 1) * n]) for i in range(count)]


class OutDtype(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def test_calls(self):
        for dtype in (bf16, torch.float16):
            for d in (16, 12):  # the second is padded
                q, k, v = inputs(dtype, d)
                want, half = causal(*doubles(q, k, v)), causal(q, k, v)
                for _ in range(3):
                    o, lse = causal(q, k, v, out_dtype=f32, return_lse=True)
                    self.assertEqual((o.dtype, lse.dtype, half.dtype), (f32, f32, dtype))
                    self.assertLess((o - want).abs().max(), (half - want).abs().max() / 8)
                    self.assertTrue(torch.equal(causal(q, k, v), half))  # each has a signature of its own
                swapped = causal(*(t.transpose(1, 2) for t in (q, k, v)), layout="bshd", out_dtype="float32")
                self.assertTrue(torch.equal(swapped.transpose(1, 2), o))
                out = torch.empty_like(o)
                self.assertIs(causal(q, k, v, out=out, out_dtype=f32), out)
                self.assertTrue(torch.equal(out, o))

    def test_the_type_of_q(self):
        for dtype in (torch.float64, f32, bf16):
            q, k, v = inputs(dtype)
            self.assertTrue(torch.equal(causal(q, k, v, out_dtype=dtype), causal(q, k, v)))

    def test_packed(self):
        ends = torch.tensor([0, 5, 12], dtype=torch.int32)
        q, k, v = (torch.randn(12, h, 16).to(bf16) for h in (4, 2, 2))
        options = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        for _ in range(2):
            o = causal(q, k, v, **options, out_dtype=f32)
            self.assertEqual(o.dtype, f32)
            self.assertLess((o - causal(*doubles(q, k, v), **options)).abs().max(), 1e-3)

    def test_arrays(self):
        q, k, v = (np.random.default_rng(2).standard_normal((2, 2, 9, 8)).astype(np.float16) for _ in "qkv")
        for dtype in (np.float32, np.dtype("float32"), "float32"):
            o = causal(q, k, v, out_dtype=dtype)
            self.assertEqual(o.dtype, np.float32)
        self.assertLess(np.abs(o - causal(*(x.astype(np.float64) for x in (q, k, v)))).max(), 1e-3)
        self.assertEqual(causal(q, k, v).dtype, np.float16)
        out = np.empty(o.shape, np.float32)
        self.assertTrue(np.array_equal(causal(q, k, v, out=out, out_dtype=np.float32), o))

    def test_merged_parts(self):
        q, k, v = inputs()
        want = causal(*doubles(q, k, v))
        whole = {"q_len": 12, "kv_len": 20}
        for attention, merge in ((causal, luattn.merge), (causal, causal.merge)):
            wide = [attention(q, x, y, kv_offset=i, **whole, return_lse=True, out_dtype=f32) for i, x, y in parts_of(k, v)]
            half = [attention(q, x, y, kv_offset=i, **whole, return_lse=True) for i, x, y in parts_of(k, v)]
            o, _ = merge(*zip(*wide))
            self.assertEqual(o.dtype, f32)
            self.assertLess((o - want).abs().max(), (merge(*zip(*half))[0] - want).abs().max() / 4)
            self.assertEqual(merge(*zip(*wide), dtype=bf16)[0].dtype, bf16)

    def test_merged_states_and_gradients_of_parts(self):
        q, k, v = inputs()
        dout = torch.randn(2, 4, 12, 16).to(bf16)
        exact = [t.requires_grad_() for t in doubles(q, k, v)]
        sunk(*exact).backward(dout.double())
        whole = {"q_len": 12, "kv_len": 20}
        made = [sunk(q, x, y, kv_offset=i, **whole, return_state=True, out_dtype=f32) for i, x, y in parts_of(k, v)]
        self.assertEqual({o.dtype for o, _, _ in made}, {f32})
        o, lse, saved = sunk.merge(*zip(*made), return_saved=True)
        errors = {}
        for dtype in (None, bf16, f32):
            found = [sunk.gradients(dout, q, x, y, o, lse, saved, kv_offset=i, **whole, grad_dtype=dtype)[:3] for i, x, y in parts_of(k, v)]
            self.assertEqual({t.dtype for part in found for t in part}, {dtype or bf16})
            dq, dk, dv = sum(part[0].double() for part in found), *(torch.cat([part[i] for part in found], 2) for i in (1, 2))
            errors[dtype] = [(mine - t.grad).abs().max() for mine, t in zip((dq, dk, dv), exact)]
        for wide, half in zip(errors[f32], errors[bf16]):
            self.assertLess(wide, half / 4)

    def test_gradients_take_no_saved(self):
        q, k, v = inputs()
        o, lse = causal(q, k, v, return_lse=True)
        dout = torch.randn_like(o)
        dq, dk, dv, others = causal.gradients(dout, q, k, v, o, lse, grad_dtype=f32)
        self.assertEqual((dq.dtype, dk.dtype, dv.dtype, others), (f32, f32, f32, {}))

    def test_autograd(self):
        exact = inputs(torch.float64, grad=True)
        q, k, v = (t.detach().to(bf16).requires_grad_() for t in exact)
        for t, x in zip(exact, (q, k, v)):
            t.data.copy_(x)
        dout = torch.randn(2, 4, 12, 16)
        causal(*exact).backward(dout.double())
        for _ in range(3):  # cold and warm
            for t in (q, k, v):
                t.grad = None
            made = [causal(q, x, y, kv_offset=i, q_len=12, kv_len=20, return_lse=True, out_dtype=f32) for i, x, y in parts_of(k, v)]
            luattn.merge(*zip(*made))[0].backward(dout)
            for mine, t in zip((q, k, v), exact):
                self.assertEqual(mine.grad.dtype, bf16)
                self.assertLess((mine.grad - t.grad).abs().max(), 0.02 * t.grad.abs().max())

    def test_compiled(self):
        q, k, v = inputs(grad=True)
        compiled = torch.compile(lambda q, k, v: causal(q, k, v, out_dtype=f32), fullgraph=True, backend="aot_eager")
        o, want = compiled(q, k, v), causal(q, k, v, out_dtype=f32)
        self.assertEqual(o.dtype, f32)
        self.assertTrue(torch.equal(o, want))
        grads = torch.autograd.grad(o.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))
        for mine, other in zip(*grads):
            self.assertTrue(torch.equal(mine, other))

    def test_autocast(self):
        q, k, v = inputs(f32)
        with torch.autocast("cpu", bf16):
            self.assertEqual(causal(q, k, v).dtype, bf16)
            self.assertEqual(causal(q, k, v, out_dtype=f32).dtype, f32)

    def test_refusals(self):
        q, k, v = inputs()
        for of, dtype, message in (
            (bf16, torch.float16, "causal: out_dtype: is float16, and q bfloat16: expected bfloat16 or float32"),
            (torch.float64, f32, "causal: out_dtype: is float32, and q float64: expected float64"),
            (f32, bf16, "causal: out_dtype: is bfloat16, and q float32: expected float32"),
            (bf16, 3, "causal: out_dtype: is 3, expected one of "),
        ):
            with self.assertRaisesRegex(luattn.InvalidError, message):
                causal(*(t.to(of) for t in (q, k, v)), out_dtype=dtype)
        with self.assertRaisesRegex(luattn.InvalidError, "causal: out: has type bfloat16, expected float32, as the result has"):
            causal(q, k, v, out=torch.empty_like(q), out_dtype=f32)
        o, lse = causal(q, k, v, return_lse=True)
        with self.assertRaisesRegex(luattn.InvalidError, "causal: gradients: grad_dtype: is float64, and q bfloat16"):
            causal.gradients(o, q, k, v, o, lse, grad_dtype=torch.float64)
        with self.assertRaisesRegex(luattn.InvalidError, "'out_dtype' is an argument of every attention"):
            luattn.attention("return attention { name = 'x', scalars = { out_dtype = 1 }, score_mod = function(s) return s * out_dtype end }")

    def test_plans_and_masks(self):
        q, k, v = inputs()
        plan = causal.plan(q, k, v, out_dtype=f32), causal.plan(q, k, v, backward=True, out_dtype=f32, grad_dtype=f32)
        self.assertTrue(all("cpu" in x for x in plan))
        causal.mask(12, 20, out_dtype=f32)
        self.assertTrue(torch.equal(causal.weights(q, k, v, out_dtype=f32), causal.weights(q, k, v)))


if __name__ == "__main__":
    unittest.main()
