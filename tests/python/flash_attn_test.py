"""flash_attn_test.py: luattn.flash_attn beside plain formulas of torch, per sequence, on the CPU: results, lse, gradients; and what is refused.
Exits with 77 without torch."""

import inspect
import sys
import unittest
import unittest.mock

from with_torch import ROOT, torch  # exits without torch, so first

import torch.utils.checkpoint
from torch.nn.functional import scaled_dot_product_attention as sdpa

import luattn
from luattn.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    varlen_attn,
)

# Keyword arguments of flash_attn_func. The last window is wider than all sequences.
CASES = (
    {},
    {"causal": True},
    {"window_size": (3, 2)},
    {"window_size": (3, -1)},
    {"window_size": (4, 2), "causal": True},
    {"window_size": (100, 100)},
    {"softcap": 1.5, "causal": True, "softmax_scale": 0.7},
    {"alibi_slopes": 1, "causal": True},
    {"alibi_slopes": 2, "window_size": (5, 5), "softcap": 2.0},
)


P = 44 / 256  # what dropout_p = 0.17 counts as


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def reference(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, weights=None):
    """o and lse of one sequence, [length, heads, d]; alibi_slopes: [heads]. A row that keeps nothing is 0, and -inf.

    weights: [heads, queries, keys], checked, and dropped where they are negative, at the rate P.
    """
    (n, heads, d), (m, heads_kv, _) = q.shape, k.shape
    q, k, v = q.transpose(0, 1), *(t.transpose(0, 1).repeat_interleave(heads // heads_kv, 0) for t in (k, v))
    s = q @ k.transpose(1, 2) * (d**-0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        s = softcap * (s / softcap).tanh()
    distance = torch.arange(n)[:, None] + m - n - torch.arange(m)
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * distance.abs()
    left, right = window_size
    keep = torch.ones(n, m, dtype=torch.bool)
    if left >= 0:
        keep &= distance <= left
    if causal or right >= 0:
        keep &= distance >= (0 if causal else -right)
    rows = keep.any(1)
    o, lse = torch.zeros_like(q), q.new_full((heads, n), -torch.inf)
    if rows.any():
        kept = s[:, rows].masked_fill(~keep[rows], -torch.inf)
        o, lse = o.clone(), lse.clone()
        p = kept.softmax(-1)
        if weights is not None:
            torch.testing.assert_close(weights[:, rows].abs(), p)
            p = torch.where(weights[:, rows] < 0, 0.0, p) / (1 - P)
        o[:, rows] = p @ v
        lse[:, rows] = kept.logsumexp(-1)
    return o.transpose(0, 1), lse


def slopes_of(case, batch, heads):
    """The case, with slopes for its number of axes."""
    axes = case.get("alibi_slopes")
    return case if axes is None else {**case, "alibi_slopes": torch.rand(*(batch, heads)[2 - axes :], dtype=torch.float64, requires_grad=True)}


def slope(case, i):
    given = case.get("alibi_slopes")
    return case if given is None or given.dim() == 1 else {**case, "alibi_slopes": given[i]}


def total(o, lse):
    """A number that o and lse have gradients from."""
    return (o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)).sum() + lse[lse.isfinite()].square().sum()


class Functions(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)

    def same(self, found, want, tensors):
        for a, b in zip(found, want):
            torch.testing.assert_close(a, b)
        for a, b in zip(*(torch.autograd.grad(total(*x), tensors, retain_graph=True) for x in (found, want))):
            torch.testing.assert_close(a, b)

    def test_the_reference_beside_sdpa(self):
        q, k, v = rand(7, 4, 8), rand(7, 2, 8), rand(7, 2, 8)
        want = sdpa(*(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True, enable_gqa=True)
        torch.testing.assert_close(reference(q, k, v, causal=True)[0], want[0].transpose(0, 1))

    def test_dense(self):
        for n, m in ((9, 9), (6, 13), (13, 6)):
            for case in CASES:
                with self.subTest(f"{n} {m} {case}"):
                    given = slopes_of(case, 2, 4)
                    q, k, v = rand(2, n, 4, 8), rand(2, m, 2, 8), rand(2, m, 2, 8)
                    tensors = [q, k, v, *(x for x in given.values() if isinstance(x, torch.Tensor))]
                    parts = [reference(q[i], k[i], v[i], **slope(given, i)) for i in range(2)]
                    want = [torch.stack(x) for x in zip(*parts)]
                    o, lse, dmask = flash_attn_func(q, k, v, **given, return_attn_probs=True)
                    self.assertIsNone(dmask)
                    self.same((o, lse), want, tensors)
                    torch.testing.assert_close(flash_attn_func(q, k, v, **given), o, atol=0, rtol=0)
                    kv = torch.stack([k, v], 2)
                    self.same(flash_attn_kvpacked_func(q, kv, **given, return_attn_probs=True)[:2], want, tensors)

    def test_varlen(self):
        """Sequences without queries, without keys, and with more queries than keys."""
        lengths_q, lengths_k = (5, 0, 7, 3, 4), (8, 4, 2, 0, 4)
        cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (lengths_q, lengths_k))
        for case in CASES:
            with self.subTest(str(case)):
                given = slopes_of(case, 5, 4)
                q, k, v = rand(19, 4, 8), rand(18, 2, 8), rand(18, 2, 8)
                tensors = [q, k, v, *(x for x in given.values() if isinstance(x, torch.Tensor))]
                parts = [
                    reference(q[cu_q[i] : cu_q[i + 1]], *(t[cu_k[i] : cu_k[i + 1]] for t in (k, v)), **slope(given, i))
                    for i in range(5)
                ]
                want = torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)
                packed = (cu_q, cu_k, 7, 8)
                self.same(flash_attn_varlen_func(q, k, v, *packed, **given, return_attn_probs=True)[:2], want, tensors)
                kv = torch.stack([k, v], 1)
                found = flash_attn_varlen_kvpacked_func(q, kv, *packed, **given, return_attn_probs=True)
                self.assertIsNone(found[2])
                self.same(found[:2], want, tensors)

    def test_qkvpacked(self):
        for case in CASES:
            with self.subTest(str(case)):
                given, qkv = slopes_of(case, 2, 4), rand(2, 9, 3, 4, 8)
                want = flash_attn_func(*qkv.unbind(2), **given, return_attn_probs=True)[:2]
                found = flash_attn_qkvpacked_func(qkv, **given, return_attn_probs=True)[:2]
                self.same(found, want, [qkv])
                self.assertTrue(found[0].is_contiguous())
                cu = torch.tensor([0, 9, 18], dtype=torch.int32)
                o, lse, _ = flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), cu, 9, **given, return_attn_probs=True)
                self.same((o.view(2, 9, 4, 8), lse.view(4, 2, 9).transpose(0, 1)), want, [qkv])

    def test_dropout(self):
        """Beside the formulas with the same weights dropped, which S_dmask tells; and how many these are."""
        lengths_q, lengths_k = (35, 0, 47, 3, 64), (38, 4, 42, 0, 64)
        cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (lengths_q, lengths_k))
        dropped = kept = 0
        for case in CASES:
            with self.subTest(str(case)):
                given = slopes_of(case, 5, 4)
                q, k, v = rand(149, 4, 8), rand(148, 2, 8), rand(148, 2, 8)
                tensors = [q, k, v, *(x for x in given.values() if isinstance(x, torch.Tensor))]
                o, lse, weights = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 64, 64, 0.17, **given, return_attn_probs=True)
                self.assertEqual(weights.shape, (5, 4, 64, 64))
                parts = [
                    reference(q[i:j], k[m:n], v[m:n], **slope(given, x), weights=weights[x, :, : j - i, : n - m])
                    for x, (i, j, m, n) in enumerate(zip(cu_q, cu_q[1:], cu_k, cu_k[1:]))
                ]
                want = torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)
                self.same((o, lse), want, tensors)
                dropped, kept = dropped + (weights < 0).sum().item(), kept + (weights > 0).sum().item()
                # The same numbers in a batch of equal lengths, and none of them twice.
                given = {name: x if not isinstance(x, torch.Tensor) or x.dim() == 1 else x[4:] for name, x in given.items()}
                one = [t[None, -64:] for t in (q, k, v)]
                results = []
                for _ in range(2):
                    torch.manual_seed(7)
                    results.append(flash_attn_func(*one, 0.17, **given, return_attn_probs=True))
                    results.append(flash_attn_func(*one, 0.17, **given, return_attn_probs=True))
                self.assertTrue(torch.equal(results[0][2], results[2][2]) and torch.equal(results[0][0], results[2][0]))
                self.assertFalse(torch.equal(results[0][2], results[1][2]))
                o, lse, weights = results[0]
                want = reference(*(t[0] for t in one), **slope(given, 0), weights=weights[0])
                self.same((o[0], lse[0]), want, tensors)
        n = dropped + kept
        self.assertLess(abs(dropped - n * P), 5 * (n * P * (1 - P)) ** 0.5)

    def test_dropped_weights_in_a_graph(self):
        q, k, v = (rand(2, n, h, 8).requires_grad_() for n, h in ((9, 4), (11, 2), (11, 2)))
        packed = [torch.tensor([0, 3, 9], dtype=torch.int32), torch.tensor([0, 3, 11], dtype=torch.int32), 6, 8]
        dense = lambda q, k, v: flash_attn_func(q, k, v, 0.3, causal=True, return_attn_probs=True)  # noqa: E731
        varlen = lambda q, k, v: flash_attn_varlen_func(*(t[0] for t in (q, k, v)), *packed, 0.3, return_attn_probs=True)  # noqa: E731
        for f, shape in ((dense, (2, 4, 9, 11)), (varlen, (2, 4, 6, 8))):
            results = []
            for run in (f, torch.compile(f, backend="eager", fullgraph=True)):
                torch.manual_seed(3)
                results.append(run(q, k, v))
            self.assertEqual(results[0][2].shape, shape)
            self.assertFalse(results[0][2].requires_grad)
            for a, b in zip(*results):
                torch.testing.assert_close(a, b, atol=0, rtol=0)

    def test_dropout_where_forward_runs_again(self):
        """Under checkpointing, and in torch.compile."""
        q, k, v = (rand(2, 40, 2, 8) for _ in "qkv")
        f = lambda *qkv: flash_attn_func(*qkv, 0.3)  # noqa: E731
        checkpointed = lambda *qkv: torch.utils.checkpoint.checkpoint(f, *qkv, use_reentrant=False)  # noqa: E731
        torch._dynamo.reset()
        for g in (checkpointed, torch.compile(f, fullgraph=True, backend="aot_eager")):
            # v has a weight of its own in each result, and its gradient the same one.
            o = g(q, k, v)
            (dv,) = torch.autograd.grad(o, v, o.detach())
            torch.testing.assert_close((dv * v).sum(), o.square().sum())

    def test_varlen_attn(self):
        cu = torch.tensor([0, 3, 8], dtype=torch.int32)
        q, k, v = rand(8, 4, 8), rand(8, 2, 8), rand(8, 2, 8)
        for window, case in (((-1, -1), {}), ((-1, 0), {"causal": True}), ((2, 0), {"causal": True, "window_size": (2, 0)})):
            aux = type("AuxRequest", (), {"lse": True})()
            found = varlen_attn(q, k, v, cu, cu, 5, 5, window_size=window, enable_gqa=True, return_aux=aux, scale=0.4)
            self.same(found, flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, softmax_scale=0.4, **case, return_attn_probs=True)[:2], [q, k, v])
            torch.testing.assert_close(varlen_attn(q, k, v, cu, cu, 5, 5, window_size=window, enable_gqa=True, scale=0.4), found[0])
        used = torch.tensor([2, 5], dtype=torch.int32)
        o = varlen_attn(q, k, v, cu, cu, 5, 5, enable_gqa=True, seqused_k=used)
        torch.testing.assert_close(o[:3], reference(q[:3], k[:2], v[:2])[0])
        torch.testing.assert_close(o[3:], reference(q[3:], k[3:], v[3:])[0])
        try:
            from torch.nn.attention import varlen
        except ImportError:
            return
        ours = inspect.signature(varlen_attn).parameters
        for name, parameter in inspect.signature(varlen.varlen_attn).parameters.items():
            self.assertEqual((ours[name].kind, ours[name].default), (parameter.kind, parameter.default), name)

    def test_sinks(self):
        """s_aux and learnable_sink: a logit of each head, as one more key without a value, in every function, with its gradient."""

        def with_sinks(q, k, v, sinks, **options):
            o, lse = reference(q, k, v, **options)
            of_row = torch.logaddexp(lse, sinks[:, None])
            return o * (lse - of_row).exp().T[..., None], of_row

        for options in ({}, {"causal": True, "softcap": 2.0}, {"window_size": (2, 1)}):
            q, k, v, sinks = rand(2, 7, 4, 8), rand(2, 9, 2, 8), rand(2, 9, 2, 8), rand(4)
            want = [with_sinks(q[b], k[b], v[b], sinks, **options) for b in range(2)]
            want_o, want_lse = (torch.stack(x) for x in zip(*want))
            want_grads = torch.autograd.grad((want_o.square().sum() + want_lse.sum()), (q, k, v, sinks))
            cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (7, 9))
            rows = [t.flatten(0, 1) for t in (q, k, v)]
            for name in ("s_aux", "learnable_sink"):
                given = {name: sinks, "return_attn_probs": True, **options}
                o, lse, _ = flash_attn_func(q, k, v, **given)
                packed, packed_lse, _ = flash_attn_varlen_func(*rows, cu_q, cu_k, 7, 9, **given)
                of_kv = flash_attn_varlen_kvpacked_func(rows[0], torch.stack(rows[1:], 1), cu_q, cu_k, 7, 9, **given)[0]
                for got in (o, packed.unflatten(0, (2, 7)), flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **given)[0], of_kv.unflatten(0, (2, 7))):
                    torch.testing.assert_close(got, want_o)
                for got in (lse, packed_lse.unflatten(1, (2, 7)).transpose(0, 1)):
                    torch.testing.assert_close(got, want_lse)
                for got, expected in zip(torch.autograd.grad((o.square().sum() + lse.sum()), (q, k, v, sinks)), want_grads):
                    torch.testing.assert_close(got, expected)
            with torch.no_grad():
                used = torch.full((2,), 9, dtype=torch.int32)
                for _ in range(2):
                    o, lse = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, s_aux=sinks, return_softmax_lse=True, **options)
                    torch.testing.assert_close(o, want_o)
                    torch.testing.assert_close(lse, want_lse)
                other = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, **options)
                torch.testing.assert_close(other, torch.stack([reference(q[b], k[b], v[b], **options)[0] for b in range(2)]))
        q, k, v = (rand(1, 5, 2, 8).detach().bfloat16() for _ in "qkv")
        o = flash_attn_func(q, k, v, s_aux=torch.tensor([0.5, -1], dtype=torch.bfloat16))  # of q's type, as theirs
        want = with_sinks(*(t[0].double() for t in (q, k, v)), torch.tensor([0.5, -1]).double())[0]
        torch.testing.assert_close(o[0].double(), want, atol=1e-2, rtol=1e-2)
        dropped, _, weights = flash_attn_func(q, k, v, dropout_p=0.5, s_aux=torch.zeros(2), return_attn_probs=True)
        self.assertTrue(torch.isfinite(dropped).all() and (weights < 0).any())
        for given, message in (
            ({"s_aux": torch.zeros(2), "learnable_sink": torch.zeros(2)}, "flash_attn_func: learnable_sink: is s_aux's other name, and both are given"),
            ({"s_aux": torch.zeros(2, 1)}, r"flash_attn_func: s_aux: has 2 axes, expected \(nheads\)"),
            ({"learnable_sink": 1.0}, "flash_attn_func: learnable_sink: is 1.0, expected a tensor of torch"),
            ({"s_aux": torch.zeros(3)}, "input 'sinks': axis 0 .* has size 3, expected 2"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                flash_attn_func(q, k, v, **given)

    def test_head_dims(self):
        """Half precision is padded to a multiple of 8, as theirs."""
        for d in (5, 8, 12):
            q, k, v = (rand(1, 9, 2, d).detach().to(torch.bfloat16).requires_grad_() for _ in "qkv")
            o = flash_attn_func(q, k, v, causal=True)
            want = reference(*(t[0].double() for t in (q, k, v)), causal=True)[0]
            torch.testing.assert_close(o[0].double(), want, atol=1e-2, rtol=1e-2)
            grads = torch.autograd.grad(o.float().square().sum(), (q, k, v))
            for a, b in zip(grads, torch.autograd.grad(want.square().sum(), (q, k, v))):
                torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)

    def test_deterministic(self):
        """Reaches both passes, of packed sequences too, and through torch.compile."""
        asked = []
        cu = torch.tensor([0, 3, 8], dtype=torch.int32)

        def run(frame, q, given):
            asked.append(bool(given.get("deterministic")))
            real(frame, q, given)

        real = luattn._tensors.run
        dense = lambda q, k, v: flash_attn_func(q[None], k[None], v[None], deterministic=True)  # noqa: E731
        packed = lambda q, k, v: flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, deterministic=True)  # noqa: E731
        plain = lambda q, k, v: flash_attn_func(q[None], k[None], v[None])  # noqa: E731
        for f, want in ((dense, True), (packed, True), (plain, False)):
            for g in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
                torch._dynamo.reset()
                q, k, v = (rand(8, 2, 8) for _ in "qkv")
                with unittest.mock.patch.object(luattn._tensors, "run", run):
                    g(q, k, v).sum().backward()
                self.assertEqual(asked, [want, want])
                asked.clear()

    def test_compile(self):
        cu = torch.tensor([0, 3, 8], dtype=torch.int32)
        slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)

        def f(q, k, v):
            q = flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, causal=True, window_size=(3, 0))
            return flash_attn_func(q[None], k[None], v[None], alibi_slopes=slopes, softcap=3.0)

        torch._dynamo.reset()
        run = torch.compile(f, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            q, k, v = (rand(8, 2, 8) for _ in "qkv")
            a, b = (torch.autograd.grad(g(q, k, v).square().sum(), (q, k, v, slopes)) for g in (f, run))
            for x, y in zip(a, b):
                torch.testing.assert_close(x, y)

    def test_the_example(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        import packed

        for dropout in (0.0, 0.3):
            o, grads, _ = packed.compare("cpu", torch.float64, [9, 1, 5], 16, 2, dropout)
            self.assertLess(o, 1e-6)
            self.assertLess(grads, 1e-6)

    def test_refusals(self):
        q = rand(1, 8, 2, 8)
        cu = torch.tensor([0, 8], dtype=torch.int32)
        p = q[0]
        for call, message in (
            (lambda: flash_attn_func(q, q, q, 1.0), "flash_attn_func: dropout_p: is 1.0, expected a number of at least 0 and below 1"),
            (lambda: flash_attn_func(q, q, q, 1e-4), "dropout: p is 0.0001, which rounds to 0 in steps of 1/256"),
            (lambda: flash_attn_varlen_func(p, p, p, cu, cu, 8, 8, block_table=cu[None]), r"k: has 3 axes, expected \(blocks, size,"),
            (lambda: flash_attn_func(p, q, q), r"flash_attn_func: q: has 3 axes, expected \(batch_size, seqlen, nheads, headdim\)"),
            (lambda: flash_attn_varlen_func(p, q, q, cu, cu, 8, 8), r"flash_attn_varlen_func: k: has 4 axes, expected \(total,"),
            (lambda: flash_attn_func(q, q, q, softmax_scale=torch.nan), "softmax_scale: is nan"),
            (lambda: flash_attn_func(q, q, q, softcap=torch.nan), "softcap: is nan, expected 1.17549e-38 to 1.70141e.38, or 0 for no cap"),
            (lambda: flash_attn_func(q, q, q, softcap=1e50), "softcap: is 1e.50"),
            (lambda: flash_attn_func(q, q, q, softcap=torch.tensor(2.0, requires_grad=True)), "softcap: requires a gradient"),
            (lambda: flash_attn_func(q, q, q, window_size=(2.5, 0)), "window_size: is \\(2.5, .*\\), expected two integers"),
            (lambda: flash_attn_func(q, q, q, alibi_slopes=q), r"alibi_slopes: has 4 axes, expected \(nheads\) or"),
            (lambda: flash_attn_func(q, q, q, alibi_slopes=torch.rand(3)), "input .alibi_slopes.: axis 0 .h. has size 3, expected 2"),
            (lambda: flash_attn_qkvpacked_func(q), r"flash_attn_qkvpacked_func: qkv: is \(1, 8, 2, 8\), expected 3"),
            (lambda: flash_attn_kvpacked_func(q, q[0, 0]), r"flash_attn_kvpacked_func: kv: is \(2, 8\), expected 2"),
            (lambda: flash_attn_varlen_func(p, p, p, cu, cu, 7, 8), "max_seqlen_q: is 7, and the longest"),
            (lambda: flash_attn_varlen_func(p, p, p, cu.long(), cu, 8, 8), "cu_seqlens_q: .*int32"),
            (lambda: varlen_attn(p, p, p, cu, None, 8, 8), "varlen_attn: cu_seq_k: is None"),
            (lambda: varlen_attn(p, p[:, :1], p[:, :1], cu, cu, 8, 8), "query has 2 heads and key 1: set enable_gqa=True"),
            (lambda: varlen_attn(p, p, p, cu, cu, 8, 8, block_table=cu[None]), r"varlen_attn: k: has 3 axes, expected \(blocks, size,"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                call()


if __name__ == "__main__":
    unittest.main()
