"""jax_gpu_test.py: attention of JAX on a GPU, in bf16 and other types, beside float64 on the CPU: o and gradients; vmap, checkpoint, caches, export, and what a launch refuses. Exits with 77
without JAX or a GPU."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax

    gpu = jax.devices("cuda")[0]
except (ImportError, RuntimeError) as e:
    print(f"no JAX with a GPU: skipped ({str(e)[:80]})")
    sys.exit(77)

import jax.numpy as jnp
import luattn.jax
import numpy as np

jax.config.update("jax_enable_x64", True)
cpu = jax.devices("cpu")[0]
CAP = "return attention { name = 'cap', scalars = { cap = 50 }, score_mod = function(s) return cap * tanh(s / cap) end, block_mask = causal() }"
BIAS = """return attention { name = 'bias', inputs = { bias = { axes = { 'h', 'q', 'kv' }, grad = true } }, block_mask = causal(),
  score_mod = function(s, b, h, i, j) return s + bias[{h, i, j}] end }"""
WINDOW = "return attention { name = 'window', block_mask = sliding_window(128) }"
DROPS = "return attention { name = 'drops', online_func = dropout(0.25) }"


def rand(*shape, dtype=jnp.bfloat16):
    return np.asarray(jnp.asarray(np.random.default_rng(shape).standard_normal(shape), dtype))


def qkv(b=2, h=8, hkv=2, n=512, d=128, dtype=jnp.bfloat16):
    return {"q": rand(b, h, n, d, dtype=dtype), "k": rand(b, hkv, n, d, dtype=dtype), "v": rand(b, hkv, n, d, dtype=dtype) + 1}


def error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.sqrt(((a - b) ** 2).mean() / (b**2).mean())


class OnGpu(unittest.TestCase):
    def same(self, spec, arrays, most=5e-3, like=None, **options):
        f = luattn.jax.attention(spec)
        if like is None:
            like = np.cos(np.arange(arrays["q"].size)).reshape(arrays["q"].shape)

        def loss(arrays, weights):
            o = f(**arrays, **options)
            return (o.astype(jnp.float64) * weights).sum(), o

        results = []
        for device, dtype in ((gpu, None), (cpu, np.float64)):
            with jax.default_device(device):
                placed = {name: jax.device_put(np.asarray(x, dtype or x.dtype), device) for name, x in arrays.items()}
                results.append(jax.jit(jax.grad(loss, has_aux=True))(placed, jax.device_put(like, device)))
        (got, o), (want, wide) = results
        self.assertEqual(o.devices(), {gpu})
        self.assertLess(error(o, wide), most)
        for name in arrays:
            self.assertLess(error(got[name], want[name]), most, name)

    def along_cap(self, cap):
        """Weights of o along which the cap moves it. The cap's gradient is then a sum of squares; for other weights it is one of terms
        that cancel to a 500th of their magnitudes, where the rounding of o alone is 1.5 % of it."""
        f = luattn.jax.attention(CAP)
        with jax.default_device(cpu):
            wide = {name: np.asarray(x, np.float64) for name, x in qkv().items()}
            moved = np.asarray(f(**wide, cap=cap + 0.01)) - np.asarray(f(**wide, cap=cap - 0.01))
        return moved / np.abs(moved).max()

    def test_specs(self):
        self.same("causal", qkv())
        self.same("causal", qkv(d=60))
        self.same(CAP, {**qkv(), "cap": np.float64(8)}, like=self.along_cap(8.0))
        self.same(BIAS, {**qkv(), "bias": rand(8, 512, 512, dtype=jnp.float32)})
        self.same("attention_sink", {**qkv(), "sinks": rand(8, dtype=jnp.float32)})
        self.same(WINDOW, {name: x.swapaxes(1, 2).copy() for name, x in qkv().items()}, layout="bshd")
        self.same(DROPS, qkv(), seed=5)
        for dtype, most in ((jnp.float16, 2e-3), (jnp.float32, 2e-6), (jnp.float64, 1e-14)):
            self.same("causal", qkv(b=1, n=128, d=64, dtype=dtype), most)

    def test_packed(self):
        ends = np.array([0, 100, 100, 700, 1000], np.int32)  # the last 24 rows are of no sequence
        arrays = {"q": rand(1024, 8, 128), "k": rand(1024, 2, 128), "v": rand(1024, 2, 128)}
        self.same("causal", arrays, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=600, max_seqlen_k=600)
        with self.assertRaisesRegex(RuntimeError, "max_seqlen_q: is missing: the host does not read cu_seqlens_q on a GPU"):
            luattn.jax.attention("causal")(**arrays, cu_seqlens_q=ends, cu_seqlens_k=ends).block_until_ready()

    def test_transforms(self):
        causal = luattn.jax.attention("causal")
        q, k, v = map(jnp.asarray, qkv().values())
        many = [jnp.stack([x, x / 2, -x]) for x in (q, k, v)]
        np.testing.assert_array_equal(jax.jit(jax.vmap(causal))(*many), jnp.stack([causal(*(x[i] for x in many)) for i in range(3)]))
        whole = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]  # sums in another order round to other bits of bf16
        plain, saving = (jax.grad(lambda q: f(q, *whole[1:]).astype(float).sum())(whole[0]) for f in (causal, jax.checkpoint(causal)))
        self.assertLess(error(saving, plain), 1e-6)
        used = np.array([100, 512], np.int32)
        attend = luattn.jax.attention("causal_bottom_right")
        with jax.default_device(cpu):
            want = attend(*(np.asarray(x, np.float64) for x in (q[:, :, :1], k, v)), seqused_k=used)
        self.assertLess(error(jax.jit(attend)(q[:, :, :1], k, v, seqused_k=used), want), 5e-3)

    def test_memory(self):
        f = jax.jit(jax.grad(lambda q, k, v: luattn.jax.attention("causal")(q, k, v).astype(float).sum(), (0, 1, 2)))
        args = [jnp.asarray(x) for x in qkv().values()]
        jax.block_until_ready(f(*args))
        before = gpu.memory_stats()["bytes_in_use"]
        for _ in range(50):
            jax.block_until_ready(f(*args))
        self.assertEqual(gpu.memory_stats()["bytes_in_use"], before)


if __name__ == "__main__":
    unittest.main()
