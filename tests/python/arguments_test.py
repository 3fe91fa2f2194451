"""arguments_test.py: every public function with gradients, and each tensor that it is given: written to between forward and backward, gradients are
those of before, or autograd objects; and no function writes to what it is given."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import flash_attn, flex
from torch.nn.attention import flex_attention as theirs


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def heads_first(lengths=(6, 6)):
    return {name: rand(2, 2, n, 8) for name, n in zip("qkv", (lengths[0], lengths[1], lengths[1]))}


def lengths_first(b=2, n=6):
    return {name: rand(b, n, 2, 8) for name in "qkv"}


def packed(total=8):
    return {name: rand(total, 2, 8) for name in "qkv"}


spec = luattn.attention(
    """return attention {
      scalars = { a = 1.0 },
      inputs = { slope = { axes = { 'h' }, grad = true, dtype = 'f64' }, doc = { axes = { 'b', 'kv' }, dtype = 'i32' }, far = { axes = {}, dtype = 'i32' } },
      mask_mod = function(b, h, q_idx, kv_idx) return doc[b][kv_idx] < 3 and q_idx + far >= kv_idx end,
      score_mod = function(score, b, h, q_idx, kv_idx) return a * score + slope[h] * (kv_idx - q_idx) end }"""
)
causal = luattn.attention("return attention { block_mask = causal() }")
drops = luattn.attention("return attention { online_func = dropout(0.5) }")
draws = luattn.attention("return attention { score_mod = function(score, b, h, q_idx, kv_idx) return score + random(b, h, q_idx, kv_idx) end }")
CU = {"cu_seqlens_q": int32(0, 3, 8), "cu_seqlens_k": int32(0, 4, 8)}
LONGEST = {"max_seqlen_q": 8, "max_seqlen_k": 8}


def flex_call(q, k, v, bias, doc, offset, cap, window):
    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh((score + bias[h, q_idx - kv_idx + 6]) / cap)

    def mask_mod(b, h, q_idx, kv_idx):
        return (doc[b, q_idx] == doc[b, kv_idx]) & (q_idx + offset >= kv_idx) & (q_idx - kv_idx < window)

    return flex.flex_attention(q, k, v, score_mod, flex.create_block_mask(mask_mod, 2, None, 6, 6, device="cpu"))


def blocks_call(q, k, v, num, indices):
    mask = theirs.BlockMask.from_kv_blocks(num, indices, BLOCK_SIZE=4, mask_mod=theirs.noop_mask, seq_lengths=(8, 8))
    return flex.flex_attention(q, k, v, block_mask=mask)


def merge_call(o1, o2, lse1, lse2):
    return luattn.merge([o1, o2], [lse1, lse2])


def aux(call):
    return lambda **given: call(**given, return_attn_probs=True)[:2]


REFUSED = "modified by an inplace operation|has been modified inplace"  # the second of views
# A function, and its tensors.
CASES = {
    "attention": (lambda q, k, v, **more: spec(q, k, v, return_lse=True, **more), lambda: {
        **heads_first(), "slope": rand(2), "doc": torch.randint(0, 4, (2, 6), dtype=torch.int32), "far": torch.tensor(1, dtype=torch.int32),
        "a": torch.tensor(1.25, requires_grad=True), "scale": torch.tensor(0.5, dtype=torch.float64, requires_grad=True)}),
    "attention, bshd": (lambda q, k, v: causal(q, k, v, layout="bshd"), lengths_first),
    "attention, offsets": (lambda q, k, v, **more: causal(q, k, v, **more), lambda: {**heads_first(), "q_offset": int32(3, 1), "kv_offset": int32(1, 2)}),
    "attention, packed": (lambda q, k, v, **more: causal(q, k, v, **more, **LONGEST), lambda: {
        **packed(), **{name: t.clone() for name, t in CU.items()}, "seqused_q": int32(2, 4), "seqused_k": int32(3, 3)}),
    "attention, dropout": (lambda q, k, v, seed: drops(q, k, v, seed=seed), lambda: {**heads_first(), "seed": torch.tensor([5, 0])}),
    "attention, random": (lambda q, k, v, seed: draws(q, k, v, seed=seed), lambda: {**heads_first(), "seed": torch.tensor([5, 0])}),
    "merge": (merge_call, lambda: {"o1": rand(2, 2, 6, 8), "o2": rand(2, 2, 6, 8), "lse1": rand(2, 2, 6), "lse2": rand(2, 2, 6)}),
    "flash_attn_func": (aux(lambda **given: flash_attn.flash_attn_func(causal=True, **given)), lambda: {**lengths_first(), "alibi_slopes": torch.rand(2, 2)}),
    "flash_attn_qkvpacked_func": (lambda qkv: flash_attn.flash_attn_qkvpacked_func(qkv, window_size=(2, 0)), lambda: {"qkv": rand(2, 6, 3, 2, 8)}),
    "flash_attn_kvpacked_func": (lambda q, kv: flash_attn.flash_attn_kvpacked_func(q, kv, softcap=3.0), lambda: {"q": rand(2, 6, 2, 8), "kv": rand(2, 6, 2, 2, 8)}),
    "flash_attn_varlen_func": (aux(lambda **given: flash_attn.flash_attn_varlen_func(causal=True, **given, **LONGEST)), lambda: {
        **packed(), **{name: t.clone() for name, t in CU.items()}, "alibi_slopes": torch.rand(2, 2)}),
    "flash_attn_varlen_qkvpacked_func": (lambda qkv, cu: flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 8, causal=True), lambda: {"qkv": rand(8, 3, 2, 8), "cu": int32(0, 3, 8)}),
    "flash_attn_varlen_kvpacked_func": (lambda q, kv, cu_q, cu_k: flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 8, 8), lambda: {
        "q": rand(8, 2, 8), "kv": rand(8, 2, 2, 8), "cu_q": int32(0, 3, 8), "cu_k": int32(0, 4, 8)}),
    "varlen_attn": (lambda q, k, v, cu_q, cu_k: flash_attn.varlen_attn(q, k, v, cu_q, cu_k, 8, 8, window_size=(-1, 0)), lambda: {**packed(), "cu_q": int32(0, 3, 8), "cu_k": int32(0, 4, 8)}),
    "flex_attention": (lambda **given: flex_call(cap=2.0, window=3, **given), lambda: {
        **heads_first(), "bias": rand(2, 12), "doc": torch.randint(0, 2, (2, 6)), "offset": torch.tensor(1)}),
    "flex_attention, a learned cap": (lambda **given: flex_call(window=3, **given), lambda: {
        **heads_first(), "bias": rand(2, 12), "doc": torch.randint(0, 2, (2, 6), dtype=torch.int32), "offset": torch.tensor([1])[0], "cap": rand().detach().abs().add(1).requires_grad_()}),
    "flex_attention, blocks": (blocks_call, lambda: {
        **heads_first((8, 8)), "num": int32(1, 2).reshape(1, 1, 2), "indices": int32(0, 1, 0, 1).reshape(1, 1, 2, 2)}),
}  # fmt: skip


def results_of(made):
    return made if isinstance(made, tuple) else (made,)


def gradients(results, leaves):
    total = 0.0
    for i, r in enumerate(results):
        r = torch.where(torch.isfinite(r), r, 0.0)
        total = total + (r * torch.cos(torch.arange(r.numel(), dtype=r.dtype) + i).reshape(r.shape)).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True)


def change(t):
    """Another valid value: lengths fall, places and ids move by one, numbers are doubled, blocks are exchanged."""
    with torch.no_grad():
        if t.is_floating_point():
            t.mul_(2)
        elif t.numel() == 1:
            t.add_(1)
        else:
            t.copy_(t.flip(-1)) if t.dim() > 1 else t[1:2].sub_(1)


class Arguments(unittest.TestCase):
    def test_written_before_backward(self):
        for name, (call, make) in CASES.items():
            for written in make():
                with self.subTest(name, written=written):
                    torch.manual_seed(1)
                    given = make()
                    leaves = [t for t in given.values() if t.requires_grad]
                    want = gradients(results_of(call(**given)), leaves)
                    results = results_of(call(**given))
                    change(given[written])
                    try:
                        got = gradients(results, leaves)
                    except (RuntimeError, luattn.Error) as e:
                        self.assertRegex(str(e), REFUSED)
                        continue
                    for t, a, b in zip(leaves, got, want):
                        self.assertIsNotNone(a, f"no gradient of {next(n for n, x in given.items() if x is t)}")
                        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)

    def test_each_counts(self):
        """Another value gives another result: none is ignored."""
        for name, (call, make) in CASES.items():
            for written in make():
                with self.subTest(name, written=written):
                    torch.manual_seed(1)
                    given = make()
                    with torch.no_grad():
                        before = [t.clone() for t in results_of(call(**given))]
                        change(given[written])
                        after = results_of(call(**given))
                    self.assertFalse(all(torch.equal(a, b) for a, b in zip(before, after)), "the result stays")

    def test_nothing_is_written(self):
        for name, (call, make) in CASES.items():
            with self.subTest(name):
                given = make()
                before = {n: (t.detach().clone(), t._version) for n, t in given.items()}
                results = results_of(call(**given))
                gradients(results, [t for t in given.values() if t.requires_grad])
                for n, t in given.items():
                    self.assertTrue(torch.equal(t, before[n][0]), n)
                    self.assertEqual(t._version, before[n][1], n)

    def test_results_written(self):
        """A result that backward reads is saved too."""
        for name, (call, make) in CASES.items():
            torch.manual_seed(1)
            given = make()
            leaves = [t for t in given.values() if t.requires_grad]
            want = gradients(results_of(call(**given)), leaves)
            for i in range(len(results_of(call(**given)))):
                with self.subTest(name, result=i):
                    results = results_of(call(**given))
                    keep = [r.clone() for r in results]
                    with torch.no_grad():
                        results[i].mul_(2)
                    try:
                        got = gradients(keep, leaves)
                    except RuntimeError as e:
                        self.assertRegex(str(e), REFUSED)
                        continue
                    for a, b in zip(got, want):
                        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)

    def test_caches(self):
        """Calls write to the cache, where new rows go, and to nothing else."""
        fresh = {"q": rand(2, 1, 2, 8).detach(), "k": rand(2, 1, 2, 8).detach(), "v": rand(2, 1, 2, 8).detach()}
        more = {"cache_seqlens": int32(3, 5), "rotary_cos": torch.rand(16, 4).double(), "rotary_sin": torch.rand(16, 4).double()}
        flat = {"k_cache": rand(3, 8, 2, 8).detach(), "v_cache": rand(3, 8, 2, 8).detach(), "cache_batch_idx": int32(2, 0)}
        pages = {"k_cache": rand(5, 4, 2, 8).detach(), "v_cache": rand(5, 4, 2, 8).detach(), "block_table": int32(1, 3, 4, 0).reshape(2, 2)}
        places = {"flat": [(2, 3), (0, 5)], "pages": [(1, 3), (0, 1)]}  # of the new rows
        for name, held in (("flat", flat), ("pages", pages)):
            with self.subTest(name):
                given = {**fresh, **more, **held}
                before = {n: t.clone() for n, t in given.items()}
                flash_attn.flash_attn_with_kvcache(**given, causal=True)
                for n, t in given.items():
                    changed = (t != before[n]).flatten(2).any(-1).nonzero().tolist() if n in ("k_cache", "v_cache") else []
                    self.assertEqual([tuple(x) for x in changed], sorted(places[name]) if changed else [], n)
                    if n in ("k_cache", "v_cache"):
                        self.assertTrue(changed, n)
                    else:
                        self.assertTrue(torch.equal(t, before[n]), n)


if __name__ == "__main__":
    unittest.main()
