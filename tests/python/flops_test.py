"""flops_test.py: FLOPs of torch.utils.flop_counter are those of the scores that masks keep, in both passes."""

import functools
import importlib
import subprocess
import sys
import tempfile
import unittest

from with_torch import ROOT, torch  # exits without torch, so first

from torch.utils.flop_counter import FlopCounterMode

import luattn
from luattn import flex
from luattn._import_hook import when_imported
from luattn.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

causal = luattn.attention("return attention { block_mask = causal() }")
plain = luattn.attention("return attention {}")
documents = luattn.attention(
    "return attention { inputs = { doc = { axes = { 'b', 'q' }, dtype = 'i32' } }, block_mask = function(b, h, q_idx, kv_idx) "
    "return eq(doc[{b, q_idx}], doc[{b, kv_idx}]) and kv_idx <= q_idx end }"
)


def rand(*shape, **given):
    return torch.randn(*shape, requires_grad=True, **given)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def flops(call, backward=True):
    with FlopCounterMode(display=False) as mode:
        o = call()
        forward = mode.get_total_flops()
        if backward:
            o.sum().backward()
    return forward, mode.get_total_flops() - forward


class Flops(unittest.TestCase):
    def same(self, call, kept, d, d_v):
        self.assertEqual(flops(call), (2 * kept * (d + d_v), 2 * kept * (3 * d + 2 * d_v)))

    def test_as_torch_counts_its_own(self):
        q, k, v = (rand(2, 3, n, 16) for n in (5, 7, 7))
        self.assertEqual(flops(lambda: plain(q, k, v)), flops(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)))

    def test_dense(self):
        q, k, v = rand(2, 4, 100, 16), rand(2, 2, 100, 16), rand(2, 2, 100, 24)
        each = 100 * 101 // 2
        self.same(lambda: causal(q, k, v), 8 * each, 16, 24)
        self.same(lambda: flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True, window_size=(9, 0)), 8 * (10 * 100 - 45), 16, 24)
        mask = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 10), None, None, 100, 100)
        self.same(lambda: flex.flex_attention(q, k, v, block_mask=mask, enable_gqa=True), 8 * (10 * 100 - 45), 16, 24)
        doc = torch.arange(100, dtype=torch.int32).expand(2, -1) // 25
        self.same(lambda: documents(q, k, v, doc=doc.contiguous()), 8 * 4 * (25 * 26 // 2), 16, 24)
        self.same(lambda: causal(q, k[:, :, :50], v[:, :, :50], kv_offset=50), 8 * (50 * 51 // 2), 16, 24)
        self.same(lambda: causal(q, k, v, q_offset=int32(0, 100)), 4 * (each + 100 * 100), 16, 24)
        k.requires_grad_(False), v.requires_grad_(False)
        self.assertEqual(flops(lambda: causal(q, k, v))[1], 2 * 8 * each * (2 * 16 + 24))

    def test_packed(self):
        q, k, v, cu = rand(30, 4, 16), rand(30, 2, 16), rand(30, 2, 8), int32(0, 10, 10, 30)
        pairs = 10 * 11 // 2 + 20 * 21 // 2
        self.same(lambda: flash_attn_varlen_func(q, k, v, cu, cu, 20, 20, causal=True), 4 * pairs, 16, 8)
        self.same(lambda: flash_attn_varlen_func(q, k, v, cu, cu, 20, 20), 4 * (100 + 400), 16, 8)
        used = int32(10, 0, 5)
        self.same(lambda: causal(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, seqused_q=used, seqused_k=used), 4 * (55 + 15), 16, 8)

    def test_caches(self):
        k, v = torch.zeros(2, 64, 2, 16), torch.zeros(2, 64, 2, 16)
        lengths = int32(10, 60)
        with torch.no_grad():
            self.assertEqual(flops(lambda: flash_attn_with_kvcache(rand(2, 1, 4, 16), k, v, cache_seqlens=lengths), False)[0], 4 * 70 * 64)
            self.assertEqual(
                flops(lambda: flash_attn_with_kvcache(rand(2, 4, 4, 16), k, v, cache_seqlens=lengths, causal=True), False)[0], 4 * (40 + 240 - 12) * 64
            )

    def test_fake(self):
        with torch._subclasses.FakeTensorMode():  # whose values nobody knows: every score
            fake, doc = rand(1, 2, 32, 16), torch.zeros(1, 32, dtype=torch.int32)
            self.same(lambda: documents(fake, fake, fake, doc=doc), 2 * 32 * 32, 16, 16)

    def test_a_large_problem(self):
        with torch.no_grad():
            from luattn._flops import kept_scores

            q = torch.empty(1, 1, 1, 16).expand(4, 32, 1 << 17, 16)
            kept = kept_scores(causal._spec, q, q, [], [], {})
            self.assertAlmostEqual(kept / (128 * (1 << 17) * ((1 << 17) + 1) / 2), 1, places=2)

    def test_registered_when_somebody_counts(self):
        """Importing luattn does not import torch's counter, which imports triton; the counter knows the ops whenever it is imported."""
        late = (
            "import sys; sys.path.insert(0, sys.argv[1]); import torch, luattn; name = 'torch.utils.flop_counter'; assert name not in sys.modules; "
            "a = luattn.attention('return attention {}'); q = torch.ones(1, 1, 4, 8); from torch.utils.flop_counter import FlopCounterMode\n"
            "with FlopCounterMode(display=False) as mode: a(q, q, q)\n"
            "assert mode.get_total_flops() == 4 * 16 * 8, mode.get_total_flops(); assert not [x for x in sys.meta_path if 'luattn' in str(type(x))]"
        )
        subprocess.run([sys.executable, "-c", late, f"{ROOT}/python"], check=True)

    def test_torch_is_looked_for_before_it_is_imported(self):
        """As transformers does, to see whether it is there."""
        looked = (
            "import sys; sys.path.insert(0, sys.argv[1]); import luattn, importlib.util; assert importlib.util.find_spec('torch').origin; "
            "assert 'torch' not in sys.modules; import torch; a = luattn.attention('return attention {}'); q = torch.ones(1, 1, 4, 8)\n"
            "for _ in range(3): a(q, q, q)\n"
            "assert luattn._arguments.is_compiling is torch.compiler.is_compiling"
        )
        subprocess.run([sys.executable, "-c", looked, f"{ROOT}/python"], check=True)

    def test_what_waits_for_an_import_outlives_one_that_fails(self):
        ran = []
        with tempfile.TemporaryDirectory() as path:
            with open(f"{path}/fails_once.py", "w") as module:
                module.write("import sys; sys.tried = not getattr(sys, 'tried', False); assert not sys.tried")
            sys.path.insert(0, path)
            self.addCleanup(sys.path.remove, path)
            for mark in "ab":
                when_imported("fails_once", functools.partial(ran.append, mark))
            with self.assertRaises(AssertionError):
                importlib.import_module("fails_once")
            self.assertEqual(ran, [])
            importlib.import_module("fails_once")
        self.assertEqual(sorted(ran), ["a", "b"])
        self.assertFalse([x for x in sys.meta_path if "luattn" in str(type(x))])


if __name__ == "__main__":
    unittest.main()
