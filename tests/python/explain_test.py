"""explain_test.py: Attention.weights, Attention.explain, BlockMask.tiles and pictures, on the CPU. Exits with 77 without torch; pictures need matplotlib."""

import importlib.util
import os
import re
import tempfile
import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import flex
from torch.nn.attention import flex_attention as theirs

causal, gemma2 = luattn.attention("causal"), luattn.attention("gemma2")
DOCUMENTS = luattn.attention(
    "return attention { name = 'doc', inputs = { doc = { axes = {'b', 'q'}, dtype = 'i32' } },"
    " block_mask = function(b, h, i, j) return eq(doc[{b, i}], doc[{b, j}]) end }"
)
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def qkv(dtype=torch.float64, b=2, n=70, m=70):
    torch.manual_seed(7)
    return torch.randn(b, 4, n, 16, dtype=dtype), *(torch.randn(b, 2, m, 16, dtype=dtype) for _ in "kv")


class Weights(unittest.TestCase):
    def test_they_are_those_of_the_result(self):
        q, k, v = qkv()
        for attention, given in ((causal, {}), (gemma2, {"cap": torch.tensor(3.0, requires_grad=True), "scale": 0.3}), (causal, {"scale": -1}), (causal, {"q_offset": 5, "kv_len": 90}),
                                 (DOCUMENTS, {"doc": torch.arange(70, dtype=torch.int32).expand(2, 70) // 20})):  # fmt: skip
            w = attention.weights(q, k, v, return_lse=True, **given)
            self.assertEqual((w.dtype, w.shape, w.requires_grad), (torch.float64, (2, 4, 70, 70), False))
            torch.testing.assert_close(w @ v.repeat_interleave(2, 1), attention(q, k, v, **given).detach(), rtol=0, atol=1e-12)
        swapped = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
        self.assertTrue(torch.equal(causal.weights(*swapped, layout="bshd"), causal.weights(q, k, v)))
        of_arrays = causal.weights(q.numpy(), k.numpy(), v.numpy(), scale=0.3)
        self.assertTrue(torch.equal(torch.from_numpy(of_arrays), causal.weights(q, k, v, scale=0.3)))
        odd = [t[..., :9].bfloat16() for t in (q, k, v)]  # a head dim that kernels pad
        torch.testing.assert_close(causal.weights(*odd), causal.weights(*(t.float() for t in odd)), rtol=0, atol=1e-6)

    def test_packed(self):
        q, k, v = (t[0].transpose(0, 1) for t in qkv())
        cu = ints(0, 30, 70)
        w = causal.weights(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, layout="bshd")
        self.assertEqual(w.shape, (2, 4, 40, 40))
        alone = causal.weights(*(t[30:].transpose(0, 1)[None] for t in (q, k, v)))
        torch.testing.assert_close(w[1:], alone, rtol=0, atol=1e-14)
        arrays = causal.weights(*(t.numpy() for t in (q, k, v)), cu_seqlens_q=cu.numpy(), cu_seqlens_k=cu.numpy())
        self.assertTrue(torch.equal(torch.from_numpy(arrays), w))
        wide = causal.weights(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=50, max_seqlen_k=90)  # bounds; there are 70 rows
        self.assertEqual(wide.shape, (2, 4, 50, 70))
        self.assertTrue(torch.equal(wide[..., :40, :40], w))
        for bad in (cu[:0], cu.expand(2, 3), cu.flip(0), cu[0]):
            with self.subTest(bad), self.assertRaisesRegex(luattn.InvalidError, "cu_seqlens_q"):
                causal.weights(q, k, v, cu_seqlens_q=bad, cu_seqlens_k=bad)

    def test_dropped_ones_are_negative(self):
        half, (q, k, v) = luattn.attention("return attention { online_func = dropout(0.5) }"), qkv()
        w = half.weights(q, k, v, seed=3)
        torch.testing.assert_close(w.clamp(min=0) @ v.repeat_interleave(2, 1) * 2, half(q, k, v, seed=3), rtol=0, atol=1e-12)
        self.assertGreater((w < 0).sum(), 0)

    def test_refusals(self):
        q, k, v = qkv(torch.float32)
        for given, message in (
            ({"seqused_k": ints(3, 4)}, "weights: batch: has seqused_k without cu_seqlens_k, and there are no weights"), ({"cap": 1}, "there is no argument 'cap'"),
            ({"layout": "bhs"}, "causal: layout: is 'bhs'"), ({"scale": "x"}, "causal: weights: scale: is the string 'x'"),
        ):  # fmt: skip
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                causal.weights(q, k, v, **given)
        with self.assertRaisesRegex(luattn.InvalidError, "doc: input 'doc' is missing"):
            DOCUMENTS.weights(q, k, v)


class Explanations(unittest.TestCase):
    def test_tiles_are_those_of_the_mask(self):
        """On the CPU, as packed sequences, and of kernels of a GPU, whose tiles are others."""
        q, k, v = qkv(torch.float32, n=300, m=300)
        found = causal.explain(q, k, v)
        masks = 8 * [causal.mask(300, 300, tile=64)]
        self.assertEqual([found.full, found.partial, found.skipped], [sum(m.count(x) for m in masks) for x in (2, 1, 0)])
        self.assertEqual((found.kept, found.scores, found.error), (8 * 300 * 301 // 2, 8 * 300 * 300, 0))
        self.assertEqual(found.flops, 2 * 32 * (found.full + found.partial) * 64 * 64)
        self.assertEqual(found.bytes, 4 * (2 * q.numel() + k.numel() + v.numel() + 2 * 4 * 300))
        half = [t.half() for t in (q, k, v)]
        self.assertEqual(causal.explain(*half, out_dtype=torch.float32).bytes - causal.explain(*half).bytes, 2 * q.numel())
        more = causal.explain(*half, backward=True, grad_dtype=torch.float32).bytes - causal.explain(*half, backward=True).bytes
        self.assertEqual(more, 2 * (q.numel() + k.numel() + v.numel()))
        few = causal.explain(half[0][:, :, :6], *half[1:], decode="always", arch="sm_90a")  # tiles of 16 rows: 8 queries of 2 heads
        self.assertEqual((few.tile[0], few.full + few.partial + few.skipped), (16, 2 * 2 * -(-300 // few.tile[1])))
        of_gpu = causal.explain(q.bfloat16(), k.bfloat16(), v.bfloat16(), arch="sm_90a")
        self.assertIn("family sm90", of_gpu.plan)
        self.assertTrue(causal.explain(*half, out_dtype=torch.float32).call.endswith("on cpu, with out_dtype=float32"))
        self.assertEqual(of_gpu.full + of_gpu.partial + of_gpu.skipped, 8 * -(-300 // of_gpu.tile[0]) * -(-300 // of_gpu.tile[1]))
        rows = [t[0].transpose(0, 1) for t in (q, k, v)]
        cu = ints(0, 100, 300)
        packed = causal.explain(*rows, cu_seqlens_q=cu, cu_seqlens_k=cu)
        masks = [causal.mask(tile=64, batch=b, cu_seqlens_q=cu, cu_seqlens_k=cu) for b in (0, 1)]
        self.assertEqual([packed.full, packed.partial, packed.skipped], [4 * sum(m.count(x) for m in masks) for x in (2, 1, 0)])
        self.assertEqual(causal.explain(*(t.numpy() for t in (q, k, v))).rows()[1:], found.rows()[1:])

    def test_backward_and_what_masks_read(self):
        q, k, v = qkv(torch.float16, n=256, m=256)
        doc = torch.arange(256, dtype=torch.int32).expand(2, 256) // 64
        found = DOCUMENTS.explain(q, k, v, backward=True, arch="sm_80", doc=doc)
        self.assertIn("minima and maxima of numbers in blocks", found.means)
        self.assertEqual(found.kept, 8 * 4 * 64 * 64)
        self.assertEqual(found.flops, 2 * 5 * 16 * (found.full + found.partial) * found.tile[0] * found.tile[1])
        full = luattn.attention("full").explain(q, k, v)
        self.assertEqual((full.skipped, full.means, full.kept), (0, "there is no mask", 8 * 256 * 256))
        with self.assertRaisesRegex(luattn.InvalidError, "doc: mask: input 'doc' is missing, and the mask reads it: pass doc="):
            DOCUMENTS.explain(q, k, v)
        with self.assertRaisesRegex(luattn.InvalidError, "causal: explain: arch: is the string 'hopper', expected an architecture, as 'sm_90a'"):
            causal.explain(q, k, v, arch="hopper")

    def test_shapes_that_no_call_has(self):
        q, k, v = qkv()
        for tensors, message in (
            ((q[0], k[0], v[0]), "q: has 3 dimensions, expected 4: batch, heads, length and head dim"),
            ((q, k, v[:, :, :9]), r"v: has shape \[2, 2, 9, 16\], and k \[2, 2, 70, 16\]: they differ in the head dim alone"),
            ((q, k[..., :8], v), "k: has head dim 8, and q 16: they are the same"),
            ((q, k[:1], v[:1]), "k: has 1 batch entries, and q 2: they are the same"),
        ):
            for method, given in ((causal.explain, {}), (causal.explain, {"arch": "sm_90"}), (causal.plan, {}), (causal.weights, {})):
                with self.subTest(message, method=method), self.assertRaisesRegex(luattn.InvalidError, f"^causal: {method.__name__}: {message}$"):
                    method(*tensors, **given)

    def test_text_and_table(self):
        found = gemma2.explain(*qkv(torch.float32), arch="sm_80")
        text, table = str(found), found._repr_html_()
        for name, said in found.rows():
            self.assertIn(said, text)
            self.assertIn(f">{name}</th>", table)
        for word in ("family ", "skipped ", "scores kept", "FLOP", "by ranges of positions"):
            self.assertIn(word, text)
        self.assertEqual(len(re.findall("<tr>", table)), len(found.rows()))
        self.assertIn("sm90 does not run f32; sm80 does not run f32", found.why)
        half = [t.half() for t in qkv(torch.float32)]
        self.assertEqual(gemma2.explain(*half, arch="90").why, "sm90 is the fastest family, and runs such calls on this GPU")
        self.assertIn("sm90 has kernels for arch 90, not 120", gemma2.explain(*half, arch="sm_120").why)
        self.assertRegex(repr(found), r"^<luattn.Explanation gemma2: \d+ full, \d+ partial, \d+ skipped tiles>$")


class BlockMasks(unittest.TestCase):
    def test_tiles(self):
        """The classes of blocks, of what mask_mod says, of lists of blocks, and of both; the picture is that of the first entry."""
        doc = torch.arange(256).expand(2, 256) // torch.tensor([[64], [32]])

        def documents(b, h, i, j):
            return (i >= j) & (doc[b, i] == doc[b, j])

        made = flex.create_block_mask(documents, 2, None, 256, 256, device="cpu", BLOCK_SIZE=(32, 64))
        for mask in (made, made[:, :], flex.BlockMask._from(theirs.create_block_mask(documents, 2, 1, 256, 256, device="cpu", BLOCK_SIZE=(32, 64)))):
            kept = torch.stack([torch.stack([documents(b, 0, i, torch.arange(256)) for i in range(256)]) for b in (0, 1)])
            for b in (0, 1):
                blocks = kept[b].view(8, 32, 4, 64).transpose(1, 2).flatten(2)
                tiles = mask.tiles(b)
                self.assertEqual([[x > 0 for x in row] for row in tiles.rows], blocks.any(-1).tolist())
            self.assertEqual(mask._repr_svg_(), mask.tiles()._repr_svg_())
        self.assertEqual(repr(made.tiles()), "<luattn.Mask documents 256 x 256, tiles of 32 x 64: 0 full, 8 partial, 24 empty>")
        self.assertEqual(flex.create_block_mask(flex.noop_mask, 1, 1, 64, 64, device="cpu").tiles().rows, [[2]])
        with self.assertRaisesRegex(luattn.InvalidError, "BlockMask.tiles: batch: is 2, and the mask has 2: give 0 to 1"):
            made.tiles(2)


class Pictures(unittest.TestCase):
    def test_without_matplotlib(self):
        if HAS_MATPLOTLIB:
            self.skipTest("it is there")
        with self.assertRaisesRegex(luattn.Unsupported, "^plot_weights: needs matplotlib; pip install matplotlib"):
            luattn.plot_weights(causal.weights(*qkv()))
        with self.assertRaisesRegex(luattn.Unsupported, "^causal: save: 'x.png': needs matplotlib; .* save a .svg, which needs nothing"):
            causal.mask(64, 64).save("x.png")

    @unittest.skipUnless(HAS_MATPLOTLIB, "without matplotlib")
    def test_files(self):
        w = causal.weights(*qkv())
        with tempfile.TemporaryDirectory() as folder:
            for name, save in (("w", luattn.plot_weights(w, title="causal").savefig), ("h", luattn.plot_weights(w.numpy(), batch=1, head=2).savefig),
                               ("m", causal.mask(200, 100).save), ("b", causal.mask(200, 100, tile=32).save)):  # fmt: skip
                path = os.path.join(folder, f"{name}.png")
                save(path)
                with open(path, "rb") as file:
                    self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")

    def test_refusals(self):
        w = causal.weights(*qkv())
        for call, message in (
            (lambda: luattn.plot_weights(w[0]), "plot_weights: weights: has 3 dimensions, expected 4: batch, heads, queries and keys"),
            (lambda: luattn.plot_weights(w, head=4), "plot_weights: head: is 4, and weights have 4: give 0 to 3"),
            (lambda: luattn.plot_weights(w, batch=-1), "plot_weights: batch: is -1, and weights have 2: give 0 to 1"),
            (lambda: luattn.plot_weights("w"), "plot_weights: weights: is the string 'w', expected a tensor"),
            (lambda: luattn.plot_weights(w, head=1, ax=3), "plot_weights: ax: is 3, expected axes of matplotlib"),
            (lambda: causal.mask(4, 4).save(3), "causal: save: path: is 3, expected the path of a file"),
            (lambda: causal.mask(0, 4).save("x.png"), "causal: save: the mask is of 0 x 4 scores, and a picture has at least 1 of each"),
            (lambda: causal.mask(4, 4).save("x.jpg"), "causal: save: path: 'x.jpg' ends in neither .svg nor .png"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()


if __name__ == "__main__":
    unittest.main()
