"""grid_test.py: a spec over a grid from Python: q, k and v with axes of their own, gradients of all tensors and of an input, NumPy, torch.compile, and what is
refused. On the CPU. Exits with 77 without torch."""

import itertools
import re
import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from torch.utils.flop_counter import FlopCounterMode

SPEC = """return attention { name = "near", grid = {"y", "x"}, inputs = { rows = { axes = {"h", "q.y"}, dtype = "any", grad = true } },
  score_mod = function(s, b, h, q, k) return s + rows[{h, q.y}] * (k.x - q.x) end, block_mask = neighborhood { kernel_size = {3, 4} } }"""
near = luattn.attention(SPEC)


def window(n, kernel):
    i = torch.arange(n)
    first = (i - kernel // 2).clamp(0, n - kernel)[:, None]
    return (i >= first) & (i < first + kernel)


def plain(q, k, v, rows):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    y, x = q.shape[2:4]
    i = torch.arange(x)
    s = torch.einsum("bhyxd,bhtzd->bhyxtz", q, k) / q.shape[-1] ** 0.5 + rows[None, :, :, None, None, None] * (i - i[:, None])[:, None]
    keep = window(y, 3)[:, None, :, None] & window(x, 4)[None, :, None, :]
    p = s.masked_fill(~keep, -torch.inf).flatten(-2).softmax(-1)
    return torch.einsum("bhyxj,bhjd->bhyxd", p, v.flatten(2, 3)), s.masked_fill(~keep, -torch.inf).flatten(-2).logsumexp(-1)


class Grid(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        self.given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4, 5, 7, 8), (2, 2, 5, 7, 8), (2, 2, 5, 7, 6), (4, 5))]

    def test_gradients(self):
        q, k, v, rows = self.given
        o, lse = near(q, k, v, rows=rows, return_lse=True)
        want, want_lse = plain(*self.given)
        self.assertEqual((o.shape, lse.shape), ((2, 4, 5, 7, 6), (2, 4, 5, 7)))
        torch.testing.assert_close((o, lse), (want, want_lse))
        dout, dlse = torch.randn_like(o), torch.randn_like(lse)
        torch.testing.assert_close(
            torch.autograd.grad((o, lse), self.given, (dout, dlse)), torch.autograd.grad((want, want_lse), self.given, (dout, dlse))
        )

    def test_memory_and_types(self):
        q, k, v, rows = (t.detach() for t in self.given)
        want = near(q, k, v, rows=rows)
        last = [t.movedim(1, -2).contiguous().movedim(-2, 1) for t in (q, k, v)]
        o = near(*last, rows=rows)
        self.assertTrue(torch.equal(o, want))
        self.assertTrue(o.movedim(1, -2).is_contiguous())  # as q lies
        self.assertTrue((near(*(t.numpy() for t in (q, k, v)), rows=rows.numpy()) == want.numpy()).all())
        torch.testing.assert_close(near(*(t.bfloat16() for t in (q, k, v)), rows=rows.bfloat16()).double(), want, atol=0.05, rtol=0.05)

    def test_what_is_said_of_a_call(self):
        q, k, v, rows = (t.detach() for t in self.given)
        w = near.weights(q, k, v, rows=rows)
        self.assertEqual(w.shape, (2, 4, 35, 35))
        torch.testing.assert_close((w @ v.repeat_interleave(2, 1).flatten(2, 3)).view(2, 4, 5, 7, 6), near(q, k, v, rows=rows))
        found = near.explain(q, k, v, rows=rows)
        self.assertEqual((found.scores, found.kept), (8 * 35 * 35, 8 * 35 * 12))
        self.assertEqual(found.full + found.partial + found.skipped, 8 * -(-35 // found.tile[0]) * -(-35 // found.tile[1]))
        self.assertIn("counted in tiles of the places' row-major numbers, where kernels compute boxes", str(found))
        boxed = near.explain(q.bfloat16(), k.bfloat16(), v.bfloat16(), rows=rows, arch="sm_90a")
        self.assertIn("sm90", boxed.plan)
        self.assertRegex(str(boxed), r"tiles are boxes of \d+ x \d+ queries by \d+ x \d+ keys")
        self.assertEqual((boxed.scores, boxed.kept), (8 * 35 * 35, 8 * 35 * 12))
        self.assertIn("cpu", near.plan(q, k, v, rows=rows, backward=True))
        with FlopCounterMode(display=False) as counter:
            near(q, k, v, rows=rows)
        self.assertEqual(counter.get_total_flops(), 2 * (8 + 6) * 8 * 35 * 12)

    def test_boxes_are_counted(self):
        """Those of lattices of boxes, where the mask has another window in each head, against all scores."""
        reach = luattn.attention("""return attention { name = "reach", grid = {"y", "x"},
  block_mask = function(b, h, q, k) return abs(q.y - k.y) <= 6 + h + b and k.x <= q.x + 11 and q.x - k.x < 12 end }""")
        q = torch.zeros(2, 3, 13, 22, 8)
        y, x = (torch.arange(n)[:, None] - torch.arange(n) for n in (13, 22))
        for backward in (False, True):
            found = reach.explain(q, q, q, backward=backward, arch="sm_80")
            boxes = re.search(r"boxes of (\d+) x (\d+) queries by (\d+) x (\d+) keys", str(found))
            sizes = [int(n) for n in boxes.groups()]
            computed = full = 0
            for reaches in (6 + h + b for h in range(3) for b in range(2)):
                keep = (y.abs() <= reaches)[:, None, :, None] & ((x < 12) & (x >= -11))[None, :, None, :]
                for box in itertools.product(*(range(0, n, size) for n, size in zip(keep.shape, sizes))):
                    part = keep[tuple(slice(at, at + size) for at, size in zip(box, sizes))]
                    whole = part.shape[2:] == tuple(sizes[2:]) and (not backward or part.shape[:2] == tuple(sizes[:2]))
                    computed, full = computed + bool(part.any()), full + bool(part.all() and whole)
            self.assertEqual((found.full, found.full + found.partial, found.tile), (full, computed, (sizes[0] * sizes[1], sizes[2] * sizes[3])))
            self.assertGreater(full, 0)

    def test_mask(self):
        """Which keys a query keeps, beside windows that are written out, and the classes of boxes beside those of all scores."""
        y, x = window(9, 3), window(13, 4)
        for query in ((0, 0), (4, 6), (8, 12)):
            found = near.mask((9, 13), query=query, tile=((4, 4), (2, 5)))
            keep = [[bool(y[query[0], i] & x[query[1], j]) for j in range(13)] for i in range(9)]
            self.assertEqual([[found.keeps(i, j) for j in range(13)] for i in range(9)], keep)
            rows = [a // 4 * 4 for a in query]
            box = [w[r : r + 4] for w, r in zip((y, x), rows)]
            classes = [0, 0, 0]
            for i in range(0, 9, 2):
                for j in range(0, 13, 5):
                    kept = (box[0][:, None, i : i + 2, None] & box[1][None, :, None, j : j + 5]).float()
                    classes[2 if kept.min() else 1 if kept.max() else 0] += 1
            # Bounds of intervals class as empty or full what is so; some that are neither they cannot tell from it.
            self.assertLessEqual(found.count(0), classes[0])
            self.assertLessEqual(found.count(2), classes[2])
            self.assertEqual(sum(map(found.count, range(3))), 15)
            self.assertEqual(found.count(0), classes[0])
        self.assertEqual(near.mask((9, 13)).query, (4, 6))
        svg = near.mask((9, 13), (6, 7))._repr_svg_()
        self.assertIn(">12 keys kept</text>", svg)
        self.assertIn("boxes of 8x8 keys beside one of 8x8 queries", svg)
        video = luattn.attention("video_window").mask((6, 7, 8), query=(5, 3, 3))
        self.assertEqual((video.kept, video.boxes), (4 * 5 * 7, ((4, 4, 4),) * 2))
        self.assertEqual(video._repr_svg_().count(">t = "), 6)
        for message, call in (
            ("near: mask: q_len: is 35, expected 2 integers of at least 1, along y, x", lambda: near.mask(35, 35)),
            (r"near: mask: query: is \(1, 2, 3\), expected 2 integers of at least 0, along y, x", lambda: near.mask((9, 13), query=(1, 2, 3))),
            ("mask: query: is 9 along y, expected 0 to 8", lambda: near.mask((9, 13), query=(9, 0))),
            (r"near: mask: tile: is 8, expected a pair of boxes", lambda: near.mask((9, 13), tile=8)),
            (r"k: kv_len\.x is 3, .* at least 4", lambda: near.mask((9, 3))),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()

    def test_no_places(self):
        """With queries of no extent inputs along them have no numbers."""
        spec = luattn.attention(SPEC.replace(', block_mask = neighborhood { kernel_size = {3, 4} }', ""))
        for q, k, rows in (((1, 4, 0, 7, 8), (1, 2, 5, 7, 8), (4, 0)), ((1, 4, 5, 0, 8), (1, 2, 5, 7, 8), (4, 5)), ((1, 4, 5, 7, 8), (1, 2, 5, 0, 8), (4, 5))):
            k = torch.ones(k)
            for o in (spec(torch.ones(q), k, k, rows=torch.ones(rows)), torch.from_numpy(spec(torch.ones(q).numpy(), k.numpy(), k.numpy(), rows=torch.ones(rows).numpy()))):
                self.assertEqual((tuple(o.shape), float(o.abs().sum())), (q, 0))

    def test_prepared(self):
        for dtype in ("float64", "bfloat16"):
            near.prepare(dtype, 8, decode=True, device=-1)  # which has nothing to compile, and reads the calls to come

    def test_line_shorter_than_a_window(self):
        line = luattn.attention('return attention { grid = {"x"}, block_mask = neighborhood { kernel_size = {9} } }')
        k = torch.randn(1, 2, 6, 16)
        with self.assertRaisesRegex(luattn.InvalidError, "k: kv_len is 6, .* at least 9, a window"):
            line(k, k, k)
        whole = torch.randn(1, 2, 12, 16)
        parts = [line(whole, *(whole[:, :, i : i + 6],) * 2, kv_offset=i, kv_len=12, return_lse=True) for i in (0, 6)]
        torch.testing.assert_close(line.merge(*zip(*parts))[0], line(whole, whole, whole))  # of 6 keys each, of a line of 12

    def test_refused(self):
        q, k, v, rows = (t.detach() for t in self.given)
        with self.assertRaisesRegex(luattn.InvalidError, "near: q: has 4 dimensions, expected 5: batch, heads, the axes y, x of the grid and head dim"):
            near(q[:, :, 0], k[:, :, 0], v[:, :, 0], rows=rows)
        with self.assertRaisesRegex(luattn.InvalidError, r"near: layout: is 'bshd', .* give views, q.movedim\(-2, 1\), which copy nothing"):
            near(q.movedim(1, -2), k.movedim(1, -2), v.movedim(1, -2), rows=rows, layout="bshd")
        with self.assertRaisesRegex(luattn.InvalidError, "input 'rows': axis 1 .* has size 4, expected 5"):
            near(q, k, v, rows=rows[:, :4])
        with self.assertRaisesRegex(luattn.InvalidError, r"k: kv_len\.x is 3, .* at least 4"):
            near(q, k[..., :3, :], v[..., :3, :], rows=rows)
        for name, x in (("q_len", 50), ("kv_offset", 3), ("cu_seqlens_q", torch.tensor([0, 5], dtype=torch.int32))):
            with self.assertRaisesRegex(luattn.Unsupported, f"near: {name}: is given, and calls over a grid of y, x have no parts of a whole"):
                near(q, k, v, rows=rows, **{name: x})
        with self.assertRaisesRegex(luattn.Unsupported, "near: merge: its places lie on a grid of y, x"):
            near.merge([q], [q[..., 0]])


if __name__ == "__main__":
    unittest.main()
