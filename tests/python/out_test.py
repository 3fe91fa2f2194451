"""out_test.py: out= of calls, of flash-attn's functions and of varlen_attn_out: the result is there and is the tensor that was given, cold and warm, in both layouts; and
what is refused, before anything is written. On the CPU. Exits with 77 without torch."""

import inspect
import unittest

from with_torch import torch  # exits without torch, so first

import luattn
import numpy as np
from luattn.flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache, varlen_attn, varlen_attn_out

causal = luattn.attention("return attention { name = 'causal', block_mask = causal_bottom_right() }")
biased = luattn.attention("return attention { name = 'b', inputs = { bias = { axes = {'h'}, dtype = 'any', grad = true } }, scalars = { c = 1 },"
                          " score_mod = function(s, b, h) return c * s + bias[h] end }")  # fmt: skip


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class Out(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)

    def same(self, call, out, times=3):
        """call(out=None) is what call(out=out) writes, each time."""
        want = call(out=None)
        for _ in range(times):
            out.fill_(torch.nan) if isinstance(out, torch.Tensor) else out.fill(np.nan)
            got = call(out=out)
            first, expected = (got[0], want[0]) if isinstance(want, tuple) else (got, want)
            self.assertIs(first, out)
            equal = torch.equal if isinstance(out, torch.Tensor) else np.array_equal
            self.assertTrue(equal(out, expected))
            if isinstance(want, tuple):
                self.assertTrue(equal(got[1], want[1]))

    def test_layouts_and_types(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for d in (16, 12):  # the second is padded in half precision
                q, k, v = (torch.randn(2, h, n, d).to(dtype) for h, n in ((4, 5), (2, 7), (2, 7)))
                for lse in (False, True):
                    self.same(lambda out: causal(q, k, v, return_lse=lse, out=out), torch.empty_like(q))  # noqa: B023
                between = torch.zeros(2, 4, 5, 2, d, dtype=dtype)[..., 1, :]
                if d == 16:
                    self.same(lambda out: causal(q, k, v, out=out), between)  # noqa: B023
                swapped = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
                self.same(lambda out: causal(*swapped, layout="bshd", out=out), torch.empty_like(swapped[0]))  # noqa: B023
                if dtype != torch.bfloat16:
                    arrays = [t.numpy() for t in (q, k, v)]
                    self.same(lambda out: causal(*arrays, return_lse=True, out=out), np.empty_like(arrays[0]))  # noqa: B023
                    self.same(lambda out: causal(*(t.numpy() for t in swapped), layout="bshd", out=out), np.empty_like(swapped[0].numpy()))  # noqa: B023

    def test_each_call_has_its_own(self):
        q, k, v = (torch.randn(1, 2, 4, 8) for _ in "qkv")
        outs = [torch.empty_like(q) for _ in range(4)]
        for i, out in enumerate(outs):
            biased(q * i, k, v, bias=torch.arange(2.0), c=float(i), out=out)
        for i, out in enumerate(outs):
            self.assertTrue(torch.equal(out, biased(q * i, k, v, bias=torch.arange(2.0), c=float(i))))

    def test_packed_and_pages(self):
        cu, used = ints(0, 2, 6), ints(7, 5)
        q, k, v = (torch.randn(n, h, 8) for n, h in ((6, 4), (15, 2), (15, 2)))
        self.same(lambda out: causal(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=ints(0, 7, 15), return_lse=True, out=out), torch.empty_like(q))
        self.same(lambda out: causal(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=ints(0, 7, 15), seqused_q=ints(1, 4), return_lse=True, out=out), torch.empty_like(q))
        pool = torch.randn(4, 8, 2, 8)
        self.same(lambda out: causal(q, pool, pool, layout="bshd", cu_seqlens_q=cu, seqused_k=used, block_table=ints(1, 3)[:, None], out=out), torch.empty_like(q))

    def test_what_torch_makes_of_calls(self):
        q, k, v = (torch.randn(1, 2, 4, 8) for _ in "qkv")
        compiled = torch.compile(lambda q, k, v, out: causal(q, k, v, out=out), fullgraph=True, backend="aot_eager")
        self.same(lambda out: causal(q, k, v, out=out) if out is None else compiled(q, k, v, out), torch.empty_like(q))
        with torch.autocast("cpu", torch.bfloat16):
            self.same(lambda out: causal(q, k, v, out=out), torch.empty_like(q, dtype=torch.bfloat16))
            with self.assertRaisesRegex(luattn.InvalidError, "causal: out: has type float32, expected bfloat16"):
                causal(q, k, v, out=torch.empty_like(q))
        with torch.inference_mode():
            self.same(lambda out: causal(q, k, v, out=out), torch.empty_like(q))

    def test_gradients_are_refused(self):
        q, k, v = (torch.randn(1, 2, 4, 8) for _ in "qkv")
        out, bias = torch.empty_like(q), torch.zeros(2, requires_grad=True)
        message = "b: out: is given, and a gradient is asked for, .*: leave it out, or call under torch.no_grad"
        for call in (
            lambda: biased(q.clone().requires_grad_(), k, v, bias=bias.detach(), out=out),
            lambda: biased(q, k, v, bias=bias, out=out),
            lambda: biased(q, k, v, bias=bias.detach(), c=torch.tensor(1.0, requires_grad=True), out=out),
            lambda: biased(q, k, v, bias=bias.detach(), scale=torch.tensor(1.0, requires_grad=True), out=out),
            lambda: biased(q, k, v, bias=bias.detach(), out=out.clone().requires_grad_()),
        ):
            with self.assertRaisesRegex(luattn.InvalidError, message):
                call()
            with torch.no_grad():
                call()

    def test_refusals(self):
        q, k, v = (torch.randn(1, 2, 4, 8) for _ in "qkv")
        before = [t.clone() for t in (q, k, v)]
        for out, message in (
            (torch.empty(1, 2, 4, 16), r"causal: out: has shape \[1, 2, 4, 16\], expected \[1, 2, 4, 8\], as the result has"),
            (torch.empty(1, 2, 4, 8).double(), "causal: out: has type float64, expected float32, as the result has"),
            (np.empty((1, 2, 4, 8)), "causal: out: is a NumPy array of float64, expected a tensor of torch"),
            ([1.0], "causal: out: is .1.0., expected a tensor of torch"),
            (torch.empty(1, 2, 4, 8, device="meta"), "causal: out: is on meta, and q on cpu: move one of them"),
            (q, "out: its memory, 0x.* is shared with q"),
            (v, "out: its memory, 0x.* is shared with v"),
            (torch.zeros(1, 1, 1, 8).expand(1, 2, 4, 8), "out: "),
        ):
            for _ in range(2):
                with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                    causal(q, k, v, out=out)
        out = torch.empty_like(q)
        causal(q, k, v, out=out)
        with self.assertRaisesRegex(luattn.InvalidError, "out: its memory, 0x.* is shared with k"):  # warm
            causal(q, k, v, out=k)
        packed = [t[0].transpose(0, 1).contiguous() for t in (q, k, v)]
        with self.assertRaisesRegex(luattn.InvalidError, "out: its memory, 0x.* is shared with k"):
            causal(*packed, cu_seqlens_q=ints(0, 4), cu_seqlens_k=ints(0, 4), seqused_q=ints(2), out=packed[1])
        self.assertTrue(torch.equal(packed[1], k[0].transpose(0, 1)))
        odd = [t[..., :6].to(torch.bfloat16) for t in (q, k, v)]
        with self.assertRaisesRegex(luattn.InvalidError, "out: its memory, 0x.* is shared with q"):
            causal(*odd, out=odd[0])
        arrays = [t.numpy() for t in (q, k, v)]
        fixed = np.empty_like(arrays[0])
        fixed.flags.writeable = False
        for out, message in (
            (arrays[1], "out: its memory, 0x.* is shared with k"), (fixed, "causal: out: is an array that may not be written to"),
            (np.empty((1, 2, 4, 8)), "causal: out: has type float64, expected float32"), (torch.empty_like(q), "causal: out: is a tensor of float32, and q"),
        ):  # fmt: skip
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                causal(*arrays, out=out)
        with self.assertRaisesRegex(luattn.Unsupported, "causal: out: goes with no return_state yet; leave it out"):
            causal(q, k, v, return_state=True, out=torch.empty_like(q))
        for t, was in zip((q, k, v), before):
            self.assertTrue(torch.equal(t, was))

    def test_flash_attn(self):
        q, k, v = (torch.randn(2, 5, h, 8) for h in (4, 2, 2))
        self.same(lambda out: flash_attn_func(q, k, v, causal=True, out=out), torch.empty_like(q))
        self.same(lambda out: flash_attn_func(q, k, v, return_attn_probs=True, out=out), torch.empty_like(q))
        self.same(lambda out: flash_attn_kvpacked_func(q, torch.stack([k, v], 2), out=out), torch.empty_like(q))
        self.same(lambda out: flash_attn_qkvpacked_func(torch.stack([k, k, v], 2), out=out), torch.empty_like(k))
        rows, cu = [t.flatten(0, 1) for t in (q, k, v)], ints(0, 3, 10)
        self.same(lambda out: flash_attn_varlen_func(*rows, cu, cu, 7, 7, out=out), torch.empty_like(rows[0]))
        pool, table = torch.randn(4, 16, 2, 8), ints(2, 1)[:, None]
        self.same(lambda out: flash_attn_varlen_func(rows[0], pool, pool, cu, cu, 7, 7, block_table=table, out=out), torch.empty_like(rows[0]))
        out = torch.empty_like(rows[0])
        self.assertIs(varlen_attn_out(out, *rows, cu, cu, 7, 7, enable_gqa=True), out)
        self.assertTrue(torch.equal(out, varlen_attn(*rows, cu, cu, 7, 7, enable_gqa=True)))
        try:
            from torch.nn.attention.varlen import varlen_attn_out as theirs
        except ImportError:
            return
        ours = inspect.signature(varlen_attn_out).parameters
        for name, parameter in inspect.signature(theirs).parameters.items():
            self.assertEqual((ours[name].kind, ours[name].default), (parameter.kind, parameter.default), name)

    def test_kvcache(self):
        for dtype, d in ((torch.float32, 8), (torch.bfloat16, 12)):
            q, new = torch.randn(2, 1, 4, d).to(dtype), [torch.randn(2, 1, 2, d).to(dtype) for _ in "kv"]
            caches, lengths = [torch.randn(2, 9, 2, d).to(dtype) for _ in "kv"], ints(3, 7)
            self.same(lambda out: flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, causal=True, return_softmax_lse=True, out=out), torch.empty_like(q))  # noqa: B023
            self.same(lambda out: flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lengths, causal=True, out=out), torch.empty_like(q))  # noqa: B023
            packed = q.flatten(0, 1)
            self.same(lambda out: flash_attn_with_kvcache(packed, *caches, cache_seqlens=lengths, cu_seqlens_q=ints(0, 1, 2), max_seqlen_q=1, out=out), torch.empty_like(packed))  # noqa: B023
            was = caches[0].clone()
            for out, message in ((q, "out: its memory, .* is shared with q"), (torch.empty(2, 1, 4, d + 1).to(dtype), "flash_attn_with_kvcache: out: has shape")):
                with self.assertRaisesRegex(luattn.InvalidError, message):
                    flash_attn_with_kvcache(q, *caches, *(t + 1 for t in new), cache_seqlens=lengths, out=out)
            self.assertTrue(torch.equal(was, caches[0]))

    def test_versions(self):
        """Backward of what has read a tensor before a call has written to it says so, as of torch's own operations."""
        q, k, v = (torch.randn(1, 2, 7, 8) for _ in "qkv")

        def append(cache):
            luattn.attention("return attention { }").append(cache, torch.zeros_like(cache), k, v, seqused_k=ints(0))

        for write in (lambda out: causal(q, k, v, out=out), lambda out: causal(q, k, v, out=out), append):
            to, factor = torch.zeros(1, 2, 7, 8), torch.ones(1, 2, 7, 8, requires_grad=True)
            product = (factor * to).sum()
            with torch.no_grad():
                write(to)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                product.backward()
        with torch.inference_mode():  # tensors of it count no versions
            causal(q, k, v, out=torch.empty(1, 2, 7, 8))


if __name__ == "__main__":
    unittest.main()
