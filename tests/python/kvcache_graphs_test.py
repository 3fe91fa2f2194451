"""kvcache_graphs_test.py: flash_attn_with_kvcache in one graph of torch.compile, beside the eager call: results and what is in the caches."""

import unittest

from with_torch import torch  # exits without torch, so first

from torch._dynamo.testing import CompileCounter

import luattn
from luattn.flash_attn import flash_attn_with_kvcache

B, S, HEADS, HEADS_K = 3, 24, 4, 2


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class Graphs(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def same(self, q, caches, new=(), **given):
        mine, theirs = ([t.clone() for t in caches] for _ in range(2))
        call = torch.compile(lambda q, k, v, new, given: flash_attn_with_kvcache(q, k, v, *new, **given), backend="aot_eager", fullgraph=True)
        for a, b in zip(self.both(call, q, mine, new, given), self.both(None, q, theirs, new, given)):
            torch.testing.assert_close(a, b)
        for a, b, before in zip(mine, theirs, caches):
            torch.testing.assert_close(a, b)
            self.assertEqual(bool(new), not torch.equal(a, before))

    def both(self, call, q, caches, new, given):
        if call is None:
            return flash_attn_with_kvcache(q, *caches, *new, return_softmax_lse=True, **given)
        return call(q, *caches, new, {**given, "return_softmax_lse": True})

    def test_masks_scores_and_places(self):
        d, lengths = 16, int32(5, 0, 20)
        q, new = rand(B, 2, HEADS, d), [rand(B, 2, HEADS_K, d) for _ in "kv"]
        caches = [rand(B, S, HEADS_K, d) for _ in "kv"]
        angles = torch.rand(S, 4)
        rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
        for case in (
            {}, {"causal": True}, {"window_size": (3, 0), "softcap": 2.0}, {"alibi_slopes": torch.rand(HEADS), "num_splits": 2}, {"attention_chunk": 4},
            {**rotary, "causal": True}, {**rotary, "rotary_interleaved": False}, {"cache_leftpad": int32(2, 0, 3)}, {"softmax_scale": -0.3},
        ):  # fmt: skip
            with self.subTest(**case):
                torch._dynamo.reset()
                self.same(q, caches, new, cache_seqlens=lengths, **case)
        torch._dynamo.reset()
        self.same(q, caches, cache_seqlens=lengths)
        self.same(q, caches, new, cache_seqlens=7)
        self.same(q, [rand(B + 2, S, HEADS_K, d) for _ in "kv"], new, cache_seqlens=lengths, cache_batch_idx=int32(4, 1, 0))
        pages, table = [rand(20, 8, HEADS_K, d) for _ in "kv"], torch.randperm(20)[: 3 * B].view(B, 3).to(torch.int32)
        self.same(q, pages, new, cache_seqlens=lengths, block_table=table, causal=True)
        packed = [t.flatten(0, 1) for t in (q, *new)]
        cu = int32(0, 2, 4, 6)
        self.same(packed[0], pages, packed[1:], cache_seqlens=lengths, block_table=table, cu_seqlens_q=cu, max_seqlen_q=2, cu_seqlens_k_new=cu)

    def test_half(self):
        """Head dims that are padded, where PyTorch's ops write the rows."""
        for d in (16, 20):
            q, new = rand(B, 1, HEADS, d, dtype=torch.bfloat16), [rand(B, 1, HEADS_K, d, dtype=torch.bfloat16) for _ in "kv"]
            self.same(q, [rand(B, S, HEADS_K, d, dtype=torch.bfloat16) for _ in "kv"], new, cache_seqlens=int32(5, 0, 20), causal=True)

    def test_a_loop_of_steps_is_one_graph(self):
        d, counts = 16, CompileCounter()
        step = torch.compile(lambda q, k, v, new, n: flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=n, causal=True), backend=counts, fullgraph=True)
        caches, n = [torch.zeros(B, S, HEADS_K, d) for _ in "kv"], int32(0, 3, 1)
        twins = [t.clone() for t in caches]
        for _ in range(4):
            q, new = rand(B, 1, HEADS, d), [rand(B, 1, HEADS_K, d) for _ in "kv"]
            o = step(q, *caches, new, n)
            torch.testing.assert_close(o, flash_attn_with_kvcache(q, *twins, *new, cache_seqlens=n, causal=True))
            n = n + 1
        self.assertEqual(counts.frame_count, 1)

    def test_rows_that_do_not_fit(self):
        """The host does not look at lengths in a graph: the ops do."""
        d = 16
        call = torch.compile(lambda q, k, v, new, n: flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=n), backend="aot_eager", fullgraph=True)
        whole = [torch.zeros(B + 1, S, HEADS_K, d) for _ in "kv"]
        for lengths in (int32(5, 0, S), int32(-1, 0, 0)):
            with self.assertRaisesRegex(luattn.InvalidError, "seqused_k"):
                call(rand(B, 2, HEADS, d), *(t[:B] for t in whole), [rand(B, 2, HEADS_K, d) for _ in "kv"], lengths)
            for t in whole:
                self.assertTrue((t[B] == 0).all())


if __name__ == "__main__":
    unittest.main()
