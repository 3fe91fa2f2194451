"""linear_test.py: linear attention on the CPU beside NumPy, its gradients beside differences; packed sequences, states, pools, refusals."""

import gc
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

import linear_reference as reference  # noqa: E402
import linear_specs as specs  # noqa: E402

SIZES = {"b": 2, "t": 13, "h": 2, "hv": 4, "d": 8, "dv": 6}


def inputs_of(op, rng, sizes, packed=False):
    """Random inputs; those of decays are decays."""
    made = {}
    for one in op.inputs:
        shape = tuple(1 if packed and axis == "b" and "t" in one.axes else sizes[axis] if axis in sizes else int(axis) for axis in one.axes)
        x = rng.standard_normal(shape)
        x = -np.abs(x) / 3 if one.name == "g" or (one.name, op.name) == ("A", "mamba2") else x
        made[one.name] = np.exp(-np.abs(x) / 3) if (one.name, op.name) == ("decay", "retention_linear") else np.abs(x) if one.name == "decay" else x
    return made


def tensors(rng, sizes, extra=0, positive=False):
    b, t, h, hv, d, dv = (sizes[x] for x in ("b", "t", "h", "hv", "d", "dv"))
    q, k, v = rng.standard_normal((b, t, h, d)), rng.standard_normal((b, t, h, d)) / d**0.5, rng.standard_normal((b, t, hv, dv))
    state = rng.standard_normal((b, hv, d, dv + extra))
    return q, k, v, np.abs(state) if positive else state


class Beside(unittest.TestCase):
    """Another way to compute the same."""

    def check(self, op, hooks, scale, rng, differences=3):
        normalizes = op._spec.normalizes
        q, k, v, state = tensors(rng, SIZES, int(normalizes), normalizes)
        given = inputs_of(op, rng, SIZES)
        numbers = {**given, **op.scalars}
        o, final = op(q, k, v, initial_state=state, output_final_state=True, state_layout="kv", **given)
        want_o, want_final = reference.call(lambda *at: hooks(numbers, *at), q, k, v, state, scale)
        np.testing.assert_allclose(o, want_o, rtol=0, atol=1e-11 * (1 + np.abs(want_o).max()))
        np.testing.assert_allclose(final, want_final, rtol=0, atol=1e-11 * (1 + np.abs(want_final).max()))
        self.check_gradients(op, rng, {"q": q, "k": k, "v": v, "initial_state": state, **given, **op.scalars}, differences)

    def check_gradients(self, op, rng, at, count):
        dout, dfinal = rng.standard_normal(at["v"].shape), rng.standard_normal(at["initial_state"].shape)

        def loss(changed):
            o, final = op(**{**at, **changed}, output_final_state=True, state_layout="kv")
            return (o * dout).sum() + (final * dfinal).sum()

        found = op.gradients(dout, **at, dfinal_state=dfinal, state_layout="kv")
        self.assertEqual(set(found), {"q", "k", "v", "initial_state", *(x.name for x in op.inputs if x.grad), *op.scalars})
        for name, grad in found.items():
            for _ in range(count):
                way, step = rng.standard_normal(np.shape(at[name])), 1e-5
                slope = (loss({name: at[name] + step * way}) - loss({name: at[name] - step * way})) / (2 * step)
                self.assertLess(abs(slope - (grad * way).sum()), 2e-6 * (1 + abs(slope)), f"{op.name}: {name}")

    def test_files(self):
        for hooks in specs.FILES:
            with self.subTest(hooks.__name__):
                op = luattn.linear_attention(f"{specs.FOLDER}/{hooks.__name__}.lua")
                self.check(op, hooks, specs.SCALES.get(hooks.__name__), np.random.default_rng(1), 1)

    def test_random_specs(self):
        rng = np.random.default_rng(int(os.environ.get("LUATTN_SEED", "5")))
        for i in range(int(os.environ.get("LUATTN_COUNT", "20"))):
            lua, hooks, scale = specs.random_spec(rng)
            with self.subTest(f"number {i}:\n{lua}"):
                self.check(luattn.linear_attention(lua), hooks, scale, rng, 1)


GATED = f"{specs.FOLDER}/kda.lua"
PLAIN = "return linear_attention { name = 'plain', inputs = { g = { axes = {'b', 't', 'hv', 'd'}, grad = true } }, decay = function(b, h, t, d) return g[{b, t, h, d}] end%s }"


class Sequences(unittest.TestCase):
    def test_packed_is_separate(self):
        lengths = [5, 0, 1, 70, 0, 64]
        cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        for name in ("kda", "rwkv7", "mamba2", "linear"):
            op, rng = luattn.linear_attention(f"{specs.FOLDER}/{name}.lua"), np.random.default_rng(2)
            sizes = {**SIZES, "b": 1, "t": int(cu[-1]) + 3}  # rows of no sequence behind them
            extra = int(op._spec.normalizes)
            q, k, v, _ = tensors(rng, sizes)
            state = np.abs(rng.standard_normal((len(lengths), 4, 8, 6 + extra)))
            given, dout = inputs_of(op, rng, sizes, packed=True), rng.standard_normal(v.shape)
            for x in (q, k, v, dout, *(x for x in given.values() if x.ndim > 2)):
                x[:, cu[-1] :] = np.nan
            dfinal = rng.standard_normal(state.shape)
            more = {"initial_state": state, "state_layout": "kv", **given}
            o, final = op(q, k, v, cu_seqlens=cu, output_final_state=True, **more)
            grads = op.gradients(dout, q, k, v, cu_seqlens=cu.astype(np.int64), dfinal_state=dfinal, **more)
            self.assertTrue((o[:, cu[-1] :] == 0).all() and not any(grads[x][:, cu[-1] :].any() for x in "qkv"))
            sums = {x.name: 0 for x in op.inputs if "t" not in x.axes}
            for n, (first, end) in enumerate(zip(cu, cu[1:])):
                part = {x.name: given[x.name][:, first:end] if "t" in x.axes else given[x.name] for x in op.inputs}
                alone = {"initial_state": state[n : n + 1], "state_layout": "kv", **part}
                rows = [x[:, first:end] for x in (q, k, v)]
                o_n, final_n = op(*rows, output_final_state=True, **alone)
                grads_n = op.gradients(dout[:, first:end], *rows, dfinal_state=dfinal[n : n + 1], **alone)
                np.testing.assert_array_equal(o[:, first:end], o_n)
                np.testing.assert_array_equal(final[n], final_n[0])
                for x in ("q", "k", "v", *(one.name for one in op.inputs if "t" in one.axes)):
                    np.testing.assert_array_equal(grads[x][:, first:end], grads_n[x])
                np.testing.assert_array_equal(grads["initial_state"][n], grads_n["initial_state"][0])
                for x in sums:
                    sums[x] = sums[x] + grads_n[x]
            for x, want in sums.items():
                np.testing.assert_allclose(grads[x], want, rtol=1e-12, atol=1e-12)

    def test_lengths_and_halves(self):
        """A run of tokens is one from the state of the run before it, at any length."""
        op, rng = luattn.linear_attention(GATED), np.random.default_rng(3)
        for tokens in (0, 1, 2, 63, 64, 65, 129):
            sizes = {**SIZES, "b": 1, "t": tokens, "hv": 2}
            q, k, v, state = tensors(rng, sizes)
            given = inputs_of(op, rng, sizes)
            o, final = op(q, k, v, initial_state=state, output_final_state=True, state_layout="kv", **given)
            split, parts = tokens // 3, []
            for first, end in ((0, split), (split, tokens)):
                part = {x.name: given[x.name][:, first:end] if "t" in x.axes else given[x.name] for x in op.inputs}
                o_n, state = op(*(x[:, first:end] for x in (q, k, v)), initial_state=state, output_final_state=True, state_layout="kv", **part)
                parts.append(o_n)
            np.testing.assert_allclose(np.concatenate(parts, 1), o, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(state, final, rtol=1e-12, atol=1e-12)

    def test_closed_gates(self):
        """What has decayed is gone, and no gate of -inf makes a NaN; where nothing decays nothing is lost."""
        rng, sizes = np.random.default_rng(4), {**SIZES, "t": 20}
        q, k, v, state = tensors(rng, sizes)
        for more in ("", ", update = delta_rule(0.7)", ", update = { read = function(k) return 0.7 * k end, before = true }"):
            op = luattn.linear_attention(PLAIN % more)
            g = -np.abs(rng.standard_normal((2, 20, 4, 8)))
            g[:, 7, :, :4], g[:, 11], g[:, 12, 1], g[:, 15], g[:, 3] = -np.inf, -1e30, -np.inf, -20, 0
            same = np.maximum(g, -1000)
            o, final = op(q, k, v, g=g, initial_state=state, output_final_state=True, state_layout="kv")
            found = op.gradients(o, q, k, v, g=g, initial_state=state, state_layout="kv")
            self.assertTrue(all(np.isfinite(x).all() for x in (o, final, *found.values())))
            np.testing.assert_array_equal(op(q, k, v, g=same, initial_state=state, state_layout="kv"), o)
            np.testing.assert_array_equal(found["g"][g == -np.inf], 0)
            np.testing.assert_array_equal(found["initial_state"], op.gradients(o, q, k, v, g=same, initial_state=state, state_layout="kv")["initial_state"])
        g[0, 0, 0, 0] = np.nan
        self.assertTrue(np.isnan(op(q, k, v, g=g)[0, 0, 0]).all())

    def test_gates_far_from_their_slope(self):
        """A gate that has closed by an infinite number gives its parameters no NaN."""
        op, rng = luattn.linear_attention(f"{specs.FOLDER}/gated_delta.lua"), np.random.default_rng(5)
        q, k, v, _ = tensors(rng, SIZES)
        given = inputs_of(op, rng, SIZES)
        given["A_log"][1], given["a"][0, 3] = 800.0, np.inf
        self.assertTrue(all(np.isfinite(x).all() for x in op.gradients(v, q, k, v, **given).values()))


class States(unittest.TestCase):
    def setUp(self):
        self.op, self.rng = luattn.linear_attention(GATED), np.random.default_rng(6)
        self.q, self.k, self.v, self.state = tensors(self.rng, SIZES)
        self.given = inputs_of(self.op, self.rng, SIZES)

    def call(self, **more):
        return self.op(self.q, self.k, self.v, **{**self.given, **more})

    def test_layouts(self):
        o, final = self.call(initial_state=self.state, output_final_state=True, state_layout="kv")
        o2, final2 = self.call(initial_state=np.ascontiguousarray(self.state.swapaxes(2, 3)), output_final_state=True, state_layout="vk")
        np.testing.assert_array_equal(o, o2)
        np.testing.assert_array_equal(final, final2.swapaxes(2, 3))
        np.testing.assert_array_equal(self.call(initial_state=np.zeros_like(self.state), state_layout="kv"), self.call())

    def test_pool(self):
        pool = self.rng.standard_normal((5, 4, 8, 6)).astype(np.float32)
        before, want = pool.copy(), pool.copy()
        o = self.call(initial_state=pool, final_state=pool, state_layout="kv", state_indices=np.array([3, -1], np.int32))
        want_o, last = self.op(self.q, self.k, self.v, initial_state=before[[3, 0]], output_final_state=True, state_layout="kv", **self.given)
        want[3] = last[0]
        np.testing.assert_array_equal(pool, want)
        np.testing.assert_array_equal(o[0], want_o[0])
        self.assertFalse(o[1].any())

    def test_types(self):
        """Results are those of double precision, rounded once."""
        o, final = self.call(initial_state=self.state.astype(np.float32), output_final_state=True, state_layout="kv")
        self.assertEqual(final.dtype, np.float32)
        for dtype, size in ((np.float32, 1e-6), (np.float16, 2e-3)):
            rows = [x.astype(dtype) for x in (self.q, self.k, self.v)]
            half = self.op(*rows, **self.given)
            want = self.op(*(x.astype(np.float64) for x in rows), **self.given)
            self.assertEqual(half.dtype, dtype)
            np.testing.assert_allclose(half.astype(np.float64), want, rtol=size, atol=size)
            np.testing.assert_array_equal(half, want.astype(dtype))

    def test_strides(self):
        def apart(x):
            wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan)
            wide[..., ::2] = x
            return np.ascontiguousarray(wide.transpose(2, 1, 0, 3)).transpose(2, 1, 0, 3)[..., ::2]

        np.testing.assert_array_equal(self.call(), self.op(*map(apart, (self.q, self.k, self.v)), **{n: x.copy(order="F") for n, x in self.given.items()}))

    def test_threads(self):
        text = "import luattn, numpy, sys; sys.path.insert(0, %r); import linear_test as t; print(t.digest())" % os.path.dirname(os.path.abspath(__file__))
        import subprocess

        found = {
            n: subprocess.run([sys.executable, "-c", text], env={**os.environ, "LUATTN_NUM_THREADS": n, "PYTHONPATH": f"{ROOT}/python"}, capture_output=True, text=True, check=True).stdout
            for n in ("1", "3")
        }
        self.assertEqual(found["1"], found["3"])


def digest():
    import hashlib

    op, rng = luattn.linear_attention(GATED), np.random.default_rng(7)
    q, k, v, _ = tensors(rng, SIZES)
    grads = op.gradients(v, q, k, v, **inputs_of(op, rng, SIZES))
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in grads.values())).hexdigest()


class Refusals(unittest.TestCase):
    def refuse(self, words, call, *args, **given):
        with self.assertRaises(luattn.Error) as caught:
            call(*args, **given)
        self.assertIn(words, str(caught.exception))

    def test_arguments(self):
        op, rng = luattn.linear_attention(GATED), np.random.default_rng(8)
        q, k, v, state = tensors(rng, SIZES)
        given = inputs_of(op, rng, SIZES)
        one = {name: x[:1] if "b" == info.axes[0] else x for info, (name, x) in zip(op.inputs, given.items())}
        rows = (q[:1], k[:1], v[:1])
        pool = np.zeros((5, 4, 8, 6))
        on = {"state_layout": "kv"}
        for words, args, more in (
            ("v: its 3 heads are no multiple of q's 2", (q, k, v[:, :, :3]), given),
            ("k: axis 1 of [batch, tokens, heads, head_dim] has size 12, expected 13", (q, k[:, :12], v), given),
            ("cu_seqlens: number 2 is 3, expected at least 5; it must not fall", rows, {**one, "cu_seqlens": np.array([0, 5, 3], np.int32)}),
            ("cu_seqlens: number 1 is 14, and q has 13 rows", rows, {**one, "cu_seqlens": np.array([0, 14], np.int32)}),
            ("packed sequences have batch 1", (q, k, v), {**given, "cu_seqlens": np.array([0, 13], np.int32)}),
            ("cu_seqlens: has dtype float32, expected int32", rows, {**one, "cu_seqlens": np.array([0, 13], np.float32)}),
            ("initial_state: axis 0 of [rows, heads_v, head_dim, head_dim_v] has size 1, expected 2", (q, k, v), {**given, "initial_state": state[:1], **on}),
            ("initial_state: axis 2 of [rows, heads_v, head_dim_v, head_dim] has size 8, expected 6", (q, k, v), {**given, "initial_state": state, "state_layout": "vk"}),
            ("initial_state: has dtype int32", (q, k, v), {**given, "initial_state": state.astype(np.int32), **on}),
            ("state_layout: is missing", (q, k, v), {**given, "initial_state": state}),
            ("state_layout: is the string 'bhkv'", (q, k, v), {**given, "initial_state": state, "state_layout": "bhkv"}),
            ("state_indices: two entries have row 2", (q, k, v), {**given, "initial_state": pool, "final_state": pool, "state_indices": np.array([2, 2]), **on}),
            ("state_indices: number 1 is 5, and the pool has 5 rows", (q, k, v), {**given, "initial_state": pool, "state_indices": np.array([2, 5]), **on}),
            ("state_indices: number 0 is -2", (q, k, v), {**given, "initial_state": pool, "state_indices": np.array([-2, 1]), **on}),
            ("state_indices: is given, and there is no pool", (q, k, v), {**given, "state_indices": np.array([0, 1])}),
            ("is shared with initial_state", (q, k, v), {**given, "initial_state": pool[:2], "final_state": pool[1:3], **on}),
            ("input 'a': axis 3 of [b, t, hv, d] has size 6, expected 8", (q, k, v), {**given, "a": given["a"][..., :6]}),
            ("input 'beta': is missing; give beta=", (q, k, v), {n: x for n, x in given.items() if n != "beta"}),
            ("gamma: is neither an input nor a scalar", (q, k, v), {**given, "gamma": 1.0}),
            ("q: has 3 dimensions, expected 4", (q[0], k, v), given),
            ("k: is None; give a NumPy array, as q is", (q, None, v), given),
            ("cu_seqlens: is [0, 13]; give a NumPy array", rows, {**one, "cu_seqlens": [0, 13]}),
            ("cu_seqlens: has shape (0,), expected (entries + 1,)", rows, {**one, "cu_seqlens": np.zeros(0, np.int32), "output_final_state": True, **on}),
            ("cu_seqlens: has shape (), expected (entries + 1,)", rows, {**one, "cu_seqlens": np.array(13, np.int32)}),
            ("state_indices: is [0, 1]; give a NumPy array", (q, k, v), {**given, "initial_state": pool, "state_indices": [0, 1], **on}),
            ("initial_state: is a list of 2; give a NumPy array", (q, k, v), {**given, "initial_state": state.tolist(), **on}),
            ("final_state: is an array that may not be written to", (q, k, v), {**given, "final_state": np.broadcast_to(state, state.shape), **on}),
            ("scale: is 0, which leaves nothing", (q, k, v), {**given, "scale": 0.0}),
            ("scale: is nan, expected a number", (q, k, v), {**given, "scale": float("nan")}),
            ("scale: is the string '1'", (q, k, v), {**given, "scale": "1"}),
        ):
            with self.subTest(words):
                self.refuse(words, op, *args, **more)

    def test_scalars(self):
        op, rng = luattn.linear_attention("return linear_attention { scalars = { c = 1 }, decay = function() return -c end }"), np.random.default_rng(8)
        q, k, v, _ = tensors(rng, SIZES)
        for x, said in ((None, "is None"), ("1", "is the string '1'"), (np.ones(2), "is a NumPy array of float64"), (True, "is True")):
            self.refuse(f"scalar 'c': {said}, expected a number", op, q, k, v, c=x)

    def test_growth(self):
        op, rng = luattn.linear_attention(PLAIN % ""), np.random.default_rng(9)
        q, k, v, _ = tensors(rng, SIZES)
        g = np.full((2, 13, 4, 8), -0.1)
        g[1, 4, 2, 3] = 0.25
        op(q, k, v, g=g)
        os.environ["LUATTN_CHECK"] = "1"
        try:
            self.refuse("decay: is 0.25 at entry 1, value head 2, token 4", op, q, k, v, g=g)
        finally:
            del os.environ["LUATTN_CHECK"]

    def test_freed(self):
        """A spec that nobody has any more is freed when the next one is loaded, beside an engine that never had a kernel of it."""
        q = np.zeros((1, 1, 2, 8))
        luattn.attention("return attention { name = 'opens' }")(q, q, q)
        for n in range(3):
            luattn.linear_attention(f"return linear_attention {{ name = 'freed{n}' }}")
            gc.collect()

    def test_form(self):
        self.refuse("'kda' is of linear attention; call luattn.linear_attention", luattn.attention, GATED)
        self.refuse("is of attention; call luattn.attention", luattn.linear_attention, "return attention { block_mask = causal() }")


if __name__ == "__main__":
    unittest.main()
