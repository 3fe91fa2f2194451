"""parallel_test.py: attention over several processes (gloo) beside one, in float64: results and all gradients, of every example and by both schedules;
what calls refuse, and which memory ranks take (plans: parallel_plan_test.py). On the CPU. Exits with 77 without torch.

usage: parallel_test.py [PROCESSES ..]   with groups of so many, for 3, 2 and 4: all checks with the first, and those that take all paths with others"""

import functools
import os
import shutil
import sys
import tempfile
import unittest
import warnings

from problems import EXAMPLES, ROOT, example, inputs_of, rand, torch  # exits without torch, so first
from host_memory import HostMemory

import luattn
import torch.distributed as dist
from luattn import flash_attn, flex
from luattn.parallel import ContextParallel, HeadParallel, plan
from luattn.parallel._exchange import Exchange
from luattn.parallel._peer_copies import PeerExchange

sys.path.append(f"{ROOT}/tests/templates")
import random_specs

warnings.filterwarnings("ignore")
SIZES, GIVEN = [3, 2, 4], False
B, H, HKV, D = 2, 4, 2, 8
AT_ONCE = dict.fromkeys(("stage", "launch", "exchange"), 1e-9)  # seconds
CAUSAL = "return attention { name = 'causal', block_mask = causal() }"
WINDOW = "return attention { name = 'window', block_mask = function(b, h, q, k) return k <= q and q - k < 150 end }"
DOCUMENTS = """return attention { name = 'documents', inputs = { doc = { axes = {'n'}, dtype = 'i32' } },
  block_mask = function(b, h, q, k) return k <= q and eq(doc[q], doc[k]) end }"""


def tensors(rows, *more):
    return [rand(B, h, rows, D) for h in (H, HKV, HKV)] + [torch.randn(B, H, rows, D, dtype=torch.float64)] + list(more)


def along(info):
    """Where the sequence lies in an input that is sharded."""
    return next((info.axes.index(axis) for axis in ("q", "kv") if axis in info.axes), None)


class Case:
    """An attention in one process, and the same over the group."""

    def __init__(self, attention, rows, number=1, **given):
        torch.manual_seed(number)
        self.attention, self.rows, self.given = attention, rows, given
        *self.qkv, self.dout = tensors(rows)
        self.inputs = inputs_of(attention, {"b": B, "h": H, "hkv": HKV, "q": rows, "kv": rows, "position": rows, "channel": D, "pair": D // 2})
        self.dlse = torch.randn(B, H, rows, dtype=torch.float64)

    def learned(self):
        return [name for name, t in self.inputs.items() if t.requires_grad]

    def _run(self, f, qkv, inputs, dout, dlse):
        has_lse = self.attention._spec.has_lse
        made = f(*qkv, **inputs, **self.given, return_lse=has_lse)
        o, lse = made if has_lse else (made, None)
        leaves = [*qkv, *(inputs[name] for name in self.learned())]
        total = (o * dout).sum() + (0 if lse is None else (torch.where(lse.isinf(), 0.0, lse) * dlse).sum())
        return o.detach(), lse, torch.autograd.grad(total, leaves)

    @functools.cached_property
    def whole(self):
        return self._run(self.attention, self.qkv, self.inputs, self.dout, self.dlse)

    def compare(self, local, fill=0.0, atol=1e-12):
        """Of rows of padding that hold `fill`, twice, since what the first calls find is known to others. What one process computes, rank 0 does for all."""
        held = self._compare(local, fill, atol)
        self._compare(local, fill, atol)
        del held  # so that tensors lay elsewhere

    def _compare(self, local, fill, atol):
        def cut(t, dim, fill=0):
            return local.shard(t.detach(), dim, fill).requires_grad_(t.requires_grad)

        dims = {name: along(info) for name, info in self.attention.inputs.items()}
        inputs = {name: t if dims[name] is None else cut(t, dims[name]) for name, t in self.inputs.items()}
        qkv = [cut(t, 2, fill) for t in self.qkv]
        o, lse, grads = self._run(local, qkv, inputs, cut(self.dout, 2), cut(self.dlse, 2))
        found = [("o", local.unshard(o, 2))]
        if lse is not None:
            found.append(("lse", local.unshard(lse.detach(), 2)))
        for name, x in zip(["dq", "dk", "dv", *self.learned()], grads):
            dim = 2 if name in ("dq", "dk", "dv") else dims[name]
            found.append((name, x if dim is None else local.unshard(x, dim)))
        if local.rank:
            return qkv
        want_o, want_lse, want = self.whole
        for (name, x), y in zip(found, [want_o, *([] if lse is None else [want_lse.detach()]), *want]):
            scale = 1 + y.abs().nan_to_num(0, 0, 0).max().item()  # bars are of numbers of size 1
            torch.testing.assert_close(x, y, rtol=0, atol=atol * scale, msg=lambda text: f"{self.attention.name} {local}: {name}: {text}")
        return qkv


def masks_of(attention, inputs):
    return {name: t for name, t in inputs.items() if attention._spec.inputs and not t.requires_grad}


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


def refuses(f, *words):
    try:
        f()
    except luattn.Error as e:
        for word in words:
            assert word in str(e), f"{e}: lacks '{word}'"
        return
    raise AssertionError(f"nothing was refused: {words}")


def check_refusals(n):
    rank, rows = dist.get_rank(), 128 * n
    causal, window = luattn.attention(CAUSAL), luattn.attention(WINDOW)
    p = plan(causal, rows, n)
    refuses(lambda: ContextParallel(window, None, p), "window: the plan was made for causal", "specs=[")
    refuses(lambda: ContextParallel(causal, None, plan(causal, rows, n + 1)), f"group: has {n} ranks, and the plan is for {n + 1}")
    other = [(r + rank) % n for r in range(n)]
    refuses(lambda: ContextParallel(causal, None, plan(causal, rows, n, rank_of=other)), "ranks have different plans: rank 1 differs from rank 0")
    wide = luattn.attention(f"return attention {{ name = 'causal', score_mod = softcap({2 + rank}), block_mask = causal() }}")
    refuses(lambda: ContextParallel(wide, None, plan(wide, rows, n)), "ranks have different")
    parts = luattn.attention(UNMERGED)
    refuses(lambda: ContextParallel(parts, None, plan(parts, rows, n, schedule="stages")), "row", 'schedule="gathered" computes each row in one call')
    Case(parts, rows).compare(ContextParallel(parts, None, plan(parts, rows, n, schedule="gathered")))
    local = ContextParallel(causal, None, p)
    q, k, v = (local.shard(t.detach(), 2) for t in Case(causal, rows).qkv)
    refuses(lambda: local(q[:, :, :5], k, v), f"q: has 5 rows, and each rank of the plan {p.rows}; pass shard(q)")
    refuses(lambda: local(q, k, v, cu_seqlens_q=q, cu_seqlens_k=q), "cu_seqlens_q: say documents by an input of the spec", "leave it out")
    refuses(lambda: local(q, k, v, decode=True), "decode: decoding has no context parallelism", "leave it out")
    refuses(lambda: local(q, k, v, block_table=q), "block_table: keys in pages are for decoding", "leave it out")
    refuses(lambda: local(q, k, v, q_offset=3), "q_offset: the plan says which part")
    refuses(lambda: local(q, k, v, cap=3), "there is no argument 'cap'")
    refuses(lambda: local.unshard(q.requires_grad_(), 2), "there is no gradient through it", "detach")
    q = q.detach()
    check_stale(n, q, k, v)


UNMERGED = """return attention { name = 'sums', block_mask = causal(), online_func = { name = 'shifted', online_rowscales = { l = 0 },
  online_fwd = function(scores, rowscales) local l = rowscales.l + reduce_sum(sigmoid(scores)) return sigmoid(scores), { l = l }, 1 end,
  online_fwd_epilogue = function(o, rowscales) return o * floor(rowscales.l) end } }"""


def check_stale(n, q, k, v):
    """Masks that read what is not what the plan was made with, and inputs that are not sharded."""
    rows = 128 * n
    doc = (torch.arange(rows) // 100).to(torch.int32)
    documents = luattn.attention(DOCUMENTS)
    local = ContextParallel(documents, None, plan(documents, rows, n, inputs={"doc": doc}))
    local(q, k, v, doc=doc.clone())
    other = plan(documents, rows, n, inputs={"doc": doc + 10 * dist.get_rank()})  # whose tiles are the same
    refuses(lambda: ContextParallel(documents, None, other), "ranks have different plans: rank 1 differs from rank 0")
    doc[3] += 1
    refuses(lambda: local(q, k, v, doc=doc), "doc: the mask reads it")
    array = (torch.arange(rows) // 100).to(torch.int32).numpy()
    local(q, k, v, doc=torch.from_numpy(array))
    array[3] += 1  # of which torch knows nothing
    refuses(lambda: local(q, k, v, doc=torch.from_numpy(array)), "doc: the mask reads it")
    refuses(lambda: local(q, k, v, doc=doc), "doc: the mask reads it, and the plan was made with other values")
    named = example("document")
    ids = {name: (torch.arange(rows) // 90).to(torch.int32) for name in ("doc_q", "doc_kv")}
    refuses(lambda: plan(named, rows, n), "of document: is missing, and the mask reads it")
    refuses(lambda: plan(named, rows, n, inputs={name: t[1:] for name, t in ids.items()}), f"has {rows - 1} rows along", f"and q_len is {rows}")
    local = ContextParallel(named, None, plan(named, rows, n, inputs=ids))
    refuses(lambda: local(q, k, v, **ids), f"has {rows} rows along", f"expected {local.plan.rows} of this rank: pass shard(doc_")
    local(q, k, v, **{name: local.shard(t) for name, t in ids.items()})
    bound = luattn.attention("return attention { name = 'bound', scalars = { w = 100 }, block_mask = function(b, h, q, k) return abs(q - k) < w end }")
    local = ContextParallel(bound, None, plan(bound, rows, n))
    refuses(lambda: local(q, k, v, w=150.0), "w: the mask reads it")
    by_head = luattn.attention("return attention { name = 'heads', block_mask = function(b, h, q, k) return q - k < 100 * (h + 1) end }")
    local = ContextParallel(by_head, None, plan(by_head, rows, n, heads=(2, 2)))
    refuses(lambda: local(q, k, v), "q: has 4 heads, by which the mask differs, and the plan was made for 2")


def check_alike(n):
    """Ranks that call with unlike tensors; and calls after ones that were refused, whose keys were on their way."""
    rank, causal = dist.get_rank(), luattn.attention(CAUSAL)
    case = Case(causal, 256 * n)
    local = ContextParallel(causal, None, plan(causal, case.rows, n, heads=(H, HKV), schedule="stages"))
    q, k, v = (local.shard(t.detach(), 2) for t in case.qkv)
    unlike = {"q: is torch.float32 (2, 4,": lambda t: t.float(), "q: is torch.float64 (1, 4,": lambda t: t[:1], "requires a gradient: is True": lambda t: t.clone().requires_grad_()}
    for words, change in unlike.items():
        refuses(lambda: local(*(t if rank else change(t) for t in (q, k, v))), words, "on rank 0", "alike on all ranks")
    refuses(lambda: local(q, k.float(), v), "k: has dtype float32, expected float64")
    refuses(lambda: local(q, k, v, scale=float("nan")), "scale: is nan")
    refuses(lambda: local(q, k, v, scale=torch.ones(2)), "scale: has shape (2,)")
    refuses(lambda: torch.func.jvp(lambda t: local(t, k, v), (q,), (q,)), "ContextParallel: has no forward-mode derivative")
    refuses(lambda: torch.func.grad(lambda t: local(t, k, v).sum())(q), "inside a transform of torch.func")
    leaf = q.detach().requires_grad_()
    o = local(leaf, k, v)
    (first,) = torch.autograd.grad(o.sum(), leaf, create_graph=True)
    refuses((o.sum() + first.square().sum()).backward, "causal: there are no second derivatives: leave out create_graph=True")
    case.compare(local)
    one = dist.new_group([0])
    if rank:
        refuses(lambda: ContextParallel(causal, one, plan(causal, 128, 1)), "this process is none of its ranks")
    refuses(lambda: ContextParallel(causal, "gloo", local.plan), "group: is the string 'gloo', expected a group of torch.distributed")


def check_same_memory(n):
    """Other documents, in the memory of those that were compared."""
    documents, rows = luattn.attention(DOCUMENTS), 128 * n
    doc = (torch.arange(rows) // 100).to(torch.int32)
    local = ContextParallel(documents, None, plan(documents, rows, n, inputs={"doc": doc}))
    q, k, v = (local.shard(t.detach(), 2) for t in Case(documents, rows).qkv)
    memory = bytearray(doc.numpy().tobytes())
    local(q, k, v, doc=torch.frombuffer(memory, dtype=torch.int32))
    memory[:4] = b"\x07\0\0\0"
    refuses(lambda: local(q, k, v, doc=torch.frombuffer(memory, dtype=torch.int32)), "doc: the mask reads it")
    with torch.inference_mode():
        local(q, k, v, doc=doc.clone())


def check_known(n):
    """Calls of a pass as one before go to the library by themselves, and the general way where it refuses them or a mode is open; other values, other results."""
    from luattn.parallel import _passes

    seen, first = [], _passes.run_kept

    def watched(calls, *more):
        seen.append(len(calls))
        return first(calls, *more) if not refuses_all else None

    attention, rows = luattn.attention(CAUSAL), 128 * 2 * n - 50
    for schedule, refuses_all in (("stages", False), ("gathered", False), ("gathered", True)):
        p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B, schedule=schedule)
        local = ContextParallel(attention, None, p)
        calls = [sum(len(stage.calls) for stage in one.stages) for one in local.schedules]
        _passes.run_kept = watched
        try:
            for number in (1, 2, 3):
                seen.clear()
                Case(attention, rows, number)._compare(local, 0.0, 1e-12)
                want = sum(calls) if number == 2 or (number == 3 and not refuses_all) else 0
                # Lets backward find out once more where forward's rows lie otherwise, as those of a known call may.
                assert sum(seen) in ((calls[0], want) if number == 2 else (want,)), (schedule, number, seen, calls)
            q, k, v = (local.shard(t.detach(), 2) for t in Case(attention, rows).qkv)
            with torch.no_grad():
                o = local(q, k, v)
                assert torch.equal(o, local(q, k, v)), schedule
                torch.testing.assert_close(local(q, k, v, layout="bhsd", scale=D**-0.5), o, rtol=0, atol=1e-12)
                seen.clear()
                with torch.autocast("cpu"):
                    assert local(q, k, v).dtype is torch.float64 and not seen
        finally:
            _passes.run_kept = first


def check_kinds(n):
    """Calls that differ in the sign of 0, in strides of what was saved, or in having any."""
    signed = luattn.attention("return attention { name = 'signed', scalars = { z = 1 }, score_mod = function(s, b, h, q, k) return s * max(min(1 / z, 1), -1) end }")
    rows = 128 * n
    p = plan(signed, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B)
    local, case = ContextParallel(signed, None, p), Case(signed, rows)
    q, k, v = (local.shard(t.detach(), 2) for t in case.qkv)
    refuses(lambda: local(q.to_sparse(), k, v), "q: is a sparse tensor of float64")
    for _ in range(2):
        for z in (0.0, -0.0):
            torch.testing.assert_close(local.unshard(local(q, k, v, z=z), 2), signed(*(t.detach() for t in case.qkv), z=z), rtol=0, atol=1e-12)

    def moved(t):
        """With other strides, where it is lse."""
        return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() == 3 else t

    causal = luattn.attention(CAUSAL)  # without scalars, so that its backward is known
    local = ContextParallel(causal, None, plan(causal, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B))
    found, own = [], [t.requires_grad_() for t in (q, k, v)]
    for unpack in (lambda t: t, lambda t: t, moved):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            found.append(torch.autograd.grad(local(*own).square().sum(), own))
    assert all(torch.equal(x, y) for others in found[1:] for x, y in zip(found[0], others))


def check_memory(n):
    """A rank has its own rows, and the keys of two stages."""
    attention = luattn.attention(CAUSAL)
    from luattn.parallel import _passes

    seen = []

    class Watched(_passes._Forward):
        def arrive(self, i):
            keys = super().arrive(i)
            seen.append(sum(t.numel() * t.element_size() for rows in self.buffers.values() for t in rows.tensors))
            return keys

    p = plan(attention, 128 * 4 * n, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule="stages", rates=AT_ONCE)
    local = ContextParallel(attention, None, p)
    first, _passes._Forward = _passes._Forward, Watched
    try:
        q, k, v = (local.shard(t.detach(), 2) for t in Case(attention, p.q_len).qkv)
        o = local(q, k, v)
    finally:
        _passes._Forward = first
    own = sum(t.numel() * 8 for t in (q, k, v, o)) / B
    assert 0 <= max(seen) / B <= p.prediction.memory - own, (seen, p.prediction.memory, own)
    assert max(seen) > 0


def check_peer_copies(n):
    """As GPUs exchange rows; their memory is shared by passes of other sizes, and by layers."""
    torch.manual_seed(9 + n)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    attentions = [luattn.attention(text) for text in (CAUSAL, WINDOW)] + [example("alibi")]
    rows = 128 * 3 * n
    chunks = torch.tensor([r for r in range(n) for _ in range(3)])[torch.randperm(3 * n)].tolist()
    for late in (False, True):
        memory = HostMemory(folder[0], dist.group.WORLD, late)
        for schedule in ("stages", "gathered"):
            for attention in attentions:
                for of_ranks in (chunks, None):
                    planned = "peer" if of_ranks is None or late else "group"  # by "peer" rows without other ranks' keys come first
                    p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule=schedule, rank_of=of_ranks, batch=B, transport=planned)
                    local = ContextParallel(attention, None, p)
                    with_exchanges(local, memory, ("peer", "peer"))
                    Case(attention, rows).compare(local)
                    assert "copies between GPUs (of a test)" in repr(local)
        check_after_refusal(n, memory)
        check_negated(n, memory)
    check_equal_bits(n, memory)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    refuses(lambda: ContextParallel(attention, None, p, transport="nccl"), "transport: is the string 'nccl'", "peer, group")
    refuses(lambda: ContextParallel(attention, None, p, transport="peer")(*(torch.zeros(B, h, p.rows, D, dtype=torch.float64) for h in (H, HKV, HKV))), 'is "peer", and the tensors are on cpu')


def with_exchanges(local, memory, transports):
    peer, group = PeerExchange(local.group, local.plan.chunk_rows, memory), Exchange(local.group, local.plan.chunk_rows)
    local._exchanges[torch.device("cpu")] = tuple(peer if word == "peer" else group for word in transports), "of a test"


def check_after_refusal(n, memory):
    """A backward whose gradients are on their way when it fails; those of the next pass are waited for nevertheless."""
    from luattn.parallel import _passes

    first = _passes._Backward._return

    def fail(self, rounds, made):
        first(self, rounds, made)
        if rounds:
            raise luattn.Error("as the test has it")

    attention, rows = luattn.attention(CAUSAL), 128 * 3 * n
    p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule="stages", batch=B, transport="peer")
    local, case = ContextParallel(attention, None, p), Case(attention, rows)
    with_exchanges(local, memory, ("peer", "peer"))
    own = [local.shard(t.detach(), 2).requires_grad_() for t in case.qkv]
    o = local(*own)
    _passes._Backward._return = fail
    try:
        refuses(o.sum().backward, "as the test has it")
    finally:
        _passes._Backward._return = first
    case.compare(local)


def check_negated(n, memory):
    """Tensors that are a lazy negation, whose bytes have the other sign."""
    attention, rows = luattn.attention(CAUSAL), 128 * 2 * n
    p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B)
    for transport in ("peer", "group"):
        local = ContextParallel(attention, None, p)
        with_exchanges(local, memory, (transport, transport))
        q, k, v, dout = (local.shard(t.detach(), 2) for t in tensors(rows))
        found = []
        for negated in (False, True):
            *own, way = (torch._neg_view(-t) if negated else t for t in (q, k, v, dout))
            own = [t.detach().requires_grad_() for t in own]
            o = local(*own)
            found.append([o, *torch.autograd.grad(o, own, way)])
        assert own[0].is_neg() and way.is_neg() and all(torch.equal(x, y) for x, y in zip(*found)), transport


def check_equal_bits(n, memory):
    """Whichever way rows travel in a pass, of a plan whose passes are cut for different ways."""
    attention, rows = luattn.attention(WINDOW), 128 * 4 * n
    case = Case(attention, rows, n)
    for planned in (("group", "peer"), ("peer", "group")):
        p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B, schedule="gathered", transport=planned)
        assert p.layers[0].transports == planned
        found = []
        for transports in (("group", "group"), ("group", "peer"), ("peer", "group"), ("peer", "peer")):
            local = ContextParallel(attention, None, p)
            with_exchanges(local, memory, transports)
            q, k, v, dout = (local.shard(t.detach(), 2).requires_grad_() for t in (*case.qkv, case.dout))
            o = local(q, k, v)
            found.append([o.detach(), *torch.autograd.grad(o, (q, k, v), dout.detach())])
            assert ("copies between GPUs" in repr(local)) is ("peer" in transports), repr(local)
        for others in found[1:]:
            assert all(torch.equal(x, y) for x, y in zip(found[0], others)), planned


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


FEW = [check_examples, check_shuffled, check_peer_copies, check_heads, check_known]
CHECKS = [*FEW, check_chunks, check_empty, check_random, check_functions, check_arguments, check_refusals, check_alike, check_same_memory, check_kinds, check_memory]


def work(rank, n, path, names, sizes):
    SIZES[:] = sizes
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)
    for name in names:
        globals()[name](n)
    dist.destroy_process_group()


def spawn(n, checks):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (n, os.path.join(folder, "store"), [f.__name__ for f in checks], SIZES), nprocs=n)


# --- in processes of their own ---


class Groups(unittest.TestCase):
    def test_groups(self):
        for n in SIZES:
            with self.subTest(processes=n):
                spawn(n, CHECKS if n == SIZES[0] else FEW)


class Drawn(unittest.TestCase):
    def test_specs(self):
        for n in SIZES if GIVEN else SIZES[:1]:
            with self.subTest(processes=n):
                spawn(n, [check_drawn])


def leave(rank, path):
    """Rank 1 ends, and rank 0 waits for its keys."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    attention = luattn.attention("return attention { name = 'all' }")
    local = ContextParallel(attention, None, plan(attention, 256, 2))
    own = [local.shard(t.detach(), 2) for t in Case(attention, 256).qkv]
    local(*own)
    if rank:
        os._exit(0)
    try:
        local(*own)
    except RuntimeError as e:
        os._exit(0 if not isinstance(e, luattn.Error) else 2)
    os._exit(3)


class Deaths(unittest.TestCase):
    def test_a_rank_that_ends(self):
        """The group's own error, and nobody waits for ever."""
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(leave, (os.path.join(folder, "store"),), nprocs=2)


if __name__ == "__main__":
    given = [int(x) for x in sys.argv[1:] if x.isdigit()]
    SIZES[:], GIVEN = given or SIZES, bool(given)
    unittest.main(argv=[sys.argv[0], *(x for x in sys.argv[1:] if not x.isdigit())])
