"""parallel_case.py: attention over the processes of a group (gloo) beside one process, in float64, for tests of luattn.parallel. Exits with 77 without torch."""

import functools
import os
import sys
import tempfile
import unittest
import warnings

from problems import inputs_of, rand, torch  # exits without torch, so first

import luattn
import torch.distributed as dist

warnings.filterwarnings("ignore")
SIZES, GIVEN = [3, 2, 4], False
B, H, HKV, D = 2, 4, 2, 8
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


def refuses(f, *words):
    try:
        f()
    except luattn.Error as e:
        for word in words:
            assert word in str(e), f"{e}: lacks '{word}'"
        return
    raise AssertionError(f"nothing was refused: {words}")


# --- processes ---


def work(rank, n, path, checks, sizes):
    SIZES[:] = sizes
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=n)
    for check in checks:
        check(n)
    dist.destroy_process_group()


def spawn(n, checks):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (n, os.path.join(folder, "store"), checks, SIZES), nprocs=n)


def spawn_each(test, checks, few):
    """All checks in a group of the first size, and a few in those of others."""
    for n in SIZES:
        with test.subTest(processes=n):
            spawn(n, checks if n == SIZES[0] else few)


def main():
    """Numbers among the arguments are sizes of groups."""
    global GIVEN
    given = [int(x) for x in sys.argv[1:] if x.isdigit()]
    SIZES[:], GIVEN = given or SIZES, bool(given)
    unittest.main(argv=[sys.argv[0], *(x for x in sys.argv[1:] if not x.isdigit())])
