"""merge_test.py: luattn.merge: parts of the keys beside all of them, gradients beside finite differences and a plain formula, what
torch's tools say of its ops, and what is refused. On the CPU. Exits with 77 without torch."""

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
        outs = [torch.full((1, 2, 3, 4), torch.nan, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        lses = [torch.full((1, 2, 3), -torch.inf, dtype=torch.float64, requires_grad=True) for _ in range(2)]
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
        o, lse = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3)
        with self.assertRaisesRegex(luattn.Unsupported, "merge: transforms of torch.func"):
            torch.func.grad(lambda x: luattn.merge([x], [lse])[0].sum())(o)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(o, o)
            with self.assertRaisesRegex(luattn.Unsupported, "merge: forward-mode derivatives"):
                luattn.merge([dual], [lse])

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


if __name__ == "__main__":
    unittest.main()
