"""parallel_plan_test.py: plans of rows for ranks: who has which, how equal their work is, by which transport rows travel, what is refused. In one process. Exits with 77
without torch."""

import unittest

from problems import ROOT, torch  # exits without torch, so first

import luattn
from luattn.parallel import ContextParallel, Plan, plan

AT_ONCE = dict.fromkeys(("stage", "launch", "exchange"), 1e-9)  # seconds
CAUSAL = "return attention { name = 'causal', block_mask = causal() }"
WINDOW = "return attention { name = 'window', block_mask = function(b, h, q, k) return k <= q and q - k < 150 end }"
DOCUMENTS = """return attention { name = 'documents', inputs = { doc = { axes = {'n'}, dtype = 'i32' } },
  block_mask = function(b, h, q, k) return k <= q and eq(doc[q], doc[k]) end }"""


class Plans(unittest.TestCase):
    def test_rows(self):
        p = plan([CAUSAL, WINDOW], 4096, 4, weights=[1, 5])
        self.assertEqual((p.rows, p.padded_len, p.world_size), (1024, 4096, 4))
        self.assertEqual(sorted(sum((p.chunks(r) for r in range(4)), [])), list(range(len(p.rank_of))))
        t = torch.randn(2, 4096, 3)
        parts = [p.shard(t, r) for r in range(4)]
        self.assertTrue(torch.equal(p.unshard(parts), t))
        self.assertTrue(torch.equal(t[:, p.positions(2)], parts[2]))
        self.assertEqual(p.hash, plan([CAUSAL, WINDOW], 4096, 4, weights=[1, 5]).hash)
        self.assertNotEqual(p.hash, plan([CAUSAL, WINDOW], 4096, 2, weights=[1, 5]).hash)
        self.assertIn("layers of window, 5:", str(p))
        self.assertIn("rank 3: ", str(p))

    def test_padding(self):
        p = plan(CAUSAL, 1000, 3)
        self.assertEqual((p.padded_len, p.rows), (1152, 384))
        t = torch.arange(1000)
        parts = [p.shard(t, r, fill=-1) for r in range(3)]
        self.assertEqual(sum(int((x == -1).sum()) for x in parts), 152)
        self.assertTrue(torch.equal(p.unshard(parts), t))
        self.assertIn("padded to 1152", str(p))

    def test_balance(self):
        """Documents that one half of the sequence has: contiguous parts are not equal, chunks by counts are."""
        doc = torch.cat([torch.zeros(4096, dtype=torch.int32), torch.arange(4096, dtype=torch.int32) // 64 + 1])
        p = plan(DOCUMENTS, 8192, 4, inputs={"doc": doc}, rates=AT_ONCE)
        self.assertLess(min(c.imbalance for c in p.candidates if c.partition == "by counts"), 1.05)
        self.assertLess(min(c.imbalance for c in p.candidates if c.partition == "by time"), 1.3)
        self.assertLessEqual(0.99 * p.prediction.seconds, min(c.seconds for c in p.candidates))
        self.assertGreater(next(c for c in p.candidates if c.partition == "contiguous").imbalance, 1.5)

    def test_masks_by_counts(self):
        """At most 1.03 times the mean's tiles, also of masks that are no interval of a row; the plan taken is the fastest, or 1 % from it."""
        rows = 16384
        equal = (torch.arange(rows) // 2048).to(torch.int32)
        chosen = torch.randint(0, rows // 64, (4, rows // 64, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
        masks = {
            "return attention { block_mask = function(b, h, q, k) return k <= q and eq(q // 2048, k // 2048) end }": {},
            "return attention { block_mask = function(b, h, q, k) return k <= q and q - k < 8192 and (q - k) % 512 < 128 end }": {},
            "return attention { block_mask = function(b, h, q, k) return k <= q and (q - k < 1024 or k < 128) end }": {},
            DOCUMENTS: {"doc": equal},
            DOCUMENTS.replace("k <= q and eq(doc[q], doc[k])", "k < 1000 or (k <= q and eq(doc[q], doc[k]))"): {"doc": torch.arange(rows).sqrt().to(torch.int32)},
            f"{ROOT}/bench/specs/bigbird.lua": {"chosen": chosen},
        }
        for text, inputs in masks.items():
            for n in (2, 4, 8):
                p = plan(text, rows, n, inputs=inputs, heads=(4, 4))
                self.assertLess(min(c.imbalance for c in p.candidates if c.partition == "by counts"), 1.03, (text, n))
                self.assertLessEqual(0.99 * p.prediction.seconds, min(c.seconds for c in p.candidates))
                self.assertEqual([x.across for x in p.levels], [x for x in (2, 4) if x <= n])

    def test_transports(self):
        """Of one host each pass has the faster one, of several the group; a layer that comes later has those of the plan."""
        slow_host = {"launch": 1e-2}  # the same time by both, where the group is taken
        self.assertEqual(plan(CAUSAL, 65536, 4).layers[0].transports, ("peer", "peer"))
        self.assertEqual(plan(CAUSAL, 4096, 4, rates=slow_host).layers[0].transports, ("group", "group"))
        self.assertEqual(plan(CAUSAL, 65536, 16).layers[0].transports, ("group", "group"))
        self.assertEqual(plan(CAUSAL, 4096, 2, rank_of=[0, 1]).layers[0].transports, ("group", "group"))
        both = {told: plan(CAUSAL, 65536, 4, transport=told) for told in ("group", "peer", ("group", "peer"))}
        self.assertEqual([p.layers[0].transports for p in both.values()], [("group", "group"), ("peer", "peer"), ("group", "peer")])
        self.assertEqual(len({p.hash for p in both.values()}), 3)
        self.assertLess(both["group"].prediction.backward, both["group", "peer"].prediction.backward)
        mixed = both["group", "peer"]
        self.assertIn("forward: all keys first, by group, backward: all keys first, by peer", str(mixed))
        self.assertEqual(mixed.with_layer(luattn.attention(WINDOW)).layer_of(luattn.attention(WINDOW)).transports, ("group", "peer"))

    def test_what_is_refused(self):
        for words, f in {
            "q_len: is 0, expected 1 to": lambda: plan(CAUSAL, 0, 2),
            "world_size: is 2000, expected 1 to 1024": lambda: plan(CAUSAL, 4096, 2000),
            "weights: are 1, and there are 2 specs": lambda: plan([CAUSAL, WINDOW], 4096, 2, weights=[1]),
            "layers[1].weight: is 0": lambda: plan([CAUSAL, WINDOW], 4096, 2, weights=[1, 0]),
            "heads: are 3, no multiple of the 2 of keys": lambda: plan(CAUSAL, 4096, 2, heads=(3, 2)),
            "dtype: is int32": lambda: plan(CAUSAL, 4096, 2, dtype="int32"),
            "schedule: is the string 'ring', expected one of auto, stages, gathered": lambda: plan(CAUSAL, 4096, 2, schedule="ring"),
            "transport: is the string 'nccl', expected one of peer, group, auto, or two of them": lambda: plan(CAUSAL, 4096, 2, transport="nccl"),
            "transport: is a tuple": lambda: plan(CAUSAL, 4096, 2, transport=("group",) * 3),
            "rates: there is no 'speed'": lambda: plan(CAUSAL, 4096, 2, rates={"speed": 1}),
            "rank_of: has 4 chunks, of which ranks have 1 to 3": lambda: plan(CAUSAL, 4096, 2, rank_of=[0, 0, 0, 1]),
            "places lie on a grid of y, x": lambda: plan("return attention { grid = {'y', 'x'} }", 4096, 2),
            "dim: is 0, and the tensor (5, 4); expected an axis of 256": lambda: plan(CAUSAL, 256, 2).shard(torch.zeros(5, 4), 0, 0),
            "has 2 axes of q_len 256; say which one": lambda: plan(CAUSAL, 256, 2).shard(torch.zeros(256, 256), 0),
            "inputs: 'dox': there is none; there are doc": lambda: plan(DOCUMENTS, 256, 2, inputs={"dox": torch.zeros(256, dtype=torch.int32)}),
            "inputs['doc']: is a list of 256, expected a tensor of torch": lambda: plan(DOCUMENTS, 256, 2, inputs={"doc": [0] * 256}),
            "inputs: is 3 for causal, expected a dict by names": lambda: plan(CAUSAL, 256, 2, inputs=3),
            "weights[0]: is the string 'a', expected a number": lambda: plan(CAUSAL, 256, 2, weights=["a"]),
            "heads: is True, expected a number": lambda: plan(CAUSAL, 256, 2, heads=True),
            "specs: is None, expected a spec, or a list": lambda: plan(None, 256, 2),
            "dim: is 0.5, expected an integer": lambda: plan(CAUSAL, 256, 2).shard(torch.zeros(256, 4), 0, 0.5),
            "rank: is 0.5, expected an integer": lambda: plan(CAUSAL, 256, 2).chunks(0.5),
            "tensor: is a NumPy array": lambda: plan(CAUSAL, 256, 2).shard(torch.zeros(256).numpy(), 0),
            "parts[1]: is (5,), and parts[0] (128,)": lambda: plan(CAUSAL, 256, 2).unshard([torch.zeros(128), torch.zeros(5)]),
            "rank: is 2, and the plan is for 2 ranks": lambda: plan(CAUSAL, 256, 2).chunks(2),
        }.items():
            with self.assertRaises(luattn.Error) as e:
                f()
            self.assertIn(words, str(e.exception))
        with self.assertRaisesRegex(luattn.InvalidError, "group: is None"):
            ContextParallel(luattn.attention(CAUSAL), None, plan(CAUSAL, 256, 2))
        self.assertIsInstance(plan(CAUSAL, 256, 1), Plan)


if __name__ == "__main__":
    unittest.main()
