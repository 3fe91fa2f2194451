#!/usr/bin/env python3
"""plain.py LIBRARY [--json FILE] [--rounds N]: plain attention, forward and backward, beside torch's FlashAttention-2.

LIBRARY is libluattn.so. bf16, batch * length = 16k tokens, heads * head_dim = 2048, causal and full. All run in one process on the same
tensors, in interleaved rounds (A B A B ..); a cell is the median of its rounds. Results are compared with each other first.
FLOPs: forward 4 * B * H * S * S * D, halved when causal; backward 2.5 times that.
"""
import argparse
import json
import math
import os
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from binding import Luattn

HERE = os.path.dirname(os.path.abspath(__file__))


def timed(f, launches):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        f()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / launches


def interleaved(functions, rounds, launches):
    for f in functions.values():
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, f in functions.items():
            times[name].append(timed(f, launches))
    return {name: statistics.median(t) for name, t in times.items()}


def worst(got, want):
    return max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(got, want))


def cell(luattn, specs, dim, length, causal, rounds):
    batch, heads = 16384 // length, 2048 // dim
    shape = (batch, length, heads, dim)
    q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    o, dq, dk, dv = (torch.full(shape, math.nan, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    lse = torch.full((batch, heads, length), math.nan, device="cuda")
    spec = specs["causal" if causal else "full"]
    forward = luattn.bind(spec, q=q, k=k, v=v, o=o, lse=lse)
    backward = luattn.bind(spec, backward=True, q=q, k=k, v=v, o=o, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv)
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]

    def flash():
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal)

        def flash_backward():
            return torch.autograd.grad(out, leaves, dout, retain_graph=True)

        forward()
        backward()
        difference = worst([o, dq, dk, dv], [out, *flash_backward()])
        flops = 4 * batch * heads * length * length * dim * (0.5 if causal else 1)
        rows = []
        launches = 10
        for name, pair, f in (("fwd", {"luattn": forward, "fa2": flash}, flops),
                              ("bwd", {"luattn": backward, "fa2": flash_backward}, 2.5 * flops)):
            ms = interleaved(pair, rounds, launches)
            rows.append(dict(pass_=name, D=dim, S=length, mask="causal" if causal else "full", difference=difference,
                             ratio=ms["fa2"] / ms["luattn"], **{n: f / t / 1e9 for n, t in ms.items()}))
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dims", default="64,128")
    a = parser.parse_args()
    torch.manual_seed(0)
    luattn = Luattn(a.library)
    specs = {name: luattn.spec(f"{HERE}/../examples/{name}.lua") for name in ("causal", "full")}
    rows = []
    for dim in map(int, a.dims.split(",")):
        for length in (1024, 4096, 16384):
            for causal in (False, True):
                rows += cell(luattn, specs, dim, length, causal, a.rounds)
                for r in rows[-2:]:
                    print(f"{r['pass_']} D{dim:<4} S{length:<6} {r['mask']:<7} luattn {r['luattn']:6.1f}  fa2 {r['fa2']:6.1f} TFLOP/s  "
                          f"ratio {r['ratio']:.3f}  difference {r['difference']:.4f}", flush=True)
    for name in ("fwd", "bwd"):
        ratios = [r["ratio"] for r in rows if r["pass_"] == name]
        print(f"{name}: geometric mean of luattn / fa2 {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, lowest {min(ratios):.3f}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), torch=torch.__version__, rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
