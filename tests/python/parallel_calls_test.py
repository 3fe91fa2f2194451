"""parallel_calls_test.py: calls of luattn.parallel over several processes (gloo): what they refuse, that ranks call alike, calls
that are known, and a process that ends. On the CPU. Exits with 77 without torch.

usage: parallel_calls_test.py [PROCESSES ..]   with groups of so many, for 3, 2 and 4: all checks with the first, and those that
take all paths with others"""

import os
import tempfile
import types
import unittest

import parallel_case
from parallel_case import B, CAUSAL, D, DOCUMENTS, H, HKV, WINDOW, Case, refuses, spawn_each  # exits without torch, so first
from problems import example, torch

import luattn
import torch.distributed as dist
from luattn.parallel import ContextParallel, plan
from luattn.parallel._peer_copies import _MEMORIES

# --- what each process runs ---


def check_refusals(n):
    rank, rows = dist.get_rank(), 128 * n
    causal, window = luattn.attention(CAUSAL), luattn.attention(WINDOW)
    p = plan(causal, rows, n)
    refuses(lambda: ContextParallel(window, None, p), "window: the plan was made for causal", "specs=[")
    refuses(lambda: ContextParallel(causal, None, plan(causal, rows, n + 1)), f"group: has {n} ranks, and the plan is for {n + 1}")
    other = [(r + rank) % n for r in range(n)]
    refuses(lambda: ContextParallel(causal, None, plan(causal, rows, n, rank_of=other)),
        "ranks have different plans: rank 1 differs from rank 0")
    wide = luattn.attention(f"return attention {{ name = 'causal', score_mod = softcap({2 + rank}), block_mask = causal() }}")
    refuses(lambda: ContextParallel(wide, None, plan(wide, rows, n)), "ranks have different")
    parts = luattn.attention(UNMERGED)
    refuses(lambda: ContextParallel(parts, None, plan(parts, rows, n, schedule="stages")), "row",
        'schedule="gathered" computes each row in one call')
    Case(parts, rows).compare(ContextParallel(parts, None, plan(parts, rows, n, schedule="gathered")))
    local = ContextParallel(causal, None, p)
    q, k, v = (local.shard(t.detach(), 2) for t in Case(causal, rows).qkv)
    refuses(lambda: local(q[:, :, :5], k, v), f"q: has 5 rows, and each rank of the plan {p.rows}; pass shard(q)")
    refuses(lambda: local(q, k, v, cu_seqlens_q=q, cu_seqlens_k=q), "cu_seqlens_q: say documents by an input of the spec",
        "leave it out")
    refuses(lambda: local(q, k, v, decode=True), "decode: decoding has no context parallelism", "leave it out")
    refuses(lambda: local(q, k, v, block_table=q), "block_table: keys in pages are for decoding", "leave it out")
    refuses(lambda: local(q, k, v, q_offset=3), "q_offset: the plan says which part")
    refuses(lambda: local(q, k, v, cap=3), "there is no argument 'cap'")
    refuses(lambda: local.unshard(q.requires_grad_(), 2), "there is no gradient through it", "detach")
    q = q.detach()
    check_stale(n, q, k, v)


UNMERGED = """return attention { name = 'sums', block_mask = causal(), online_func = {
  name = 'shifted', online_rowscales = { l = 0 },
  online_fwd = function(scores, rowscales)
    local l = rowscales.l + reduce_sum(sigmoid(scores)) return sigmoid(scores), { l = l }, 1 end,
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
    refuses(lambda: plan(named, rows, n, inputs={name: t[1:] for name, t in ids.items()}), f"has {rows - 1} rows along",
        f"and q_len is {rows}")
    local = ContextParallel(named, None, plan(named, rows, n, inputs=ids))
    refuses(lambda: local(q, k, v, **ids), f"has {rows} rows along", f"expected {local.plan.rows} of this rank: pass shard(doc_")
    local(q, k, v, **{name: local.shard(t) for name, t in ids.items()})
    bound = luattn.attention(
        "return attention { name = 'bound', scalars = { w = 100 }, block_mask = function(b, h, q, k) return abs(q - k) < w end }"
    )
    local = ContextParallel(bound, None, plan(bound, rows, n))
    refuses(lambda: local(q, k, v, w=150.0), "w: the mask reads it")
    by_head = luattn.attention(
        "return attention { name = 'heads', block_mask = function(b, h, q, k) return q - k < 100 * (h + 1) end }"
    )
    local = ContextParallel(by_head, None, plan(by_head, rows, n, heads=(2, 2)))
    refuses(lambda: local(q, k, v), "q: has 4 heads, by which the mask differs, and the plan was made for 2")


def check_alike(n):
    """Ranks that call with unlike tensors; and calls after ones that were refused, whose keys were on their way."""
    rank, causal = dist.get_rank(), luattn.attention(CAUSAL)
    case = Case(causal, 256 * n)
    local = ContextParallel(causal, None, plan(causal, case.rows, n, heads=(H, HKV), schedule="stages"))
    q, k, v = (local.shard(t.detach(), 2) for t in case.qkv)
    unlike = {"q: is torch.float32 (2, 4,": lambda t: t.float(), "q: is torch.float64 (1, 4,": lambda t: t[:1],
        "requires a gradient: is True": lambda t: t.clone().requires_grad_()}
    for words, change in unlike.items():
        refuses(lambda: local(*(t if rank else change(t) for t in (q, k, v))), words, "on rank 0", "alike on all ranks")
    _MEMORIES[local.group] = types.SimpleNamespace(begun=4 - rank)  # as after a call that rank 0 alone made
    said = "ranks have begun different numbers of passes by copies: rank 0 4, and rank 1 3", "make the group anew"
    refuses(lambda: local(*(t[:1] for t in (q, k, v))), *said)
    refuses(lambda: ContextParallel(causal, None, local.plan), *said)
    del _MEMORIES[local.group]
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
    refuses(lambda: ContextParallel(causal, "gloo", local.plan),
        "group: is the string 'gloo', expected a group of torch.distributed")


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
    """Calls of a pass as one before go to the library by themselves, and the general way where it refuses them or a mode is open;
    other values, other results."""
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
    signed = luattn.attention(
        "return attention { name = 'signed', scalars = { z = 1 }, "
        "score_mod = function(s, b, h, q, k) return s * max(min(1 / z, 1), -1) end }"
    )
    rows = 128 * n
    p = plan(signed, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", batch=B)
    local, case = ContextParallel(signed, None, p), Case(signed, rows)
    q, k, v = (local.shard(t.detach(), 2) for t in case.qkv)
    refuses(lambda: local(q.to_sparse(), k, v), "q: is a sparse tensor of float64")
    for _ in range(2):
        for z in (0.0, -0.0):
            want = signed(*(t.detach() for t in case.qkv), z=z)
            torch.testing.assert_close(local.unshard(local(q, k, v, z=z), 2), want, rtol=0, atol=1e-12)

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


# --- in processes of their own ---


class Groups(unittest.TestCase):
    def test_groups(self):
        spawn_each(self, [check_known, check_refusals, check_alike, check_same_memory, check_kinds], [check_known])


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
    parallel_case.main()
