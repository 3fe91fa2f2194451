"""parallel_test.py: attention over several processes (gloo) beside one, in float64: results and all gradients, of every example and by both schedules
(what calls refuse: parallel_calls_test.py; copies into each other's memory: parallel_copies_test.py; plans: parallel_plan_test.py). On the CPU. Exits with
77 without torch.

usage: parallel_test.py [PROCESSES ..]   with groups of so many, for 3, 2 and 4: all checks with the first, and those that take all paths with others"""

import sys
import unittest

import parallel_case
from parallel_case import B, CAUSAL, D, DOCUMENTS, H, HKV, SIZES, WINDOW, Case, along, masks_of, refuses, spawn, spawn_each, tensors  # exits without torch, so first
from problems import EXAMPLES, ROOT, example, rand, torch

import luattn
import torch.distributed as dist
from luattn import flash_attn, flex
from luattn.parallel import ContextParallel, HeadParallel, plan

sys.path.append(f"{ROOT}/tests/templates")
import random_specs

AT_ONCE = dict.fromkeys(("stage", "launch", "exchange"), 1e-9)  # seconds


# --- what each process runs ---


def check_examples(n):
    """Of each, by stages and gathered: in a group of each size a part of them."""
    for i, name in enumerate(EXAMPLES):
        if len(SIZES) > 1 and SIZES[i % len(SIZES)] != n:
            continue
        attention = example(name)
        case = Case(attention, 128 * n * (2 if n < 4 else 1) - 37 * (i % 3), i)
        for schedule in ("stages", "gathered"):
            p = plan(attention, case.rows, n, inputs=masks_of(attention, case.inputs), heads=(H, HKV), batch=B, head_dim=D, dtype="float64", schedule=schedule)
            case.compare(ContextParallel(attention, None, p), fill=float("nan"), atol=1e-11 if name in UNBOUNDED else 1e-12)


UNBOUNDED = ("relu", "squared_relu", "retention", "retention_detached", "tanh", "sigmoid")  # sums that nothing divides


def drawn_specs(n):
    """Three random specs for groups of n: 21 for 2 to 8 processes. Every other one also draws numbers, and one in three drops weights."""
    found, number = [], 100 * n
    while len(found) < 3:
        text, number = random_specs.spec("ranks", number), number + 1
        if len(text) > 6000 or "no gradient" in text:  # of hundreds of steps, which would take minutes
            continue
        text = text.replace("grad = true }", "grad = true, dtype = 'f64' }")
        if number % 2:
            text = text.replace("return x\n  end", "return x + 0.1 * random(b, h, q_idx, kv_idx)\n  end")
        if number % 3 == 0 and "online_func" not in text:
            text = text.rstrip()[:-1] + "  online_func = dropout(0.2),\n}\n"
        found.append(text)
    return found


def check_drawn(n):
    """Of the fuzzer of specs, with chunks that lie anywhere and as the plan has them."""
    torch.manual_seed(31 + n)
    rows = 128 * 2 * n - 50
    shuffled = torch.tensor([r for r in range(n) for _ in range(2)])[torch.randperm(2 * n)].tolist()
    for text in drawn_specs(n):
        attention = luattn.attention(text)
        case = Case(attention, rows, n, seed=5) if attention._spec.draws else Case(attention, rows, n)
        for schedule, rank_of in (("auto", shuffled), ("gathered", None)):
            p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B, schedule=schedule, rank_of=rank_of, inputs=masks_of(attention, case.inputs))
            case.compare(ContextParallel(attention, None, p), fill=float("nan"), atol=1e-12 if "_attention" not in text else 1e-11)


def check_shuffled(n):
    """Several layers of one plan, whose chunks lie anywhere."""
    torch.manual_seed(5 + n)
    rows = 128 * 3 * n
    attentions = [luattn.attention(text) for text in (CAUSAL, WINDOW, DOCUMENTS)]
    attentions.append(luattn.attention("return attention { name = 'one', online_func = softmax_one, block_mask = causal() }"))
    doc = (torch.arange(rows) // 170).to(torch.int32)
    chunks = torch.tensor([r for r in range(n) for _ in range(3)])[torch.randperm(3 * n)].tolist()
    p = plan(attentions, rows, n, inputs=[{}, {}, {"doc": doc}, {}], rank_of=chunks)
    assert p.prediction is None and "as given" in str(p)
    for attention in attentions:
        case = Case(attention, rows)
        if case.inputs:
            case.inputs["doc"] = doc
        for schedule in ("stages", "gathered"):
            case.compare(ContextParallel(attention, None, p, schedule=schedule))


def check_empty(n):
    """Ranks that keep nothing, rows without keys, keys that nobody needs, more ranks than rows fill."""
    sparse = luattn.attention("return attention { name = 'sparse', block_mask = function(b, h, q, k) return q >= 300 and k >= 130 and k < 140 end }")
    none = luattn.attention("return attention { name = 'none', block_mask = function(b, h, q, k) return q < 0 end }")
    for attention, rows in ((sparse, 128 * 2 * n), (none, 128 * n), (luattn.attention(CAUSAL), 70)):
        for schedule in ("stages", "gathered"):
            p = plan(attention, rows, n, schedule=schedule)
            case = Case(attention, rows)
            if attention is sparse:  # rows of keys that no query keeps
                with torch.no_grad():
                    for t in case.qkv[1:]:
                        t[:, :, 256:] = float("nan")
            case.compare(ContextParallel(attention, None, p), fill=float("nan"))


def check_random(n):
    """Dropout and random() see the whole; without a seed, ranks have one."""
    drops = luattn.attention("return attention { name = 'drops', block_mask = causal(), online_func = dropout(0.25) }")
    noisy = luattn.attention("return attention { name = 'noisy', score_mod = function(s, b, h, q, k) return s + random(b, h, q, k) end }")
    for attention in (drops, noisy):
        case = Case(attention, 128 * n, seed=(7, 5))
        for schedule in ("stages", "gathered"):
            p = plan(attention, case.rows, n, schedule=schedule)
            local = ContextParallel(attention, None, p)
            case.compare(local)
    torch.manual_seed(dist.get_rank())  # generators that differ
    ones = torch.ones(B, H, p.rows, D, dtype=torch.float64)
    seeds = [None] * n
    dist.all_gather_object(seeds, local._seed(None, ones).tolist())
    assert seeds.count(seeds[0]) == n
    assert local(ones, ones[:, :HKV], ones[:, :HKV]).shape == ones.shape


def check_functions(n):
    """FlexAttention's mods, with what they capture, and flash-attn's options, beside their own functions in one process."""
    rows = 128 * 2 * n - 37
    torch.manual_seed(11)
    *(q, k, v), dout = tensors(rows)
    doc, slopes, sinks = (torch.arange(rows) // 170).int(), rand(H), rand(H)
    mask = flex.create_block_mask(lambda b, h, i, j: (doc[i] == doc[j]) & (j <= i), None, None, rows, rows, device="cpu")

    def score(x, b, h, i, j):
        return x + slopes[h] * (j - i)

    def of_flex(q, k, v):
        return flex.flex_attention(q, k, v, score, mask, enable_gqa=True)

    def of_flash(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return flash_attn.flash_attn_func(q, k, v, **options).transpose(1, 2)

    options = {"causal": True, "window_size": (150, 0), "softcap": 20.0, "s_aux": sinks}
    made = flex.to_attention(score, mask, dtype=torch.float64), flash_attn.to_attention(**options)
    for (attention, given), whole, learned in zip(made, (of_flex, of_flash), (slopes, sinks)):
        o = whole(q, k, v)
        want = [o.detach(), *torch.autograd.grad((o * dout).sum(), (q, k, v, learned))]
        local = ContextParallel(attention, None, plan(attention, rows, n, inputs=masks_of(attention, given), heads=(H, HKV), batch=B, head_dim=D))
        own = [local.shard(t.detach(), 2).requires_grad_() for t in (q, k, v)]
        o = local(*own, **given)
        got = [o.detach(), *torch.autograd.grad((o * local.shard(dout, 2)).sum(), (*own, learned))]
        for x, y in zip([local.unshard(t, 2) for t in got[:4]] + got[4:], want):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-12 * (1 + y.abs().max().item()))


def check_arguments(n):
    """Lengths first, scales and scalars with gradients, pairs of axes, rows along q and kv, half types, autocast."""
    text = """return attention { name = 'biased', scalars = { cap = 3 }, inputs = { pair = { axes = {'h', 'q', 'kv'}, grad = true, dtype = 'f64' },
      of_q = { axes = {'b', 'q'}, grad = true, dtype = 'f64' }, of_kv = { axes = {'hkv', 'kv'}, grad = true, dtype = 'f64' },
      sink = { axes = {'h'}, grad = true, dtype = 'f64' } }, block_mask = causal(), online_func = attention_sink('sink'),
      score_mod = function(s, b, h, q, k) return cap * tanh((s + pair[{h, q, k}] + of_q[{b, q}] * of_kv[{h // 2, k}]) / cap) end }"""
    attention = luattn.attention(text)
    rows = 128 * n - 30
    for schedule in ("stages", "gathered"):
        p = plan(attention, rows, n, schedule=schedule)
        local = ContextParallel(attention, None, p)
        case = Case(attention, rows)
        case.compare(local)
        q, k, v = case.qkv
        cap, scale = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.5, 0.3))
        want = torch.autograd.grad((attention(q, k, v, **case.inputs, cap=cap, scale=scale) * case.dout).sum(), (q, cap, scale))
        dims = {name: along(info) for name, info in attention.inputs.items()}
        inputs = {name: t.detach() if dims[name] is None else local.shard(t.detach(), dims[name]) for name, t in case.inputs.items()}
        own = [local.shard(t.detach(), 2).transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
        o = local(*own, **inputs, cap=cap, scale=scale, layout="bshd")
        got = torch.autograd.grad((o * local.shard(case.dout, 2).transpose(1, 2)).sum(), (own[0], cap, scale))
        torch.testing.assert_close(local.unshard(got[0], 1), want[0].transpose(1, 2), rtol=0, atol=1e-12)
        for x, y in zip(got[1:], want[1:]):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-11)
    sink = luattn.attention("attention_sink")
    p = plan(sink, rows, n)
    summed, own = (ContextParallel(sink, None, p, sum_gradients=sums) for sums in (True, False))
    case = Case(sink, rows)
    q, k, v = (summed.shard(t.detach(), 2) for t in case.qkv)
    sinks = case.inputs["sinks"]
    total, part = (torch.autograd.grad(f(q, k, v, sinks=sinks).sum(), sinks)[0] for f in (summed, own))
    dist.all_reduce(part)
    torch.testing.assert_close(part, total)
    check_both(n)
    check_halves(n)


def check_both(n):
    """A gradient that has terms of scores and of rows, which parts do not tell apart."""
    attention = luattn.attention("""return attention { name = 'both', inputs = { x = { axes = {'h'}, grad = true, dtype = 'f64' } }, block_mask = causal(),
      online_func = attention_sink('x'), score_mod = function(s, b, h) return s * x[h] end }""")
    p = plan(attention, 256 * n, n, schedule="stages")
    local = ContextParallel(attention, None, p)
    assert local.gathered == (False, True) and "gradients of x have terms of scores and of rows" in repr(local)
    Case(attention, 256 * n).compare(local)
    refuses(lambda: ContextParallel(attention, None, p, schedule="stages"), "both: x: its gradient has terms of scores and terms of rows", 'schedule="gathered"')


def check_halves(n):
    """bfloat16: parts are float32, so that rounding is that of one process; equal bits in two runs."""
    attention = luattn.attention(CAUSAL)
    p = plan(attention, 256 * n, n, schedule="stages")
    local, case = ContextParallel(attention, None, p), Case(attention, 256 * n)
    torch.use_deterministic_algorithms(True)
    exact, runs = case.whole, []
    for _ in range(2):
        own = [local.shard(t.detach(), 2).bfloat16().requires_grad_() for t in case.qkv]
        o = local(*own)
        assert o.dtype is torch.bfloat16 and local(*own, out_dtype=torch.float32).dtype is torch.float32
        runs.append((o.detach(), *torch.autograd.grad(o, own, local.shard(case.dout, 2).bfloat16())))
    torch.use_deterministic_algorithms(False)
    halves = [t.detach().bfloat16().requires_grad_() for t in case.qkv]
    one = attention(*halves)
    one = one.detach(), *torch.autograd.grad(one, halves, case.dout.bfloat16())
    no_lse = torch.autograd.grad((attention(*case.qkv) * case.dout).sum(), case.qkv)
    for got, again, alone, want in zip(*runs, one, (exact[0], *no_lse)):
        assert torch.equal(got, again)
        error, of_one = ((x.double() - want).norm() for x in (local.unshard(got, 2), alone))
        assert error <= 1.3 * of_one, (error, of_one)
    with torch.autocast("cpu", torch.bfloat16):
        assert local(*(local.shard(t.detach().float(), 2) for t in case.qkv)).dtype is torch.bfloat16


def check_memory(n):
    """A rank has its own rows, and the keys of two stages."""
    attention = luattn.attention(CAUSAL)
    from luattn.parallel import _distributed

    seen = []

    class Watched(_distributed.Forward):
        def arrive(self, i):
            keys = super().arrive(i)
            seen.append(sum(t.numel() * t.element_size() for rows in self.buffers.values() for t in rows.tensors))
            return keys

    p = plan(attention, 128 * 4 * n, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule="stages", rates=AT_ONCE)
    local = ContextParallel(attention, None, p)
    first, _distributed.Forward = _distributed.Forward, Watched
    try:
        q, k, v = (local.shard(t.detach(), 2) for t in Case(attention, p.q_len).qkv)
        o = local(q, k, v)
    finally:
        _distributed.Forward = first
    own = sum(t.numel() * 8 for t in (q, k, v, o)) / B
    assert 0 <= max(seen) / B <= p.prediction.memory - own, (seen, p.prediction.memory, own)
    assert max(seen) > 0


DRAWN = """return attention { name = 'drawn', online_func = dropout(0.3),
  score_mod = function(s, b, h, q, k) return s + random(b, h, q, k) end,
  block_mask = function(b, h, q, k) return k <= q and random(b, h, q // 5, k // 3) < 0.9 end }"""


def check_chunks(n):
    """Calls with the rank's rows as chunks beside calls of one range of rows and one of keys: what is drawn at random too. A stage is then one launch for all
    rows that need the same stages, and gathered there is one."""
    torch.manual_seed(21 + n)
    rows = 128 * 3 * n - 50
    shuffled = torch.tensor([r for r in range(n) for _ in range(3)])[torch.randperm(3 * n)].tolist()
    for text, given in ((DRAWN, {"seed": 77}), (WINDOW, {})):
        attention = luattn.attention(text)
        case = Case(attention, rows, n, **given)
        for schedule in ("stages", "gathered"):
            p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B, schedule=schedule, rank_of=shuffled, **given)
            calls = {}
            for chunks in (True, False):
                local = ContextParallel(attention, None, p, chunks=chunks)
                case.compare(local, fill=float("nan"))
                assert ("in chunks" in repr(local)) is chunks
                calls[chunks] = [[len(stage.calls) for stage in one.stages] for one in local.schedules]
            if schedule == "gathered":
                assert calls[True] == [[1], [1]], calls
            assert sum(map(sum, calls[True])) <= sum(map(sum, calls[False])), calls
    pair = luattn.attention("return attention { name = 'pair', inputs = { x = { axes = {'q', 'kv'} } }, score_mod = function(s, b, h, q, k) return s + x[{q, k}] end }")
    p = plan(pair, 128 * n, n)
    refuses(lambda: ContextParallel(pair, None, p, chunks=True), "chunks: is True", "input 'x' has axes q and kv")
    assert not ContextParallel(pair, None, p).chunks


class OfHeads(HeadParallel):
    """With what Case asks of a ContextParallel."""

    def shard(self, t, dim, fill=0):
        return self.plan.shard(t, self.rank, dim, fill)

    def unshard(self, t, dim):
        parts = [torch.empty_like(t.contiguous()) for _ in range(self.plan.world_size)]
        dist.all_gather(parts, t.contiguous())
        return self.plan.unshard(parts, dim)


def check_heads(n):
    """All rows of some heads: what reads heads, what is drawn at random, padding. Ranks that do not divide the heads are refused."""
    rows = 128 * 2 * n - 30
    if n > HKV or HKV % n:
        p = plan(CAUSAL, 128 * n, n)
        q, k, v = (torch.zeros(B, h, p.rows, D, dtype=torch.float64) for h in (H, HKV, HKV))
        return refuses(lambda: HeadParallel(luattn.attention(CAUSAL), None, p)(q, k, v), f"which {n} ranks do not divide")
    sink = "return attention { name = 'sink', inputs = { s = { axes = {'h'}, grad = true } }, online_func = attention_sink('s'), block_mask = causal() }"
    kv = "return attention { name = 'kv', inputs = { x = { axes = {'kv'} }, y = { axes = {'hkv'}, grad = true } }, score_mod = function(s, b, h, q, k) return s + x[k] + y[h // (heads // heads_kv)] end }"
    for text, given in ((DRAWN, {"seed": 5}), (sink, {}), (WINDOW, {}), (kv, {})):
        attention = luattn.attention(text)
        p = plan(CAUSAL, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B)
        Case(attention, rows, n, **given).compare(OfHeads(attention, None, p), fill=float("nan"))
    refuses(lambda: HeadParallel(attention, None, plan(CAUSAL, rows, n + 1)), f"group: has {n} ranks")
    refuses(lambda: HeadParallel(attention, None, p)(*(torch.zeros(B, H, 5, D),) * 3), "expected [batch, heads,")


FEW = [check_examples, check_shuffled, check_heads]
CHECKS = [*FEW, check_chunks, check_empty, check_random, check_functions, check_arguments, check_memory]


# --- in processes of their own ---


class Groups(unittest.TestCase):
    def test_groups(self):
        spawn_each(self, CHECKS, FEW)


class Drawn(unittest.TestCase):
    def test_specs(self):
        for n in SIZES if parallel_case.GIVEN else SIZES[:1]:
            with self.subTest(processes=n):
                spawn(n, [check_drawn])


if __name__ == "__main__":
    parallel_case.main()
