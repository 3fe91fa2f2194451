#!/usr/bin/env python3
"""packed.py: times packed sequences, forward and backward, beside a batch of equal lengths and torch's own.

    python3 bench/packed.py                            bf16, causal, 32k tokens, D 64 and 128
    python3 bench/packed.py --rounds 40 --library /path/to/libluattn.so

Each row is one list of lengths. TFLOP/s count the scores that the causal mask keeps in each sequence. `dense`
is a batch of equal lengths of as many tokens, where all lengths are equal, and torch is
torch.nn.attention.varlen, where it is there. Before the measurement, O and gradients are compared with those
of calls for single sequences.
"""

import argparse
import ctypes as c
import os
import random
import statistics

import torch

from binding import Kept, Luattn
from capi import BatchOptions
from cells import orders

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPEC = 'return attention { name = "packed_causal", block_mask = causal_bottom_right() }'
TOKENS = 32768


def distributions(seed):
    """Lists of lengths that add up to TOKENS."""
    chance = random.Random(seed)

    def cut(draw):
        lengths = []
        while sum(lengths) < TOKENS:
            lengths.append(min(max(1, int(draw())), TOKENS - sum(lengths)))
        return lengths

    return {
        "8 of 4096": [4096] * 8,
        "64 of 512": [512] * 64,
        "8 of 512": [512] * 8,
        "uniform to 4096": cut(lambda: chance.uniform(1, 4096)),
        "log-normal, median 512": cut(lambda: chance.lognormvariate(6.24, 1)),
        "one of 16384, the rest 256": [16384] + [256] * ((TOKENS - 16384) // 256),
    }


class Packed:
    """Both passes over packed sequences."""

    def __init__(self, library, spec, lengths, tensors):
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
        self.cu, longest = Kept(cu), max(lengths)
        options = BatchOptions(struct_size=c.sizeof(BatchOptions), max_seqlen_q=longest, max_seqlen_k=longest)
        options.cu_seqlens_q = options.cu_seqlens_k = c.addressof(self.cu.dl)
        self.batch = c.c_void_p()
        library._call("luattn_batch_open", c.byref(options), c.byref(self.batch))
        q, k, v, dout = tensors
        self.o, self.grads = torch.empty_like(q), {f"d{n}": torch.empty_like(x) for n, x in zip("qkv", (q, k, v))}
        lse = torch.empty(q.shape[1], q.shape[0], device="cuda")
        given = dict(q=q, k=k, v=v, o=self.o, lse=lse, batch=self.batch)
        self.fwd = library.bind(spec, **given)
        self.fwd()
        self.bwd = library.bind(spec, backward=True, dout=dout, **given, **self.grads)
        self.bwd()


class Dense:
    """The same over a batch of equal lengths."""

    def __init__(self, library, spec, length, tensors):
        q, k, v, dout = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in tensors)
        self.o, grads = torch.empty_like(q), {f"d{n}": torch.empty_like(x) for n, x in zip("qkv", (q, k, v))}
        given = dict(q=q, k=k, v=v, o=self.o, lse=torch.empty(q.shape[:-1], device="cuda"))
        self.fwd = library.bind(spec, **given)
        self.fwd()
        self.bwd = library.bind(spec, backward=True, dout=dout, **given, **grads)
        self.bwd()


class Torch:
    """torch.nn.attention.varlen.varlen_attn. ImportError where torch has none."""

    def __init__(self, lengths, cu, tensors):
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
        longest, dout = max(lengths), tensors[3]

        def attend():
            try:
                return varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0))
            except TypeError:
                return varlen_attn(q, k, v, cu, cu, longest, longest, is_causal=True)

        def forward():
            with torch.no_grad():
                attend()

        o = attend()
        self.fwd = forward
        self.bwd = lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True)
        self.bwd()


def check(case, lengths, tensors):
    """Compares two sequences with torch in float64."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    for i in {0, len(lengths) - 1}:
        rows = slice(starts[i], starts[i] + min(lengths[i], 1024 if lengths[i] <= 1024 else 0))
        if rows.stop == rows.start:
            continue
        q, k, v = (x[rows].transpose(0, 1).double().requires_grad_() for x in tensors[:3])
        n = q.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device="cuda").tril()
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        o = s.softmax(-1) @ v
        wants = [o, *torch.autograd.grad(o, (q, k, v), tensors[3][rows].transpose(0, 1).double())]
        for name, got, want in zip(("o", "dq", "dk", "dv"), (case.o, *case.grads.values()), wants):
            got = got[rows].transpose(0, 1).double()
            error = ((got - want).norm() / want.norm()).item()
            if not error < 2**-6:
                raise SystemExit(f"{name} of sequence {i} of {len(lengths)}: is off by {error:.2e}")


def measured(launches, rounds, seed):
    """Times each launch with events, in a random order per round. Returns milliseconds by name."""
    times = {name: [] for name in launches}
    for order in orders(launches, rounds + 3, seed):
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launches[name]()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(t[3:]) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/libluattn.so")
    parser.add_argument("--head-dim", default="64,128", help="with commas between (default 64,128)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    library = Luattn(a.library)
    spec = library.spec("packed.lua", SPEC)
    torch.manual_seed(a.seed)
    print(f"{torch.cuda.get_device_name()}, bf16, causal, {a.rounds} rounds; ms, and TFLOP/s of packed\n")
    print("| D | heads | lengths | pass | packed ms | TFLOP/s | dense ms | packed / dense speed | torch ms | speed of torch |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for dim in map(int, a.head_dim.split(",")):
        heads = 2048 // dim
        for title, lengths in distributions(a.seed).items():
            total = sum(lengths)
            tensors = [torch.randn(total, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            cases = {"packed": Packed(library, spec, lengths, tensors)}
            check(cases["packed"], lengths, tensors)
            if len(set(lengths)) == 1:
                cases["dense"] = Dense(library, spec, lengths[0], tensors)
            try:
                cases["torch"] = Torch(lengths, cases["packed"].cu.torch, tensors)
            except (ImportError, TypeError, RuntimeError) as problem:
                print(f"torch: {str(problem).splitlines()[0]}") if dim == 64 and title == "8 of 4096" else None
            ms = measured({(n, p): getattr(x, p) for n, x in cases.items() for p in ("fwd", "bwd")}, a.rounds, a.seed)
            for p in ("fwd", "bwd"):
                flops = (4 if p == "fwd" else 10) * dim * heads * sum(n * (n + 1) / 2 for n in lengths)
                row = [f"{ms['packed', p]:.3f}", f"{flops / ms['packed', p] / 1e9:.0f}"]
                for other in ("dense", "torch"):
                    t = ms.get((other, p))
                    row += [f"{t:.3f}", f"{t / ms['packed', p]:.3f}"] if t else ["", ""]
                print(f"| {dim} | {heads} | {title} | {p} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
