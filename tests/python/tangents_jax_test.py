"""Forward mode beside JAX's: jvp, and jvp of grad."""

import unittest

from problems import ROOT, torch  # exits without torch, so first

import luattn
from tangents_cases import Case, arguments, math, rand


class BesideJax(Case):
    """jvp, and jvp of grad, of jax in float64."""

    def test_jvp_and_hessian_products(self):
        try:
            import jax
            import jax.numpy as jnp
            import numpy
        except ImportError:
            self.skipTest("jax is not installed")
        jax.config.update("jax_enable_x64", True)
        keep = jnp.arange(9)[None] <= jnp.arange(7)[:, None] + 2

        def theirs(q, k, v, sink):
            s = 4 * jnp.tanh(q @ jnp.swapaxes(jnp.repeat(k, 2, 1), -1, -2) * 8**-0.5 / 4)
            s = jnp.where(keep, s, -jnp.inf)
            lse = jax.scipy.special.logsumexp(jnp.concatenate([s, jnp.broadcast_to(sink[:, None, None], (*s.shape[:-1], 1))], -1), -1)
            return jnp.exp(s - lse[..., None]) @ jnp.repeat(v, 2, 1), lse

        capped = luattn.attention(
            "return attention { inputs = { sinks = { axes = {'h'}, dtype = 'f64', grad = true } }, score_mod = function(s) return 4 * tanh(s / 4) end, "
            "block_mask = function(b, h, q, kv) return kv <= q + 2 end, online_func = attention_sink('sinks') }"
        )

        def mine(q, k, v, sink):
            return capped(q, k, v, sinks=sink, return_lse=True)

        q, k, v = arguments()[:3]
        primals = (q, k, v, rand(4))
        along = tuple(torch.randn_like(x) for x in primals)
        there = [tuple(jnp.asarray(x.numpy()) for x in xs) for xs in (primals, along)]
        back = lambda xs: [torch.from_numpy(numpy.array(x)) for x in xs]  # noqa: E731
        got, want = torch.func.jvp(mine, primals, along), jax.jvp(theirs, *there)
        self.close([*got[0], *got[1]], back([*want[0], *want[1]]))
        every = (0, 1, 2, 3)
        mine_grad = torch.func.grad(lambda *x: sum(t.square().sum() for t in mine(*x)), argnums=every)
        theirs_grad = jax.grad(lambda *x: sum((t**2).sum() for t in theirs(*x)), argnums=every)
        self.close(torch.func.jvp(mine_grad, primals, along)[1], back(jax.jvp(theirs_grad, *there)[1]))


class SpecsBesideJax(Case):
    """Specs beside what they say in jax: jvp, and jvp of grad, along q, k, v and an input. Each row of every mask keeps something."""

    SUMS = (
        "online_func = { online_rowscales = { a = 0, l = 0 }, final_rowscales = { 'a', 'l' }, online_fwd = function(s, r) local p = sigmoid(s) "
        "return p + 0.1 * p * p / (1 + p), { a = r.a + reduce_sum(p), l = r.l + reduce_sum(p * p) }, 1 end, "
        "online_fwd_epilogue = function(o, r) return o * tanh(0.2 * r.a) / sqrt(r.l), { a = r.a, l = r.l } end }"
    )
    MAXIMUM = (
        "online_func = { online_rowscales = { m = -math.huge, l = 0 }, final_rowscales = { 'm', 'l' }, online_fwd = function(s, r) local m = max(r.m, reduce_max(s)) "
        "local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, l = r.l * shift + reduce_sum(p) }, shift end, "
        "online_fwd_epilogue = function(o, r) return o * (1 + sin(r.m)) / (r.l + 0.5), { m = r.m, l = r.l } end }"
    )
    TABLE = "inputs = { learnt = { axes = {'h', 'kv'}, dtype = 'f64', grad = true } }, "

    def specs(self):
        """name -> (fields of the spec, the score, the mask, weights of scores of which kept ones are finite, mods of q, k and v)."""
        import jax
        import jax.numpy as jnp

        def same(x):
            return x

        def exps(s, more=0.0):
            m = jax.lax.stop_gradient(jnp.max(s, -1, keepdims=True))
            p = jnp.exp(s - m)
            return p / (p.sum(-1, keepdims=True) + more * jnp.exp(-m))

        def elementwise(f):
            return lambda s, keep: jnp.where(keep, f(s), 0)

        def softpick(s, keep):
            m = jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.where(keep, s, -jnp.inf), -1, keepdims=True), 0))
            e = jnp.where(keep, jnp.exp(s - m) - jnp.exp(-m), 0)
            return jax.nn.relu(e) / (jnp.abs(e).sum(-1, keepdims=True) + 1e-6 * jnp.exp(-m))

        def sums(s, keep):
            p = jnp.where(keep, jax.nn.sigmoid(s), 0)
            a, b = p.sum(-1, keepdims=True), (p * p).sum(-1, keepdims=True)
            return (p + 0.1 * p * p / (1 + p)) * jnp.tanh(0.2 * a) / jnp.sqrt(b)

        def maximum(s, keep):
            m = jnp.max(jnp.where(keep, s, -jnp.inf), -1, keepdims=True)
            p = jnp.where(keep, jnp.exp(s - m), 0)
            return p * (1 + jnp.sin(m)) / (p.sum(-1, keepdims=True) + 0.5)

        def retention(s, keep):
            s = jnp.where(keep, s, 0)
            return s / jnp.maximum(jnp.abs(s).sum(-1, keepdims=True), 1)

        q, kv, h = jnp.arange(7)[:, None], jnp.arange(9)[None], jnp.arange(4)[:, None, None]
        every, causal = q + kv >= 0, kv <= q
        softmax = lambda s, keep: exps(jnp.where(keep, s, -jnp.inf))  # noqa: E731
        plain = lambda s, table: s  # noqa: E731
        biased = lambda s, table: s + table[:, None]  # noqa: E731
        angle = lambda x: jnp.cos(0.1 * jnp.arange(x.shape[2])[:, None] * jnp.arange(x.shape[3]))  # noqa: E731
        bias = self.TABLE + "score_mod = function(s, b, h, q, kv) return s + learnt[{h, kv}] end, "
        return {
            "softmax": ("", plain, every, softmax),
            "causal, with a bias": (bias + "block_mask = causal()", biased, causal, softmax),
            "a window": ("block_mask = sliding_window(2, 1)", plain, (kv >= q - 2) & (kv <= q + 1), softmax),
            "soft cap": ("score_mod = softcap(1.5), block_mask = causal()", lambda s, table: 1.5 * jnp.tanh(s / 1.5), causal, softmax),
            "alibi": ("score_mod = alibi()", lambda s, table: s - 2.0 ** (-8 * (h + 1) / 4) * jnp.abs(q + 2 - kv), every, softmax),
            "softmax_one": (bias + "online_func = softmax_one", biased, every, lambda s, keep: exps(jnp.where(keep, s, -jnp.inf), 1.0)),
            "sigmoid": (bias + "online_func = sigmoid_attention", biased, every, elementwise(jax.nn.sigmoid)),
            "square of relu": ("online_func = square_relu, block_mask = causal()", plain, causal, elementwise(lambda s: jax.nn.relu(s) ** 2)),
            "retention": ("online_func = online_retention, block_mask = causal()", plain, causal, retention),
            "a product with a gate": (self.TABLE + "score_mod = function(s, b, h, q, kv) return s * sigmoid(s + learnt[{h, kv}]) end", lambda s, table: s * jax.nn.sigmoid(s + table[:, None]), every, softmax),
            "distance": ("score_mod = function(s, b, h, q, kv) return s - log1p(0.3 * abs(q - kv)) end", lambda s, table: s - jnp.log1p(0.3 * jnp.abs(q - kv)), every, softmax),
            "query_mod, key_mod": (
                "query_mod = function(x, b, h, pos, d) return x * cos(0.1 * pos * d) end, key_mod = function(x) return tanh(x) end", plain, every, softmax,
                lambda x: x * angle(x), jnp.tanh, same,
            ),
            "value_mod": (bias + "value_mod = function(x) return x * x + x end", biased, every, softmax, same, same, lambda x: x * x + x),
            "softpick": (f"{ROOT}/tests/specs/softpick.lua", plain, causal, softpick),
            "a row pass, sums": (bias + "block_mask = causal(), " + self.SUMS, biased, causal, sums),
            "a row pass, a maximum": (bias + "block_mask = causal(), " + self.MAXIMUM, biased, causal, maximum),
        }  # fmt: skip

    def test_all(self):
        try:
            import jax
            import jax.numpy as jnp
            import numpy
        except ImportError:
            self.skipTest("jax is not installed")
        jax.config.update("jax_enable_x64", True)
        primals = (*arguments()[:3], rand(4, 9))
        along = tuple(torch.randn_like(x) for x in primals)
        there = [tuple(jnp.asarray(x.numpy()) for x in xs) for xs in (primals, along)]
        back = lambda xs: [torch.from_numpy(numpy.array(x)) for x in xs]  # noqa: E731
        for name, (fields, score, keep, weights, *mods) in self.specs().items():
            attention = luattn.attention(fields if fields.endswith(".lua") else f"return attention {{ name = 'spec', {fields} }}")
            of_q, of_k, of_v = mods or (lambda x: x,) * 3
            with_table = "learnt" in fields

            def mine(q, k, v, table, attention=attention, with_table=with_table):
                return attention(q, k, v, learnt=table) if with_table else attention(q, k, v)

            def theirs(q, k, v, table, score=score, keep=keep, weights=weights, of_q=of_q, of_k=of_k, of_v=of_v):
                k, v = (jnp.repeat(x, 2, 1) for x in (of_k(k), of_v(v)))
                return weights(score(of_q(q) @ jnp.swapaxes(k, -1, -2) * 8**-0.5, table), keep) @ v

            which = (0, 1, 2, 3) if with_table else (0, 1, 2)
            few = lambda xs, which=which: tuple(xs[i] for i in which)  # noqa: E731
            pad = lambda f, rest: lambda *x: f(*x, *rest[len(x) :])  # noqa: E731, B023
            mine, theirs = pad(mine, primals), pad(theirs, there[0])
            with self.subTest(name):
                got, want = torch.func.jvp(mine, few(primals), few(along)), jax.jvp(theirs, few(there[0]), few(there[1]))
                self.close(got, back(want))
                mine_grad = torch.func.grad(lambda *x, mine=mine: mine(*x).square().sum(), argnums=which)
                theirs_grad = jax.grad(lambda *x, theirs=theirs: (theirs(*x) ** 2).sum(), argnums=which)
                self.close(torch.func.jvp(mine_grad, few(primals), few(along))[1], back(jax.jvp(theirs_grad, few(there[0]), few(there[1]))[1]))


if __name__ == "__main__":
    unittest.main()
