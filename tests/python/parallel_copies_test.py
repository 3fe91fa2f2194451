"""parallel_copies_test.py: rows that travel by copies into each other's memory, as between GPUs, over several processes (gloo) whose memory is files: results
and gradients beside one process, passes that raise with copies on their way, several groups at once. On the CPU. Exits with 77 without torch.

usage: parallel_copies_test.py [PROCESSES ..]   with groups of so many, for 3, 2 and 4: all checks with the first, and those that take all paths with others"""

import contextlib
import os
import random
import shutil
import tempfile
import unittest

import parallel_case
from parallel_case import B, CAUSAL, D, H, HKV, WINDOW, Case, refuses, spawn_each, tensors  # exits without torch, so first
from host_memory import HostMemory
from problems import example, torch

import luattn
import torch.distributed as dist
from luattn.parallel import ContextParallel, plan
from luattn.parallel._exchange import Exchange
from luattn.parallel._peer_copies import PeerExchange
from luattn.parallel._peer_memory import GRADIENTS, KEYS, Parcel

# --- what each process runs ---


def folder_of_all():
    """A new one, the same on all ranks."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return folder[0]


def remove(folder):
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def check_peer_copies(n):
    """As GPUs exchange rows; their memory is shared by passes of other sizes, and by layers."""
    torch.manual_seed(9 + n)
    folder = folder_of_all()
    attentions = [luattn.attention(text) for text in (CAUSAL, WINDOW)] + [example("alibi")]
    rows = 128 * 3 * n
    chunks = torch.tensor([r for r in range(n) for _ in range(3)])[torch.randperm(3 * n)].tolist()
    for late in (False, True):
        memory = HostMemory(folder, dist.group.WORLD, late)
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
    remove(folder)
    refuses(lambda: ContextParallel(attention, None, p, transport="nccl"), "transport: is the string 'nccl'", "peer, group")
    refuses(lambda: ContextParallel(attention, None, p, transport="peer")(*(torch.zeros(B, h, p.rows, D, dtype=torch.float64) for h in (H, HKV, HKV))), 'is "peer", and the tensors are on cpu')


def with_exchanges(local, memory, transports):
    peer, group = PeerExchange(local.group, local.plan.chunk_rows, memory), Exchange(local.group, local.plan.chunk_rows)
    local._exchanges[torch.device("cpu")] = tuple(peer if word == "peer" else group for word in transports), "of a test"


@contextlib.contextmanager
def failing(returns):
    """Backward fails where gradients of a stage are on their way for the `returns`-th time."""
    from luattn.parallel import _backward_pass

    first, left = _backward_pass.Backward._return, [returns]

    def fail(self, rounds, made):
        first(self, rounds, made)
        left[0] -= bool(rounds)
        if rounds and not left[0]:
            raise luattn.Error("as the test has it")

    _backward_pass.Backward._return = fail
    try:
        yield
    finally:
        _backward_pass.Backward._return = first


def check_after_refusal(n, memory):
    """Backwards whose gradients are on their way when they fail, once or several times in turn; those of the passes that follow are waited for nevertheless, and no others."""
    attention, rows = luattn.attention(CAUSAL), 128 * 3 * n
    p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule="stages", batch=B, transport="peer")
    local, case = ContextParallel(attention, None, p), Case(attention, rows)
    with_exchanges(local, memory, ("peer", "peer"))
    own = [local.shard(t.detach(), 2).requires_grad_() for t in case.qkv]
    last = sum(bool(stage.rounds) for stage in local.schedules[1].stages)
    for returns in ([1], [last, last], [1, last, last]):
        o = local(*own)
        for one in returns:
            with failing(one):
                refuses(lambda: o.sum().backward(retain_graph=True), "as the test has it")
        case.compare(local)


def check_passes_that_raise(n):
    """Passes of two groups in turns, in which ranks get numbers of each other's, and some ranks raise before they have waited for any, each where it will."""
    folder, chance = folder_of_all(), random.Random(n)
    memories = []
    for name in "ab":
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        memories.append(HostMemory(f"{folder}/{name}", dist.new_group(), late=True, rows_stay=True))
    rank, others = dist.get_rank(), [r for r in range(n) if r != dist.get_rank()]
    sources = [torch.zeros(2, dtype=torch.int64) for _ in range(200)]
    for number, source in enumerate(sources):
        memory, raises = memories[chance.randrange(2)], [chance.random() < 0.4 for _ in range(n)]
        memory.enter(16 * n)
        source[:] = torch.tensor([2 * number, 2 * number + 1]) + 1000 * rank
        for kind in (KEYS, GRADIENTS):
            memory.send([Parcel(r, kind, [(memory.of(r).data_ptr() + 16 * rank + 8 * kind, source[kind:].data_ptr(), 8)]) for r in others])
        if raises[rank]:
            continue
        for kind in (KEYS, GRADIENTS):
            for r in others:
                memory.receive(r, kind)
                found = memory.of(rank)[16 * r + 8 * kind :][:8].view(torch.int64).item()
                assert found == 2 * number + kind + 1000 * r, (number, rank, r, kind, found)
        memory.leave()
    for memory in memories:  # so that nobody waits for a rank that raised in its last pass
        memory.enter(16 * n)
        memory.leave()
    remove(folder)


def check_two_groups(n):
    """Passes of attention over two groups in turns, one of which has raised."""
    folder, attention, rows = folder_of_all(), luattn.attention(CAUSAL), 128 * 3 * n
    p = plan(attention, rows, n, heads=(H, HKV), head_dim=D, dtype="float64", schedule="stages", batch=B, transport="peer")
    made = []
    for name in "ab":
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        group = dist.new_group()
        made.append(ContextParallel(attention, group, p))
        with_exchanges(made[-1], HostMemory(f"{folder}/{name}", group, late=True), ("peer", "peer"))
    case = Case(attention, rows)
    for raises in (0, 1, 0):
        own = [made[0].shard(t.detach(), 2).requires_grad_() for t in case.qkv]
        outs = [local(*own).sum() for local in made]
        with failing(1):
            refuses(lambda: outs[raises].backward(retain_graph=True), "as the test has it")
        found = [torch.autograd.grad(o, own) for o in (outs[raises], outs[1 - raises])]
        assert all(torch.equal(x, y) for x, y in zip(*found))
        for local in made:
            case.compare(local)
    remove(folder)


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


CHECKS = [check_peer_copies, check_passes_that_raise, check_two_groups]


# --- in processes of their own ---


class Groups(unittest.TestCase):
    def test_groups(self):
        spawn_each(self, CHECKS, CHECKS)


if __name__ == "__main__":
    parallel_case.main()
