"""Attention of several sequences that begin with the same prefix, such as a system prompt: over each whole sequence; and over the prefix once
for all of them, merged with what each sequence has of its own (cascade). Prints how far results and gradients are apart, and on a GPU how
long both take.

    python3 examples/python/shared_prefix.py        on a GPU, or small on the CPU"""

import time

import torch

import luattn

causal = luattn.attention("return attention { block_mask = causal() }")
full = luattn.attention("return attention {}")


def whole(q, prefix, own):
    """q: the last queries of each sequence. Each has a copy of the prefix."""
    k, v = (torch.cat((p.expand(len(q), *p.shape[1:]), t), 2) for p, t in zip(prefix, own))
    return causal(q, k, v, q_offset=k.shape[2] - q.shape[2])


def cascade(q, prefix, own):
    """All queries come after the prefix and see all of it: together they are one batch entry, which reads its keys once."""
    batch, heads, rows, dim = q.shape
    together = q.transpose(0, 1).reshape(1, heads, batch * rows, dim)
    o, lse = full(together, *prefix, return_lse=True)
    o, lse = (t.view(heads, batch, rows, *t.shape[3:]).transpose(0, 1) for t in (o, lse))
    own_o, own_lse = causal(q, *own, q_offset=own[0].shape[2] - rows, return_lse=True)
    return luattn.merge([o, own_o], [lse, own_lse])[0]


def compare(device, dtype, batch, heads, heads_kv, prefix_len, own_len, rows, dim, repeats=0):
    """The relative distances of results and of all gradients, and milliseconds of forward, whole and cascade."""
    torch.manual_seed(1)

    def rand(*shape):
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    q = rand(batch, heads, rows, dim)
    prefix, own = ([rand(b, heads_kv, n, dim) for _ in "kv"] for b, n in ((1, prefix_len), (batch, own_len)))
    weights = torch.randn_like(q)
    found, times = [], []
    for f in (whole, cascade):
        o = f(q, prefix, own)
        found.append((o, *torch.autograd.grad(o, (q, *prefix, *own), weights)))
        with torch.no_grad():
            start = time.perf_counter()
            for _ in range(repeats):
                f(q, prefix, own)
            if device == "cuda":
                torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / max(1, repeats))
    apart = [((a - b).float().norm() / b.float().norm()).item() for a, b in zip(found[1], found[0])]
    return apart[0], max(apart[1:]), times


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        o, grads, times = compare("cuda", torch.bfloat16, 32, 32, 8, 8192, 512, 16, 128, repeats=20)
    else:
        o, grads, times = compare("cpu", torch.float32, 3, 4, 2, 64, 24, 8, 32)
    print(f"cascade beside whole sequences: o is {o:.1e} apart, gradients up to {grads:.1e}")
    if on_gpu:
        print(f"forward: whole {times[0]:.2f} ms, of it copies of the prefix; cascade {times[1]:.2f} ms")
