"""jax_transforms_test.py: attention of JAX under jit, vmap, shard_map, checkpoint and export, beside the same formula in jax.numpy; and what is refused, by name. On four
devices of the CPU. Exits with 77 without JAX."""

import importlib.util
import os
import pickle
import subprocess
import sys
import unittest

from with_jax import jax  # exits without JAX, so first

import jax.numpy as jnp
import luattn
import luattn.jax
import numpy as np
from jax.sharding import PartitionSpec as P

attend = luattn.jax.attention("""return attention {
  name = "formula", scalars = { c = 2.0 },
  inputs = { bias = { axes = { "h", "q", "kv" }, grad = true }, slopes = { axes = { "b", "h" }, grad = true } },
  score_mod = function(s, b, h, i, j) return c * tanh(s / c) + bias[{h, i, j}] + slopes[{b, h}] * (j - i) end,
  block_mask = causal(),
}""")
ENTRY = "return attention { name = 'entry', score_mod = function(s, b, h, i, j) return s + b * j end }"
FIRST = "return attention { name = 'first', inputs = { slopes = { axes = { 'b', 'h' } } }, score_mod = function(s, b, h, i, j) return s + slopes[{0, h}] * j end }"
DROPS = "return attention { name = 'drops', online_func = dropout(0.4) }"
ALL = tuple(range(6))


def luattn_of(q, k, v, bias, slopes, c):
    return attend(q, k, v, bias=bias, slopes=slopes, c=c)


def formula(q, k, v, bias, slopes, c):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    i, j = jnp.arange(s.shape[-2])[:, None], jnp.arange(s.shape[-1])
    s = c * jnp.tanh(s / c) + bias + slopes[:, :, None, None] * (j - i)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(j <= i, s, -jnp.inf)), v)


def rand(*shape):
    return jnp.asarray(np.random.default_rng(shape).standard_normal(shape))


def problem(*first, slopes=2):
    """Arrays with more axes before those of the formula."""
    return (
        rand(*first, 2, 4, 6, 8), rand(*first, 2, 2, 6, 8), rand(*first, 2, 2, 6, 8) + 1, rand(*first, 4, 6, 6), rand(*first, slopes, 4),
        rand(*first, 1)[..., 0] ** 2 + 1,
    )  # fmt: skip


def gradients(f):
    """Of a sum of f's results with weights of their own."""

    def loss(*args):
        o = f(*args)
        return (o * jnp.cos(jnp.arange(o.size)).reshape(o.shape)).sum()

    return jax.grad(loss, ALL)


class Transforms(unittest.TestCase):
    def same(self, transform, *args):
        """A transform of both functions gives the same."""
        for got, want in zip(jax.tree.leaves(transform(luattn_of)(*args)), jax.tree.leaves(transform(formula)(*args)), strict=True):
            self.assertEqual(got.shape, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)

    def test_jit_and_checkpoint(self):
        args = problem()
        self.same(lambda f: f, *args)
        self.same(lambda f: jax.jit(gradients(jax.checkpoint(f))), *args)
        self.same(lambda f: jax.jit(gradients(lambda *x: jax.lax.scan(lambda o, _: (f(o, *x[1:]), None), x[0], None, 2)[0])), *args)

    def test_vmap(self):
        many, one, wide = problem(3), problem(), problem(3, slopes=1)
        for some, *axes in ((many, 0, None, None, None, None, None), (wide, None, 0, 0, None, 0, None), (many, 0, 0, 0, 0, 0, 0)):
            args = [b if axis is None else a for a, b, axis in zip(some, one, axes)]
            with self.subTest(axes=axes):
                self.same(lambda f: jax.jit(gradients(jax.vmap(f, axes))), *args)  # noqa: B023
                self.same(lambda f: jax.jit(jax.vmap(gradients(f), axes)), *args)  # noqa: B023
        self.same(lambda f: jax.jit(jax.vmap(f, -1, 1)), *(jnp.moveaxis(x, 0, -1) for x in many))
        self.same(lambda f: jax.jit(jax.vmap(jax.vmap(f, (0, None, None, None, None, None)), (0, 0, 0, None, None, None))), problem(3, 2)[0], *many[1:3], *one[3:])

    def test_vmap_goes_into_the_batch(self):
        """One launch, where nothing tells entries apart; else one for each."""
        many, one = problem(3), problem()
        text = str(jax.make_jaxpr(jax.vmap(luattn_of, (0, 0, 0, None, 0, None)))(*many[:3], one[3], many[4], one[5]))
        self.assertNotIn("scan", text)
        self.assertIn("f64[6,4,6,8]", text)
        q, k, v = many[:3]
        for spec, given in ((ENTRY, {}), (DROPS, {"seed": 3}), (FIRST, {"slopes": many[4]})):
            f, axes = luattn.jax.attention(spec), {name: 0 if name == "slopes" else None for name in given}
            got = jax.vmap(lambda q, k, v, given: f(q, k, v, **given), (0, 0, 0, axes))(q, k, v, given)  # noqa: B023
            each = ({name: x[i] if axes[name] == 0 else x for name, x in given.items()} for i in range(3))
            np.testing.assert_array_equal(got, jnp.stack([f(q[i], k[i], v[i], **of) for i, of in enumerate(each)]))

    def test_shard_map(self):
        args = (rand(4, 4, 6, 8), rand(4, 2, 6, 8), rand(4, 2, 6, 8) + 1, rand(4, 6, 6), rand(4, 4), jnp.asarray(1.5))
        specs = (P("x"), P("x"), P("x"), P(), P("x"), P())
        want = jax.jit(gradients(formula))(*args), jax.jit(jax.grad(lambda *x: formula(*x).sum(), ALL))(*args)
        for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
            mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
            placed = [jax.device_put(x, jax.sharding.NamedSharding(mesh, s)) for x, s in zip(args, specs)]

            def sharded(f, out=P("x")):
                return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out))  # noqa: B023

            total = jax.grad(lambda *x: luattn_of(*x).sum(), ALL)
            with jax.set_mesh(mesh):
                got = jax.jit(gradients(sharded(luattn_of)))(*placed), sharded(total, specs)(*placed)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12), got, want)

    @unittest.skipUnless(importlib.util.find_spec("flatbuffers"), "jax.export writes programs by flatbuffers, which is not installed")
    def test_export(self):
        """A program that is written down runs again, in another process too, which imports luattn.jax."""
        args = problem()
        data = jax.export.export(jax.jit(gradients(luattn_of)), disabled_checks=luattn.jax.export_checks)(*args).serialize()
        want = gradients(luattn_of)(*args)
        jax.tree.map(np.testing.assert_array_equal, jax.export.deserialize(data).call(*args), want)
        code = (
            "import pickle, sys\nfrom with_jax import jax\nimport luattn.jax\ndata, args = pickle.load(sys.stdin.buffer)\n"
            "pickle.dump([*map(__import__('numpy').asarray, jax.export.deserialize(data).call(*args))], sys.stdout.buffer)"
        )
        run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((data, [*map(np.asarray, args)])), capture_output=True, cwd=os.path.dirname(__file__))
        self.assertEqual(run.returncode, 0, run.stderr.decode())
        for a, b in zip(pickle.loads(run.stdout), want):
            np.testing.assert_array_equal(a, b)

    def test_export_of_any_length(self):
        causal = luattn.jax.attention("causal")
        b, n = jax.export.symbolic_shape("b, n")
        shapes = [jax.ShapeDtypeStruct((b, h, n, 8), float) for h in (4, 2, 2)]
        program = jax.export.export(jax.jit(jax.grad(lambda *x: causal(*x).sum())), disabled_checks=luattn.jax.export_checks)(*shapes)
        q, k, v, *_ = problem()
        np.testing.assert_array_equal(program.call(q, k, v), jax.grad(lambda *x: causal(*x).sum())(q, k, v))

    def test_a_new_scalar_compiles_nothing(self):
        args = problem()
        f = jax.jit(luattn_of)
        f(*args)
        before = f._cache_size()
        for c in (0.5, 3.0):
            np.testing.assert_allclose(f(*args[:5], c), formula(*args[:5], c), rtol=1e-11)
        self.assertLessEqual(f._cache_size(), before + 1)  # one for numbers of Python, whatever they are


class Refused(unittest.TestCase):
    def refuses(self, message, call, error=luattn.InvalidError):
        with self.assertRaisesRegex(error, message):
            call()

    def test_arguments(self):
        q, k, v, bias, slopes, _ = problem()
        f, causal, drops = (luattn.jax.attention(x) for x in (attend.text, "causal", DROPS))
        given = {"bias": bias, "slopes": slopes}
        self.refuses("formula.*: k: has shape", lambda: f(q, k[..., :4], v, **given))
        self.refuses("'bias': axis 1 .q. has size 3, expected 6", lambda: f(q, k, v, bias=bias[:, :3], slopes=slopes))
        self.refuses("input 'slopes' is missing: pass slopes=", lambda: f(q, k, v, bias=bias))
        self.refuses("there is no argument 'cap'; the spec declares bias, slopes, c", lambda: f(q, k, v, **given, cap=1.0))
        self.refuses(r"scalar 'c': has shape \(2,\), expected one element", lambda: f(q, k, v, **given, c=jnp.ones(2)))
        self.refuses("q: is .1.0., expected an array of JAX or NumPy", lambda: causal([1.0], k, v))
        self.refuses("q: has type int64", lambda: causal(q.astype(int), k, v))
        self.refuses("k: has dtype float32", lambda: causal(q, k.astype(jnp.float32), v))
        self.refuses("layout: is 'sbhd'", lambda: causal(q, k, v, layout="sbhd"))
        self.refuses("out: arrays of JAX are not written to", lambda: causal(q, k, v, out=q), luattn.Unsupported)
        self.refuses("batch: XLA plans memory", lambda: causal(q, k, v, batch=object()), luattn.Unsupported)
        self.refuses("return_state: ", lambda: causal(q, k, v, return_state=True), luattn.Unsupported)
        self.refuses("return_lse: its online function has no lse", lambda: luattn.jax.attention("relu")(q, k, v, return_lse=True), luattn.Unsupported)
        self.refuses("drops: seed: is missing: .* a key of jax.random", lambda: drops(q, k, v))
        self.refuses("seed: the spec draws no random numbers", lambda: causal(q, k, v, seed=1))
        self.refuses("seed: is float64", lambda: drops(q, k, v, seed=jnp.ones(2)))

    def test_packed(self):
        causal, q = luattn.jax.attention("causal"), rand(6, 2, 8)
        ends = jnp.array([0, 6], jnp.int32)
        self.refuses("cu_seqlens_q, cu_seqlens_k: one is missing", lambda: causal(q, q, q, cu_seqlens_q=ends))
        self.refuses("max_seqlen_q: is of packed sequences", lambda: causal(q, q, q, max_seqlen_q=4))
        self.refuses("cu_seqlens_q: has dtype int64, expected int32", lambda: causal(q, q, q, cu_seqlens_q=ends.astype(int), cu_seqlens_k=ends))
        traced = jax.jit(lambda m: causal(q, q, q, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=m))
        self.refuses("max_seqlen_q: is traced, .* static_argnames", lambda: traced(6))
        # What only the launch sees, XLA reports.
        wrong = jnp.array([0, 9], jnp.int32)
        self.refuses("INVALID_ARGUMENT.*cu_seqlens_q", lambda: causal(q, q, q, cu_seqlens_q=wrong, cu_seqlens_k=wrong).block_until_ready(), RuntimeError)

    def test_gradients(self):
        q, k, v, *_ = problem()
        fixed = luattn.jax.attention("return attention { name = 'fixed', inputs = { t = { axes = { 'h' } } }, score_mod = function(s, b, h) return s + t[h] end }")
        self.refuses("fixed: input 't': is differentiated, and .* grad = true, or pass jax.lax.stop_gradient", lambda: jax.grad(lambda t: fixed(q, k, v, t=t).sum())(jnp.ones(4)))
        self.assertEqual(jax.grad(lambda q: fixed(q, k, v, t=jnp.ones(4)).sum())(q).shape, q.shape)
        causal = luattn.jax.attention("causal")
        total = lambda q: causal(q, k, v).sum()  # noqa: E731
        self.refuses("causal: there are no second derivatives yet", lambda: jax.grad(lambda q: jax.grad(total)(q).sum())(q), luattn.Unsupported)
        self.refuses("jvp", lambda: jax.jvp(total, (q,), (q,)), TypeError)

    def test_without_float64(self):
        code = (
            "from with_jax import jax\nimport numpy as np, luattn.jax\njax.config.update('jax_enable_x64', False)\nq = np.ones((1, 1, 4, 8))\n"
            "try: luattn.jax.attention('causal')(q, q, q)\nexcept ValueError as e: print(e)"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.path.dirname(__file__))
        self.assertRegex(run.stdout, "causal: q: is float64, which JAX would make float32: jax.config.update", run.stderr)


if __name__ == "__main__":
    unittest.main()
