"""torch_test.py: the ops of torch: gradients, shapes, batches, and what people meet first. On the CPU, in float64 where numbers
are compared. Exits with 77 where torch is not installed."""

import gc
import itertools
import unittest
from unittest import mock

from problems import EXAMPLES, example, forward_op, grads, inputs_of, problem, rand  # exits without torch, so first

import luattn
import torch
from luattn import _allocate, _tensors
from torch.utils._python_dispatch import TorchDispatchMode


class Gradients(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)

    def test_gradcheck_of_every_example(self):
        for name in EXAMPLES:
            if name == "retention_detached":  # its backward leaves out a term by intention
                continue
            with self.subTest(name):
                attention = example(name, double=True)
                d = 8 if name == "xpos" else 4
                qkv, inputs = problem(attention, d=d)
                scalars = {
                    s: torch.tensor(x, dtype=torch.float64, requires_grad=True)
                    for s, x in attention.scalars.items()
                }
                given = {**inputs, **scalars}
                return_lse = attention._spec.has_lse

                def f(q, k, v, *rest):
                    result = attention(q, k, v, return_lse=return_lse, **dict(zip(given, rest)))
                    if not return_lse:
                        return result
                    o, lse = result  # -inf of rows that keep nothing has no finite differences
                    return o, lse.masked_fill(lse.isinf(), 0)

                self.assertTrue(torch.autograd.gradcheck(f, (*qkv, *given.values())))

    def test_any_of_them_not_wanted(self):
        attention = example("t5_relative_bias", double=True)
        qkv, inputs = problem(attention)
        everything = [*qkv, inputs["bias"]]
        want = grads(lambda: attention(*qkv, return_lse=True, **inputs), everything)
        for bits in range(1, 15):
            some = [t.detach().requires_grad_(bool(bits >> i & 1)) for i, t in enumerate(everything)]
            wanted = [i for i in range(4) if bits >> i & 1]
            found = grads(
                lambda: attention(*some[:3], bias=some[3], return_lse=True), [some[i] for i in wanted]
            )
            for i, g in zip(wanted, found):
                torch.testing.assert_close(g, want[i], atol=1e-12, rtol=1e-12)

    def test_sum_has_strides_of_zero(self):
        gemma2 = example("gemma2")
        for dtype in (torch.float64, torch.float16):
            qkv, _ = problem(gemma2, d=8, dtype=dtype)
            gemma2(*qkv).sum().backward()
            want = torch.autograd.grad(gemma2(*qkv), qkv, torch.ones(1, 2, 5, 8, dtype=dtype))
            for t, w in zip(qkv, want):
                torch.testing.assert_close(t.grad, w, atol=0, rtol=0)

    def test_a_misplaced_gradient_is_copied(self):
        gemma2 = example("gemma2")
        qkv, _ = problem(gemma2, d=8, dtype=torch.float16)
        dout = torch.randn(2 * 5 * 8 + 1, dtype=torch.float16)[1:].view(1, 2, 5, 8)  # 2 bytes off
        found = torch.autograd.grad(gemma2(*qkv), qkv, dout)
        for a, b in zip(found, torch.autograd.grad(gemma2(*qkv), qkv, dout.clone())):
            torch.testing.assert_close(a, b, atol=0, rtol=0)

    def test_lse_alone_and_temporary_gradients(self):
        causal = example("causal")
        qkv, _ = problem(causal)
        q, k, v = qkv

        def reference(q, k, v):
            scores = (q @ k.transpose(2, 3)) * 0.5
            scores = scores.masked_fill(torch.ones(5, 6).triu(1).bool(), -torch.inf)
            return scores.softmax(-1) @ v, scores.logsumexp(-1)

        for weights in ((0, 1), (1, 0), (1, 1)):
            # An expanded dlse is copied, and the copy has to live as long as the call.
            f = lambda run: sum(w * t.sum() for w, t in zip(weights, run(q, k, v)) if w)  # noqa: B023, E731
            found = torch.autograd.grad(f(lambda *a: causal(*a, return_lse=True)), qkv, allow_unused=True)
            want = torch.autograd.grad(f(reference), qkv, allow_unused=True)
            for a, b in zip(found, want):
                torch.testing.assert_close(torch.zeros(()) if a is None else a.sum(), torch.zeros(()) if b is None else b.sum(),
                                           check_dtype=False)  # fmt: skip
                if b is not None and a is not None:
                    torch.testing.assert_close(a, b)

    def test_nothing_is_lost_in_silence(self):
        alibi = luattn.attention("return attention { inputs = { x = { axes = {'h'}, dtype = 'f64' } }, "
                                 "score_mod = function(s, b, h) return s + x[h] end }")  # fmt: skip
        qkv, _ = problem(alibi)
        x = rand(2)
        with self.assertRaisesRegex(
            luattn.InvalidError, "input 'x' requires a gradient, which the spec does not declare"
        ):
            alibi(*qkv, x=x)
        with torch.no_grad():
            self.assertFalse(alibi(*qkv, x=x).requires_grad)
        # The bare op has gradients, too.
        gemma2 = example("gemma2")
        o, lse, _ = forward_op(gemma2.text, *qkv, [], [50.0], None, 0.0)
        self.assertTrue(o.requires_grad and lse.requires_grad)

    def test_refusals(self):
        gemma2 = example("gemma2")
        (q, k, v), _ = problem(gemma2, hkv=2)

        def thrice():
            g = gemma2(q, k, v)
            for _ in range(2):
                g = torch.autograd.grad(g.square().sum(), q, create_graph=True)[0]
            torch.autograd.grad(g.sum(), q)

        for call, message in (
            (thrice, "gemma2: there are no third derivatives"),
            (lambda: gemma2(q[0], k, v), "gemma2: q: has 3 dimensions, expected 4"),
            (lambda: gemma2(q.float(), k, v), "k: has dtype float64, expected float32"),
            (lambda: gemma2(q, k, v, cap=torch.ones(2)), "gemma2: scalar 'cap' has 2 elements, expected 1"),
            (
                lambda: forward_op(gemma2.text, *[rand(1, 1, 3, 20, dtype=torch.bfloat16)] * 3, [], [50.0], None, 0.0),
                "head_dim: is 20; .*multiples of 8.*pad",
            ),
            (lambda: forward_op(gemma2.text, q, k, v, [], [], None, 0.0), "gemma2: 0 scalars, expected 1"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                call()

    def test_arguments_to_come(self):
        gemma2 = example("gemma2")
        qkv, _ = problem(gemma2)
        with self.assertRaisesRegex(luattn.Unsupported, "gemma2: exact_rows: there is no such argument yet"):
            gemma2(*qkv, exact_rows=True)

    def test_keys_in_pages(self):
        """Each entry as one of its own, of keys that are copied from their pages."""
        alibi = luattn.attention("return attention { inputs = { x = { axes = {'b', 'kv'} } }, score_mod = function(s, b, h, q, kv)"
                                 " return s + x[{b, kv}] end, block_mask = causal_bottom_right() }")
        lens, size = torch.tensor([5, 0, 17, 8], dtype=torch.int32), 4
        table = torch.full((4, 6), -1, dtype=torch.int32)
        k, v, q, x = (torch.randn(*shape) for shape in ((12, 2, size, 8), (12, 2, size, 8), (4, 4, 3, 8), (4, 30)))
        pages = iter(range(11, -1, -1))
        for b, n in enumerate(lens.tolist()):
            for i in range(-(-n // size)):
                table[b, i] = next(pages)
        used = torch.zeros(12, size, dtype=torch.bool)
        for b, n in enumerate(lens.tolist()):
            for i in range(n):
                used[table[b, i // size], i % size] = True
        k[~used[:, None].expand(-1, 2, -1)] = torch.nan
        v[~used[:, None].expand(-1, 2, -1)] = torch.nan

        def alone(b, of_q):
            n = int(lens[b])
            rows = [t[table[b, : -(-n // size)].long()].transpose(1, 2).reshape(-1, 2, 8)[:n].transpose(0, 1)[None] for t in (k, v)]
            return alibi(of_q[None], *rows, x=x[b : b + 1, :n], return_lse=True)

        want = [alone(b, q[b]) for b in range(4)]
        given = dict(x=x, block_table=table, seqused_k=lens)
        o, lse = alibi(q, k, v, return_lse=True, **given)
        for b in range(4):
            torch.testing.assert_close(o[b], want[b][0][0], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(lse[b], want[b][1][0], atol=1e-6, rtol=1e-5)
        swapped = alibi(*(t.transpose(1, 2) for t in (q, k, v)), layout="bshd", **given)
        self.assertTrue(torch.equal(swapped.transpose(1, 2), o))
        cu = torch.tensor([0, 3, 6, 9, 12], dtype=torch.int32)
        packed = alibi(q.transpose(1, 2).flatten(0, 1).contiguous(), k, v, cu_seqlens_q=cu, **given)
        torch.testing.assert_close(packed.unflatten(0, (4, 3)).transpose(1, 2), o, atol=1e-6, rtol=1e-5)
        cache = torch.zeros(4, 2, 17, 8), torch.zeros(4, 2, 17, 8)  # without a table
        for b, n in enumerate(lens.tolist()):
            for i in range(n):
                for t, c in zip((k, v), cache):
                    c[b, :, i] = t[table[b, i // size], :, i % size]
        part = alibi(q, *cache, x=x, seqused_k=lens)
        torch.testing.assert_close(part, o, atol=1e-6, rtol=1e-5)
        array = alibi(*(t.numpy() for t in (q, k, v)), **{name: t.numpy() for name, t in given.items()})
        torch.testing.assert_close(torch.from_numpy(array), o, atol=1e-6, rtol=1e-5)
        q.requires_grad_()
        with self.assertRaisesRegex(luattn.Unsupported, "backward: batch: has block_table, and there is no backward over keys in pages"):
            alibi(q, k, v, **given).sum().backward()
        with self.assertRaisesRegex(luattn.InvalidError, "seqused_k: is missing, and block_table is given"):
            alibi(q, k, v, x=x, block_table=table)
        table[2, 4] = 12
        with self.assertRaisesRegex(luattn.InvalidError, "batch: block_table: is 12 for entry 2, page 4, whose 17 rows need it; k and v have 12 pages"):
            alibi(q.detach(), k, v, **given)
        longer = torch.full_like(lens, 31)
        with self.assertRaisesRegex(luattn.InvalidError, "seqused_k: is 31 for entry 0, expected 0 to 24: all rows of its pages in block_table; give it more"):
            alibi(q.detach(), k, v, **{**given, "seqused_k": longer})
        with self.assertRaisesRegex(luattn.InvalidError, "seqused_k: is 31 for entry 0, expected 0 to 17: all rows that k and v have for it"):
            alibi(q.detach(), *cache, x=x, seqused_k=longer)


PADDING = "return attention { inputs = { x = { axes = {'b', 'n'}, dtype = 'bool' } }, mask_mod = function(b, h, q, kv) return x[{b, kv}] end }"


class Batches(unittest.TestCase):
    """On the CPU a batch changes nothing."""

    def test_same_results(self):
        attention, batch = luattn.attention(PADDING), luattn.Batch()
        q, k, v = (rand(2, 2, 70, 8) for _ in "qkv")
        x = torch.arange(70)[None] < torch.tensor([[40], [70]])
        batch.prepare(attention, q, k, x=x)
        want = attention(q, k, v, x=x)
        for f in (attention, torch.compile(lambda *a, **b: attention(*a, **b), fullgraph=True, backend="eager")):
            o = f(q, k, v, x=x, batch=batch)
            torch.testing.assert_close(o, want, atol=0, rtol=0)
            for a, b in zip(*(torch.autograd.grad(y.sum(), (q, k, v), retain_graph=True) for y in (o, want))):
                torch.testing.assert_close(a, b, atol=0, rtol=0)

    def test_errors(self):
        attention, batch = luattn.attention(PADDING), luattn.Batch()
        q, k, v = (rand(1, 2, 70, 8) for _ in "qkv")
        x = torch.ones(1, 70, dtype=torch.bool)
        for call, message in (
            (lambda: attention(q, k, v, x=x, batch=x), "batch: is a tensor of bool, expected luattn.Batch"),
            (lambda: attention(q, k, v, x=x, batch=batch, q_offset=3), "batch: goes with neither packed sequences nor"),
            (lambda: batch.prepare(attention, q, k), "input 'x' is missing"),
            (lambda: batch.prepare(attention, q, k, x=x, exact_rows=x), "exact_rows: prepare takes inputs and scalars alone"),
            (lambda: batch.prepare(attention, q, k, x=x, layout="hbsd"), "layout: is 'hbsd', expected 'bhsd' or 'bshd'"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                call()

    def test_lives_as_long_as_its_calls(self):
        attention = luattn.attention(PADDING)
        q, k, v = (rand(1, 2, 70, 8) for _ in "qkv")
        o = attention(q, k, v, x=torch.ones(1, 70, dtype=torch.bool), batch=luattn.Batch())
        gc.collect()
        o.sum().backward()


class Shapes(unittest.TestCase):
    def test_empty(self):
        gemma2 = example("gemma2")
        for b, n, m in ((0, 5, 5), (1, 0, 5), (1, 5, 0)):
            qkv, _ = problem(gemma2, b=b, n=n, m=m)
            o, lse = gemma2(*qkv, return_lse=True)
            self.assertEqual((o.shape, lse.shape), ((b, 2, n, 4), (b, 2, n)))
            self.assertTrue((o == 0).all() and (lse == -torch.inf).all())
            o.sum().backward()
            self.assertTrue(all((t.grad == 0).all() and t.grad.shape == t.shape for t in qkv))

    def test_layouts(self):
        gemma2 = example("gemma2")
        q, k, v = (rand(2, n, h, 8) for n, h in ((5, 4), (7, 2), (7, 2)))
        o = gemma2(q, k, v, layout="bshd")
        self.assertTrue(o.is_contiguous())
        views = [t.transpose(1, 2) for t in (q, k, v)]
        torch.testing.assert_close(o.transpose(1, 2), gemma2(*views), atol=0, rtol=0)
        torch.testing.assert_close(
            o.transpose(1, 2), gemma2(*(t.contiguous() for t in views)), atol=0, rtol=0
        )
        self.assertTrue(torch.autograd.grad(o.sum(), k)[0].is_contiguous())
        # One array of q, k and v, and one head of keys for all.
        qkv = rand(2, 5, 3, 4, 8)
        parts = [qkv[:, :, i].transpose(1, 2) for i in range(3)]
        got = torch.autograd.grad(gemma2(*parts).sum(), qkv)[0]
        copies = [t.detach().contiguous().requires_grad_() for t in parts]
        want = torch.autograd.grad(gemma2(*copies).sum(), copies)
        torch.testing.assert_close(got, torch.stack([t.transpose(1, 2) for t in want], 2))

    def test_o_lies_in_memory_as_q_does(self):
        gemma2, at = example("gemma2"), lambda t: sorted((0, 1, 2), key=lambda i: -t.stride(i))
        for order in itertools.permutations((0, 1, 2)):
            back = [order.index(i) for i in (0, 1, 2)]
            q = rand(*((2, 4, 5)[i] for i in order), 8).permute(*back, 3)
            k = rand(2, 2, 7, 8)
            o = gemma2(q, k, k)
            self.assertEqual((o.shape, at(o)), (q.shape, at(q)))
            torch.testing.assert_close(o, gemma2(q.contiguous(), k, k), atol=0, rtol=0)
            self.assertEqual(at(torch.autograd.grad(o.sum(), q)[0]), at(q))

    def test_what_kernels_cannot_read_is_copied(self):
        """Addresses and strides that are no multiples of 16 bytes, and a last stride other than 1."""
        causal = luattn.attention("return attention { block_mask = causal() }")
        for dtype in (torch.bfloat16, torch.float32):
            odd = lambda: torch.randn(2, 2, 12, 17, dtype=dtype)[..., 1:].requires_grad_()  # noqa: B023, E731
            across = lambda: torch.randn(2, 2, 16, 12, dtype=dtype).mT.requires_grad_()  # noqa: B023, E731
            for tensors in ((odd(), odd(), odd()), (across(), odd(), across())):
                plain = [
                    t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in tensors
                ]
                found, want = causal(*tensors), causal(*plain)
                self.assertTrue(torch.equal(found, want))
                for a, b in zip(
                    torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(want.sum(), plain)
                ):
                    self.assertTrue(torch.equal(a, b))
            as_q = torch.randn(2, 12, 2, 17, dtype=dtype)[..., 1:].transpose(1, 2)
            self.assertTrue(causal(as_q, as_q, as_q).transpose(1, 2).is_contiguous())  # o lies as q does

    def test_parts_of_a_whole(self):
        gemma2 = example("gemma2")
        (q, k, v), _ = problem(gemma2, n=6)
        want = torch.autograd.grad(gemma2(q, k, v)[:, :, 2:].sum(), (q, k, v))
        for offset in (2, torch.tensor([2], dtype=torch.int32)):
            f = lambda: gemma2(q[:, :, 2:], k, v, q_offset=offset)  # noqa: B023, E731
            torch.testing.assert_close(f(), gemma2(q, k, v)[:, :, 2:], atol=0, rtol=0)
            for got, w in zip(torch.autograd.grad(f().sum(), (q, k, v)), want):
                torch.testing.assert_close(got, w)

    def test_packed(self):
        for name in ("gemma2", "softmax_one", "sigmoid"):
            attention = example(name)
            cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 3, 8], [0, 4, 6, 11]))
            q, k, v = rand(8, 4, 8, grad=False), rand(11, 2, 8, grad=False), rand(11, 2, 8, grad=False)
            inputs = inputs_of(attention, {"h": 4})
            for given in ({}, {"max_seqlen_q": 7, "max_seqlen_k": 5}):
                o = attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **inputs, **given)
                for i, j, m, n in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
                    one = [t.transpose(0, 1)[None] for t in (q[i:j], k[m:n], v[m:n])]
                    torch.testing.assert_close(o[i:j], attention(*one, **inputs)[0].transpose(0, 1))
        attention = example("gemma2")
        o, lse = attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
        self.assertEqual((o.shape, lse.shape), ((8, 4, 8), (4, 8)))
        torch.testing.assert_close(
            lse[:, :3], attention(*(t.transpose(0, 1)[None] for t in (q[:3], k[:4], v[:4])), return_lse=True)[1][0]
        )
        packed = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        torch.library.opcheck(forward_op, (attention.text, q, k, v, [], [50.0], None, 0.0), packed)
        # A part of a whole, at once: the last queries of sequences whose keys are all there.
        o = attention(q, k, v, q_offset=torch.tensor([1, 2, 0], dtype=torch.int32), **packed)
        one = [t.transpose(0, 1)[None] for t in (q[:3], k[:4], v[:4])]
        torch.testing.assert_close(o[:3], attention(*one, q_offset=1)[0].transpose(0, 1))

    def test_packed_used(self):
        """Rows of a sequence that are not used do not exist: results and gradients are those without them, and 0."""
        gemma2 = example("gemma2")
        cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 3, 8], [0, 4, 6, 11]))
        used = {"seqused_q": torch.tensor([2, 0, 5], dtype=torch.int32), "seqused_k": torch.tensor([4, 1, 3], dtype=torch.int32)}
        q, k, v = rand(8, 4, 8), rand(11, 2, 8), rand(11, 2, 8)
        o, lse = gemma2(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, **used)
        dout = torch.randn_like(o)
        found = torch.autograd.grad((o * dout).sum() + lse[lse.isfinite()].sum(), (q, k, v))
        rows = [torch.cat([torch.arange(a, a + n) for a, n in zip(cu, used[x])]) for cu, x in ((cu_q, "seqused_q"), (cu_k, "seqused_k"))]
        short = {x: torch.cat([torch.zeros(1), used[y].cumsum(0)]).int() for x, y in (("cu_seqlens_q", "seqused_q"), ("cu_seqlens_k", "seqused_k"))}
        few = [t.detach()[i].requires_grad_() for t, i in zip((q, k, v), (rows[0], rows[1], rows[1]))]
        want, want_lse = gemma2(*few, return_lse=True, **short)
        grads_of = torch.autograd.grad((want * dout[rows[0]]).sum() + want_lse[want_lse.isfinite()].sum(), few)
        for a, b, i in zip((o, *found), (want, *grads_of), (rows[0], rows[0], rows[1], rows[1])):
            torch.testing.assert_close(a, torch.zeros_like(a).index_copy(0, i, b.detach()))
        torch.testing.assert_close(lse, torch.full_like(lse, -torch.inf).index_copy(1, rows[0], want_lse.detach()))
        arrays = {name: t.numpy() for name, t in {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, **used}.items()}
        by_numpy = gemma2(*(t.detach().numpy() for t in (q, k, v)), return_lse=True, **arrays)
        for a, b in zip(by_numpy, (o, lse)):
            torch.testing.assert_close(torch.from_numpy(a), b.detach(), atol=0, rtol=0)
        with self.assertRaisesRegex(luattn.InvalidError, "gemma2: seqused_q: is of packed sequences, and cu_seqlens_q is missing"):
            gemma2(*(t.transpose(0, 1)[None] for t in (k, k, v)), seqused_q=used["seqused_q"])

    def test_packed_refusals(self):
        gemma2 = example("gemma2")
        q = rand(8, 2, 8, grad=False)
        cu = torch.tensor([0, 8], dtype=torch.int32)
        for given, message in (
            ({"cu_seqlens_q": cu}, "gemma2: cu_seqlens_q, cu_seqlens_k: one is missing"),
            ({"max_seqlen_k": 8}, "gemma2: max_seqlen_k: is 8, and cu_seqlens_k is missing"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu.long()}, "cu_seqlens_k: .*int32"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu + 1}, "cu_seqlens_k: begins with 1, expected 0"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 7}, "max_seqlen_q: is 7, and the longest"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                gemma2(q, q, q, **given)
        with self.assertRaisesRegex(luattn.InvalidError, "has 4 dimensions, expected 3 beside cu_seqlens_q"):
            gemma2(q[None], q[None], q[None], cu_seqlens_q=cu, cu_seqlens_k=cu)

    def test_seeds(self):
        dropped = luattn.attention("return attention { online_func = dropout(0.5) }")
        q, k, v = (rand(2, 4, 30, 8) for _ in "qkv")
        want = dropped(q, k, v, seed=7)
        for seed in ((7, 0), torch.tensor([7, 0])):
            torch.testing.assert_close(dropped(q, k, v, seed=seed), want, atol=0, rtol=0)
        for seed in (8, (7, 100), -7, 2**64 - 1, None, None):
            self.assertFalse(torch.allclose(dropped(q, k, v, seed=seed), want))
        torch.testing.assert_close(dropped(q, k, v, seed=-1), dropped(q, k, v, seed=2**64 - 1), atol=0, rtol=0)
        # A layer's offset goes on where that of the one before ended, by a number for each batch entry and head.
        one = [t[:1] for t in (q, k, v)]
        torch.testing.assert_close(dropped(*(t[1:] for t in (q, k, v)), seed=(7, 4)), want[1:], atol=0, rtol=0)
        torch.testing.assert_close(dropped(*one, seed=7), want[:1], atol=0, rtol=0)
        tensors = [t.detach().numpy() for t in (q, k, v)]
        torch.testing.assert_close(torch.from_numpy(dropped(*tensors, seed=7)), want, atol=0, rtol=0)
        # Its gradient, by differences; v's, which is linear, exactly.
        small = [rand(1, 2, 5, 4) for _ in "qkv"]
        self.assertTrue(torch.autograd.gradcheck(lambda *t: dropped(*t, seed=3, return_lse=True), small))
        causal = example("causal")
        seed = torch.tensor([7, 0])
        for call, message in (
            (lambda: causal(q, k, v, seed=7), "causal: seed: the spec draws no random numbers: leave it out"),
            (lambda: dropped(*tensors), "seed: is missing: the spec drops weights at random"),
            (lambda: dropped(q, k, v, seed=seed.int()), "seed: is torch.int32 .2,., expected int64"),
            (lambda: dropped(q, k, v, seed=torch.arange(3)), "seed: is torch.int64 .3,., expected int64"),
            (lambda: dropped(q, k, v, seed=torch.arange(4)[::2]), "seed: .*side by side"),
            (lambda: forward_op(dropped.text, q, k, v, [], [], None, 0.0), "seed: is missing"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()
        plain = [t.detach() for t in (q, k, v)]
        torch.library.opcheck(forward_op, (dropped.text, *plain, [], [], None, 0.0), {"seed": seed})

    def test_a_number_as_an_input(self):
        scaled = luattn.attention(
            "return attention { inputs = { t = { axes = {}, grad = true }, n = { axes = {}, dtype = 'i32' } }, "
            "score_mod = function(s) return s * t + n end }"
        )
        (q, k, v), _ = problem(scaled, dtype=torch.float32)
        want = scaled(q, k, v, t=torch.tensor(0.5), n=torch.tensor(3, dtype=torch.int32))
        torch.testing.assert_close(scaled(q, k, v, t=0.5, n=3), want, atol=0, rtol=0)
        with self.assertRaisesRegex(luattn.InvalidError, "sigmoid: input 'bias' is the number 2, expected a tensor"):
            example("sigmoid")(q, k, v, bias=2)

    def test_types_of_inputs(self):
        document = example("document")
        (q, k, v), inputs = problem(document, n=6)
        wide = luattn.attention(document.text.replace('"i32"', '"i64"'))
        torch.testing.assert_close(
            document(q, k, v, **inputs), wide(q, k, v, **{n: t.long() for n, t in inputs.items()})
        )
        flags = luattn.attention("return attention { inputs = { f = { axes = {'kv'}, dtype = 'bool' } }, "
                                 "block_mask = function(b, h, i, j) return f[j] end }")  # fmt: skip
        f = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
        torch.testing.assert_close(flags(q, k, v, f=f), flags(q, k[:, :, f], v[:, :, f], f=f[f]))

    def test_inputs_without_a_dtype(self):
        """They have the type of the tensor that comes, with its gradient, in every method; float32 stays what the spec says."""
        spec = "return attention { name = 'x', inputs = { bias = { axes = {'h', 'q'}%s, grad = true }, n = { axes = {'b'}, dtype = 'i32' } }, score_mod = function(s, b, h, q)" \
               " return s + bias[{h, q}] end, mask_mod = function(b, h, q, kv) return kv <= n[b] end }"  # fmt: skip
        free, said, single = (luattn.attention(spec % dtype) for dtype in ("", ", dtype = 'any'", ", dtype = 'f32'"))
        self.assertEqual((free.inputs["bias"].dtype, free.text), ("float32", spec % ""))
        n, batch = torch.tensor([2, 3], dtype=torch.int32), luattn.Batch()
        for of_q in (torch.float64, torch.float32, torch.bfloat16):
            for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                q, k, v = (rand(2, 2, 4, 8, dtype=of_q) for _ in "qkv")
                bias = rand(2, 4, dtype=dtype)
                batch.prepare(free, q, k, bias=bias, n=n)
                calls = [lambda f: (f(q, k, v, bias=bias, n=n, batch=batch),)] * 2 + [lambda f: f(q, k, v, bias=bias, n=n, return_lse=True, scale=-0.5)]  # noqa: B023
                calls += [lambda f: (torch.compile(lambda bias: f(q, k, v, bias=bias, n=n), fullgraph=True, backend="aot_eager")(bias),)]  # noqa: B023
                for call in calls[: 4 if of_q == torch.float64 else 3]:
                    got, want = call(free), call(said)
                    for a, b in zip(got, want):
                        self.assertTrue(torch.equal(a, b))
                    for a, b in zip(grads(lambda: got, (q, bias)), grads(lambda: want, (q, bias))):  # noqa: B023
                        self.assertEqual(a.dtype, b.dtype)
                        self.assertTrue(torch.equal(a, b))
                self.assertIn("in double precision", free.plan(q, k, v, bias=bias, n=n))
                if dtype != torch.float32:
                    with self.assertRaisesRegex(luattn.InvalidError, "input 'bias': has dtype .*, expected float32"):
                        single(q, k, v, bias=bias, n=n)
        q, k, v = (torch.randn(2, 2, 4, 8, dtype=torch.float64) for _ in "qkv")
        bias = torch.randn(2, 4, dtype=torch.float64)
        array = free(*(t.numpy() for t in (q, k, v)), bias=bias.numpy(), n=n.numpy())
        self.assertTrue(torch.equal(torch.from_numpy(array), free(q, k, v, bias=bias, n=n)))
        parts = [free(q, k, v, bias=bias, n=n, return_state=True)]
        torch.testing.assert_close(free.merge(*zip(*parts))[0], parts[0][0])
        torch.testing.assert_close(free.gradients(q, q, k, v, *parts[0][:2], bias=bias, n=n)[0], said.gradients(q, q, k, v, *parts[0][:2], bias=bias, n=n)[0])
        with self.assertRaisesRegex(luattn.InvalidError, "input 'bias': has dtype int32, expected float32"):
            free(q, k, v, bias=bias.int(), n=n)
        with self.assertRaisesRegex(luattn.InvalidError, "input 'n': has dtype float64, expected int32"):
            free(q, k, v, bias=bias, n=n.double())

    def test_autocast(self):
        gemma2 = example("gemma2")
        qkv, _ = problem(gemma2, d=8, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = gemma2(*qkv)
        self.assertEqual(o.dtype, torch.bfloat16)
        o.sum().backward()
        self.assertEqual({t.grad.dtype for t in qkv}, {torch.float32})

    def test_what_the_dispatcher_has_to_see(self):
        """A call goes past the dispatcher where nothing is there to ask: not with a lazy negation, a mode or a subclass."""
        gemma2 = example("gemma2")
        (q, k, v), _ = problem(gemma2)
        want = gemma2(-q, k, v)
        torch.testing.assert_close(gemma2(torch._neg_view(q.detach()), k, v), want, atol=0, rtol=0)

        class Seen(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                ops.append(str(func))
                return func(*args, **(kwargs or {}))

        class Subclass(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                ops.append(str(func))
                return super().__torch_function__(func, types, args, kwargs or {})

        for grad in (True, False):
            ops = []
            with Seen(), torch.set_grad_enabled(grad):
                gemma2(-q, k, v)
            self.assertIn("luattn.forward.default", ops)
        ops = []
        gemma2(q.detach().as_subclass(Subclass), k, v)
        self.assertIn("luattn.forward.default", ops)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = gemma2(*(mode.from_tensor(t) for t in (q, k, v)))
        self.assertEqual(
            (type(fake).__name__, fake.shape, fake.stride()), ("FakeTensor", want.shape, want.stride())
        )

    def test_results_lie_as_fake_ones(self):
        """Eager calls allocate past the dispatcher, in remembered layouts."""
        causal, x = example("causal"), torch.randn(3, 40, 6, 16)
        packed = x.flatten(0, 1)[:, :, :8]
        for q in (
            x, x.transpose(1, 2), x[:, ::2], x[..., ::2], x[:1].expand(2, -1, -1, -1), x[:1, :0], x.transpose(0, 3), packed,
            x.double(), x.bfloat16().requires_grad_(), x.half().transpose(1, 2)[:, :, 3:],
        ):  # fmt: skip
            v = q[..., : q.shape[-1] // 2]
            for want_lse in (True, False):
                args, grads = (causal._spec, q, v, want_lse), (causal._spec, q, v, v, (), 7, ())
                want = *_allocate.fake_results(*args), *_allocate.fake_gradients(*grads)[:3]
                found = [(*_tensors.results(*args), *_tensors.gradients(*grads)[:3]) for again in range(2)]
                with mock.patch.dict(_allocate._NEW, clear=True):
                    found.append((*_tensors.results(*args), *_tensors.gradients(*grads)[:3]))
                for a, b in itertools.chain(*(zip(one, want) for one in found)):
                    self.assertEqual(a is None, b is None)
                    if a is not None:
                        self.assertEqual((a.shape, a.stride(), a.dtype), (b.shape, b.stride(), b.dtype))
                        self.assertEqual((type(a), a.device, a.requires_grad), (torch.Tensor, b.device, False))
        self.assertEqual(_tensors.gradients(causal._spec, q, q, q, (), 2, ())[0::2], (None, None, ()))

    def test_tensors_of_several_devices(self):
        causal, (q, k, v) = example("causal"), (torch.randn(1, 1, 4, 8) for _ in "qkv")
        for grad in (False, True):
            with self.assertRaisesRegex(RuntimeError, "meta"):
                causal(q.requires_grad_(grad), k.to("meta"), v)

    def test_without_the_exchange_api(self):
        gemma2 = example("t5_relative_bias")
        qkv, inputs = problem(gemma2)
        want = gemma2(*qkv, **inputs)
        fast, _tensors.fill = _tensors.fill, _tensors._fill_slowly
        try:
            torch.testing.assert_close(gemma2(*qkv, **inputs), want, atol=0, rtol=0)
        finally:
            _tensors.fill = fast


if __name__ == "__main__":
    unittest.main()
