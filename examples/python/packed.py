"""One layer of attention over documents of different lengths: packed one after another, and padded to the longest. Prints how far results
and gradients are apart, and on a GPU how long both take.

    python3 examples/python/packed.py               on a GPU, or small on the CPU
    python3 examples/python/packed.py --dropout 0.1

The spec has slopes that are learned, which flash-attn's functions do not train, and sees the same positions in both."""

import argparse
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence, unpad_sequence

import luattn


def spec(dropout):
    return f"""
return attention {{
  inputs = {{ slopes = {{ axes = {{"h"}}, grad = true }} }},
  score_mod = function(score, b, h, q_idx, kv_idx) return score - slopes[h] * (q_idx - kv_idx) end,
  block_mask = causal(),
  online_func = dropout({dropout}),
}}"""


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.attention = heads, luattn.attention(spec(dropout))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.slopes = nn.Parameter(torch.linspace(0.01, 0.5, heads))

    def padded(self, x, seed):
        """[batch, longest, dim]. A query sees no key after it, so that padding behind a document changes nothing before."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return self.out(self.attention(q, k, v, layout="bshd", slopes=self.slopes, **seed).flatten(2))

    def packed(self, x, cu_seqlens, longest, seed):
        """[tokens of all documents, dim]; cu_seqlens: where each begins, and where the last one ends."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        lengths = dict(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=longest, max_seqlen_k=longest)
        return self.out(self.attention(q, k, v, slopes=self.slopes, **lengths, **seed).flatten(1))


def compare(device, dtype, lengths, dim, heads, dropout=0.0, repeats=0):
    """The relative distances of results and of all gradients, and milliseconds of a step, padded and packed."""
    torch.manual_seed(1)
    layer = Layer(dim, heads, dropout).to(device, dtype)
    layer.slopes.data = layer.slopes.data.float()
    documents = [torch.randn(n, dim, device=device, dtype=dtype) for n in lengths]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    x, lengths_of = torch.cat(documents), torch.tensor(lengths)
    together = pad_sequence(documents, batch_first=True)
    # A seed of ours, so that both drop the same weights; a training leaves it out.
    seed = {"seed": 7} if dropout else {}

    def padded():
        return torch.cat(unpad_sequence(layer.padded(together, seed), lengths_of, batch_first=True))

    def packed():
        return layer.packed(x, cu_seqlens, max(lengths), seed)

    found, times = [], []
    for f in (padded, packed):
        for i in range(1 + repeats):
            if i == min(1, repeats):
                start = time.perf_counter()
            o = f()
            grads = torch.autograd.grad(o.float().square().mean(), list(layer.parameters()))
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / max(1, repeats))
        found.append((o, *grads))
    apart = [((a - b).norm() / b.norm()).item() for a, b in zip(found[1], found[0])]
    return apart[0], max(apart[1:]), times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout", type=float, default=0.0)
    dropout = parser.parse_args().dropout
    if torch.cuda.is_available():
        lengths = [4096, 300, 1200, 64, 800, 2000, 100, 500]
        o, grads, times = compare("cuda", torch.bfloat16, lengths, 2048, 16, dropout, repeats=20)
    else:
        lengths = [60, 7, 25]
        o, grads, times = compare("cpu", torch.float32, lengths, 64, 4, dropout)
    print(f"{sum(lengths)} tokens packed, {len(lengths) * max(lengths)} padded")
    print(f"results are {o:.1e} apart, gradients {grads:.1e}")
    print(f"forward and backward: padded {times[0]:.2f} ms, packed {times[1]:.2f} ms")


if __name__ == "__main__":
    main()
