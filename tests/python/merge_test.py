"""merge_test.py: luattn.merge, and merges by state: parts of the keys beside all of them, gradients beside finite differences and a plain formula, what
torch's tools say of the ops, and what is refused. On the CPU. Exits with 77 without torch."""

import sys
import unittest
import warnings

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
import numpy as np

warnings.filterwarnings("ignore", module="torch")
causal = luattn.attention("return attention { name = 'causal', block_mask = causal() }")
gemma2 = luattn.attention(f"{ROOT}/examples/gemma2.lua")


def rand(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def parts_of(attention, q, k, v, cuts, **given):
    """o and lse of the keys between cuts."""
    outs, lses = [], []
    for first, end in zip(cuts, cuts[1:]):
        o, lse = attention(
            q, k[:, :, first:end], v[:, :, first:end], return_lse=True, kv_offset=first, q_len=q.shape[2], kv_len=k.shape[2], **given
        )
        outs.append(o), lses.append(lse)
    return outs, lses


class Merge(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(9)

    def test_parts_are_the_whole(self):
        q, k, v = rand(2, 4, 20, 8), rand(2, 2, 20, 8), rand(2, 2, 20, 6)
        for attention in (causal, gemma2):
            for cuts in ([0, 20], [0, 7, 20], [0, 3, 3, 11, 20]):
                whole, whole_lse = attention(q, k, v, return_lse=True)
                o, lse = luattn.merge(*parts_of(attention, q, k, v, cuts))
                torch.testing.assert_close(o, whole, rtol=0, atol=1e-12)
                torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-12)
                do, dlse = torch.randn_like(o), torch.randn_like(lse)
                want = torch.autograd.grad((whole, whole_lse), (q, k, v), (do, dlse))
                got = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
                for x, y in zip(got, want):
                    torch.testing.assert_close(x, y, rtol=0, atol=1e-11)

    def test_rows_that_keep_nothing(self):
        for none in (-torch.inf, torch.inf):  # as flash-attn says it
            self.check_empty_rows(none)

    def check_empty_rows(self, none):
        outs = [torch.full((1, 2, 3, 4), torch.nan, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        lses = [torch.full((1, 2, 3), none, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        with torch.no_grad():
            outs[1][:, 1] = 2.5
            lses[1][:, 1] = 0.25
        for create in (False, True):
            o, lse = luattn.merge(outs, lses)
            self.assertTrue((o[:, 0] == 0).all() and (lse[:, 0] == -torch.inf).all())
            self.assertTrue((o[:, 1] == 2.5).all() and (lse[:, 1] == 0.25).all())
            do = torch.ones_like(o)
            grads = torch.autograd.grad((o, lse), (*outs, *lses), (do, torch.ones_like(lse)), create_graph=create)
            for g in grads:
                self.assertFalse(g.isnan().any())
            self.assertTrue((grads[1][:, 1] == 1).all() and (grads[1][:, 0] == 0).all() and (grads[0] == 0).all())
            self.assertTrue((grads[3][:, 1] == 1).all() and (grads[2] == 0).all())

    def test_gradients(self):
        outs, lses = [rand(1, 2, 3, 4) for _ in range(3)], [rand(1, 2, 3) for _ in range(3)]
        packed_outs, packed_lses = [rand(3, 2, 4) for _ in range(3)], [rand(2, 3) for _ in range(3)]
        for o, lse in ((outs, lses), (packed_outs, packed_lses)):
            self.assertTrue(torch.autograd.gradcheck(lambda *x: luattn.merge(x[:3], x[3:]), (*o, *lse)))
            self.assertTrue(torch.autograd.gradgradcheck(lambda *x: luattn.merge(x[:3], x[3:]), (*o, *lse)))
            for only in (lambda *x: luattn.merge(x[:3], x[3:])[0], lambda *x: luattn.merge(x[:3], x[3:])[1]):
                self.assertTrue(torch.autograd.gradcheck(only, (*o, *lse)))
        first = [outs[0].detach().requires_grad_(), *(t.detach() for t in outs[1:])]
        luattn.merge(first, [t.detach() for t in lses])[0].sum().backward()
        self.assertIsNotNone(first[0].grad)

    def test_layouts_and_types(self):
        outs, lses = [torch.randn(2, 3, 5, 16) for _ in range(2)], [torch.randn(2, 3, 5) for _ in range(2)]
        want, want_lse = luattn.merge(outs, lses)
        weights = torch.softmax(torch.stack(lses), 0)
        torch.testing.assert_close(want, sum(w[..., None] * o for w, o in zip(weights, outs)))
        torch.testing.assert_close(want_lse, torch.logsumexp(torch.stack(lses), 0))
        o, _ = luattn.merge([t.transpose(1, 2).contiguous() for t in outs], lses, layout="bshd")
        self.assertTrue(o.is_contiguous())
        torch.testing.assert_close(o.transpose(1, 2), want)
        for dtype in (torch.bfloat16, torch.float16):
            o, _ = luattn.merge(outs, lses, dtype=dtype)
            self.assertIs(o.dtype, dtype)
            self.assertTrue(torch.equal(o, want.to(dtype)))
            halves = [t.to(dtype) for t in outs]
            o, _ = luattn.merge(halves, lses)
            torch.testing.assert_close(o, sum(w[..., None] * t.float() for w, t in zip(weights, halves)).to(dtype))
        sliced = [torch.randn(2, 3, 5, 20)[..., ::2] for _ in range(2)]  # rows that are not contiguous
        torch.testing.assert_close(luattn.merge(sliced, lses)[0], luattn.merge([t.contiguous() for t in sliced], lses)[0])
        expanded = [t.requires_grad_() for t in outs]
        luattn.merge(expanded, lses)[0].sum().backward()  # a gradient with strides of 0
        torch.testing.assert_close(expanded[0].grad, weights[0][..., None].expand(2, 3, 5, 16))

    def test_numpy(self):
        outs, lses = [torch.randn(2, 3, 5, 16) for _ in range(3)], [torch.randn(2, 3, 5) for _ in range(3)]
        want = luattn.merge(outs, lses)
        got = luattn.merge([t.numpy() for t in outs], [t.numpy() for t in lses])
        for x, y in zip(got, want):
            self.assertTrue(np.array_equal(x, y.numpy()))
        o, _ = luattn.merge([t.numpy() for t in outs], [t.numpy() for t in lses], dtype=np.float16)
        self.assertEqual(o.dtype, np.float16)

    def test_example(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        from shared_prefix import compare

        o, grads, _ = compare("cpu", torch.float64, 3, 4, 2, 40, 12, 5, 8)
        self.assertLess(max(o, grads), 1e-13)

    def test_example_with_a_sink(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        from shared_prefix_sink import compare

        o, grads, _ = compare("cpu", torch.float64, 3, 4, 2, 40, 12, 5, 8)
        self.assertLess(o, 1e-13)
        self.assertLess(grads, 1e-6)  # that of sinks is float32

    def test_tools(self):
        outs, lses = [rand(1, 2, 3, 4) for _ in range(2)], [rand(1, 2, 3) for _ in range(2)]
        torch.library.opcheck(torch.ops.luattn.merge.default, (outs, lses))
        torch.library.opcheck(torch.ops.luattn.merge.default, (outs, lses, torch.float64))
        plain = [t.detach() for t in outs], [t.detach() for t in lses]
        given = torch.randn(1, 2, 3, 4, dtype=torch.float64), None, *plain, [True, False], [False, True]
        torch.library.opcheck(torch.ops.luattn.merge_backward.default, given)

    def test_compile(self):
        outs, lses = [rand(1, 2, 3, 4) for _ in range(2)], [rand(1, 2, 3) for _ in range(2)]
        compiled = torch.compile(lambda o, lse: luattn.merge(o, lse), fullgraph=True, backend="aot_eager")
        for x, y in zip(compiled(outs, lses), luattn.merge(outs, lses)):
            self.assertTrue(torch.equal(x, y))
        compiled(outs, lses)[0].sum().backward()
        self.assertIsNotNone(outs[1].grad)

    def test_transforms(self):
        """Of parts some of which have no keys, also packed ones: forward mode, and transforms of torch.func, beside the math."""
        for shape in ((2, 2, 3, 4), (5, 2, 4)):
            outs = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
            rows = shape[:-1] if len(shape) == 4 else shape[1::-1]
            lses = [torch.randn(rows, dtype=torch.float64) for _ in range(3)]
            lses[1][0, 0] = -torch.inf
            along = [torch.randn_like(t) for t in (*outs, *lses)]

            def math(*given):
                weights = torch.softmax(torch.stack(given[3:]), 0)
                if len(given[0].shape) == 3:
                    weights = weights.transpose(1, 2)
                return (weights[..., None] * torch.stack(given[:3])).sum(0), torch.logsumexp(torch.stack(given[3:]), 0)

            def ours(*given):
                return luattn.merge(given[:3], given[3:])

            every = (*outs, *lses)
            for got, want in zip(torch.func.jvp(ours, every, tuple(along)), torch.func.jvp(math, every, tuple(along))):
                for a, b in zip(got, want):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
            for f in (lambda g: torch.func.grad(lambda *x: sum(t.square().sum() for t in g(*x)), argnums=tuple(range(6))),):
                for a, b in zip(f(ours)(*every), f(math)(*every)):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
                for a, b in zip(torch.func.jvp(f(ours), every, tuple(along))[1], torch.func.jvp(f(math), every, tuple(along))[1]):
                    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)

    def test_specs(self):
        """A sink and the one of softmax_one are in each part."""
        outs, lses = [torch.randn(1, 2, 3, 4)] * 2, [torch.randn(1, 2, 3)] * 2
        self.assertTrue(torch.equal(gemma2.merge(outs, lses)[0], luattn.merge(outs, lses)[0]))
        for name, message in (
            ("softmax_one", r"parts of a row do not merge by their lse: in a row of 2 scores, the whole row gives P = 0\.\d+ for"),
            ("attention_sink", "such as a sink, is in each part"),
            ("sigmoid", "has no lse, by which parts of a row could be merged"),
        ):
            with self.assertRaisesRegex(luattn.Unsupported, message):
                luattn.attention(f"{ROOT}/examples/{name}.lua").merge(outs, lses)

    def test_refused(self):
        o, lse = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3)
        for outs, lses, given, message in (
            ([o], [], {}, "merge: lses: are 0, and outs 1: each part has both"),
            ([], [], {}, "merge: outs: are 0, expected 1 to 16"),
            ([o] * 17, [lse] * 17, {}, "merge: outs: are 17, expected 1 to 16: merge more parts in turn"),
            ([o, o], [lse, lse[0, 0]], {}, r"merge: outs\[1\], lses\[1\]: have 4 and 1 axes, expected 4 and 3, or packed 3 and 2"),
            ([o[0, 0]], [lse], {}, r"merge: outs\[0\], lses\[0\]: have 2 and 3 axes"),
            ([o], [lse], {"layout": "sbhd"}, "merge: layout: is 'sbhd', expected 'bhsd' or 'bshd'"),
            ([o, o.double()], [lse, lse], {}, r"parts\[1\].o: has dtype float64, expected float32"),
            ([o], [lse.double()], {}, r"parts\[0\].lse: has dtype float64, expected float32"),
            ([o], [lse[:, :1]], {}, r"parts\[0\].lse: has shape \[1, 1, 3\], expected \[1, 2, 3\]"),
            ([o], [lse], {"dtype": torch.float64}, "o: has dtype float64, and the parts do not have float64"),
            ([o, o.to("meta")], [lse, lse], {}, r"merge: outs\[1\]: is on meta, and outs\[0\] on cpu"),
        ):
            with self.assertRaisesRegex(luattn.InvalidError, message):
                luattn.merge(outs, lses, **given)


SINK = (
    "return attention { name = 'sink', inputs = { sinks = { axes = {'h'}, dtype = 'f32', grad = true } }, scalars = { slope = 0.1 }, "
    "online_func = attention_sink('sinks'), score_mod = function(s, b, h, q, kv) return s - slope * (q - kv) end, block_mask = causal() }"
)
RETENTION = "return attention { name = 'retention', online_func = online_retention, block_mask = causal() }"
SIGMOID = "return attention { name = 'sigmoid', online_func = sigmoid_attention, block_mask = causal() }"


class ByState(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(10)

    def check(self, text, cuts, **inputs):
        """Results and gradients of parts, merged at once and in turn, beside those of the whole."""
        attention = luattn.attention(text)
        q, k, v = rand(2, 4, 20, 8), rand(2, 2, 20, 8), rand(2, 2, 20, 6)
        want = attention(q, k, v, **inputs)
        dout = torch.randn_like(want)
        wanted = torch.autograd.grad(want, (q, k, v, *(t for t in inputs.values())), dout)
        pieces = [(k[:, :, i:j], v[:, :, i:j], dict(kv_offset=i, q_len=20, kv_len=20, **inputs)) for i, j in zip(cuts, cuts[1:])]
        with torch.no_grad():
            parts = [attention(q, k, v, return_state=True, **given) for k, v, given in pieces]
            o, lse, saved = attention.merge(*zip(*parts), return_saved=True)
            torch.testing.assert_close(o, want, rtol=0, atol=1e-12)
            turn = parts[0]
            for part in parts[1:]:
                turn = attention.merge(*zip(turn, part), return_state=True)
            torch.testing.assert_close(turn[0], want, rtol=0, atol=1e-12)
            made = [attention.gradients(dout, q, k, v, o, lse, saved, **given) for k, v, given in pieces]
            swapped = attention.merge([t.transpose(1, 2) for t, _, _ in parts], *list(zip(*parts))[1:], layout="bshd")[0]
            self.assertTrue(torch.equal(swapped.transpose(1, 2), o))
            arrays = [tuple(t.numpy() for t in part) for part in parts]
            self.assertTrue((attention.merge(*zip(*arrays))[0] == o.numpy()).all())
            k0, v0, given = pieces[0]
            given = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
            for x, y in zip(attention(q.numpy(), k0.numpy(), v0.numpy(), return_state=True, **given), arrays[0]):
                np.testing.assert_array_equal(x, y)
        got = [sum(g[0] for g in made), torch.cat([g[1] for g in made], 2), torch.cat([g[2] for g in made], 2)]
        for x, y in zip(got, wanted):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-11)
        return attention, made, wanted, parts

    def test_parts_are_the_whole(self):
        for cuts in ([0, 20], [0, 7, 20], [0, 3, 3, 11, 20]):
            sinks = torch.randn(4, requires_grad=True)
            attention, made, wanted, parts = self.check(SINK, cuts, sinks=sinks)
            for first, end, (*_, named) in zip(cuts, cuts[1:], made):  # once a row: whole in each part that has keys
                once = wanted[3] if end > first else torch.zeros(4)
                torch.testing.assert_close(named["sinks"].float(), once, rtol=0, atol=1e-5)
            self.assertEqual(parts[0][2].shape, (3, 2, 4, 20))  # m, l, the sink
            self.check(RETENTION, cuts)
            self.check(SIGMOID, cuts)

    def test_saved_is_left_out_where_there_is_none(self):
        q, k, v = rand(1, 2, 12, 8), rand(1, 2, 12, 8), rand(1, 2, 12, 8)
        dout = torch.randn_like(q)
        causal, retention = luattn.attention("return attention { block_mask = causal() }"), luattn.attention(RETENTION)
        o, lse = causal(q, k, v, return_lse=True)
        wanted = torch.autograd.grad(o, (q, k, v), dout)
        for found, want in zip(causal.gradients(dout, q, k, v, o, lse), wanted):
            torch.testing.assert_close(found, want)
        with self.assertRaisesRegex(luattn.InvalidError, r"gradients: saved: is missing, and backward reads \d numbers of a row; take it from merge"):
            retention.gradients(dout, q, k, v, o, lse)

    def test_what_arises_from_scores_adds_up(self):
        attention = luattn.attention(SINK)
        q, k, v, sinks = rand(1, 4, 12, 8), rand(1, 4, 12, 8), rand(1, 4, 12, 8), torch.randn(4)
        slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        want = attention(q, k, v, sinks=sinks, slope=slope)
        dout = torch.randn_like(want)
        (wanted,) = torch.autograd.grad(want, slope, dout)
        with torch.no_grad():
            parts = [attention(q, k[:, :, i : i + 4], v[:, :, i : i + 4], kv_offset=i, sinks=sinks, slope=0.3, return_state=True) for i in (0, 4, 8)]
            o, lse, saved = attention.merge(*zip(*parts), return_saved=True)
            made = [
                attention.gradients(dout, q, k[:, :, i : i + 4], v[:, :, i : i + 4], o, lse, saved, kv_offset=i, sinks=sinks, slope=0.3)[3]["slope"]
                for i in (0, 4, 8)
            ]
        torch.testing.assert_close(sum(made), wanted, rtol=0, atol=1e-10)

    def test_pages(self):
        """A prefix of whole pages, and the pages behind it, of entries of two lengths."""
        attention = luattn.attention("return attention { name = 'one', online_func = softmax_one, block_mask = causal_bottom_right() }")
        unmasked = luattn.attention("return attention { name = 'unmasked', online_func = softmax_one }")
        k, v = (torch.randn(20, 2, 16, 8, dtype=torch.float64) for _ in "kv")
        q, table = torch.randn(2, 4, 3, 8, dtype=torch.float64), torch.arange(20, dtype=torch.int32).view(2, 10)
        first, used = torch.tensor([32, 32], dtype=torch.int32), torch.tensor([70, 33], dtype=torch.int32)
        prefix = unmasked(q, k, v, seqused_k=first, block_table=table[:, :2].contiguous(), return_state=True)
        own = attention(q, k, v, seqused_k=used - first, block_table=table[:, 2:].contiguous(), return_state=True)
        want = attention(q, k, v, seqused_k=used, block_table=table)
        o = attention.merge(*zip(prefix, own))[0]
        torch.testing.assert_close(o[0], want[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(o[1, :, -1], want[1, :, -1], rtol=0, atol=1e-12)  # earlier ones do not see all of the prefix

    def test_rows_that_keep_nothing(self):
        attention = luattn.attention(RETENTION)
        q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64) for _ in "qkv")
        parts = [attention(q, k[:, :, i : i + 4], v[:, :, i : i + 4], kv_offset=i, return_state=True) for i in (0, 4)]
        o, lse, state = parts[1]
        self.assertTrue((lse[:, :, :4] == -torch.inf).all() and (lse[:, :, 4:] == 0).all())
        o[:, :, :4] = state[..., :4] = torch.nan
        torch.testing.assert_close(attention.merge(*zip(*parts))[0], attention(q, k, v), rtol=0, atol=1e-12)
        empty = [(o[:, :, :4], lse[:, :, :4], state[..., :4])] * 3
        o, lse = attention.merge(*zip(*empty))
        self.assertTrue((o == 0).all() and (lse == -torch.inf).all())

    def test_tools(self):
        attention = luattn.attention(RETENTION)
        q, k, v = (torch.randn(1, 2, 8, 4) for _ in "qkv")
        parts = [attention(q, k[:, :, i : i + 4], v[:, :, i : i + 4], kv_offset=i, return_state=True) for i in (0, 4)]
        outs, lses, states = (list(x) for x in zip(*parts))
        torch.library.opcheck(torch.ops.luattn.merge_states.default, (RETENTION, outs, lses, states))
        compiled = torch.compile(lambda *x: attention.merge(*x), fullgraph=True, backend="aot_eager")
        for x, y in zip(compiled(outs, lses, states), attention.merge(outs, lses, states)):
            torch.testing.assert_close(x, y)

    def test_refused(self):
        attention = luattn.attention(RETENTION)
        q, k, v = (torch.randn(1, 2, 8, 4) for _ in "qkv")
        o, lse, state = attention(q, k, v, return_state=True)
        for outs, lses, states, message in (
            ([o], [lse], [], "merge: states: are 0, and outs 1: each part has one"),
            ([o], [lse], [lse], r"merge: states\[0\]: has 3 axes, and lses\[0\] 3: it has one more, of the numbers of a row"),
            ([o], [lse], [state.repeat(2, 1, 1, 1)], r"states\[0\]: has shape \[2, 1, 2, 8\], expected \[1, 1, 2, 8\]"),
        ):
            with self.assertRaisesRegex(luattn.InvalidError, message):
                attention.merge(outs, lses, states)
        total = luattn.attention(SIGMOID)
        with self.assertRaisesRegex(luattn.InvalidError, r"states\[0\]: has numbers of rows, and rows of this spec have none"):
            total.merge([o], [lse], [state])
        with self.assertRaisesRegex(luattn.InvalidError, "retention: merge: states: are missing"):
            attention.merge([o], [lse], return_saved=True)
        with self.assertRaisesRegex(luattn.Unsupported, "retention: return_state: is True, and there are no gradients through a state: call it under torch.no_grad"):
            attention(q.requires_grad_(), k, v, return_state=True)
        with self.assertRaisesRegex(luattn.Unsupported, "retention: merge: a merge by state has no gradient of its own: detach the parts"):
            attention.merge([o.clone().requires_grad_()], [lse], [state])
        root = luattn.attention(
            "return attention { name = 'root', online_func = { online_rowscales = { n = 0 }, online_fwd = function(s, r) return s, { n = sqrt(r.n * r.n + "
            "reduce_sum(s * s)) } end, online_fwd_epilogue = function(o, r) return o / (1 + r.n) end } }"
        )
        with self.assertRaisesRegex(luattn.Unsupported, "parts of a row cannot be merged: in a row of"):
            root(q.detach(), k, v, return_state=True)


if __name__ == "__main__":
    unittest.main()
