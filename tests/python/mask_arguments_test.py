"""mask_arguments_test.py: Attention.mask and Attention.plan with what a call has of packed sequences, caches, pages, offsets, scalars and inputs. A mask is compared
with the scores that a call with these arguments keeps: v is a row of the identity for each key, so that o has the weights. On the CPU. Exits with 77 without torch."""

import inspect
import unittest

from with_torch import torch  # exits without torch, so first

import luattn

H, D = 2, 4


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def spec(condition, inputs="", scalars=""):
    return luattn.attention(
        f"return attention {{ name = 'm', inputs = {{ {inputs} }}, scalars = {{ {scalars} }}, block_mask = function(b, h, q_idx, kv_idx) return {condition} end }}"
    )


CAUSAL = spec("kv_idx <= q_idx + kv_len - q_len")
WINDOW = spec("q_idx - kv_idx < w and kv_idx - q_idx < w - h + 0", scalars="w = 2")
FIRST = spec("kv_idx >= first[b]", "first = { axes = {'b'}, dtype = 'i32' }")
FLAGS = spec("eq(flag[q_idx], seen[{b, kv_idx}])", "flag = { axes = {'q'}, dtype = 'i32' }, seen = { axes = {'b', 'kv'}, dtype = 'i32' }")


class Masks(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def kept(self, attention, q, k, numbers, given):
        """[.., 64] of q's rows: which keys they keep, by the numbers [.. of k's rows] that these have."""
        v = torch.nn.functional.one_hot(numbers.clamp(min=0).long(), 64).to(q.dtype)
        return attention(q, k, v, **given) > 0

    def rows(self, mask):
        return torch.tensor([[x > 0 for x in row] for row in mask.rows]).reshape(mask.q_len, mask.kv_len)

    def test_packed(self):
        n, m, used = (3, 0, 5), (4, 2, 9), (4, 1, 6)
        cu_q, cu_k = ints(0, 3, 3, 8), ints(0, 4, 6, 15)
        numbers = torch.cat([torch.arange(x) for x in m])[:, None].expand(-1, H)
        q, k = torch.zeros(8, H, D), torch.zeros(15, H, D)
        flags = {"flag": torch.randint(2, (8,)).int(), "seen": torch.randint(2, (3, 15)).int()}
        for seqused in ({}, {"seqused_k": ints(*used)}):
            for attention, own in ((CAUSAL, {}), (WINDOW, {"w": 3.0}), (FIRST, {"first": ints(1, 0, 2)}), (FLAGS, flags)):
                given = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, **seqused, **own}
                kept = self.kept(attention, q, k, numbers, given)
                for b in range(3):
                    for h in range(H):
                        mask = attention.mask(batch=b, head=h, tile=1, max_seqlen_q=5, max_seqlen_k=9, **given)
                        self.assertEqual((mask.q_len, mask.kv_len), (n[b], used[b] if seqused else m[b]))
                        want = kept[int(cu_q[b]) : int(cu_q[b + 1]), h, : mask.kv_len]
                        self.assertEqual(self.rows(mask).tolist(), want.tolist(), (attention.text, b, h))

    def test_caches_and_pages(self):
        used, table = ints(7, 3, 0), torch.tensor([[4, 1], [0, 0], [2, 2]], dtype=torch.int32)
        pages = torch.zeros(6, H, 4, dtype=torch.int64)
        pages[4], pages[1], pages[0] = torch.arange(4), torch.arange(4, 8), torch.arange(4)
        cache = torch.arange(8).expand(3, H, 8)
        flags = {"flag": torch.randint(2, (3,)).int(), "seen": torch.randint(2, (3, 8)).int()}
        for attention, own in ((CAUSAL, {}), (WINDOW, {}), (FIRST, {"first": ints(1, 0, 2)}), (FLAGS, flags)):
            for numbers, given in ((pages, {"block_table": table}), (cache, {})):
                given |= {"seqused_k": used, **own}
                kept = self.kept(attention, torch.zeros(3, H, 3, D), torch.zeros(*numbers.shape, D), numbers, given)
                for b in range(3):
                    mask = attention.mask(3, batch=b, head=1, tile=1, **given)
                    self.assertEqual(self.rows(mask).tolist(), kept[b, 1, :, : int(used[b])].tolist())
                    self.assertEqual(attention.mask(3, 8, batch=b, head=1, tile=1, layout="bshd", scale=2.0, **given).rows, mask.rows)

    def test_offsets(self):
        numbers = torch.arange(6).expand(2, H, 6)
        for attention in (CAUSAL, WINDOW):
            for offsets in ({"q_offset": 3}, {"kv_offset": 2, "q_offset": 1}, {"q_offset": ints(4, 9)}, {"kv_offset": ints(-1, 3)}, {"q_offset": ints(4, 9), "q_len": 8}, {"kv_len": 12}):
                kept = self.kept(attention, torch.zeros(2, H, 4, D), torch.zeros(2, H, 6, D), numbers, offsets)
                whole = {f"whole_{x}": n for x, n in offsets.items() if x.endswith("len")}
                for b in range(2):
                    mask = attention.mask(4, 6, batch=b, tile=1, **whole, **{x: n for x, n in offsets.items() if not x.endswith("len")})
                    self.assertEqual(self.rows(mask).tolist(), kept[b, 0, :, :6].tolist(), offsets)

    def test_what_the_mask_does_not_read(self):
        both = luattn.attention(
            "return attention { name = 'm', inputs = { bias = { axes = {'h', 'q', 'kv'} }, n = { axes = {'b'}, dtype = 'i32' } },"
            " score_mod = function(s, b, h, q, kv) return s + bias[{h, q, kv}] end, block_mask = function(b, h, q, kv) return kv < n[b] end }"
        )
        self.assertEqual(both.mask(2, 3, tile=1, n=ints(2)).rows, [[2, 2, 0]] * 2)
        with self.assertRaisesRegex(luattn.InvalidError, "^m: mask: input 'n' is missing, and the mask reads it: pass n=$"):
            both.mask(2, 3)
        q = torch.zeros(1, 1, 4, 8)
        self.assertEqual(both.plan(q, q, q), both.plan(q, q, q, n=ints(2), bias=torch.zeros(1, 4, 4)))

    def test_scalars_are_read(self):
        self.assertEqual([row.count(2) for row in WINDOW.mask(9, 9, tile=1, w=4).rows][4], 7)
        self.assertEqual([row.count(2) for row in WINDOW.mask(9, 9, tile=1).rows][4], 3)  # the spec's value, and not the one before

    def test_plans_take_what_calls_take(self):
        q, half = torch.zeros(1, H, 4, 8), luattn.attention("return attention { online_func = dropout(0.5) }")
        for given in ({"scale": 2.0}, {"scale": 0}, {"scale": torch.tensor(-1.0)}, {"return_lse": True}, {"return_state": True}, {"q_offset": 3}, {"seqused_k": ints(3)}):
            for one in (q, q.numpy()):
                if one is q or not any(isinstance(x, torch.Tensor) for x in given.values()):
                    self.assertIn("in double precision", CAUSAL.plan(one, one, one, **given))
        self.assertEqual(half.plan(q, q, q, seed=3), half.plan(q, q, q))
        for given, message in (({"scale": "x"}, "m: plan: scale: is the string 'x'"), ({"exact_rows": True}, "m: plan: exact_rows: there is no such argument yet")):
            with self.assertRaisesRegex(luattn.Error, message):
                CAUSAL.plan(q, q, q, **given)

    def test_every_argument_of_a_call(self):
        """Plans, explanations and weights take each, and masks each that is not theirs by another meaning; so a new one is missed here."""
        q, packed, cu = torch.randn(2, H, 6, 16), torch.randn(12, H, 16), ints(0, 5, 12)
        own = {"scale": 0.5, "return_lse": True, "return_state": True, "layout": "bhsd", "q_offset": 3, "kv_offset": 1, "q_len": 20, "kv_len": 20, "head_offset": 0, "heads": H,
               "keys_modified": True, "decode": "never", "out": torch.empty_like(q), "out_dtype": torch.float32, "seed": None, "batch": luattn.Batch()}  # fmt: skip
        rows = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 7, "max_seqlen_k": 7, "seqused_q": ints(2, 3), "seqused_k": ints(4, 4)}
        pages = {"block_table": ints(1, 0)[:, None], "seqused_k": ints(4, 2)}
        of_part = {"heads": H, "heads_kv": H}
        names = set(inspect.signature(luattn.Attention.__call__).parameters) - {"self", "q", "k", "v", "given"}
        self.assertEqual(names, {*own, *rows, *pages, *of_part})
        for tensor, given in (*((q, {name: x}) for name, x in own.items()), (q, of_part), (packed, rows), (q, pages)):
            with self.subTest(list(given)):
                CAUSAL.plan(tensor, tensor, tensor, **given)
                CAUSAL.explain(tensor, tensor, tensor, **given)
                if given is not pages:
                    CAUSAL.weights(tensor, tensor, tensor, **given)
                lengths = {} if tensor is packed else {"q_len": 6, "kv_len": 6}
                if not given.keys() & {"batch", "q_len", "kv_len"}:
                    CAUSAL.mask(**lengths, **given)

    def test_refusals(self):
        cu = ints(0, 3, 5)
        for given, message in (
            ({}, "m: mask: q_len: is missing: give the length, or cu_seqlens_q"),
            ({"q_len": 3}, "m: mask: kv_len: is missing: give the length, or cu_seqlens_k or seqused_k"),
            ({"cu_seqlens_q": cu}, "m: mask: cu_seqlens_q, cu_seqlens_k: one is missing"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu, "batch": 2}, "m: mask: batch: is 2, and cu_seqlens_q has 2 entries"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu, "q_len": 5}, "m: mask: q_len: is 5, and cu_seqlens_q says 3 for entry 0: leave it out"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu, "seqused_k": ints(4, 1)}, "m: mask: cu_seqlens_k: is 3 for entry 0, which has 4 rows: give as many"),
            ({"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 2}, "m: mask: max_seqlen_q: is 2 for entry 0, which has 3 rows"),
            ({"q_len": 3, "kv_len": 2, "seqused_k": ints(4)}, "m: mask: kv_len: is 2 for entry 0, which has 4 rows"),
            ({"q_len": 3, "kv_len": 2, "block_table": ints(4)[None]}, "m: mask: seqused_k: is missing, and block_table is given"),
            ({"q_len": 3, "kv_len": 2, "q_offset": -1}, "q_offset: is -1"),
            ({"q_len": 3, "kv_len": 2, "scale": "x"}, "m: mask: scale: is the string 'x'"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                CAUSAL.mask(**given)
        with self.assertRaisesRegex(luattn.InvalidError, "m: mask: input 'flag': has 4 places on axis q, and entry 1 ends at 5"):
            FLAGS.mask(batch=1, cu_seqlens_q=cu, cu_seqlens_k=cu, flag=ints(1, 1, 1, 1), seen=torch.zeros(2, 3).int())


if __name__ == "__main__":
    unittest.main()
