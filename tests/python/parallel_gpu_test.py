"""parallel_gpu_test.py: context parallelism on GPUs, by copies of rows into each other's memory, beside one process: two processes on two GPUs, or on the same
one, which they share by turns. Exits with 77 without a GPU."""

import os
import tempfile
import unittest

from with_torch import torch  # exits without torch, so first

if not torch.cuda.is_available():
    raise SystemExit(77)

os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import luattn
import torch.distributed as dist
from luattn.parallel import ContextParallel, plan

TEXTS = {
    "causal": "return attention { name = 'causal', block_mask = causal() }",
    "window": """return attention { name = 'window', inputs = { sinks = { axes = {'h'}, grad = true } }, online_func = attention_sink('sinks'),
      block_mask = function(b, h, q, k) return k <= q and q - k < 700 end }""",
}
H, HKV, D, ROWS = 4, 2, 64, 128 * 24


def close(name, got, want, half):
    """Twice the error of one process in the same type."""
    scale = want.double().norm()
    error, of_one = ((x.double() - want).norm() / scale for x in (got, half))
    assert error <= 2 * of_one + 1e-6, (name, error.item(), of_one.item())


def check(attention, schedule, rank, n, transport):
    torch.manual_seed(3)
    device = torch.device("cuda", torch.cuda.current_device())
    qkv = [torch.randn(1, h, ROWS, D, dtype=torch.float64).to(device) for h in (H, HKV, HKV)]
    dout = torch.randn(1, H, ROWS, D, dtype=torch.float64).to(device)
    inputs = {name: torch.linspace(-1, 1, H, device=device) for name in attention.inputs}

    def run(f, qkv, dout, inputs):
        qkv, inputs = [t.requires_grad_() for t in qkv], {name: t.detach().requires_grad_() for name, t in inputs.items()}
        o = f(*qkv, **inputs)
        return [o.detach(), *torch.autograd.grad(o, [*qkv, *inputs.values()], dout)]

    half = [t.to(torch.bfloat16) for t in qkv]
    want = run(attention, [t.double() for t in half], dout.to(torch.bfloat16).double(), inputs)
    one = run(attention, [t.clone() for t in half], dout.to(torch.bfloat16), inputs)
    p = plan(attention, ROWS, n, heads=(H, HKV), head_dim=D, schedule=schedule)
    local = ContextParallel(attention, None, p, transport=transport)
    for _ in range(3):  # memory is taken in turns
        got = run(local, [local.shard(t, 2) for t in half], local.shard(dout.to(torch.bfloat16), 2), inputs)
        assert "copies between GPUs" in repr(local), repr(local)
        for name, x, y, z in zip(("o", "dq", "dk", "dv", "dsinks"), got, want, one):
            whole = local.unshard(x.cpu(), 2).to(device) if x.dim() == 4 else x
            close(f"{attention.name} {schedule} {name}", whole, y, z)


def work(rank, n, path):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)
    for text in TEXTS.values():
        for schedule in ("stages", "gathered"):
            check(luattn.attention(text), schedule, rank, n, "peer")
    dist.destroy_process_group()


class PeerCopies(unittest.TestCase):
    def test_two_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (2, os.path.join(folder, "store")), nprocs=2)


if __name__ == "__main__":
    unittest.main()
