"""pages_test.py: luattn.page_table: FlashInfer's lists of pages beside lists of Python, attention over the table beside dense keys, in
both orders of axes, and what is refused. On the CPU. Exits with 77 without torch."""

import os
import sys
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import torch
except ImportError:
    print("torch is not installed: skipped")
    sys.exit(77)
import luattn  # noqa: E402
import numpy as np  # noqa: E402

warnings.filterwarnings("ignore", module="torch")
causal = luattn.attention("return attention { name = 'causal', block_mask = causal_bottom_right() }")


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class PageTable(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)

    def lists(self, lengths, size):
        """kv_indptr, kv_indices, kv_last_page_len of entries with these lengths, in pages in random order."""
        counts = [-(-n // size) for n in lengths]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        last = [n - (c - 1) * size if c > 0 else 0 for n, c in zip(lengths, counts)]
        return ints(*indptr.tolist()), torch.randperm(sum(counts)).int(), ints(*last)

    def expect(self, table, used, lists, lengths, size, columns):
        indptr, indices, _ = (x.tolist() for x in lists)
        self.assertEqual(list(table.shape), [len(lengths), columns])
        self.assertEqual(used.tolist(), list(lengths))
        for b, row in enumerate(table.tolist()):
            pages = indices[indptr[b] : indptr[b + 1]]
            self.assertEqual(row, pages + [-1] * (columns - len(pages)))

    def test_tables(self):
        lengths = (17, 0, 16, 1, 50, 0)
        for size in (1, 3, 16):
            lists = self.lists(lengths, size)
            columns = -(-50 // size)
            self.expect(*luattn.page_table(*lists, size), lists, lengths, size, columns)
            self.expect(*luattn.page_table(*lists, size, max_pages=columns + 2), lists, lengths, size, columns + 2)
            table, used = luattn.page_table(*(x.numpy() for x in lists), size)
            self.assertEqual((table.dtype, used.dtype), (np.int32, np.int32))
            self.expect(table, used, lists, lengths, size, columns)
            part = luattn.page_table(lists[0][2:], lists[1], lists[2][2:], size, max_pages=columns)  # the last four entries
            whole = luattn.page_table(*lists, size)
            for got, want in zip(part, whole):
                self.assertTrue(torch.equal(got, want[2:]))

    def test_no_entries(self):
        table, used = luattn.page_table(ints(0), ints(), ints(), 16)
        self.assertEqual((list(table.shape), list(used.shape)), ([0, 0], [0]))
        table, used = luattn.page_table(ints(0, 0), ints(), ints(7), 16)
        self.assertEqual((list(table.shape), used.tolist()), ([1, 0], [0]))

    def test_attention_over_pools(self):
        lengths, size, heads, dim = (19, 40, 7), 8, 2, 16
        indptr, indices, last = self.lists(lengths, size)
        table, used = luattn.page_table(indptr, indices, last, size)
        keys = [torch.randn(2, n, heads, dim, dtype=torch.float64) for n in lengths]
        pool = torch.full((int(indptr[-1]), 2, size, heads, dim), torch.nan, dtype=torch.float64)  # FlashInfer's, NHD
        for b, kv in enumerate(keys):
            for i in range(kv.shape[1]):
                pool[indices[indptr[b] + i // size], :, i % size] = kv[:, i]
        q = torch.randn(3, 4, 5, dim, dtype=torch.float64)
        nhd = causal(q, pool[:, 0].transpose(1, 2), pool[:, 1].transpose(1, 2), block_table=table, seqused_k=used)
        hnd = pool.transpose(2, 3).contiguous()
        same = causal(q, hnd[:, 0], hnd[:, 1], block_table=table, seqused_k=used)
        for b, (k, v) in enumerate(keys):
            want = causal(q[b : b + 1], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
            torch.testing.assert_close(nhd[b : b + 1], want, rtol=0, atol=1e-13)
            torch.testing.assert_close(same[b : b + 1], want, rtol=0, atol=1e-13)

    def test_packed_queries_beside_an_nhd_pool(self):
        """flash-attn's and FlashInfer's layout, in calls, plans and Batch.prepare: as keys that were transposed by hand."""
        q, cu = torch.randn(6, 4, 16, dtype=torch.float64), ints(0, 2, 6)
        used, table = ints(7, 20), torch.tensor([[1, 0, 0], [3, 4, 2]], dtype=torch.int32)
        k, v = (torch.randn(8, 8, 2, 16, dtype=torch.float64) for _ in "kv")
        heads_first = k.transpose(1, 2), v.transpose(1, 2)
        for given in ({"block_table": table, "seqused_k": used}, {"seqused_k": ints(7, 8)}):
            pool = (k, v) if "block_table" in given else (k[:2], v[:2])
            first = heads_first if "block_table" in given else (heads_first[0][:2], heads_first[1][:2])
            given["cu_seqlens_q"] = cu
            o, lse = causal(q, *pool, layout="bshd", return_lse=True, **given)
            for name, got, want in zip(("o", "lse"), (o, lse), causal(q, *first, return_lse=True, **given)):
                self.assertTrue(torch.equal(got, want), name)
            self.assertTrue(torch.equal(causal(q, *pool, layout="bshd", **given), o))  # a warm call
            of_arrays = causal(*(t.numpy() for t in (q, *pool)), layout="bshd", **{name: t.numpy() for name, t in given.items()})
            self.assertTrue(torch.equal(torch.from_numpy(of_arrays), o))
            compiled = torch.compile(lambda q: causal(q, *pool, layout="bshd", **given), fullgraph=True, backend="aot_eager")  # noqa: B023
            self.assertTrue(torch.equal(compiled(q), o))
            self.assertEqual(causal.plan(q, *pool, layout="bshd", **given), causal.plan(q, *first, **given))
            batch = luattn.Batch()
            batch.prepare(causal, q, *pool, layout="bshd", **given)
            self.assertTrue(torch.equal(causal(q, *pool, layout="bshd", batch=batch, **given), o))
        with self.assertRaisesRegex(luattn.InvalidError, "causal: k: has 3 dimensions, expected 4: pages, rows of a page, heads and head dim"):
            causal(q, k[0], v, layout="bshd", cu_seqlens_q=cu, seqused_k=used, block_table=table)
        packed = {"cu_seqlens_q": cu, "cu_seqlens_k": ints(0, 3, 8), "seqused_k": ints(2, 5)}  # which lie alike in both layouts
        for call in (lambda **given: causal(q, k[0], v[0], return_lse=True, **packed, **given)[0], lambda **given: causal.weights(q, k[0], v[0], **packed, **given)):
            self.assertTrue(torch.equal(call(layout="bshd"), call()))
        self.assertEqual(causal.plan(q, k[0], v[0], layout="bshd", **packed), causal.plan(q, k[0], v[0], **packed))
        with self.assertRaisesRegex(luattn.Unsupported, "causal: Batch.prepare: cu_seqlens_k: a batch goes with neither packed keys nor parts"):
            luattn.Batch().prepare(causal, q, k[0], v[0], layout="bshd", **packed)

    def test_left_padding_in_entries_of_a_larger_cache(self):
        spec = '''return attention { name = 'padded', %s score_mod = function(score, b, h, q_idx, kv_idx)
          return 5 * tanh(score / 5) - 0.1 * (h + 1) * (q_idx + kv_len - q_len - kv_idx) end,
          block_mask = function(b, h, q_idx, kv_idx) return %s kv_idx <= q_idx + kv_len - q_len end }'''
        padded = luattn.attention(spec % ('inputs = { leftpad = { axes = {"b"}, dtype = "i32" } },', "kv_idx >= leftpad[b] and"))
        plain = luattn.attention(spec % ("", ""))
        heads, dim, longest = 2, 16, 150
        k, v = (torch.randn(7, heads, longest, dim, dtype=torch.float64) for _ in range(2))
        place, leftpad, used = (5, 0, 3), (0, 70, 13), ints(90, 150, 20)
        entries, given = ints(*place)[:, None], {"leftpad": ints(*leftpad), "seqused_k": used}
        q = torch.randn(3, 4, 5, dim, dtype=torch.float64)
        o = padded(q, k, v, block_table=entries, **given)
        rows = q.transpose(1, 2).reshape(15, 4, dim)
        packed = padded(rows, k, v, block_table=entries, cu_seqlens_q=ints(0, 5, 10, 15), max_seqlen_q=5, **given)
        pages = torch.arange(70, dtype=torch.int32).view(7, 10)[list(place)]  # of 15 rows, of the same caches
        pool_k, pool_v = (x.unflatten(2, (10, 15)).transpose(1, 2).flatten(0, 1) for x in (k, v))
        paged = padded(q, pool_k, pool_v, block_table=pages, **given)
        for b, (entry, first, end) in enumerate(zip(place, leftpad, used.tolist())):
            want = plain(q[b : b + 1], k[entry : entry + 1, :, first:end], v[entry : entry + 1, :, first:end])
            for got in (o[b : b + 1], paged[b : b + 1], packed[b * 5 : b * 5 + 5].transpose(0, 1)[None]):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-13)

    def test_refusals(self):
        right = (ints(0, 2, 3), ints(5, 6, 7), ints(1, 4))
        for place, wrong, size, message in (
            (0, ints(0, 2, 1), 4, "kv_indptr: is 2, 1 at 1 and the next; it begins at 0 or more and never decreases"),
            (0, ints(0, 2, 4), 4, "kv_indptr: is 4 at 2, and kv_indices has 3 numbers; give it all"),
            (1, ints(5, -1, 7), 4, "kv_indices: is -1 at 1, which is no page's number"),
            (2, ints(0, 4), 4, "kv_last_page_len: is 0 for entry 0, expected 1 to 4, the page_size"),
            (2, ints(1, 5), 4, "kv_last_page_len: is 5 for entry 1, expected 1 to 4, the page_size"),
            (2, ints(1), 4, r"kv_last_page_len: has shape \[1\], expected \[2\] = \[batch\]"),
            (0, ints(0, 2, 3).long(), 4, "kv_indptr: has dtype int64, expected int32"),
            (0, ints(0, 2, 3)[None], 4, r"page_table: kv_indptr: has shape \[1, 3\], expected one axis of batch \+ 1"),
            (0, ints(), 4, r"page_table: kv_indptr: has shape \[0\], expected one axis of batch \+ 1"),
            (0, right[0], 0, "page_size: is 0, expected 1 to"),
        ):
            lists = [*right]
            lists[place] = wrong
            with self.assertRaisesRegex(luattn.InvalidError, message):
                luattn.page_table(*lists, size)
        with self.assertRaisesRegex(luattn.InvalidError, "block_table: has 1 columns, and entry 0 has 2 pages; give it as many"):
            luattn.page_table(*right, 4, max_pages=1)
        with self.assertRaisesRegex(luattn.InvalidError, "page_table: max_pages: is -1, expected 0 or more"):
            luattn.page_table(*right, 4, max_pages=-1)


if __name__ == "__main__":
    unittest.main()
