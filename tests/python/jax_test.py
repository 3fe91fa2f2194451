"""jax_test.py: attention of JAX is that of torch, with gradients of q, k, v, inputs, scalars and the scale, to 1e-12 in float64: six specs, packed sequences, both layouts,
offsets, caches, dropout, half precision. On the CPU. Exits with 77 without JAX or torch."""

import unittest

from with_jax import jax  # exits without JAX, so first
from with_torch import torch

import jax.numpy as jnp
import luattn
import luattn.jax
import numpy as np

CAP = "return attention { name = 'cap', scalars = { cap = 2.0 }, score_mod = function(s) return cap * tanh(s / cap) end, block_mask = causal() }"
BIAS = """return attention { name = 'bias', inputs = { bias = { axes = { 'h', 'q', 'kv' }, grad = true }, slopes = { axes = { 'b', 'h' }, grad = true } },
  score_mod = function(s, b, h, i, j) return s + bias[{h, i, j}] + slopes[{b, h}] * (j - i) end }"""
WINDOW = "return attention { name = 'window', block_mask = sliding_window(3) }"
DROPS = "return attention { name = 'drops', online_func = dropout(0.4) }"


def rand(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


class Same(unittest.TestCase):
    def same(self, spec, q, k, v, most=1e-12, differentiated=None, options=None, **named):
        """o, lse and all gradients, of arrays of float64. named: inputs, and scalars and a scale that are arrays; options: other arguments."""
        options, names = options or {}, [*"qkv", *(named if differentiated is None else differentiated)]
        attention, of_jax = luattn.attention(spec), luattn.jax.attention(spec)
        lse = attention._spec.has_lse
        arrays = {"q": q, "k": k, "v": v, **named}

        def loss(results, library):
            total = 0.0
            for result in results if lse else (results,):
                weights = np.cos(np.arange(np.prod(result.shape))).reshape(tuple(result.shape))
                kept = library.where(library.isfinite(result), result, library.zeros_like(result))
                total = total + (kept * library.asarray(weights)).sum()
            return total

        tensors = {name: torch.tensor(x, requires_grad=name in names) for name, x in arrays.items()}
        given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        results = attention(**tensors, **given, return_lse=lse)
        want = torch.autograd.grad(loss(results, torch), [tensors[name] for name in names])

        def run(some):
            made = of_jax(**{**arrays, **some}, **options, return_lse=lse)
            return loss(made, jnp), made

        got, made = jax.jit(jax.grad(run, has_aux=True))({name: jnp.asarray(arrays[name]) for name in names})
        for a, b in zip(made if lse else (made,), results if lse else (results,)):
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=most, atol=most)
        for name, x in zip(names, want):
            self.assertGreater(np.abs(x.numpy()).max(), 0, name)
            np.testing.assert_allclose(got[name], x.numpy(), rtol=most, atol=most, err_msg=name)

    def test_six_specs(self):
        q, k, v = rand(2, 4, 6, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 5)
        self.same("causal", q, k, v)
        self.same(CAP, q, k, v, cap=np.array(1.5))
        self.same("attention_sink", q, k, v, sinks=rand(4))
        self.same(BIAS, q, k, v, bias=rand(4, 6, 7), slopes=rand(2, 4))
        self.same(BIAS, q, k, v, bias=rand(4, 6, 7), slopes=rand(1, 4))  # broadcast over the batch
        self.same(WINDOW, q, k, v)
        ends = np.array([0, 2, 2, 6], np.int32)  # the last rows are of no sequence
        packed = rand(9, 4, 8), rand(9, 2, 8), rand(9, 2, 8)
        self.same("causal", *packed, options={"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 4, "max_seqlen_k": 4})
        self.same("causal", *packed, options={"cu_seqlens_q": ends, "cu_seqlens_k": ends, "layout": "bshd"})  # rows lie alike

    def test_other_functions(self):
        """One without an lse, and one with numbers of a row that backward reads."""
        q, k, v = rand(2, 4, 6, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8)
        for spec in ("retention", "relu"):
            with self.subTest(spec):
                self.same(spec, q, k, v, 1e-11)
                attend, arrays = luattn.jax.attention(spec), (q, k, v)
                np.testing.assert_allclose(attend(*arrays), luattn.attention(spec)(*arrays), rtol=1e-12, atol=1e-14)

    def test_rows_of_no_sequence_are_zero(self):
        ends, used = jnp.array([0, 3, 6], jnp.int32), jnp.array([2, 3], jnp.int32)
        attend = luattn.jax.attention("causal")
        q = jnp.asarray(rand(8, 2, 8))

        def run(q, k, v):
            return attend(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, seqused_q=used, seqused_k=used, return_lse=True)

        (o, lse), back = jax.vjp(run, q, q, q)
        empty = [2, 6, 7]
        self.assertTrue((o[np.array(empty)] == 0).all() and (lse[:, np.array(empty)] == -jnp.inf).all())
        for gradient in back((jnp.ones_like(o), jnp.zeros_like(lse))):
            self.assertTrue((gradient[np.array(empty)] == 0).all() and jnp.isfinite(gradient).all())

    def test_scale(self):
        q, k, v = rand(1, 2, 4, 8), rand(1, 2, 4, 8), rand(1, 2, 4, 8)
        self.same(CAP, q, k, v, scale=np.array(0.3), cap=np.array(1.0))
        for scale in (0.7, -0.5, 0):
            self.same("causal", q, k, v, options={"scale": scale}) if scale else None
            o = luattn.jax.attention("causal")(q, k, v, scale=scale)
            np.testing.assert_allclose(o, luattn.attention("causal")(q, k, v, scale=scale), rtol=1e-12)

    def test_layouts_and_offsets(self):
        q, k, v = rand(2, 6, 4, 8), rand(2, 7, 2, 8), rand(2, 7, 2, 8)
        self.same(WINDOW, q, k, v, options={"layout": "bshd"})
        heads_first = [x.swapaxes(1, 2).copy() for x in (q, k, v)]
        self.same(WINDOW, *heads_first, options={"q_offset": 3, "kv_offset": 2})
        self.same(WINDOW, *heads_first, options={"q_offset": np.array([3, 1], np.int32), "kv_offset": 0, "q_len": 12, "kv_len": 9})
        # A position that is traced, as of a step of decoding.
        attend = luattn.jax.attention(WINDOW)
        o = jax.jit(lambda at: attend(*heads_first, q_offset=at))(3)
        np.testing.assert_allclose(o, luattn.attention(WINDOW)(*heads_first, q_offset=3), rtol=1e-12)

    def test_caches(self):
        q, k, v = rand(2, 4, 1, 8), rand(2, 2, 16, 8), rand(2, 2, 16, 8)
        used = np.array([3, 16], np.int32)
        for name, arrays in (("cache", {}), ("pages", {"block_table": np.array([[1, 0], [0, 1]], np.int32)})):
            with self.subTest(name):
                want = luattn.attention("causal_bottom_right")(q, k, v, seqused_k=used, **arrays)
                got = jax.jit(luattn.jax.attention("causal_bottom_right"))(q, k, v, seqused_k=used, **arrays)
                np.testing.assert_allclose(got, want, rtol=1e-12)
        with self.assertRaisesRegex(luattn.Unsupported, "no backward over pages"):
            jax.grad(lambda q: luattn.jax.attention("causal")(q, k, v, seqused_k=used).sum())(q)

    def test_dropout(self):
        q, k, v = rand(2, 2, 6, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8)
        for seed in (7, -3, (5, 2**40 + 3)):
            self.same(DROPS, q, k, v, options={"seed": seed})
        attend, pair = luattn.jax.attention(DROPS), jnp.array([5, -3])
        np.testing.assert_array_equal(attend(q, k, v, seed=pair), attend(q, k, v, seed=(5, -3)))
        np.testing.assert_array_equal(attend(q, k, v, seed=jnp.int32(-3)), attend(q, k, v, seed=-3))
        np.testing.assert_array_equal(attend(q, k, v, seed=jax.random.PRNGKey(9)), attend(q, k, v, seed=jax.random.key(9)))
        with self.assertRaisesRegex(luattn.InvalidError, r"drops: seed: has 2 keys of shape \(2,\), expected one"):
            attend(q, k, v, seed=jax.random.split(jax.random.key(9)))
        first, second = (jax.jit(lambda key: attend(q, k, v, seed=key))(jax.random.key(i)) for i in (0, 1))
        self.assertGreater(np.abs(first - second).max(), 0.01)

    def test_half_precision(self):
        for d in (16, 12):  # the second is padded
            q, k, v = (rand(1, 2, 6, d, seed=i) for i in range(3))
            narrow = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
            attend = luattn.jax.attention("causal")
            o, back = jax.vjp(attend, *narrow)
            wide, wide_back = jax.vjp(attend, *(x.astype(jnp.float64) for x in narrow))
            self.assertEqual(o.dtype, jnp.bfloat16)
            np.testing.assert_allclose(o.astype(float), wide, atol=0.02)
            for got, want in zip(back(jnp.ones_like(o)), wide_back(jnp.ones_like(wide))):
                self.assertEqual(got.dtype, jnp.bfloat16)
                np.testing.assert_allclose(got.astype(float), want, atol=0.05, rtol=0.02)

    def test_types_of_inputs(self):
        q = rand(1, 2, 4, 8)
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float64):
            slopes = jnp.ones((1, 2), dtype)
            found = jax.grad(lambda s: luattn.jax.attention(BIAS)(q, q, q, bias=jnp.zeros((2, 4, 4)), slopes=s).sum())(slopes)  # noqa: B023
            self.assertEqual(found.dtype, dtype)

    def test_what_torch_has_alone(self):
        attend, q = luattn.jax.attention("causal"), jnp.zeros((1, 2, 4, 8))
        with self.assertRaisesRegex(luattn.Unsupported, "causal: out_dtype: o is of q's type here yet"):
            attend(q, q, q, out_dtype=jnp.float32)
        with self.assertRaisesRegex(luattn.InvalidError, f"q_offset: is {2**70}, expected 0 to {2**31 - 1}"):
            attend(q, q, q, q_offset=2**70)
        with self.assertRaisesRegex(luattn.Unsupported, "spec: its places lie on a grid of y, x, which calls of JAX do not have"):
            luattn.jax.attention('return attention { grid = {"y", "x"}, block_mask = axial("x") }')

    def test_no_rows(self):
        attend = luattn.jax.attention("causal")
        for n, m in ((0, 4), (4, 0)):
            q, k = jnp.zeros((1, 2, n, 8)), jnp.zeros((1, 2, m, 8))
            self.assertEqual(jnp.abs(attend(q, k, k)).sum(), 0)
            self.assertEqual(jax.grad(lambda q: attend(q, k, k).sum())(q).shape, q.shape)  # noqa: B023


if __name__ == "__main__":
    unittest.main()
