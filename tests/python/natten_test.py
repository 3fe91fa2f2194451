"""natten_test.py: luattn.natten beside sums over windows that are written out, on the CPU: windows, strides, dilation, causality, heads and head dims that differ,
lse, additional keys, relative position bias, modules, torch.compile, and what is refused. Exits with 77 without torch."""

import inspect
import math
import random
import unittest
import unittest.mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import natten
from luattn._call import Frame


def kept(n, k, s, d, causal):
    """[i, j]: whether i sees j, one by one."""
    keep = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        group, p = i % d, i // d
        m = -(-(n - group) // d)
        if causal:
            leader = min(s * (p // s) + s - 1, m - 1)
            first, end = max(leader - k + 1, 0), p + 1
        else:
            leader = min(s * (p // s) + s // 2, m - 1)
            first = min(max(leader - k // 2, 0), m - k)
            end = first + k
        for j in range(first, end):
            keep[i, j * d + group] = True
    return keep


def plain(q, k, v, window, scale=None, more=None, rpb=None):
    """o and lse, heads last, by all scores."""
    extents, rank = q.shape[1:-2], q.dim() - 3
    keep = torch.ones(1, 1, dtype=torch.bool)
    for axis in zip(extents, *window):
        one = kept(*axis)
        keep = (keep[:, None, :, None] & one[None, :, None, :]).reshape(keep.shape[0] * one.shape[0], -1)
    q, k, v = (t.flatten(1, rank) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    if rpb is not None:
        places = torch.cartesian_prod(*(torch.arange(n) for n in extents)).reshape(-1, rank)
        at = (places[None] - places[:, None]) // torch.tensor(window[2]) + torch.tensor(window[0]) - 1
        at = at.clamp(min=0).minimum(2 * torch.tensor(window[0]) - 2)
        s = s + rpb[:, *at.unbind(-1)]
    s = s.masked_fill(~keep, -torch.inf)
    if more is not None:
        k, w = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in more)
        s = torch.cat([s, torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)], -1)
        v = torch.cat([v, w], 1)
    o = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)
    return o.unflatten(1, extents), s.logsumexp(-1).transpose(1, 2).unflatten(1, extents)


def by_taps(q, k, v, window, more=None, rpb=None):
    """The same in two steps, of heads first, and the weights between them."""
    rank, options = q.dim() - 3, {"dilation": tuple(window[2]), "is_causal": tuple(window[3])}
    first = [t.movedim(-2, 1) for t in (q * q.shape[-1] ** -0.5, k, v)]
    keys, values = (None, None) if more is None else (t.transpose(1, 2) for t in more)
    attn = getattr(natten, f"na{rank}d_qk")(*first[:2], tuple(window[0]), additional_keys=keys, rpb=rpb, **options).softmax(-1)
    return getattr(natten, f"na{rank}d_av")(attn, first[2], tuple(window[0]), additional_values=values, **options).movedim(1, -2)


def tensors(extents, heads=4, heads_kv=2, d=8, dv=6, dtype=torch.float64):
    return [torch.randn(2, *extents, *shape, dtype=dtype, requires_grad=True) for shape in ((heads, d), (heads_kv, d), (heads_kv, dv))]


def same(test, made, given, want, learned):
    torch.testing.assert_close(made, want)
    douts = [torch.randn_like(t) for t in made]
    for mine, theirs in zip(torch.autograd.grad(made, learned, douts), torch.autograd.grad(want, learned, douts)):
        torch.testing.assert_close(mine, theirs)


class Natten(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def test_windows(self):
        draw = random.Random(8)
        for _ in range(24):
            rank = draw.randint(1, 3)
            dilation = [draw.randint(1, 2) for _ in range(rank)]
            kernel = [draw.randint(2, 4) for _ in range(rank)]
            window = kernel, [draw.randint(1, k) for k in kernel], dilation, [draw.random() < 0.4 for _ in range(rank)]
            extents = [k * d + draw.randint(0, 3) for k, d in zip(kernel, dilation)]
            with self.subTest(extents=extents, window=window):
                given = tensors(extents)
                made = getattr(natten, f"na{rank}d")(*given, *map(tuple, window), return_lse=True)
                same(self, made, given, plain(*given, window), given)

    def test_whole_windows_are_attention(self):
        for extents, causal, stride in (((5, 6), False, 3), ((7,), True, 2), ((3, 2, 4), False, 1), ((5, 6), (True, False), 1)):
            given = tensors(extents)
            window = extents, [stride] * len(extents), [1] * len(extents), causal if isinstance(causal, tuple) else [causal] * len(extents)
            made = natten.neighborhood_attention_generic(*given, extents, stride, 1, causal, return_lse=True)
            same(self, made, given, plain(*given, window), given)

    def test_additional_keys(self):
        for extents, kernel, causal in (((9,), (3,), (True,)), ((5, 6), (3, 4), (False, True)), ((5, 6), (5, 6), (False, False)), ((3, 4, 4), (2, 2, 3), (False,) * 3)):
            n = len(extents)
            given = tensors(extents)
            more = [torch.randn(2, 5, 2, d, dtype=torch.float64, requires_grad=True) for d in (8, 6)]
            options = {"additional_keys": more[0], "additional_values": more[1], "attention_kwargs": {"backend": "cutlass-fmha"}}
            made = natten.neighborhood_attention_generic(*given, kernel, is_causal=causal, **options, return_lse=True)
            same(self, made, given, plain(*given, (kernel, [1] * n, [1] * n, causal), more=more), [*given, *more])

    def test_relative_position_bias(self):
        for extents, kernel, dilation, causal in (((9,), (3,), (2,), (False,)), ((7, 9), (3, 5), (2, 1), (False, True)), ((3, 4, 4), (2, 3, 3), (1, 1, 1), (True, False, False))):
            given = tensors(extents)
            rpb = torch.randn(4, *(2 * k - 1 for k in kernel), dtype=torch.float64, requires_grad=True)
            made = natten.neighborhood_attention_generic(*given, kernel, 1, dilation, causal, 0.3, return_lse=True, rpb=rpb)
            same(self, made, given, plain(*given, (kernel, [1] * len(kernel), dilation, causal), 0.3, rpb=rpb), [*given, rpb])
        whole = natten.na1d(*tensors((5,)), 5, rpb=torch.zeros(4, 9, dtype=torch.float64))  # which keeps all, and has its bias
        self.assertEqual(whole.shape, (2, 5, 4, 6))

    def test_scale(self):
        given = tensors((6, 7))
        window = (3, 3), (1, 1), (1, 1), (False, False)
        for scale in (None, 0, 0.0, 0.25, -0.5):
            torch.testing.assert_close(natten.na2d(*given, 3, scale=scale), plain(*given, window, scale)[0])
        scale = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        same(self, [natten.na2d(*given, 3, scale=scale)], given, [plain(*given, window, scale)[0]], [*given, scale])

    def test_memory(self):
        """Slices of one packed tensor are read where they are, and o lies heads last."""
        packed = torch.randn(2, 5, 6, 3, 4, 16, dtype=torch.float32)
        q, k, v = packed.unbind(3)
        made = natten.na2d(q, k, v, 3)
        self.assertTrue(made.is_contiguous())
        torch.testing.assert_close(made, natten.na2d(*(t.contiguous() for t in (q, k, v)), 3))
        half = natten.na2d(*(t.bfloat16() for t in (q, k, v)), 3)
        torch.testing.assert_close(half.float(), made, atol=0.03, rtol=0.03)

    def test_attention(self):
        q, k, v = tensors((7,))
        torch.testing.assert_close(natten.attention(q, k, v), plain(q, k, v, ((7,), (1,), (1,), (False,)))[0])
        more = tensors((9,))[1:]
        o, lse = natten.attention(q, *more, is_causal=True, return_lse=True)  # the first query sees the first key
        k, v = (t[:, :7] for t in more)
        same(self, (o, lse), None, plain(q, k, v, ((7,), (1,), (1,), (True,))), [q, *more])

    def test_packed_lengths(self):
        q, k, v = (torch.randn(1, n, 4, 8) for n in (12, 13, 13))
        q_lengths, k_lengths = torch.tensor([5, 7]), torch.tensor([9, 4])
        cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 12], [0, 9, 13]))
        for causal in (False, True):
            o, lse = natten.attention(q, k, v, causal, seqlens_Q=q_lengths, seqlens_KV=k_lengths, return_lse=True)
            again = natten.attention(q, k, v, causal, cumulative_seqlen_Q=cu_q, cumulative_seqlen_KV=cu_k, max_seqlen_Q=7, max_seqlen_KV=9)
            self.assertTrue(torch.equal(o, again))
            parts = [natten.attention(q[:, a:b], k[:, c:d], v[:, c:d], causal, return_lse=True) for a, b, c, d in ((0, 5, 0, 9), (5, 12, 9, 13))]
            torch.testing.assert_close((o, lse), tuple(torch.cat(x, 1) for x in zip(*parts)))

    def test_longest_as_tensors(self):
        q = torch.randn(1, 10, 2, 8)
        at, six = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor(6)
        lengths = {"cumulative_seqlen_Q": at, "cumulative_seqlen_KV": at}
        made = natten.attention(q, q, q, **lengths, max_seqlen_Q=six, max_seqlen_KV=six)
        self.assertTrue(torch.equal(made, natten.attention(q, q, q, **lengths, max_seqlen_Q=6, max_seqlen_KV=6)))

    def test_merge(self):
        q, k, v = tensors((12,))
        for n in (2, 3, 20):
            parts = [natten.attention(q, k[:, i::n], v[:, i::n], return_lse=True) for i in range(min(n, 12))]
            before = [o.clone() for o, _ in parts]
            made = natten.merge_attentions(*map(list, zip(*parts)))
            same(self, made, None, plain(q, k, v, ((12,), (1,), (1,), (False,))), [q, k, v])
            self.assertTrue(all(torch.equal(o, old) for (o, _), old in zip(parts, before)))

    def test_modules(self):
        for rank, extents in ((1, (7,)), (2, (5, 6)), (3, (3, 4, 4))):
            layer = getattr(natten, f"NeighborhoodAttention{rank}D")(24, 4, kernel_size=3, dilation=1, is_causal=True, qk_scale=0.2, rel_pos_bias=True).double()
            self.assertEqual(sorted(layer.state_dict()), ["proj.bias", "proj.weight", "qkv.bias", "qkv.weight", "rpb"])
            x = torch.randn(2, *extents, 24, dtype=torch.float64)
            q, k, v = layer.qkv(x).unflatten(-1, (3, 4, 6)).unbind(-3)
            want = layer.proj(plain(q, k, v, ([3] * rank, [1] * rank, [1] * rank, [True] * rank), 0.2, rpb=layer.rpb)[0].flatten(-2))
            torch.testing.assert_close(layer(x), want)
            layer(x).sum().backward()
            self.assertGreater(float(layer.rpb.grad.abs().sum()), 0)
        self.assertIn("kernel_size=(3, 3, 3)", str(layer))

    def test_extents_in_graphs(self):
        """Tile shapes that no box has are refused by name there, too."""
        q = torch.randn(1, 24, 24, 1, 16)

        def near(q, shape):
            return natten.na2d(q, q, q, 3, q_tile_shape=shape, backward_kv_tile_shape=(8, 8))

        compiled = torch.compile(near, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(q, (8, 8)), near(q, (8, 8)))
        for shape in ((300, 8), (0, 8), (8, -1), (8, 8, 8)):
            with self.assertRaisesRegex(Exception, "na2d: q_tile_shape"):
                compiled(q, shape)

    def test_compiled(self):
        given = tensors((6, 7))
        more = [torch.randn(2, 5, 2, d, dtype=torch.float64, requires_grad=True) for d in (8, 6)]
        f = torch.compile(lambda *x: natten.na2d(*x[:3], 3, is_causal=(True, False), additional_keys=x[3], additional_values=x[4], return_lse=True), backend="aot_eager", fullgraph=True)
        same(self, f(*given, *more), None, natten.na2d(*given, 3, is_causal=(True, False), additional_keys=more[0], additional_values=more[1], return_lse=True), [*given, *more])

    def test_two_steps(self):
        for extents, kernel, dilation, causal, extra, biased in (
            ((9,), (3,), (2,), (False,), 0, True), ((8,), (4,), (1,), (True,), 3, False), ((7, 9), (3, 4), (2, 1), (False, True), 2, True),
            ((4, 5, 6), (2, 3, 3), (1, 1, 2), (True, False, False), 0, True),
        ):  # fmt: skip
            with self.subTest(extents=extents):
                given, window = tensors(extents), (kernel, [1] * len(kernel), dilation, causal)
                more = [torch.randn(2, extra, 2, d, dtype=torch.float64, requires_grad=True) for d in (8, 6)] if extra else None
                rpb = torch.randn(4, *(2 * k - 1 for k in kernel), dtype=torch.float64, requires_grad=True) if biased else None
                learned = [*given, *(more or []), *([rpb] if biased else [])]
                same(self, [by_taps(*given, window, more, rpb)], None, [plain(*given, window, more=more, rpb=rpb)[0]], learned)

    def test_two_steps_again(self):
        """Gradients of gradients and tangents, by differences."""
        q, k, v = (torch.randn(1, 2, 3, 2, 1, dtype=torch.float64, requires_grad=True) for _ in range(3))
        rpb = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
        for causal in (False, True):

            def f(q, k, rpb, causal=causal):
                return torch.where((s := natten.na2d_qk(q, k, (2, 2), is_causal=causal, rpb=rpb)) > -torch.inf, s, 0)

            def g(attn, v, causal=causal):
                return natten.na2d_av(attn, v, (2, 2), is_causal=causal)

            attn = torch.randn(1, 2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
            for function, given in ((f, (q, k, rpb)), (g, (attn, v))):
                self.assertTrue(torch.autograd.gradcheck(function, given, check_forward_ad=True))
                self.assertTrue(torch.autograd.gradgradcheck(function, given, check_fwd_over_rev=True))

    def test_two_types(self):
        """Under autocast softmax makes float32 of weights, and parameters stay float32: both are taken in the type of the others, as NATTEN does."""
        q, k, v = (t.detach().bfloat16() for t in (torch.randn(1, h, 5, 6, 8) for h in (4, 2, 2)))
        rpb = torch.randn(4, 5, 5, requires_grad=True)
        scores = natten.na2d_qk(q, k, 3, rpb=rpb)
        self.assertTrue(torch.equal(scores, natten.na2d_qk(q, k, 3, rpb=rpb.bfloat16())))
        weights = scores.float().softmax(-1)
        o = natten.na2d_av(weights, v, 3)
        self.assertTrue(torch.equal(o, natten.na2d_av(weights.bfloat16(), v, 3)))
        o.float().square().sum().backward()
        self.assertEqual((o.dtype, rpb.grad.dtype), (torch.bfloat16, torch.float32))
        self.assertGreater(rpb.grad.abs().max(), 0)

    def test_signatures(self):
        """Of NATTEN 0.21, by position and by name."""
        names = (
            "query key value kernel_size stride dilation is_causal scale additional_keys additional_values attention_kwargs backend q_tile_shape kv_tile_shape "
            "backward_q_tile_shape backward_kv_tile_shape backward_kv_splits backward_use_pt_reduction run_persistent_kernel kernel_schedule torch_compile return_lse rpb"
        ).split()
        for f in (natten.na1d, natten.na2d, natten.na3d, natten.neighborhood_attention_generic):
            self.assertEqual(list(inspect.signature(f).parameters), names)
        tiles = {"q_tile_shape": (8, 8), "kv_tile_shape": [8, 8], "backward_q_tile_shape": (8, 8), "backward_kv_tile_shape": (8, 8), "backward_kv_splits": (1, 1)}
        others = {"backward_use_pt_reduction": True, "run_persistent_kernel": False, "kernel_schedule": "pp", "torch_compile": True, "backend": "hopper-fna"}
        given = tensors((6, 7))
        self.assertTrue(torch.equal(natten.na2d(*given, 3), natten.na2d(*given, (3, 3), None, None, None, **tiles, **others)))

    def test_list_of_tile_shapes(self):
        """Without data or a GPU; the first are what calls take, and each is a box of both passes' kernels."""
        q = torch.empty(1, 128, 128, 24, 128, dtype=torch.bfloat16, device="meta")
        for backward, rows in ((False, 128), (True, 64)):
            found = natten.tile_shapes(q, q, q, 13, backward=backward)
            self.assertEqual(len({x[:2] for x in found}), 24)
            self.assertEqual([x.predicted for x in found[:1]], [1.0])
            for x in found:
                self.assertEqual(math.prod(x.q_tile_shape), rows)
                self.assertGreaterEqual(x.computed, 1)
                self.assertTrue(0 <= x.full <= 1 and x.predicted > 0)
        forward = natten.tile_shapes(q, q, q, 13)
        self.assertEqual(forward[0][:2], ((16, 8), (28, 4)))
        self.assertAlmostEqual(forward[0].computed, 3.2308, 4)
        rpb = torch.empty(24, 25, 25, device="meta")
        self.assertEqual(natten.tile_shapes(q, q, q, 13, rpb=rpb)[0][:2], forward[0][:2])
        video = torch.empty(1, 30, 48, 80, 24, 128, dtype=torch.float16, device="meta")
        self.assertEqual(natten.tile_shapes(video, video, video, (18, 24, 24), arch="sm_90a")[0][:2], ((8, 4, 4), (6, 4, 4)))
        for says, call in (
            ("tile_shapes: query: has one axis", lambda: natten.tile_shapes(q[0], q[0], q[0], 3)),
            ("tile_shapes: arch: is the string 'gfx'", lambda: natten.tile_shapes(q, q, q, 3, arch="gfx")),
            ("tile_shapes: kernel_size: is 129", lambda: natten.tile_shapes(q, q, q, 129)),
            ("boxes: the simt family", lambda: natten.tile_shapes(q.float(), q.float(), q.float(), 3)),
            ("tune: q: is on meta", lambda: natten.tune(q, q, q, 3)),
            ("tune: query: has one axis", lambda: natten.tune(q[0], q[0], q[0], 3)),
        ):
            with self.assertRaisesRegex(luattn.Error, says):
                call()

    def test_tile_shapes(self):
        """Each pass is given its own boxes, and the next call none."""
        given, seen = tensors((6, 7)), []
        set_options = Frame.set_options

        def note(frame, **numbers):
            if (frame.backward, numbers) not in seen:
                seen.append((frame.backward, numbers))
            set_options(frame, **numbers)

        with unittest.mock.patch.object(Frame, "set_options", note):
            o = natten.na2d(*given, 3, q_tile_shape=(16, 8), kv_tile_shape=[4, 28], backward_kv_tile_shape=(8, 16))
            o.sum().backward()
            natten.na2d(*given, 3).sum().backward()
            natten.na2d(*given, (6, 7), q_tile_shape=(16, 8))  # keeps all keys, by a kernel without boxes
        forward, backward = ({"query_tile_size": q, "key_tile_size": kv} for q, kv in ((16 << 16 | 8, 4 << 16 | 28), (0, 8 << 16 | 16)))
        self.assertEqual(seen, [(False, forward), (True, backward)])

    def test_refused(self):
        q, k, v = (t.detach() for t in tensors((6, 7)))
        one = torch.randn(2, 5, 2, 8, dtype=torch.float64)

        def packed(lengths):
            return natten.attention(one[:1], one[:1], one[:1], seqlens_Q=lengths, seqlens_KV=lengths)

        for message, call in (
            ("na2d: kernel_size: is 8 along axis 1, and the tensors have 7 places there; give at most 7", lambda: natten.na2d(q, k, v, (3, 8))),
            ("na2d: kernel_size: is 3 times dilation 3 along axis 0, and the tensors have 6 places there; give at most 2", lambda: natten.na2d(q, k, v, 3, 1, (3, 2))),
            ("na2d: stride: is 4 along axis 0, and kernel_size 3; give at most that", lambda: natten.na2d(q, k, v, 3, 4)),
            ("na2d: kernel_size: has 3 entries, and the tensors 2 axes; give one for each, or one number for all", lambda: natten.na2d(q, k, v, (3, 3, 3))),
            ("na2d: kernel_size: is 1, expected at least 2", lambda: natten.na2d(q, k, v, (3, 1))),
            (r"na2d: kernel_size\[1\]: is 3.5, expected an integer", lambda: natten.na2d(q, k, v, (3, 3.5))),
            ("na2d: dilation: is 0, expected at least 1", lambda: natten.na2d(q, k, v, 3, 1, 0)),
            (r"na2d: is_causal\[0\]: is the string 'yes', expected True or False", lambda: natten.na2d(q, k, v, 3, is_causal=("yes", True))),
            ("na3d: query: has 5 axes, expected 6: batch, 3 axes of the grid, heads and head_dim", lambda: natten.na3d(q, k, v, 3)),
            ("na2d: key: has 4 axes, and query 5", lambda: natten.na2d(q, k[0], v, 3)),
            (r"na2d: value: has the extents \(5, 7\), and query \(6, 7\)", lambda: natten.na2d(q, k, v[:, 1:], 3)),
            ("na2d: key: has head_dim 6, and query 8", lambda: natten.na2d(q, k[..., :6], v, 3)),
            ("na2d: key: has 3 heads, which is no divisor of query's 4", lambda: natten.na2d(q, k[..., [0, 0, 1], :], v[..., [0, 0, 1], :], 3)),
            ("na2d: value: is torch.float32, and query torch.float64; convert one of them", lambda: natten.na2d(q, k, v.float(), 3)),
            ("na2d: additional_values: is None, and additional_keys is given: give both or none", lambda: natten.na2d(q, k, v, 3, additional_keys=one)),
            ("na2d: additional_keys: has 1 heads, and key 2", lambda: natten.na2d(q, k, v, 3, additional_keys=one[:, :, :1], additional_values=one)),
            (r"na2d: rpb: is \(4, 5, 6\), expected \(4, 5, 5\)", lambda: natten.na2d(q, k, v, 3, rpb=torch.zeros(4, 5, 6, dtype=torch.float64))),
            ("na2d: backend: is the string 'fastest', expected one of cutlass-fna, hopper-fna", lambda: natten.na2d(q, k, v, 3, backend="fastest")),
            ("na2d: q_tile_shape: has 1 entries, and the tensors 2 axes", lambda: natten.na2d(q, k, v, 3, q_tile_shape=(64,))),
            (r"na2d: kv_tile_shape: is \(8, 257\), expected 1 to 256 places along an axis", lambda: natten.na2d(q, k, v, 3, kv_tile_shape=(8, 257))),
            ("na2d: kernel_schedule: is the string 'fast', expected one of non, coop, pp or None", lambda: natten.na2d(q, k, v, 3, kernel_schedule="fast")),
            ("na2d_qk: query: has 4 axes, expected 5: batch, heads, y, x and head_dim", lambda: natten.na2d_qk(q[0], k[0], 3)),
            ("na1d_qk: key: has 3 heads, which is no divisor of query's 5", lambda: natten.na1d_qk(one, one[:, :3], 2)),
            ("na1d_av: attn: has 8 taps, expected 2: of kernel_size \\(2,\\)", lambda: natten.na1d_av(one, one, 2)),
            ("na1d_qk: kernel_size: is 3 along axis 0, and the tensors have 2 places there; give at most 2", lambda: natten.na1d_qk(one, one, 3)),
            (r"na1d_qk: rpb: is \(5, 4\), expected \(5, 3\)", lambda: natten.na1d_qk(one, one, 2, rpb=one[0, :, 0, :4])),
            ("na1d_qk: additional_keys: is torch.float32, and query torch.float64; convert one of them", lambda: natten.na1d_qk(one, one, 2, additional_keys=one.float())),
            ("na1d_av: additional_values: is torch.float32, and value torch.float64", lambda: natten.na1d_av(one, one, 2, additional_values=one.float())),
            ("na2d: attention_kwargs: is 3, expected a dict", lambda: natten.na2d(q, k, v, 3, attention_kwargs=3)),
            ("na2d: attention_kwargs: has 'scale', which attention is given; leave it out", lambda: natten.na2d(q, k, v, 3, attention_kwargs={"scale": 1})),
            ("na2d: attention_kwargs: has 'cap', and attention has no such argument", lambda: natten.na2d(q, k, v, 3, attention_kwargs={"cap": 1})),
            (r"attention: seqlens_Q: is torch.float32 \(2,\), expected whole numbers of one axis", lambda: packed(torch.tensor([1.5, 3.5]))),
            (r"attention: seqlens_Q: is torch.bool \(2,\), expected whole", lambda: packed(torch.tensor([True, True]))),
            (r"attention: seqlens_Q: is torch.int64 \(0,\), expected whole", lambda: packed(torch.tensor([], dtype=torch.int64))),
            ("attention: seqlens_Q: has -1, expected at least 0", lambda: packed(torch.tensor([-1, 6]))),
            ("attention: value: has length 4, and key 5", lambda: natten.attention(one, one, one[:, 1:])),
            ("attention: seqlens_KV: is None, and lengths of one side are given: give both", lambda: natten.attention(one[:1], one[:1], one[:1], seqlens_Q=torch.tensor([5]))),
            ("merge_attentions: outputs: are 1, expected at least 2", lambda: natten.merge_attentions([one], [one[..., 0]])),
            (r"merge_attentions: lse_tensors\[1\]: is \(2, 2, 5\), expected \(2, 5, 2\)", lambda: natten.merge_attentions([one, one], [one[..., 0], one[..., 0].mT])),
            ("NeighborhoodAttention2D: embed_dim: is 10, and num_heads 4, which is no divisor of it", lambda: natten.NeighborhoodAttention2D(10, 4, 3)),
            ("NeighborhoodAttention2D: num_heads: is 0, expected at least 1", lambda: natten.NeighborhoodAttention2D(8, 0, 3)),
            ("NeighborhoodAttention2D: embed_dim: is 8.0, expected an integer", lambda: natten.NeighborhoodAttention2D(8.0, 2, 3)),
            ("NeighborhoodAttention2D: x: has 12 channels, and embed_dim is 8", lambda: natten.NeighborhoodAttention2D(8, 4, 3)(torch.zeros(1, 6, 6, 12))),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()


if __name__ == "__main__":
    unittest.main()
