"""Forward mode in torch: tangents beside the math in torch's ops, transforms of torch.func and luattn.jvp."""

import unittest

from problems import example, inputs_of, torch  # exits without torch, so first

import luattn
from tangents_cases import VARIANT, Case, arguments, math, ours, rand
from torch.autograd import forward_ad


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


if __name__ == "__main__":
    unittest.main()
