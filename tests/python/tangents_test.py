"""Forward mode in torch: tangents beside the math in torch's ops, transforms of torch.func, luattn.jvp, and that no function of the package drops a
tangent without a word."""

import unittest
from unittest import mock

from problems import ROOT, example, inputs_of, torch  # exits without torch, so first

import luattn
from luattn import _tangents, flash_attn, flex
from torch.autograd import forward_ad

VARIANT = luattn.attention(
    "return attention { name = 'variant', scalars = { cap = 2.0 }, inputs = { bias = { axes = {'h', 'kv'}, dtype = 'f64', grad = true }, shift = "
    "{ axes = {'q'}, dtype = 'f64' } }, score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) + bias[{h, kv}] * shift[q] end, "
    "block_mask = function(b, h, q, kv) return kv <= q + 2 end }"
)
NAMES = "q", "k", "v", "bias", "shift", "cap"


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def arguments():
    torch.manual_seed(0)
    return rand(1, 4, 7, 8), rand(1, 2, 9, 8), rand(1, 2, 9, 6), rand(4, 9), rand(7), torch.tensor(2.0, dtype=torch.float64)


def ours(q, k, v, bias, shift, cap):
    return VARIANT(q, k, v, bias=bias, shift=shift, cap=cap, return_lse=True)


def math(q, k, v, bias, shift, cap):
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    s = cap * torch.tanh(q @ k.mT * 8**-0.5 / cap) + bias[:, None] * shift[:, None]
    keep = torch.arange(9) <= torch.arange(7)[:, None] + 2
    s = torch.where(keep, s, -torch.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


class Case(unittest.TestCase):
    def close(self, got, want):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Values(Case):
    def test_forward_ad(self):
        primals = arguments()
        along = [torch.randn_like(x) for x in primals]
        for which in (range(6), *([i] for i in range(6))):
            with self.subTest(which=which):
                _, want = torch.func.jvp(lambda *some: math(*(some[which.index(i)] if i in which else x for i, x in enumerate(primals))), *(tuple(t[i] for i in which) for t in (primals, along)))
                with forward_ad.dual_level():
                    made = ours(*(forward_ad.make_dual(x, along[i]) if i in which else x for i, x in enumerate(primals)))
                    got = [forward_ad.unpack_dual(t).tangent for t in made]
                self.close((torch.zeros_like(w) if t is None else t for t, w in zip(got, want)), want)

    def test_transforms(self):
        primals, every = arguments(), tuple(range(6))
        along = tuple(torch.randn_like(x) for x in primals)
        graded = (0, 1, 2, 3, 5)  # shift has none
        for (got, got_t), (want, want_t) in ((torch.func.jvp(ours, primals, along), torch.func.jvp(math, primals, along)),):
            self.close(got, want), self.close(got_t, want_t)
        of = [torch.func.grad(lambda *some: f(*some[:4], primals[4], some[4])[0].square().sum(), argnums=every[:5]) for f in (ours, math)]
        self.close(*(f(*(primals[i] for i in graded)) for f in of))
        pulled = [torch.func.vjp(lambda q, k: f(q, k, *primals[2:]), *primals[:2]) for f in (ours, math)]
        self.close(*(f[1](pulled[1][0]) for f in pulled))
        inner = [torch.func.grad(lambda q: torch.func.jvp(lambda q: f(q, *primals[1:])[0], (q,), along[:1])[0].sum()) for f in (ours, math)]
        self.close(*([f(primals[0])] for f in inner))

    def test_mean_flow(self):
        """The gradient of the primal, whose tangent is a target without one."""
        q, *rest = arguments()
        along = torch.randn_like(q)

        def through_func(f, q):
            return torch.func.jvp(lambda q: f(q, *rest)[0], (q,), (along,))

        def through_level(f, q):
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(forward_ad.make_dual(q, along), *rest)[0])

        def by_hand(f, q):
            if f is math:
                return through_func(f, q)
            k, v, bias, shift, cap = rest
            return luattn.jvp(VARIANT, (q, k, v), (along, None, None), bias=bias, shift=shift, cap=cap)

        for of in (through_func, through_level, by_hand):
            found = []
            for f in (ours, math):
                leaf = q.clone().requires_grad_()
                u, du = of(f, leaf)
                found.append(torch.autograd.grad((u - du.detach()).square().sum(), leaf))
            self.close(*found)

    def test_fully_shard(self):
        """torch.func.jvp of a module whose weights FSDP's hooks gather, in a group of one process: tangents, and gradients of the primal."""
        import tempfile

        import torch.distributed as dist

        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            self.skipTest("this torch has no fully_shard")
        causal = luattn.attention("return attention { block_mask = causal() }")

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

            def forward(self, x):
                q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
                return self.out(causal(q, k, v).transpose(1, 2).flatten(2))

        def run(net):
            u, du = torch.func.jvp(net, (x,), (along,))
            (u - du.detach()).square().sum().backward()
            grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in net.parameters()]
            return [u.detach(), du.detach(), *(g.clone() for g in grads)]

        net, x, along = Net(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
        want = run(net)
        self.assertTrue(all(t.abs().max() > 0 for t in want))
        net.zero_grad()
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
            try:
                got = run(fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (1,))))
            except NotImplementedError as e:  # of the hooks, before the attention is called
                self.skipTest(f"torch {torch.__version__}'s own hooks: {e}")
            finally:
                dist.destroy_process_group()
        self.close(got, want)

    def test_autocast(self):
        """Casts tangents as it casts what they belong to."""
        full = luattn.attention("return attention { }")
        q, k, v, *along = (torch.randn(1, 2, 5, 8) for _ in range(6))
        half = [t.bfloat16() for t in (q, k, v, *along)]
        want = luattn.jvp(full, half[:3], half[3:])
        with torch.autocast("cpu", torch.bfloat16):
            got = torch.func.jvp(full, (q, k, v), tuple(along))
        self.close(got, want)

    def test_jvp_of_examples(self):
        """By name, of float32 and half types, beside forward_ad, in each layout."""
        for name in ("gemma2", "alibi", "sigmoid", "attention_sink", "retention", "t5_relative_bias"):
            attention = example(name)
            q, k, v = rand(2, 4, 6, 16), rand(2, 2, 6, 16), rand(2, 2, 6, 16)
            inputs = {key: x.detach() for key, x in inputs_of(attention, {"b": 2, "h": 4, "hkv": 2, "q": 6, "kv": 6}).items()}
            along = {key: torch.randn_like(x) for key, x in {"q": q, "k": k, "v": v, **inputs}.items() if x.is_floating_point()}
            along |= {key: 0.3 for key in attention.scalars}
            want, want_t = luattn.jvp(attention, (q, k, v), along, **inputs)
            step = 1e-6
            ends = []
            for sign in (1, -1):
                moved = {key: x + sign * step * along[key] if key in along else x for key, x in {"q": q, "k": k, "v": v, **inputs}.items()}
                ends.append(attention(moved.pop("q"), moved.pop("k"), moved.pop("v"), **moved, **{key: x + sign * step * 0.3 for key, x in attention.scalars.items()}))
            # Inputs of float32 round the step.
            torch.testing.assert_close(want_t, (ends[0] - ends[1]) / (2 * step), rtol=1e-6 if all(x.dtype == torch.float64 for x in inputs.values()) else 0.2, atol=1e-7 if not inputs else 0.1)
            swapped = {key: t.swapaxes(1, 2) if key in "qkv" else t for key, t in along.items()}
            got, got_t = luattn.jvp(attention, [t.swapaxes(1, 2) for t in (q, k, v)], swapped, layout="bshd", **inputs)
            self.close((got.swapaxes(1, 2), got_t.swapaxes(1, 2)), (want, want_t))
            for dtype in (torch.float32, torch.bfloat16) if name != "retention" else ():  # whose rows' kinks rounding moves
                half = {key: t.to(dtype) if key in "qkv" else t for key, t in along.items() if isinstance(t, torch.Tensor)}
                _, got_t = luattn.jvp(attention, [t.to(dtype) for t in (q, k, v)], {**along, **half}, **inputs)
                self.assertEqual(got_t.dtype, dtype)
                torch.testing.assert_close(got_t.double(), want_t, rtol=0.05, atol=0.05 * float(want_t.abs().max()))

    def test_padding_and_scale(self):
        """Head dims that are padded, and a scale that has a tangent."""
        attention = luattn.attention("return attention { }")
        q, k, v = (torch.randn(1, 2, 5, 12).bfloat16() for _ in range(3))
        _, got = luattn.jvp(attention, (q, k, v), (q, k, v))
        wide = [t.double() for t in (q, k, v)]
        _, want = luattn.jvp(attention, wide, wide)
        torch.testing.assert_close(got.double(), want, rtol=0.02, atol=0.02)
        _, got = luattn.jvp(attention, wide, {"scale": 0.5}, scale=torch.tensor(0.7))
        _, want = torch.func.jvp(lambda s: torch.softmax(s * wide[0] @ wide[1].mT, -1) @ wide[2], (torch.tensor(0.7, dtype=torch.float64),), (torch.tensor(0.5, dtype=torch.float64),))
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)

    def test_dropout_and_packed(self):
        """The same weights are dropped; a sequence has the tangents that it has alone."""
        drops = luattn.attention("return attention { online_func = dropout(0.25) }")
        q, k, v = (rand(1, 2, 9, 8) for _ in range(3))
        w = drops.weights(q, k, v, seed=7)
        kept = (w > 0).double() / 0.75
        want = torch.func.jvp(lambda q: (torch.softmax(q @ k.mT * 8**-0.5, -1) * kept) @ v, (q,), (k,))
        self.close(luattn.jvp(drops, (q, k, v), (k, None, None), seed=7), want)
        rows = [t[0].transpose(0, 1).contiguous() for t in (q, k, v)]
        ends = torch.tensor([0, 4, 9], dtype=torch.int32)
        full = luattn.attention("return attention { }")
        _, got = luattn.jvp(full, rows, rows[::-1], cu_seqlens_q=ends, cu_seqlens_k=ends)
        for a, b in ((0, 4), (4, 9)):
            one = [t[None, a:b].transpose(1, 2) for t in rows]
            self.close([got[a:b].transpose(0, 1)], [luattn.jvp(full, one, one[::-1])[1][0]])


class Second(Case):
    """Second derivatives beside those of the math, and by torch's own checks."""

    def leaves(self):
        primals = [t.clone().requires_grad_() for t in arguments()]
        primals[4].requires_grad_(False)  # shift has none
        return primals

    def test_hessian_products(self):
        primals = arguments()
        along = tuple(torch.randn_like(x) for x in primals)
        found = []
        for f in (ours, math):
            loss = lambda q, k, v, bias, cap: sum(t.square().sum() for t in f(q, k, v, bias, primals[4], cap))  # noqa: B023, E731
            some, t = (*primals[:4], primals[5]), (*along[:4], along[5])
            found.append(torch.func.jvp(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4)), some, t)[1])
        self.close(*found)

    def test_double_backward(self):
        found = []
        for f in (ours, math):
            leaves = self.leaves()
            wanted = [*leaves[:4], leaves[5]]
            o, lse = f(*leaves)
            first = torch.autograd.grad(o.square().sum() + lse.sin().sum(), wanted, create_graph=True)
            found.append(torch.autograd.grad(sum(t.square().sum() for t in first), wanted))
        self.close(*found)

    def test_gradients_through_tangents(self):
        """Of the primals and of the tangents, as in terminal velocity matching."""
        found = []
        for f in (ours, math):
            leaves = self.leaves()
            along = [torch.cos(3 * t.detach()).requires_grad_(t.requires_grad) for t in leaves]
            (o, lse), (o_t, lse_t) = torch.func.jvp(f, tuple(leaves), tuple(along))
            loss = (o - o_t).square().sum() + (lse * lse_t).sum()
            found.append(torch.autograd.grad(loss, [t for t in (*leaves, *along) if t.requires_grad]))
        self.close(*found)

    def test_by_hand(self):
        """luattn.jvp, whose tangents have gradients too."""
        q, k, v, bias, shift, cap = self.leaves()
        o, o_t = luattn.jvp(VARIANT, (q, k, v), (torch.cos(q), None, None), bias=bias, shift=shift, cap=cap)
        got = torch.autograd.grad((o * o_t).sum(), (q, k, bias))
        first = lambda q: math(q, k, v, bias, shift, cap)[0]  # noqa: E731
        want_o, want_t = torch.func.jvp(first, (q,), (torch.cos(q),))
        self.close(got, torch.autograd.grad((want_o * want_t).sum(), (q, k, bias)))
        with torch.inference_mode():  # which has no forward mode
            again = luattn.jvp(VARIANT, (q, k, v), (torch.cos(q), None, None), bias=bias, shift=shift, cap=cap)
            made = {name: x.detach().clone() for name, x in {"q": q, "k": k, "v": v, "bias": bias, "shift": shift}.items()}
            along, cap = torch.cos(made["q"]), cap.detach().clone()
            inside = luattn.jvp(VARIANT, [made.pop(x) for x in "qkv"], (along, None, None), cap=cap, **made)
        self.assertTrue(torch.equal(again[1], o_t.detach()) and not again[1].requires_grad)
        self.assertTrue(torch.equal(inside[1], again[1]))

    def test_checks(self):
        small = "return attention { name = 'small', %s }"
        for text in (
            small % "",
            small % "score_mod = function(s) return 3 * tanh(s / 3) end, block_mask = causal()",
            small % "online_func = sigmoid_attention",
            small % "online_func = attention_sink(0.5), query_mod = function(x, b, h, pos, d) return x * cos(0.1 * pos * d) end",
            small % "online_func = online_retention",
            small % "block_mask = sliding_window(1, 0), value_mod = function(x) return x * x end",
        ):
            attention = luattn.attention(text)
            torch.manual_seed(1)
            leaves = [rand(1, 2, 3, 2).requires_grad_(), rand(1, 1, 3, 2).requires_grad_(), rand(1, 1, 3, 2).requires_grad_()]
            with self.subTest(text):
                self.assertTrue(torch.autograd.gradcheck(attention, leaves, check_forward_ad=True))
                self.assertTrue(torch.autograd.gradgradcheck(attention, leaves, check_fwd_over_rev=True))

    def test_row_pass(self):
        """Where backward takes a row pass: weights that their sums are no multiples of, and a maximum that does not cancel."""
        for text in (
            "online_rowscales = { n = 0, b = 0 }, online_fwd = function(s, r) local p = exp(s) return p, { n = r.n + reduce_sum(1 + 0 * s), b = r.b + reduce_sum(p * p) }, 1 end, "
            "online_fwd_epilogue = function(o, r) return o * (1.5 + sin(log(1 + r.b))) / sqrt(r.n * r.b) end",
            "online_rowscales = { m = -math.huge, l = 0 }, final_rowscales = { 'm', 'l' }, online_fwd = function(s, r) local m = max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) "
            "return p, { m = m, l = r.l * shift + reduce_sum(p) }, shift end, online_fwd_epilogue = function(o, r) return o * (1 + sin(r.m)) / (r.l + 0.5), { m = r.m, l = r.l } end",
        ):
            attention = luattn.attention(f"return attention {{ name = 'pass', online_func = {{ {text} }} }}")
            torch.manual_seed(1)
            leaves = [rand(1, 2, 3, 2).requires_grad_(), rand(1, 1, 4, 2).requires_grad_(), rand(1, 1, 4, 2).requires_grad_()]
            with self.subTest(text):
                self.assertTrue(torch.autograd.gradcheck(attention, leaves, check_forward_ad=True))
                self.assertTrue(torch.autograd.gradgradcheck(attention, leaves, check_fwd_over_rev=True))

    def test_packed(self):
        """A sequence has the second derivatives that it has alone; an input's and a scalar's add up."""
        attention = luattn.attention(
            "return attention { scalars = { cap = 2.0 }, inputs = { sinks = { axes = {'h'}, dtype = 'f64', grad = true } }, "
            "score_mod = function(s) return cap * tanh(s / cap) end, online_func = attention_sink('sinks') }"
        )
        torch.manual_seed(2)
        q, k, v, sinks = rand(9, 4, 8).requires_grad_(), rand(11, 2, 8).requires_grad_(), rand(11, 2, 6).requires_grad_(), rand(4).requires_grad_()
        leaves, found = [q, k, v, sinks], []
        starts, keys = ((0, 4), (4, 9)), ((0, 5), (5, 11))

        def all_at_once():
            given = [torch.tensor([0, *(b for _, b in x)], dtype=torch.int32) for x in (starts, keys)]
            return attention(q, k, v, sinks=sinks, cu_seqlens_q=given[0], cu_seqlens_k=given[1])

        def one_by_one():
            parts = [[t[None, a:b].transpose(1, 2) for t, (a, b) in zip((q, k, v), (at, of, of))] for at, of in zip(starts, keys)]
            return torch.cat([attention(*part, sinks=sinks)[0].transpose(0, 1) for part in parts])

        for f in (all_at_once, one_by_one):
            first = torch.autograd.grad(f().square().sum(), leaves, create_graph=True)
            found.append(torch.autograd.grad(sum(t.sin().sum() for t in first), leaves))
        self.close(*found)


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


class Refusals(Case):
    def test_a_torch_without_levels(self):
        """What functorch keeps to itself and a version lacks, is refused there by name, and the other ways work."""
        q, k, v = (rand(1, 2, 5, 8) for _ in range(3))
        full = luattn.attention("return attention { }")
        transforms = torch.func.jvp(lambda q: full(q, k, v), (q,), (k,))
        with mock.patch.object(_tangents, "_LEVEL", None):
            for call in (
                lambda: torch.func.jvp(lambda q: full(q, k, v), (q,), (k,)),
                lambda: torch.func.grad(lambda q: full(q, k, v).sum())(q),
                lambda: torch.func.vjp(lambda q: full(q, k, v), q),
            ):
                with self.assertRaisesRegex(luattn.Unsupported, "has no torch.autograd.function._SingleLevelFunction"):
                    call()
            self.close(luattn.jvp(full, (q, k, v), (k, None, None)), transforms)
            with forward_ad.dual_level():
                self.close(forward_ad.unpack_dual(full(forward_ad.make_dual(q, k), k, v)), transforms)

    def test_words(self):
        q, k, v, bias, shift, cap = arguments()
        given = {"bias": bias, "shift": shift}
        ids = luattn.attention("return attention { inputs = { ids = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q, kv) return ids[kv] > 0 end }")
        jvp = torch.func.jvp
        f = lambda q: ours(q, k, v, bias, shift, cap)[0]  # noqa: E731

        def thrice():
            leaf = q.clone().requires_grad_()
            first = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)[0]
            second = torch.autograd.grad(first.square().sum(), leaf, create_graph=True)[0]
            torch.autograd.grad(second.square().sum(), leaf)

        def inside():
            leaf = q.clone().requires_grad_()
            with forward_ad.dual_level():
                u, du = forward_ad.unpack_dual(f(forward_ad.make_dual(leaf, q)))
                torch.autograd.grad((u * du).sum(), leaf)

        def undeclared():
            along = shift.clone().requires_grad_()
            luattn.jvp(VARIANT, (q, k, v), {"shift": along}, **given)

        for call, words in (
            (thrice, "there are no third derivatives"),
            (inside, "no tangents of gradients through tangents"),
            (undeclared, "the tangent of input 'shift' requires a gradient"),
            (lambda: jvp(lambda q: jvp(f, (q,), (q,))[1], (q,), (q,)), "take one derivative forwards"),
            (lambda: luattn.jvp(VARIANT, (q, k), (q, k, v), **given), r"primals: .*expected \(q, k, v\)"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q, k), **given), "tangents: .*or a dict by name"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (k, None, None), **given), r"'q': has shape \(1, 2, 9, 8\), expected \(1, 4, 7, 8\)"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.float(), None, None), **given), "'q': has type torch.float32, expected torch.float64"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.to("meta"), None, None), **given), "'q': has device meta, expected cpu"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"bios": q}, **given), "'bios': the call has no such argument"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.numpy(), None, None), **given), "'q': is a NumPy array of float64, expected a tensor of torch"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (1.0, None, None), **given), "'q': is 1.0, expected a tensor of torch"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"cap": "x"}, **given), "'cap': is the string 'x', expected a number"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"q_offset": 1.0}, q_offset=0, **given), "'q_offset': the call has no such argument"),
            (lambda: luattn.jvp(VARIANT, (q, k.numpy(), v), {"k": k}, **given), "k: is a NumPy array of float64: tangents are of tensors"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q, None, None), q=k, **given), "q: is given twice"),
            (lambda: luattn.jvp(ids, (q, k, v), {"ids": torch.ones(9)}, ids=torch.ones(9, dtype=torch.int32)), "'ids': is of torch.int32"),
            (lambda: luattn.jvp(VARIANT, [t.numpy() for t in (q, k, v)], (None,) * 3, **given), "tangents are of tensors of torch"),
            (lambda: luattn.jvp(f, (q, k, v), (q, k, v)), "expected what luattn.attention returns"),
            (lambda: luattn.jvp(luattn.linear_attention("return linear_attention { }"), (q, k, v), (q, k, v)), "linear attention has no forward-mode derivative yet"),
            (lambda: torch.autograd.functional.hvp(lambda q: f(q).square().sum(), q, q), "in place of torch.autograd.functional.hvp, call vhp"),
            (lambda: jvp(lambda q: luattn.jvp(VARIANT, (q, k, v), (q, None, None), **given)[0], (q,), (q,)), "call the attention itself there"),
        ):
            with self.subTest(words), self.assertRaisesRegex(luattn.Error, words):
                call()


def flat(x):
    return [t for y in x for t in flat(y)] if isinstance(x, (tuple, list)) else flat(list(x.values())) if isinstance(x, dict) else [x]


class NoneIsDropped(Case):
    """Each function of the package with a tangent on each argument: a result has a tangent, or it raises."""

    def check(self, name, call, given):
        raised, carried = [], []
        for which, x in given.items():
            if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
                continue
            with self.subTest(f"{name}, {which}"), forward_ad.dual_level():
                moved = {key: t.clone() if isinstance(t, torch.Tensor) else t for key, t in given.items()}
                moved[which] = forward_ad.make_dual(moved[which], torch.randn_like(x))
                try:
                    made = call(**moved)
                except (luattn.Error, RuntimeError, TypeError) as e:
                    raised.append((which, str(e)[:80]))
                    continue
                found = [t for t in flat(made) if isinstance(t, torch.Tensor)]
                self.assertTrue(any(forward_ad.unpack_dual(t).tangent is not None for t in found), "dropped without a word")
                carried.append(which)
        return raised, carried

    def test_attention(self):
        q, k, v, bias, shift, cap = arguments()
        given = {"q": q, "k": k, "v": v, "bias": bias, "shift": shift, "cap": cap, "scale": torch.tensor(0.5)}
        raised, carried = self.check("call", lambda **x: VARIANT(**x), given)
        self.assertEqual((raised, carried), ([], [*given]))
        self.check("return_lse", lambda **x: VARIANT(**x, return_lse=True), given)
        self.check("out", lambda **x: VARIANT(**x, out=torch.empty(1, 4, 7, 6, dtype=torch.float64)), given)
        raised, carried = self.check("return_state", lambda **x: VARIANT(**x, return_state=True), given)
        self.assertEqual(len(carried), 0)
        self.check("weights", VARIANT.weights, {**given, "scale": 0.5, "cap": cap})
        self.check("kwargs", lambda **x: VARIANT(**x, q_offset=3), given)
        with torch.no_grad():
            self.check("no_grad", lambda **x: VARIANT(**x), given)

    def test_methods(self):
        q, k, v, bias, shift, cap = arguments()
        o, lse = ours(q, k, v, bias, shift, cap)
        given = {"dout": o, "q": q, "k": k, "v": v, "o": o, "lse": lse, "dlse": lse, "bias": bias, "shift": shift, "cap": cap}
        self.check("gradients", lambda **x: VARIANT.gradients(**x), given)
        full = luattn.attention("return attention { }")
        _, _, state = full(q, k, v, return_state=True)
        outs = {"a": o, "b": o, "x": lse, "y": lse}
        for name, merge in (("merge", luattn.merge), ("Attention.merge", full.merge)):
            raised, carried = self.check(name, lambda a, b, x, y, merge=merge: merge([a, b], [x, y]), outs)
            self.assertEqual((raised, carried), ([], [*outs]))
        self.check("merge of states", lambda a, b, x, y, s: full.merge([a, b], [x, y], [s, s]), {**outs, "s": state})
        cache = {"k": rand(1, 2, 20, 8), "v": rand(1, 2, 20, 8), "new_k": rand(1, 2, 3, 8), "new_v": rand(1, 2, 3, 8)}
        used = torch.tensor([4], dtype=torch.int32)
        raised, carried = self.check("append", lambda **x: full.append(**x, seqused_k=used), cache)
        self.assertEqual(len(carried), 0)
        self.check("cache", lambda **x: full(**x, seqused_k=used), {"q": rand(1, 2, 3, 8), "k": cache["k"], "v": cache["v"]})

    def test_flash_attn(self):
        q, k, v = rand(2, 6, 4, 8), rand(2, 9, 2, 8), rand(2, 9, 2, 8)
        rows, keys = rand(12, 4, 8), rand(12, 2, 8)
        ends = torch.tensor([0, 5, 12], dtype=torch.int32)
        both = {"alibi_slopes": torch.rand(4), "s_aux": torch.randn(4)}
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 7, "max_seqlen_k": 7}
        used = torch.tensor([3, 5], dtype=torch.int32)
        cache = {"q": rand(2, 1, 4, 8), "k_cache": rand(2, 16, 2, 8), "v_cache": rand(2, 16, 2, 8), "k": rand(2, 1, 2, 8), "v": rand(2, 1, 2, 8), "cache_seqlens": used}
        rotary = {"rotary_cos": torch.rand(16, 4, dtype=torch.float64), "rotary_sin": torch.rand(16, 4, dtype=torch.float64)}
        varlen = {"query": rows, "key": keys, "value": keys, "cu_seq_q": ends, "cu_seq_k": ends, "max_q": 7, "max_k": 7, "enable_gqa": True}
        calls = {
            "flash_attn_func": {"q": q, "k": k, "v": v, **both, "softcap": 3.0},
            "flash_attn_kvpacked_func": {"q": q, "kv": rand(2, 9, 2, 2, 8), **both},
            "flash_attn_qkvpacked_func": {"qkv": rand(2, 9, 3, 4, 8), **both},
            "flash_attn_varlen_func": {"q": rows, "k": keys, "v": keys, **packed, **both},
            "flash_attn_varlen_kvpacked_func": {"q": rows, "kv": rand(12, 2, 2, 8), **packed, **both},
            "flash_attn_varlen_qkvpacked_func": {"qkv": rand(12, 3, 4, 8), "cu_seqlens": ends, "max_seqlen": 7, **both},
            "flash_attn_with_kvcache": {**cache, **rotary, **both, "causal": True},
            "varlen_attn": varlen,
            "varlen_attn_out": {"out": torch.empty_like(rows), **varlen},
        }
        self.assertEqual(sorted([*calls, "to_attention"]), sorted(flash_attn.__all__))  # which returns the tensors that it is given
        for name, given in calls.items():
            raised, carried = self.check(name, getattr(flash_attn, name), given)
            if "cache" not in name:
                self.assertTrue(carried, raised)
        self.check("softcap", lambda q, k, v, softcap: flash_attn.flash_attn_func(q, k, v, softcap=softcap), {"q": q, "k": k, "v": v, "softcap": torch.tensor(3.0)})
        self.check("S_dmask", lambda q, k, v: flash_attn.flash_attn_func(q, k, v, dropout_p=0.25, return_attn_probs=True), {"q": q, "k": k, "v": v})

    def test_flex(self):
        q, k, v = rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8)
        mask = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 6, 6, device="cpu")

        def call(q, k, v, table, slope):
            return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s * slope + table[h, i - j + 5], block_mask=mask)

        given = {"q": q, "k": k, "v": v, "table": rand(2, 11), "slope": torch.tensor(0.5, dtype=torch.float64)}
        raised, carried = self.check("flex_attention", call, given)
        self.assertEqual((raised, carried), ([], [*given]))

    def test_levels(self):
        """What is refused, is refused where a transform of torch.func is between the call and its tangent, and of batches of torch.vmap."""
        q, cap, one = rand(2, 6, 2, 8), torch.tensor(3.0), torch.ones(())
        used = torch.tensor([3, 4], dtype=torch.int32)
        linear, full = luattn.linear_attention("return linear_attention { }"), luattn.attention("return attention { }")
        rows = rand(2, 2, 6, 8)
        calls = {
            "softcap": (cap, lambda x: flash_attn.flash_attn_func(q, q, q, softcap=x)),
            "cache": (q[:, :1].clone(), lambda x: flash_attn.flash_attn_with_kvcache(x, q.clone(), q.clone(), cache_seqlens=used)),
            "state": (rows, lambda x: full(x, rows, rows, return_state=True)[0]),
            "linear": (q, lambda x: linear(x, q, q)),
        }
        for name, (x, call) in calls.items():
            two = torch.stack([x, x])
            between = {
                "vmap": (two, torch.vmap(call)),
                "vmap of vmap": (torch.stack([two, two]), torch.vmap(torch.vmap(call))),
                "grad": (x, torch.func.grad(lambda x: call(x).sum())),
                "vjp of another": (x, lambda x: torch.func.vjp(lambda z: z * call(x).sum(), one)[0]),
                "jvp of another": (x, lambda x: torch.func.jvp(lambda z: z * call(x).sum(), (one,), (one,))[0]),
                "vmap of another": (x, lambda x: torch.vmap(lambda z: z * call(x).sum())(torch.ones(2))),
            }
            for kind, (x, f) in between.items():
                with self.subTest(f"{name}, jvp of {kind}"), self.assertRaisesRegex(luattn.Error, "has no forward-mode derivative|softcap: "):
                    torch.func.jvp(f, (x,), (torch.ones_like(x),))
                if kind != "jvp of another":  # torch has one level of forward mode beside those of torch.func
                    with self.subTest(f"{name}, dual level around {kind}"), forward_ad.dual_level(), self.assertRaisesRegex(luattn.Error, "has no forward-mode|softcap: "):
                        f(forward_ad.make_dual(x, torch.ones_like(x)))
            with self.subTest(f"{name}, vmap of jvp"), self.assertRaisesRegex(luattn.Error, "has no forward-mode derivative|softcap: "):
                torch.vmap(lambda x: torch.func.jvp(call, (x,), (x,))[1])(two)

    def test_transformers(self):
        try:
            from luattn import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        module = torch.nn.Module()
        module.is_causal = True
        given = {"query": rand(1, 4, 6, 8), "key": rand(1, 2, 6, 8), "value": rand(1, 2, 6, 8), "s_aux": rand(4), "position_bias": rand(1, 4, 6, 6)}
        for names in (("query", "key", "value", "s_aux"), ("query", "key", "value", "position_bias")):
            raised, carried = self.check("transformers", lambda **x: transformers.attention(module, attention_mask=None, **x), {n: given[n] for n in names})
            self.assertIn("query", carried, raised)

    def test_parallel(self):
        """A group of one process."""
        import tempfile

        import torch.distributed as dist
        from luattn.parallel import ContextParallel, plan

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
            causal = luattn.attention("return attention { block_mask = causal() }")
            local = ContextParallel(causal, None, plan(causal, 64, 1, heads=(2, 2), head_dim=8, dtype="float64"))
            q, k, v = (local.shard(rand(1, 2, 64, 8)) for _ in range(3))
            raised, carried = self.check("ContextParallel", lambda **x: local(**x), {"q": q, "k": k, "v": v})
            self.assertEqual(len(raised), 3)
            self.check("shard", local.shard, {"tensor": rand(1, 2, 64, 8)})
            self.assertEqual(len(self.check("unshard", local.unshard, {"tensor": q})[0]), 1)
            dist.destroy_process_group()

    def test_natten(self):
        from luattn import natten

        line, plane, space = rand(1, 6, 2, 4), rand(1, 5, 6, 2, 4), rand(1, 3, 4, 5, 2, 4)
        for name, x in (("na1d", line), ("na2d", plane), ("na3d", space), ("neighborhood_attention_generic", plane)):
            given = {"query": x, "key": x.clone(), "value": x.clone()}
            raised, carried = self.check(name, lambda name=name, **t: getattr(natten, name)(**t, kernel_size=3), given)
            self.assertEqual((raised, carried), ([], [*given]))
            self.check(f"{name} beside others", lambda name=name, **t: getattr(natten, name)(**t, kernel_size=3), {**given, "additional_keys": rand(1, 3, 2, 4), "additional_values": rand(1, 3, 2, 4)})
        self.check("rpb", lambda **t: natten.na2d(**t, kernel_size=3), {"query": plane, "key": plane.clone(), "value": plane.clone(), "rpb": rand(2, 5, 5)})
        self.check("attention", natten.attention, {"query": line, "key": line.clone(), "value": line.clone()})
        lse = rand(1, 6, 2)
        self.check("merge_attentions", lambda a, b, x, y: natten.merge_attentions([a, b], [x, y]), {"a": line, "b": line.clone(), "x": lse, "y": lse.clone()})
        for axes, x in (("1d", rand(1, 2, 6, 4)), ("2d", rand(1, 2, 5, 6, 4)), ("3d", rand(1, 2, 3, 4, 5, 4))):
            qk, av = getattr(natten, f"na{axes}_qk"), getattr(natten, f"na{axes}_av")
            self.check(f"na{axes}_qk", lambda qk=qk, **t: qk(**t, kernel_size=3), {"query": x, "key": x.clone()})
            self.check(f"na{axes}_av", lambda av=av, **t: av(**t, kernel_size=3), {"attn": qk(x, x, 3), "value": x.clone()})
        self.check("module", natten.NeighborhoodAttention2D(8, 2, 3).double(), {"x": rand(1, 5, 6, 8)})

    def test_fla(self):
        try:
            from luattn import fla
        except ImportError:
            self.skipTest("there is no luattn.fla")
        q, k, v, g, beta, a = rand(1, 6, 2, 4), rand(1, 6, 2, 4), rand(1, 6, 2, 3), -torch.rand(1, 6, 2).double(), torch.rand(1, 6, 2).double(), -torch.rand(1, 6, 2, 4).double()
        first = rand(1, 2, 4, 3)
        for name, more in (
            ("chunk_linear_attn", {}), ("chunk_retention", {}), ("chunk_gla", {"g": a}), ("chunk_delta_rule", {"beta": beta}),
            ("chunk_gated_delta_rule", {"g": g, "beta": beta, "initial_state": first}), ("chunk_kda", {"g": a, "beta": beta}),
        ):  # fmt: skip
            self.check(name, getattr(fla, name), {"q": q, "k": k, "v": v, **more})
        x, dt, A, B = rand(1, 6, 2, 3), torch.rand(1, 6, 2).double(), -torch.rand(2).double(), rand(1, 6, 1, 4)
        self.check("mamba_chunk_scan_combined", lambda **t: fla.mamba_chunk_scan_combined(**t, chunk_size=2), {"x": x, "dt": dt, "A": A, "B": B, "C": B.clone(), "z": x.clone()})

    def test_linear_attention(self):
        linear = luattn.linear_attention(f"{ROOT}/tests/specs/linear/kda.lua")
        given = {"q": rand(2, 5, 1, 4), "k": rand(2, 5, 1, 4), "v": rand(2, 5, 2, 3), "A_log": rand(2), "a": rand(2, 5, 2, 4), "beta": rand(2, 5, 2), "dt_bias": rand(2, 4)}
        given |= {"bound": torch.tensor(-5.0, dtype=torch.float64), "initial_state": rand(2, 2, 3, 4)}
        raised, carried = self.check("linear_attention", lambda **x: linear(**x, output_final_state=True, state_layout="vk"), given)
        self.assertEqual((len(raised), carried), (len(given), []))

    def test_numpy_beside_torch(self):
        """A number of torch beside arrays of NumPy."""
        q, k, v, bias, shift, cap = arguments()
        arrays = {name: t.numpy() for name, t in {"q": q, "k": k, "v": v, "bias": bias, "shift": shift}.items()}
        raised, _ = self.check("numpy", lambda cap: VARIANT(**arrays, cap=cap), {"cap": cap})
        self.assertEqual(len(raised), 1)


if __name__ == "__main__":
    unittest.main()
