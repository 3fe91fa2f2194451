"""arrays_test.py: NumPy arrays of every kind, and numbers that would be truncated or written into a spec as something else."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
import luattn  # noqa: E402

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed: skipped")
    sys.exit(77)

causal = luattn.attention("return attention { block_mask = causal() }")
biased = luattn.attention(
    "return attention { inputs = { bias = { axes = { 'h', 'far' }, dtype = 'any' } }, "
    "score_mod = function(s, b, h, q_idx, kv_idx) return s + bias[{h, kv_idx}] end }"
)
drops = luattn.attention("return attention { online_func = dropout(0.5) }")
rng = np.random.default_rng(0)


def rand(*shape):
    return rng.standard_normal(shape)


def reference(q, k, v, scale=None):
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


class Bytes(unittest.TestCase):
    def test_foreign_order_is_refused_by_name(self):
        q, bias, cu = rand(1, 2, 6, 8), rand(2, 6), np.array([0, 6], np.int32)
        k, v = np.zeros((1, 2, 16, 8)), np.zeros((1, 2, 16, 8))

        def swapped(x):
            return x.astype(x.dtype.newbyteorder())

        rows = q[0].swapaxes(0, 1).copy()
        lse = rand(1, 2, 6)
        for name, call in (
            ("q", lambda: causal(swapped(q), q, q)),
            ("v", lambda: causal(q, q, swapped(q))),
            ("k", lambda: causal(*(swapped(x.astype(np.float32)) if i == 1 else x.astype(np.float32) for i, x in enumerate((q, q, q))))),
            ("input 'bias'", lambda: biased(q, q, q, bias=swapped(bias))),
            ("cu_seqlens_k", lambda: causal(rows, rows, rows, cu_seqlens_q=cu, cu_seqlens_k=swapped(cu))),
            ("seqused_k", lambda: causal(q, k, v, seqused_k=swapped(np.array([3], np.int32)))),
            ("new_v", lambda: causal.append(k, v, q, swapped(q), seqused_k=np.zeros(1, np.int32))),
            ("k", lambda: causal.append(swapped(k), v, q, q, seqused_k=np.zeros(1, np.int32))),
            ("", lambda: luattn.merge([q, q], [lse, swapped(lse)])),
            ("", lambda: luattn.page_table(swapped(cu), cu, cu[:1], 16)),
        ):
            with self.subTest(name), self.assertRaisesRegex(
                luattn.InvalidError, f"{name}.*has type [<>][fi][48], whose bytes lie the other way round than here: pass .astype"
            ):
                call()

    def test_layouts_of_memory(self):
        """Any strides, and an address that is no multiple of an element's size."""
        q = rand(1, 2, 6, 8)
        want = reference(q, q, q)
        raw = np.zeros(q.nbytes + 1, np.uint8)
        odd = raw[1:].view(q.dtype).reshape(q.shape)
        odd[:] = q
        np.testing.assert_allclose(causal(*[np.repeat(q, 2, 2)[:, :, ::2]] * 3), want, atol=1e-12)
        for x, what in ((q[..., ::-1], "stride -1"), (np.repeat(q, 3, 3)[..., ::3], "stride 3"), (odd, "not a multiple of 8 bytes")):
            with self.assertRaisesRegex(luattn.InvalidError, f"q: .*{what}"):
                causal(x, x, x)

    def test_a_cache_that_may_not_be_written_to(self):
        k = np.zeros((1, 2, 16, 8))
        fixed = np.frombuffer(k.tobytes()).reshape(k.shape)
        for name, cache in (("k", (fixed, k)), ("v", (k, fixed))):
            with self.assertRaisesRegex(luattn.InvalidError, f"append: {name}: is an array that may not be written to"):
                causal.append(*cache, rand(1, 2, 3, 8), rand(1, 2, 3, 8), seqused_k=np.zeros(1, np.int32))


class HeadDims(unittest.TestCase):
    def test_half(self):
        for d, d_v in ((20, 20), (12, 28), (24, 9), (100, 100)):
            q, k, v = (rand(1, 2, 6, n).astype(np.float16) for n in (d, d, d_v))
            o, lse = causal(q, k, v, return_lse=True)
            want = reference(*(x.astype(float) for x in (q, k, v)))
            self.assertEqual((o.shape, lse.shape), (want.shape, (1, 2, 6)))
            np.testing.assert_allclose(o, want, atol=4e-3)
            np.testing.assert_allclose(causal(q, k, v, scale=-0.1), reference(*(x.astype(float) for x in (q, k, v)), -0.1), atol=4e-3)
            self.assertIn("head dim: padded with zeros before each call", causal.plan(q, k, v))
        self.assertNotIn("padded", causal.plan(*[rand(1, 2, 6, 20)] * 3))
        with self.assertRaisesRegex(luattn.InvalidError, "k: has head dim 18, and q 20: they are the same"):
            causal(*(rand(1, 2, 6, n).astype(np.float16) for n in (20, 18, 20)))

    def test_specs_that_read_channels_are_refused(self):
        for text in (
            "return attention { query_mod = function(x, b, h, pos, d) return x + 1 end }",
            "return attention { score_mod = function(s) return s * head_dim end }",
        ):
            with self.assertRaisesRegex(luattn.Unsupported, "head_dim: is 20"):
                luattn.attention(text)(*[rand(1, 2, 6, 20).astype(np.float16)] * 3)

    def test_nothing(self):
        """No queries, no keys, no entries, and inputs without elements beside them."""
        for b, n, m in ((1, 0, 6), (1, 6, 0), (0, 6, 6), (1, 0, 0)):
            q, k = rand(b, 2, n, 8), rand(b, 2, m, 8)
            for o in (causal(q, k, k), biased(q, k, k, bias=np.zeros((2, 0)))):
                self.assertEqual(o.shape, q.shape)
                self.assertTrue((o == 0).all())
        with self.assertRaisesRegex(luattn.InvalidError, "input 'bias'"):
            biased(*[rand(1, 2, 6, 8)] * 3, bias=np.zeros((2, 0)))


class Numbers(unittest.TestCase):
    def test_seeds(self):
        q = rand(1, 2, 6, 8)
        want = drops(q, q, q, seed=(5, 0))
        for seed in (5, np.int64(5), (5, 0), [5, 0], np.array([5, 0]), np.array(5), (np.uint8(5), 0)):
            np.testing.assert_array_equal(drops(q, q, q, seed=seed), want)
        np.testing.assert_array_equal(drops(q, q, q, seed=-1), drops(q, q, q, seed=2**64 - 1))
        for seed in (5.0, 5.5, (5, 0.5), np.float32(5), "5", 2**64, -(2**63) - 1, float("nan"), (1, 2, 3), np.array([1.0, 2.0])):
            with self.subTest(seed=seed), self.assertRaisesRegex(luattn.InvalidError, "seed: (is .* expected an integer of 64 bits|has 3 numbers)"):
                drops(q, q, q, seed=seed)

    def test_integers(self):
        q = rand(1, 2, 6, 8)
        few = luattn.attention("return attention { inputs = { n = { axes = {}, dtype = 'i32' } }, block_mask = function(b, h, q_idx, kv_idx) return kv_idx < n end }")
        np.testing.assert_allclose(few(q, q, q, n=3), few(q, q, q, n=3.0))
        for n in (2.7, 2**40, float("nan"), float("inf")):
            with self.assertRaisesRegex(luattn.InvalidError, "input 'n' is the number .*, which int32 does not hold"):
                few(q, q, q, n=n)
        rows, cu = q[0].swapaxes(0, 1).copy(), np.array([0, 6], np.int32)
        for name, call in (
            ("q_offset", lambda: causal(q, q, q, q_offset=1.5)),
            ("kv_len", lambda: causal(q, q, q, kv_len=10.0)),
            ("max_seqlen_q", lambda: causal(rows, rows, rows, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=6.5)),
            ("page_size", lambda: luattn.page_table(cu, cu, cu[:1], 16.5)),
            ("head_dim", lambda: causal.prepare("float32", 64.5)),
        ):
            with self.subTest(name), self.assertRaisesRegex(luattn.InvalidError, f"{name}: is [0-9.]+, expected an integer"):
                call()

    def test_merge_of_a_part_without_keys(self):
        q = rand(1, 2, 6, 8)
        o, lse = causal(q, q, q, return_lse=True)
        for none in (np.inf, -np.inf):
            merged, all_lse = luattn.merge([o, np.full_like(o, np.nan)], [lse, np.full_like(lse, none)])
            np.testing.assert_allclose(merged, o)
            np.testing.assert_allclose(all_lse, lse)
        merged, all_lse = luattn.merge([o, o], [np.full_like(lse, np.inf), np.full_like(lse, -np.inf)])
        self.assertTrue((merged == 0).all() and (all_lse == -np.inf).all())


if __name__ == "__main__":
    unittest.main()
