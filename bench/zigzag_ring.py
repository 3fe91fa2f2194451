"""zigzag_ring.py: causal attention as a ring over ranks whose chunks lie in a zigzag, over torch's own kernels, for bench/ranks.py to compare with.

Rank r of n has chunks r and 2n - 1 - r, and at every step but the first half a square of scores, as in ring-flash-attention: keys of ranks before it meet all of
its queries with their first half, those of ranks behind it meet the second half of its queries. Keys of a step travel while those of the step before are computed,
gradients of keys behind them, in float32."""

from typing import NamedTuple

import torch
import torch.distributed as dist

ops = torch.ops.aten


class Kernel(NamedTuple):
    """forward(q, k, v, causal): o, lse, and what backward takes besides. backward(dout, q, k, v, o, lse, rest, causal): dq, dk, dv."""

    forward: object
    backward: object


def _flash(q, k, v, causal):
    o, lse, cu_q, cu_k, most_q, most_k, seed, offset, _ = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return o, lse, (cu_q, cu_k, most_q, most_k, seed, offset)


def _flash_backward(dout, q, k, v, o, lse, rest, causal):
    cu_q, cu_k, most_q, most_k, seed, offset = rest
    return ops._scaled_dot_product_flash_attention_backward(dout, q, k, v, o, lse, cu_q, cu_k, most_q, most_k, 0.0, causal, seed, offset)


def _cudnn(q, k, v, causal):
    o, lse, cu_q, cu_k, most_q, most_k, seed, offset, _ = ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return o, lse, (cu_q, cu_k, most_q, most_k, seed, offset)


def _cudnn_backward(dout, q, k, v, o, lse, rest, causal):
    cu_q, cu_k, most_q, most_k, seed, offset = rest
    lse = lse if lse.dim() == 4 else lse[..., None]
    return ops._scaled_dot_product_cudnn_attention_backward(dout, q, k, v, o, lse, seed, offset, None, cu_q, cu_k, most_q, most_k, 0.0, causal)


def _cpu(q, k, v, causal):
    return *ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal), ()


def _cpu_backward(dout, q, k, v, o, lse, rest, causal):
    return ops._scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, o, lse, 0.0, causal)


KERNELS = {"flash": Kernel(_flash, _flash_backward), "cudnn": Kernel(_cudnn, _cudnn_backward), "cpu": Kernel(_cpu, _cpu_backward)}


def chunks_of(t, rank, ranks, dim=2):
    """A rank's rows of a whole tensor."""
    parts = t.chunk(2 * ranks, dim)
    return torch.cat([parts[rank], parts[2 * ranks - 1 - rank]], dim)


class _Ring:
    """Tensors that go to the next rank; two sets of buffers, as what has been sent is computed with meanwhile."""

    def __init__(self):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.works = []

    def start(self, tensors):
        tensors = [t.contiguous() for t in tensors]
        received = [torch.empty_like(t) for t in tensors]
        to, source = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        sends = [dist.P2POp(dist.isend, t, to) for t in tensors]
        self.works = dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, t, source) for t in received])
        return received

    def wait(self):
        for work in self.works:
            work.wait()
        self.works = []


@torch.jit.script
def _merged(o: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As ring-flash-attention merges, which scripts it too: by sigmoids of differences, in float32."""
    return o - torch.sigmoid(part_lse - lse) * (o - part.float()), lse - torch.nn.functional.logsigmoid(lse - part_lse)


def merge(o, lse, part, part_lse):
    """Into o and lse."""
    for to, made in zip((o, lse), _merged(o, lse, part, part_lse.float().reshape(*part.shape[:3], 1))):
        to.copy_(made)


def _shares(step, rank):
    """Which half of queries, and of keys, a step has: slices by the number of rows of a half, and whether scores are causal."""
    if step == 0:
        return (0, 2), (0, 2), True
    return ((0, 2), (0, 1), False) if step <= rank else ((1, 2), (0, 2), False)


def _cut(t, share, half):
    return t[:, :, share[0] * half : share[1] * half]


class ZigzagRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, kernel):
        ring, half = _Ring(), q.shape[2] // 2
        o = lse = None
        rests = []
        keys = [k, v]
        for step in range(ring.ranks):
            following = ring.start(keys) if step + 1 < ring.ranks else None
            of_q, of_k, causal = _shares(step, ring.rank)
            part, part_lse, rest = kernel.forward(_cut(q, of_q, half), *(_cut(t, of_k, half) for t in keys), causal)
            rests.append(rest)
            if o is None:
                o, lse = part.float(), part_lse.float().reshape(*part.shape[:3], 1)
            else:
                merge(_cut(o, of_q, half), _cut(lse, of_q, half), part, part_lse)
            ring.wait()
            keys = following
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse.squeeze(-1))
        ctx.kernel, ctx.rests = kernel, rests
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, o, lse = ctx.saved_tensors
        ring, back, half = _Ring(), _Ring(), q.shape[2] // 2
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        keys, grads = [k, v], None
        for step in range(ring.ranks):
            following = ring.start(keys) if step + 1 < ring.ranks else None
            of_q, of_k, causal = _shares(step, ring.rank)
            rows = [_cut(t, of_q, half) for t in (dout, q)]
            one = ctx.kernel.backward(*rows, *(_cut(t, of_k, half) for t in keys), _cut(o, of_q, half), _cut(lse, of_q, half).contiguous(), ctx.rests[step], causal)
            _cut(dq, of_q, half).add_(one[0])
            if step == 0:
                grads = [t.float() for t in one[1:]]
            else:
                back.wait()
                for t, d in zip(grads, one[1:]):
                    _cut(t, of_k, half).add_(d)
            ring.wait()
            grads, keys = back.start(grads), following
        back.wait()
        return dq.to(q.dtype), *(t.to(k.dtype) for t in grads), None


def zigzag_ring(kernel):
    return lambda q, k, v: ZigzagRing.apply(q, k, v, KERNELS[kernel])
