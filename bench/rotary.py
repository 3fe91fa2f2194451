#!/usr/bin/env python3
"""rotary.py: compares the cost of rotary embedding, as mods of q and k, with its memory traffic.

    python3 bench/rotary.py                            bf16, 16k tokens, D 64 and 128, both layouts, forward and backward
    python3 bench/rotary.py --head-dim 128 --rounds 60 --library /path/to/libluattn.so

The mods read q and k and write q' and k' once in each pass, and backward computes dq and dk through them. So
a pass is expected to take the time of plain causal attention, and in addition

    forward:  bytes(q, k, q', k') / bandwidth        backward:  bytes(q, k, q', k') / bandwidth + what finish adds

where bandwidth is that of a copy of as many bytes, measured in the same rounds. luattn_finish reads dq in
f32, with or without mods. With mods it also reads and writes dk, which plain attention writes directly: 6
bytes more per element of k. Each row has the difference of the medians, the prediction, and their ratio,
which is 1 if the cost is the traffic alone; at most 1.3 is expected. Before the measurement, results are
compared with a float64 rotation and plain attention in torch.
"""

import argparse
import os
import statistics
import sys

import torch

from builds import Luattn
from cells import orders

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPEC = """local rotate = %s("cosine", "sine")
return attention { name = "%s", query_mod = rotate, key_mod = rotate, block_mask = causal(),
  inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} } } }
"""
LAYOUTS = {"halves": "rotary", "pairs": "rotary_interleaved"}


def angles(length, dim):
    """Returns cos and sin of pos * 10000^(-2 i / D)."""
    i = torch.arange(dim // 2, device="cuda", dtype=torch.float64)
    turns = torch.arange(length, device="cuda", dtype=torch.float64)[:, None] * 10000 ** (-2 * i / dim)
    return turns.cos().float(), turns.sin().float()


def rotated(x, cos, sin, layout):
    """Rotates x, [batch, heads, length, dim], in float64 with complex numbers."""
    x = x.double()
    n = x.shape[-1] // 2
    a, b = (x[..., :n], x[..., n:]) if layout == "halves" else (x[..., ::2], x[..., 1::2])
    z = torch.complex(a, b) * torch.complex(cos.double(), sin.double())
    return torch.cat([z.real, z.imag], -1) if layout == "halves" else torch.view_as_real(z).flatten(-2)


def off(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


class Case:
    """Both passes with one rotary layout, or of plain causal attention if layout is None."""

    def __init__(self, library, layout, q, k, v, dout, tables):
        text = SPEC % ((LAYOUTS[layout],) * 2) if layout else "return attention { block_mask = causal() }"
        spec = library.spec(f"{layout}.lua", text)
        self.o, self.grads = torch.empty_like(q), {f"d{n}": torch.empty_like(x) for n, x in zip("qkv", (q, k, v))}
        lse = torch.empty(q.shape[:-1], device="cuda")
        inputs = {name: (x, None) for name, x in zip(("cosine", "sine"), tables)} if layout else {}
        given = dict(q=q, k=k, v=v, o=self.o, lse=lse, inputs=inputs)
        self.fwd = library.bind(spec, **given)
        self.fwd()
        self.bwd = library.bind(spec, backward=True, dout=dout, **given, **self.grads)
        self.bwd()


def check(case, layout, q, k, v, dout, tables, limit):
    """Compares the last batch entry's last head with torch in float64."""
    part = [x[-1:, -1:].double().requires_grad_() for x in (q, k, v)]
    scores = rotated(part[0], *tables, layout) @ rotated(part[1], *tables, layout).mT / q.shape[-1] ** 0.5
    n = scores.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool, device="cuda").tril()
    o = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ part[2]
    wants = [o, *torch.autograd.grad(o, part, dout[-1:, -1:].double())]
    for name, got, want in zip(("o", "dq", "dk", "dv"), (case.o, *case.grads.values()), wants):
        error = off(got[-1:, -1:], want.detach())
        if not error < limit:
            sys.exit(f"{layout}: {name} is off by {error:.2e}, expected less than {limit:.2e}")


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
    parser.add_argument("--length", type=int, default=2048, help="of 16384 tokens in all (default 2048)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    library = Luattn(a.library)
    torch.manual_seed(a.seed)
    print(f"{torch.cuda.get_device_name()}, bf16, causal, 16384 tokens in sequences of {a.length}, {a.rounds} rounds\n")
    print("| D | heads | layout | pass | plain ms | with mods ms | difference ms | predicted ms | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dim in map(int, a.head_dim.split(",")):
        heads, batch = 2048 // dim, 16384 // a.length
        memory = (torch.randn(batch, a.length, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        q, k, v, dout = (x.transpose(1, 2) for x in memory)
        tables = angles(a.length, dim)
        cases = {layout: Case(library, layout, q, k, v, dout, tables) for layout in (None, *LAYOUTS)}
        for layout in LAYOUTS:
            check(cases[layout], layout, q, k, v, dout, tables, 2**-6)
        both = torch.empty(2 * q.numel(), device="cuda", dtype=torch.bfloat16)  # as many bytes as q and k
        to, f32 = torch.empty_like(both), torch.empty(q.numel(), device="cuda")
        half = torch.empty_like(f32, dtype=torch.bfloat16)
        launches = {("copy", "fwd"): lambda: to.copy_(both), ("round", "bwd"): lambda: half.copy_(f32)}
        launches |= {(layout, p): getattr(case, p) for layout, case in cases.items() for p in ("fwd", "bwd")}
        ms = measured(launches, a.rounds, a.seed)
        for layout in LAYOUTS:
            for p in ("fwd", "bwd"):
                expected = ms["copy", "fwd"] + (ms["round", "bwd"] if p == "bwd" else 0)
                cost = ms[layout, p] - ms[None, p]
                numbers = (ms[None, p], ms[layout, p], cost, expected, cost / expected)
                print(f"| {dim} | {heads} | {layout} | {p} |" + "".join(f" {x:.3f} |" for x in numbers))


if __name__ == "__main__":
    main()
