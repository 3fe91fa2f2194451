"""kvcache_test.py: luattn.flash_attn.flash_attn_with_kvcache beside a plain formula, query by query, in double on the CPU: results, lse, and
what is in the caches afterwards; and what is refused. Exits with 77 without torch."""

import inspect
import itertools
import math
import sys
import unittest
import unittest.mock

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
from luattn import _call
from luattn.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache, varlen_attn

B, S, HEADS, HEADS_K, D = 3, 24, 4, 2, 16
F64 = torch.float64


def rand(*shape, dtype=F64):
    return torch.randn(*shape, dtype=dtype)


def turn(x, angle, interleaved):
    """One vector, rotated: pair i by angle[i]."""
    x, n = x.clone(), len(angle)
    for i in range(n):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + n)
        c, s = math.cos(angle[i]), math.sin(angle[i])
        x[a], x[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
    return x


def turn_rows(x, angles, first, step, interleaved):
    """[length, heads, d], row i by the angles of position first + i * step."""
    return torch.stack([
        torch.stack([turn(x[i, h], angles[first + i * step].tolist(), interleaved) for h in range(x.shape[1])]) for i in range(len(x))
    ])  # fmt: skip


def attend(q, k, v, leftpad=0, causal=False, window_size=(-1, -1), softcap=0.0, slopes=None, scale=None, attention_chunk=0):
    """o and lse of one entry's q [rows, heads, d] and keys [length, heads_k, d], each query and head by itself."""
    (n, heads, d), m = q.shape, len(k)
    o, lse = torch.zeros(n, heads, v.shape[2], dtype=F64), torch.full((heads, n), -math.inf, dtype=F64)
    left, right = window_size
    for i, h in itertools.product(range(n), range(heads)):
        at = i + m - n
        kept = [
            j for j in range(leftpad, m)
            if not (causal and j > at) and not (left >= 0 and j < at - left) and not (right >= 0 and j > at + right)
            and not (attention_chunk and (j - leftpad) // attention_chunk != (at - leftpad) // attention_chunk)
        ]  # fmt: skip
        if not kept:
            continue
        s = k[kept, h // (heads // k.shape[1])] @ q[i, h] * (d**-0.5 if scale is None else scale)
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if slopes is not None:
            s = s - slopes[h] * torch.tensor([abs(at - j) for j in kept], dtype=F64)
        lse[h, i] = torch.logsumexp(s, 0)
        o[i, h] = torch.softmax(s, 0) @ v[kept, h // (heads // v.shape[1])]
    return o, lse


class Call:
    """Caches and arguments of a call, and what it should give."""

    def __init__(self, new=0, rows=1, rotary=0, interleaved=True, leftpad=False, entries=False, page=0, lengths=None, **options):
        self.options, self.rows = options, rows
        self.q = rand(B, rows, HEADS, D)
        self.caches = [rand(B + 2 if entries else B, S, HEADS_K, D) for _ in "kv"]
        self.lengths = torch.tensor([5, 0, S - max(new, rows)] if lengths is None else lengths, dtype=torch.int32)
        self.given = {"cache_seqlens": self.lengths, **options}
        self.place = list(range(B))
        if entries:
            self.place = [4, 1, 0]
            self.given["cache_batch_idx"] = torch.tensor(self.place, dtype=torch.int32)
        self.leftpad = [0] * B
        if leftpad:
            self.leftpad = [2, 0, 7]
            self.given["cache_leftpad"] = torch.tensor(self.leftpad, dtype=torch.int32)
        self.new = [rand(B, new, HEADS_K, D) for _ in "kv"] if new else None
        self.angles = None
        if rotary:
            self.angles = torch.rand(S + 8, rotary // 2, dtype=F64) * 6
            self.given |= {"rotary_cos": self.angles.cos(), "rotary_sin": self.angles.sin(), "rotary_interleaved": interleaved}
        self.interleaved, self.page, self.table = interleaved, page, None

    def expected(self):
        """o, lse, and the caches' rows of each entry."""
        outs, lses, rows = [], [], []
        options = {name: x for name, x in self.options.items() if name not in ("alibi_slopes", "softmax_scale", "num_splits")}
        local = options.get("causal") or options.get("attention_chunk") or any(0 <= x < S for x in options.get("window_size", (-1, -1)))
        slopes = self.options.get("alibi_slopes")
        for b in range(B):
            q, length = self.q[b], int(self.lengths[b])
            k, v = (cache[self.place[b]].clone() for cache in self.caches)
            if self.new is not None:
                n = self.new[0].shape[1]
                k[length : length + n], v[length : length + n] = (t[b] for t in self.new)
                if self.angles is not None:
                    k[length : length + n] = turn_rows(self.new[0][b], self.angles, length, 1, self.interleaved)
                    q = turn_rows(q, self.angles, length, int(bool(local)), self.interleaved)
                length += n
            mine = slopes if slopes is None or slopes.dim() == 1 else slopes[b]
            o, lse = attend(
                q, k[:length], v[:length], self.leftpad[b], slopes=mine, scale=self.options.get("softmax_scale"), **options
            )
            outs.append(o), lses.append(lse), rows.append((k, v))
        return torch.stack(outs), torch.stack(lses), rows

    def paged(self):
        """The caches in pages, whose order is random; behind the end poison, in the table nonsense."""
        per = -(-S // self.page)
        order = torch.randperm(B * per + 3)[: B * per].view(B, per)
        self.table = order.to(torch.int32)
        pages = [torch.full((B * per + 3, self.page, HEADS_K, D), torch.nan, dtype=F64) for _ in "kv"]
        new = 0 if self.new is None else self.new[0].shape[1]
        for b, page in itertools.product(range(B), range(per)):
            first, end = page * self.page, min((page + 1) * self.page, int(self.lengths[b]))
            for cache, to in zip(self.caches, pages):
                if end > first:
                    to[order[b, page], : end - first] = cache[self.place[b], first:end]
            if first >= int(self.lengths[b]) + new:
                self.table[b, page] = -1 if b % 2 else 2**31 - 1
        if len(self.caches[0]) > B:  # entries of a larger table
            whole = torch.full((len(self.caches[0]), per), -1, dtype=torch.int32)
            whole[self.place], self.table = self.table, whole
        self.given["block_table"] = self.table
        return pages, order

    def run(self, case):
        want, want_lse, rows = self.expected()
        caches, order = self.paged() if self.page else ([cache.clone() for cache in self.caches], None)
        before = [cache.clone() for cache in self.caches]
        o, lse = flash_attn_with_kvcache(self.q, *caches, *(self.new or ()), return_softmax_lse=True, **self.given)
        torch.testing.assert_close(o, want, rtol=0, atol=1e-12)
        torch.testing.assert_close(lse, want_lse, rtol=0, atol=1e-12)
        end = self.lengths + (0 if self.new is None else self.new[0].shape[1])
        for b in range(B):
            for cache, whole in zip(caches, rows[b]):
                got = cache[order[b]].flatten(0, 1) if self.page else cache[self.place[b]]
                torch.testing.assert_close(got[: end[b]], whole[: end[b]], rtol=0, atol=1e-13)
                if not self.page:
                    case.assertTrue(torch.equal(got[end[b] :], whole[end[b] :]))
        if not self.page:
            for b in set(range(len(before[0]))) - set(self.place):
                case.assertTrue(torch.equal(caches[0][b], before[0][b]))


class KvCache(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def test_masks_and_scores(self):
        for options in (
            {}, {"causal": True}, {"window_size": (3, 2)}, {"window_size": (4, -1), "causal": True}, {"window_size": (100, 100)},
            {"attention_chunk": 4, "causal": True}, {"attention_chunk": 5, "window_size": (3, 9)},
            {"softcap": 1.5, "causal": True, "softmax_scale": 0.7}, {"alibi_slopes": torch.rand(HEADS, dtype=F64)},
            {"alibi_slopes": torch.rand(B, HEADS, dtype=F64), "causal": True, "softcap": 2.0, "num_splits": 3},
        ):  # fmt: skip
            for rows, new, leftpad in ((1, 0, False), (1, 1, True), (5, 5, False), (5, 3, True), (3, 0, True)):
                with self.subTest(options=options, rows=rows, new=new, leftpad=leftpad):
                    lengths = [9, 7 if new == 0 else 0, S - max(rows, new)]
                    Call(new, rows, leftpad=leftpad, lengths=lengths, **options).run(self)

    def test_rotary(self):
        for causal, interleaved, dim in itertools.product((False, True), (False, True), (8, 16)):
            Call(4, 4, dim, interleaved, causal=causal).run(self)
        Call(2, 4, 8, window_size=(3, 1), leftpad=True).run(self)
        Call(2, 4, 8, attention_chunk=6).run(self)
        Call(4, 4, 8, window_size=(S, S)).run(self)  # no window, so that all rows of q are at one position

    def test_entries(self):
        Call(2, 3, entries=True, causal=True).run(self)
        Call(0, 1, entries=True, leftpad=True).run(self)

    def test_pages(self):
        for page, new in itertools.product((1, 3, 16), (0, 4)):
            Call(new, 4, 8 if new else 0, page=page, causal=True).run(self)
        Call(1, 1, page=5, window_size=(4, 0), alibi_slopes=torch.rand(HEADS, dtype=F64)).run(self)
        for new in (0, 3):
            Call(new, 3, page=4, leftpad=True, causal=True).run(self)
            Call(new, 3, 8 if new else 0, page=4, entries=True, causal=True).run(self)

    def test_varlen_pages(self):
        """flash_attn_varlen_func and varlen_attn over pages."""
        call = Call(page=3)
        pages, _ = call.paged()
        cu_q, used = torch.tensor([0, 2, 2, 7], dtype=torch.int32), call.lengths
        cu_k = torch.cat([torch.zeros(1), used.cumsum(0)]).int()
        q, given = rand(7, HEADS, D), {"block_table": call.table}
        o, lse, _ = flash_attn_varlen_func(q, *pages, cu_q, cu_k, 5, S, causal=True, return_attn_probs=True, **given)
        also = [
            varlen_attn(q, *pages, cu_q, cu, 5, S, window_size=(-1, 0), enable_gqa=True, seqused_k=n, **given)
            for cu, n in ((None, used), (cu_k, None))
        ]
        for b in range(B):
            rows = slice(cu_q[b], cu_q[b + 1])
            want, want_lse = attend(q[rows], *(cache[b, : used[b]] for cache in call.caches), causal=True)
            for got in (o, *also):
                torch.testing.assert_close(got[rows], want, rtol=0, atol=1e-12)
            torch.testing.assert_close(lse[:, rows], want_lse, rtol=0, atol=1e-12)

    def test_attention_over_pages(self):
        """luattn.attention in both layouts, of a cache in part, packed queries, NumPy; and no gradients."""
        causal = luattn.attention("return attention { block_mask = causal_bottom_right() }")
        call = Call(page=16, rows=3)
        (k, v), _ = call.paged()
        want = torch.stack([attend(call.q[b], *(t[b, : call.lengths[b]] for t in call.caches), causal=True)[0] for b in range(B)])
        given = {"seqused_k": call.lengths, "block_table": call.table}
        found = [
            causal(call.q, k, v, layout="bshd", **given),
            causal(*(t.transpose(1, 2) for t in (call.q, k, v)), **given).transpose(1, 2),
            causal(call.q, *call.caches, layout="bshd", seqused_k=call.lengths),
            torch.from_numpy(causal(*(t.numpy() for t in (call.q, k, v)), layout="bshd", **{n: t.numpy() for n, t in given.items()})),
            causal(
                call.q.flatten(0, 1), *(t.transpose(1, 2) for t in (k, v)), max_seqlen_q=3,
                cu_seqlens_q=torch.arange(0, 3 * B + 1, 3, dtype=torch.int32), **given,
            ).view(want.shape),
        ]  # fmt: skip
        for o in found:
            torch.testing.assert_close(o, want, rtol=0, atol=1e-12)
        o = causal(call.q.requires_grad_(), k, v, layout="bshd", **given)
        with self.assertRaisesRegex(luattn.Error, "there is no backward over keys in pages"):
            o.sum().backward()
        compiled = torch.compile(lambda q: causal(q, k, v, layout="bshd", **given), fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            self.assertTrue(torch.equal(compiled(call.q), o))

    def test_keys_modified(self):
        """luattn.attention over rows that its append wrote through key_mod and value_mod, beside attention over raw rows."""
        attention = luattn.attention('''return attention {
            inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} }, bias = { axes = {"h"}, dtype = "any" } },
            scalars = { gain = 1 },
            query_mod = rotary("cosine", "sine"), key_mod = rotary("cosine", "sine"),
            value_mod = function(x, b, h, pos, d) return gain * x * (1 + pos / 16) end,
            score_mod = function(s, b, h, q, kv) return s + bias[h] * kv end,
            block_mask = causal_bottom_right() }''')
        angles, bias = torch.rand(S, D // 2) * 6, torch.randn(HEADS)
        turns, given = {"cosine": angles.cos(), "sine": angles.sin()}, {"bias": bias, "gain": 0.5}
        n = (9, 17, 4)
        raw = rand(2, B, S, HEADS_K, D)
        q = rand(B, 2, HEADS, D)
        want = torch.stack([
            attention(q[b : b + 1], *(t[b : b + 1, : n[b]] for t in raw), layout="bshd", **turns, **given)[0] for b in range(B)
        ])  # fmt: skip
        size, per = 4, S // 4
        table = torch.arange(B * per, dtype=torch.int32).flip(0).view(B, per).contiguous()
        used = torch.tensor(n, dtype=torch.int32)
        for form in ("pages", "cache", "heads first", "packed", "numpy"):
            layout = "bhsd" if form == "heads first" else "bshd"
            k, v = torch.full((2, B, S, HEADS_K, D) if form == "cache" else (2, B * per, size, HEADS_K, D), math.nan, dtype=F64)
            at = {} if form == "cache" else {"block_table": table}
            if form == "heads first":
                k, v = k.transpose(1, 2), v.transpose(1, 2)
            convert = (lambda t: t.numpy()) if form == "numpy" else (lambda t: t)
            k, v = convert(k), convert(v)
            names = {name: convert(t) for name, t in {**turns, **at}.items()}
            write = dict(layout=layout, keys_modified=True, gain=0.5, **names)
            if form == "packed":
                rows = [torch.cat([t[b, : n[b]] for b in range(B)]) for t in raw]
                cu = torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32)
                attention.append(k, v, *rows, seqused_k=torch.zeros_like(used), cu_seqlens_q=cu, **write)
            else:  # row by row; the first ones of all entries together
                rows = raw.transpose(2, 3) if layout == "bhsd" else raw
                axis = 2 if layout == "bhsd" else 1
                attention.append(k, v, *(convert(t.narrow(axis, 0, 4)) for t in rows), seqused_k=convert(torch.zeros_like(used)), **write)
                for i in range(4, max(n)):
                    seqused = torch.minimum(torch.tensor(i, dtype=torch.int32), used - 1)
                    new = [torch.stack([t[b].narrow(axis - 1, int(seqused[b]), 1) for b in range(B)]) for t in rows]
                    attention.append(k, v, *map(convert, new), seqused_k=convert(seqused), **write)
            call = dict(layout=layout, seqused_k=convert(used), bias=convert(bias), gain=0.5, **names)
            queries = convert(q.transpose(1, 2) if layout == "bhsd" else q)
            o, twice = (torch.as_tensor(attention(queries, k, v, keys_modified=x, **call)) for x in (True, False))
            if layout == "bhsd":
                o, twice = o.transpose(1, 2), twice.transpose(1, 2)
            torch.testing.assert_close(o, want, rtol=0, atol=1e-12)
            self.assertGreater((twice - want).abs().max().item(), 0.01)
        self.assertTrue(torch.equal(attention(q, *raw, layout="bshd", keys_modified=False, **turns, **given), attention(q, *raw, layout="bshd", **turns, **given)))
        o = attention(q.requires_grad_(), *raw, layout="bshd", keys_modified=True, **turns, **given)
        with self.assertRaisesRegex(luattn.Unsupported, "keys_modified: is True, and there is no backward"):
            o.sum().backward()
        compiled = torch.compile(
            lambda q: attention(q, *raw, layout="bshd", keys_modified=True, **turns, **given), fullgraph=True, backend="aot_eager"
        )
        with torch.no_grad():
            self.assertTrue(torch.equal(compiled(q), o))
        new = rand(2, B, 1, HEADS_K, D)
        k, v = torch.zeros(2, B, S, HEADS_K, D, dtype=F64)
        for error, message, changes in (
            (luattn.InvalidError, "input 'sine': is missing; give a float32 tensor of 2 axes", {"sine": None}),
            (luattn.InvalidError, "layout: is 'sbhd'", {"layout": "sbhd"}),
            (luattn.InvalidError, "there is no argument 'size'", {"size": 3}),
            (luattn.InvalidError, "kernels cannot write to k or v as they lie", {"k": k.expand(B, S, HEADS_K, D)[..., ::2]}),
        ):
            given = {"k": k, "v": v, "new_k": new[0], "new_v": new[1], "seqused_k": used, "layout": "bshd", "keys_modified": True, **turns} | changes
            with self.assertRaisesRegex(error, message):
                attention.append(**{name: x for name, x in given.items() if x is not None})

    def test_lengths(self):
        """As a number, and left out; caches that are slices, and heads-first ones."""
        q, k, v = rand(2, 3, HEADS, D), rand(4, S + 5, HEADS_K, D), rand(4, HEADS_K, S, D)
        caches = k[:, 2 : S + 2], v.transpose(1, 2)
        for lengths in (7, None):
            n = S if lengths is None else lengths
            o = flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, causal=True)
            for b in range(2):
                want, _ = attend(q[b], *(t[b, :n] for t in caches), causal=True)
                torch.testing.assert_close(o[b], want, rtol=0, atol=1e-12)
        new = [rand(2, 1, HEADS_K, D) for _ in "kv"]
        flash_attn_with_kvcache(q[:, :1], *caches, *new, cache_seqlens=S - 1)
        self.assertTrue(torch.equal(k[:2, S + 1], new[0][:, 0]) and torch.equal(v[:2, :, S - 1], new[1][:, 0]))

    def test_num_splits(self):
        """Reaches luattn_args of forward, and no later call."""
        seen = []
        run = _call.Frame.run

        def spy(frame, *args):
            seen.append((frame.backward, frame._args.num_splits))
            return run(frame, *args)

        q, k = rand(2, 1, HEADS, D), rand(2, S, HEADS_K, D)
        cu = torch.tensor([0, 3], dtype=torch.int32)
        p = rand(3, HEADS, D).requires_grad_()
        with unittest.mock.patch.object(_call.Frame, "run", spy):
            flash_attn_with_kvcache(q, k, k, num_splits=5)
            flash_attn_with_kvcache(q, k, k)
            varlen_attn(p, p, p, cu, cu, 3, 3, num_splits=2).sum().backward()
        self.assertEqual(seen, [(False, 5), (False, 0), (False, 2), (True, 0)])

    def test_decode(self):
        """Token by token, beside all at once."""
        q, k, v = rand(1, 12, HEADS, D), rand(1, 12, HEADS_K, D), rand(1, 12, HEADS_K, D)
        want, _ = attend(q[0], k[0], v[0], causal=True)
        caches = [torch.zeros(1, 16, HEADS_K, D, dtype=F64) for _ in "kv"]
        for i in range(12):
            o = flash_attn_with_kvcache(q[:, i : i + 1], *caches, k[:, i : i + 1], v[:, i : i + 1], cache_seqlens=i, causal=True)
            torch.testing.assert_close(o[0, 0], want[i], rtol=0, atol=1e-12)

    def test_example(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        from decode import generate

        for size in (4, 16):
            texts, apart, _ = generate("cpu", F64, [5, 9, 1], 4, size, words=40, dim=32, most=64)
            self.assertEqual([len(text) for text in texts], [9, 13, 5])
            self.assertLess(apart, 1e-12)

    def test_half(self):
        for d in (16, 12):
            q, k, v = (rand(2, n, h, d, dtype=torch.bfloat16) for n, h in ((2, HEADS), (S, HEADS_K), (S, HEADS_K)))
            o = flash_attn_with_kvcache(q, k, v, cache_seqlens=9, causal=True)
            self.assertEqual((o.dtype, o.shape), (torch.bfloat16, q.shape))
            want, _ = attend(q[1].double(), k[1, :9].double(), v[1, :9].double(), causal=True)
            torch.testing.assert_close(o[1].double(), want, atol=1e-2, rtol=1e-2)

    def test_signature(self):
        """That of flash-attn 2, whose names and defaults are facts of its interface."""
        theirs = (
            "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None cache_batch_idx=None cache_leftpad=None "
            "block_table=None softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 rotary_interleaved=True alibi_slopes=None "
            "num_splits=0 return_softmax_lse=False"
        )
        ours = inspect.signature(flash_attn_with_kvcache).parameters.values()
        shown = [p.name + ("" if p.default is p.empty else f"={p.default}".replace(" ", "")) for p in ours]
        self.assertEqual(shown[:19], theirs.split())

    def test_flash_attn_3(self):
        """Packed queries, pages by their other name; what is taken and refused."""
        for new, rotary in ((0, 0), (5, 8)):
            call = Call(new, 5, rotary, page=4, causal=True)
            want, want_lse, _ = call.expected()
            caches, _ = call.paged()
            given = {name: x for name, x in call.given.items() if name != "block_table"} | {"page_table": call.table}
            rows = [5, 0, 5] if new == 0 else [5, 2, 5]  # the middle one has fewer: its last ones, or with new rows its first
            parts = [call.q[b, 5 - n :] if new == 0 else call.q[b, :n] for b, n in enumerate(rows)]
            cu = torch.tensor([0, *rows]).cumsum(0).int()
            o, lse = flash_attn_with_kvcache(
                torch.cat(parts), *caches, *(call.new or ()), **given, cu_seqlens_q=cu, max_seqlen_q=5, return_softmax_lse=True,
                pack_gqa=True, sm_margin=4, scheduler_metadata=cu, qv=None, attention_chunk=0,
            )  # fmt: skip
            for b in (0, 2):
                torch.testing.assert_close(o[cu[b] : cu[b + 1]], want[b], rtol=0, atol=1e-12)
                torch.testing.assert_close(lse[:, cu[b] : cu[b + 1]], want_lse[b], rtol=0, atol=1e-12)
        q, k = rand(2, 1, HEADS, D), rand(2, S, HEADS_K, D)
        for name, x in (("qv", q), ("k_descale", q), ("v_descale", q)):
            with self.assertRaisesRegex(luattn.Unsupported, f"^flash_attn_with_kvcache: {name}: flash-attn 3's argument does not exist"):
                flash_attn_with_kvcache(q, k, k, **{name: x})
        with self.assertRaisesRegex(luattn.Unsupported, "^flash_attn_with_kvcache: rotary_seqlens: is another tensor than cache_seqlens"):
            flash_attn_with_kvcache(q, k, k, cache_seqlens=self.lengths(3, 4), rotary_seqlens=self.lengths(3, 4))
        with self.assertRaisesRegex(luattn.InvalidError, "cu_seqlens_k_new: goes with k and v, and they are missing"):
            flash_attn_with_kvcache(q, k, k, cu_seqlens_k_new=self.lengths(0, 1, 2))
        with self.assertRaisesRegex(luattn.InvalidError, r"cu_seqlens_k_new: is torch.int32 \(2,\), expected torch.int32 \(batch_size \+ 1\) for 2"):
            flash_attn_with_kvcache(q, k, k, k[0], k[0], cache_seqlens=3, cu_seqlens_k_new=self.lengths(0, 1))
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'window'"):
            flash_attn_with_kvcache(q, k, k, window=(1, 1))
        with self.assertRaisesRegex(luattn.InvalidError, "page_table: is block_table's other name, and both are given"):
            flash_attn_with_kvcache(q, k, k, page_table=q, block_table=q)
        with self.assertRaisesRegex(luattn.InvalidError, r"q: has 4 axes, expected 3 beside cu_seqlens_q"):
            flash_attn_with_kvcache(q, k, k, cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32), max_seqlen_q=1)

    def lengths(self, *numbers):
        return torch.tensor(numbers, dtype=torch.int32)

    def test_packed_new_rows(self):
        """cu_seqlens_k_new, beside packed queries or not: each entry as by itself; rows of both dtypes, by luattn_append and without."""
        rows, cu_q, cu_k, used = (3, 1, 2), self.lengths(0, 3, 4, 6), self.lengths(0, 2, 2, 6), self.lengths(5, 9, 0)
        for dim, dtype, page, is_packed, rotary in (
            (D, F64, 0, True, 8), (D, F64, 4, False, 8), (D, F64, 4, True, 0), (12, torch.bfloat16, 0, True, 8), (12, torch.bfloat16, 4, True, 8),
        ):  # fmt: skip
            q, new = rand(6 if is_packed else 18, HEADS, dim, dtype=dtype), rand(2, 6 + 20, HEADS_K, dim, dtype=dtype)
            new[:, 6:] = torch.nan  # behind the last entry's rows
            caches = rand(2, B, S, HEADS_K, dim, dtype=dtype)
            angles = torch.rand(S, rotary // 2, dtype=F64)
            given = {"causal": True, "rotary_seqlens": used, "cache_seqlens": used, "return_softmax_lse": True}
            if rotary:
                given |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
            table = torch.randperm(B * S // 4, dtype=torch.int32).view(B, -1)
            got = torch.empty(2, B * S // 4, 4, HEADS_K, dim, dtype=dtype) if page else caches.clone()
            if page:
                got[:, table.flatten()] = caches.view(2, -1, 4, HEADS_K, dim)
                given["page_table"] = table
            both = {"cu_seqlens_q": cu_q, "max_seqlen_q": 3} if is_packed else {}
            o, lse = flash_attn_with_kvcache(q if is_packed else q.view(B, 6, HEADS, dim), *got, *new, cu_seqlens_k_new=cu_k, **given, **both)
            given.pop("page_table", None)
            for b in range(B):
                mine, end = caches[:, b : b + 1].clone(), cu_q[b + 1] if is_packed else 6 * b + 6
                here = q[end - (rows[b] if is_packed else 6) : end][None]
                given |= {"cache_seqlens": used[b : b + 1], "rotary_seqlens": None}
                k, v = new[:, None, cu_k[b] : cu_k[b + 1]]
                want, want_lse = flash_attn_with_kvcache(here, *mine, k, v, **given)
                found_lse = lse[:, end - len(here[0]) : end] if is_packed else lse[b]
                tolerance = 1e-12 if dtype == F64 else 1e-2
                torch.testing.assert_close(o[end - len(here[0]) : end] if is_packed else o[b], want[0], rtol=tolerance, atol=tolerance)
                torch.testing.assert_close(found_lse, want_lse[0], rtol=tolerance, atol=tolerance)
                found = got[:, table[b].long()].flatten(1, 2) if page else got[:, b]
                torch.testing.assert_close(found, mine[:, 0], rtol=tolerance, atol=tolerance)

    def test_refused(self):
        q, k, v = rand(2, 1, HEADS, D), rand(2, S, HEADS_K, D), rand(2, S, HEADS_K, D)
        new = rand(2, 1, HEADS_K, D)
        i32 = lambda *x: torch.tensor(x, dtype=torch.int32)  # noqa: E731
        cos = torch.ones(S, 4, dtype=F64)
        for args, given, message in (
            ((q[0], k, v), {}, r"q: has 3 axes, expected 4"),
            ((q, k, v[:1]), {}, r"v_cache: is \(1, 24, 2, 16\), and k_cache \(2, 24, 2, 16\)"),
            ((q, k[:1], v[:1]), {}, "k_cache: has 1 batch entries, and q 2; give cache_batch_idx"),
            ((q, k[:, :0], v[:, :0]), {}, r"k_cache: is \(2, 0, 2, 16\), a cache of 0 rows; give one of at least 1 row"),
            ((q, k[:, :0], v[:, :0], new, new), {"cache_seqlens": 0}, r"k_cache: is \(2, 0, 2, 16\), a cache of 0 rows"),
            ((q, k, v), {"cache_seqlens": S + 1}, "cache_seqlens: has 25, expected 0 to 24"),
            ((q, k, v, new, new), {"cache_seqlens": S}, "cache_seqlens: has 25 with 1 new rows, expected 0 to 24"),
            ((q, k, v), {"cache_seqlens": i32(-1, 3)}, "cache_seqlens: has -1, expected 0 to 24"),
            ((q, k, v), {"cache_seqlens": torch.tensor([1, 2])}, r"cache_seqlens: is torch.int64 \(2,\), expected torch.int32"),
            ((q, k, v), {"cache_seqlens": 3.5}, "cache_seqlens: is 3.5, expected an integer, or an int32 tensor"),
            ((q, k, v), {"cache_seqlens": True}, "cache_seqlens: is True, expected an integer, or an int32 tensor"),
            ((q, k, v), {"block_table": [[0], [1]]}, "block_table: is a list of 2, expected a tensor of torch or None$"),
            ((q, k, v), {"block_table": torch.zeros(2, 1)}, r"block_table: is torch.float32 \(2, 1\), expected torch.int32 \(batch_size, blocks\)"),
            ((q, k, v), {"block_table": i32(0, 2)[:, None], "cache_seqlens": S + 1}, "cache_seqlens: has 25, expected 0 to 24"),
            ((q, k, v), {"cache_batch_idx": i32(0)}, r"cache_batch_idx: is torch.int32 \(1,\), expected torch.int32 \(batch_size\) for 2"),
            ((q, k, v, new), {"cache_seqlens": 3}, "v: is missing, and the other one is there; give both"),
            ((q, k, v, new, new), {}, "cache_seqlens: is missing: it says where k and v go"),
            ((q, k, v, new[:, :, :1], new), {"cache_seqlens": 3}, r"k: is torch.float64 \(2, 1, 1, 16\), expected torch.float64"),
            ((q, k, v), {"rotary_cos": cos}, "rotary_sin: is missing, and the other one is there; give both"),
            ((q, k, v), {"rotary_cos": cos, "rotary_sin": cos}, "rotary_cos: goes with k and v alone"),
            ((q, k, v), {"rotary_cos": cos[:9], "rotary_sin": cos[:9]}, "rotary_cos: has 9 positions, expected 24 or more"),
            ((q, k, v), {"rotary_cos": cos.repeat(1, 3), "rotary_sin": cos}, r"rotary_cos, rotary_sin: are \(24, 12\) and \(24, 4\)"),
            ((q, k, v), {"num_splits": -1}, "num_splits: is -1, expected a number of at least 0"),
            ((q, k, v), {"softmax_scale": torch.inf}, "softmax_scale: is inf"),
            ((q, k, v), {"attention_chunk": -4}, "attention_chunk: is -4, expected a number of at least 0"),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(luattn.InvalidError, f"^flash_attn_with_kvcache: {message}"):
                flash_attn_with_kvcache(*args, **given)


class Written(unittest.TestCase):
    def test_what_backward_reads_later(self):
        """Each call says that it has written, one whose signature is known, too."""
        q, new, cache, out = (torch.randn(2, n, 2, 8) for n in (1, 1, 8, 1))
        lengths = torch.tensor([3, 5], dtype=torch.int32)
        for _ in range(3):
            versions = [t._version for t in (cache, out)]
            flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=lengths, out=out)
            self.assertTrue(all(t._version > before for t, before in zip((cache, out), versions)))


if __name__ == "__main__":
    unittest.main()
