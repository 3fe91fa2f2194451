"""parallel_gpu_test.py: context parallelism on GPUs, by copies of rows into each other's memory, beside one process, also after passes that raise: two processes
on two GPUs, or on the same one, which they share by turns, and as many as there are GPUs. Exits with 77 without a GPU."""

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
from luattn.parallel import ContextParallel, _backward_pass, plan

TEXTS = {
    "causal": "return attention { name = 'causal', block_mask = causal() }",
    "window": """return attention { name = 'window', inputs = { sinks = { axes = {'h'}, grad = true } }, online_func = attention_sink('sinks'),
      block_mask = function(b, h, q, k) return k <= q and q - k < 700 end }""",
}
H, HKV, D, ROWS = 4, 2, 64, 128 * 24
LATE = 10**8  # cycles for which copies of a pass that raises are held back


def close(name, got, want, half):
    """Twice the error of one process in the same type."""
    scale = want.double().norm()
    error, of_one = ((x.double() - want).norm() / scale for x in (got, half))
    assert error <= 2 * of_one + 1e-6, (name, error.item(), of_one.item())


def run(f, qkv, dout, inputs):
    qkv, inputs = [t.requires_grad_() for t in qkv], {name: t.detach().requires_grad_() for name, t in inputs.items()}
    o = f(*qkv, **inputs)
    return [o.detach(), *torch.autograd.grad(o, [*qkv, *inputs.values()], dout)]


class Case:
    """An attention in one process, in bfloat16 and in float64, and the same over the group by copies."""

    def __init__(self, attention, seed=3):
        torch.manual_seed(seed)
        self.attention, self.device = attention, torch.device("cuda", torch.cuda.current_device())
        self.half = [torch.randn(1, h, ROWS, D, dtype=torch.float64).to(self.device, torch.bfloat16) for h in (H, HKV, HKV)]
        self.dout = torch.randn(1, H, ROWS, D, dtype=torch.float64).to(self.device, torch.bfloat16)
        self.inputs = {name: torch.linspace(-1, 1, H, device=self.device) for name in attention.inputs}
        self.want = run(attention, [t.double() for t in self.half], self.dout.double(), self.inputs)
        self.one = run(attention, [t.clone() for t in self.half], self.dout, self.inputs)

    def compare(self, local, negated=False):
        def own(t):
            return torch._neg_view(-local.shard(t, 2)) if negated else local.shard(t, 2)

        got = run(local, [own(t).detach() for t in self.half], own(self.dout), self.inputs)
        assert "copies between GPUs" in repr(local), repr(local)
        for name, x, y, z in zip(("o", "dq", "dk", "dv", "dsinks"), got, self.want, self.one):
            whole = local.unshard(x.cpu(), 2).to(self.device) if x.dim() == 4 else x
            close(f"{local} {name}", whole, y, z)


def check(attention, schedule, n):
    case = Case(attention)
    local = ContextParallel(attention, None, plan(attention, ROWS, n, heads=(H, HKV), head_dim=D, schedule=schedule), transport="peer")
    for _ in range(3):  # memory is taken in turns
        case.compare(local)
    case.compare(local, negated=True)


def check_after_raise(rank, n):
    """Backwards that raise on all ranks with gradients on their way, which one rank holds back until others are in the next pass: of two groups in turns."""
    first = _backward_pass.Backward._return
    attention = luattn.attention(TEXTS["causal"])
    cases = [Case(attention, seed) for seed in (4, 5, 6, 7)]  # so that rows of a pass before are wrong
    p = plan(attention, ROWS, n, heads=(H, HKV), head_dim=D, schedule="stages")
    both = [ContextParallel(attention, dist.new_group(), p, transport="peer") for _ in range(2)]
    for late in range(n):

        def fail(self, rounds, made):
            if rounds and rank == late:
                with torch.cuda.stream(self.exchange._memory._copies):
                    torch.cuda._sleep(LATE)
            first(self, rounds, made)
            if rounds:
                raise luattn.Error("as the test has it")

        for i, local in enumerate(both):
            own = [local.shard(t, 2).requires_grad_() for t in cases[3 * i].half]
            o = local(*own)
            _backward_pass.Backward._return = fail
            try:
                o.sum().backward()
            except luattn.Error as e:
                assert "as the test has it" in str(e)
            else:
                raise AssertionError("backward has not raised")
            finally:
                _backward_pass.Backward._return = first
            for case in cases[1:3]:
                for one in reversed(both) if late else both:
                    case.compare(one)


def work(rank, n, path):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)
    for text in TEXTS.values():
        for schedule in ("stages", "gathered"):
            check(luattn.attention(text), schedule, n)
    check_after_raise(rank, n)
    dist.destroy_process_group()


class PeerCopies(unittest.TestCase):
    def test_processes(self):
        """Two, and one for each GPU where there are more."""
        for n in sorted({2, max(2, torch.cuda.device_count())}):
            with self.subTest(processes=n), tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(work, (n, os.path.join(folder, "store")), nprocs=n)


if __name__ == "__main__":
    unittest.main()
