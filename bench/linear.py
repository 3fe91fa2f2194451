#!/usr/bin/env python3
"""linear.py: linear attention beside its peers, both passes: flash-linear-attention, FlashQLA, FlashInfer, cuDNN's frontend
and mamba-ssm, whichever are installed.

    python3 bench/linear.py --only 'gated_delta|kda' --cells A,B --json results.json

Cells: A 8 x 2048 tokens, 16 heads; B 1 x 16384; C 1 x 65536; G 4 x 2048, 8 heads of q and k and 32 of v; M 8 x 2048 of
Mamba-2 2.7B: 80 value heads of 64 channels and one of q and k, with softplus of dt and its bias, and D; N the same, 1 x 16384.
K = V = 128 but for M and N, bf16, gates in float32. q and k of updates that erase are normalised before. Medians of rounds in which every contender takes its turn, L2 flushed; a
launch waits behind a kernel that sleeps until the host has sent it all. A floor is the time in which a copy moves as
many bytes as the pass has to: of tensors that it reads, once, and those that it writes. `differs`: a peer's results beside luattn's, relative,
root mean square.

--configs N leaves each Triton kernel of a peer N of the configurations that its autotuner would time, spread over the likely
ones (4 or 8 warps, 2 or 3 stages). --compile-only launches each contender once, so that caches have its kernels.
--processes N does so for N contenders at a time. --check N compares each contender with the recurrence in float64, over N
tokens of a cell's heads, and times nothing."""

import argparse
import dataclasses
import json
import math
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

CELLS = {"A": (8, 2048, 16, 16, 128), "B": (1, 16384, 16, 16, 128), "C": (1, 65536, 16, 16, 128), "G": (4, 2048, 8, 32, 128), "M": (8, 2048, 1, 80, 64),
         "N": (1, 16384, 1, 80, 64)}  # fmt: skip
K = 128
GATES = ("weak", "production")  # log sigmoid of normal numbers, a sixteenth; -5 sigmoid of them

TOKEN = 'g = { axes = {"b", "t", "hv"}, grad = true }'
CHANNEL = 'g = { axes = {"b", "t", "hv", "d"}, grad = true }'
BETA = 'beta = { axes = {"b", "t", "hv"}, grad = true }'
OF_TOKEN = "decay = function(b, h, t) return g[{b, t, h}] end"
OF_CHANNEL = "decay = function(b, h, t, d) return g[{b, t, h, d}] end"
ERASES = "update = delta_rule(function(b, h, t) return beta[{b, t, h}] end)"
SPECS = {
    "gated_delta": f"inputs = {{ {TOKEN}, {BETA} }}, {OF_TOKEN}, {ERASES}",
    "retention": "decay = function(b, h) return log(1 - 2.0 ^ (-5 - h)) end",
    "simple_gla": f"inputs = {{ {TOKEN} }}, {OF_TOKEN}",
    "gla": f"inputs = {{ {CHANNEL} }}, {OF_CHANNEL}",
    "delta": f"inputs = {{ {BETA} }}, {ERASES}",
    "kda": f"inputs = {{ {CHANNEL}, {BETA} }}, {OF_CHANNEL}, {ERASES}",
    "mamba2": "",  # luattn.fla has it
}
CELLS_OF = {"mamba2": "MN", "gated_delta": "ABCG"}  # else A, B and C


@dataclasses.dataclass
class Problem:
    operator: str
    cell: str
    gates: str
    tensors: dict  # by name, in the order of results' gradients
    dout: torch.Tensor

    @property
    def name(self):
        return f"{self.operator} {self.cell}" + (f" {self.gates}" if "g" in self.tensors else "")


def make(operator, cell, gates, device, shape=None):
    batch, tokens, heads, heads_v, dim_v = shape or CELLS[cell]
    rows = lambda *size: torch.randn(*size, device=device)  # noqa: E731
    q, k, v, dout = (rows(batch, tokens, n, d).bfloat16() for n, d in ((heads, K), (heads, K), (heads_v, dim_v), (heads_v, dim_v)))
    t = {"q": q, "k": k, "v": v}
    if "beta" in SPECS[operator]:
        t["q"], t["k"] = (F.normalize(x.float(), dim=-1).bfloat16() for x in (q, k))
    if " g = " in SPECS[operator]:
        of = rows(batch, tokens, heads_v, *([K] if CHANNEL in SPECS[operator] else []))
        t["g"] = F.logsigmoid(of) / 16 if gates == "weak" else -5 * of.sigmoid()
    if "beta" in SPECS[operator]:
        t["beta"] = torch.rand(batch, tokens, heads_v, device=device)
    if operator == "mamba2":
        t["dt"] = rows(batch, tokens, heads_v).bfloat16()
        t["A"] = -1 - 15 * torch.rand(heads_v, device=device)
        t["D"] = 1 + 0.1 * rows(heads_v)
        t["dt_bias"] = torch.empty(heads_v, device=device).uniform_(math.log(1e-3), math.log(1e-1)).exp().expm1().log()
    return Problem(operator, cell, gates, {n: x.detach().requires_grad_() for n, x in t.items()}, dout)


# ---- contenders: of a problem, a function of its tensors that returns o ----


def ssd_call(f):
    return lambda q, k, v, dt, A, D, dt_bias: f(v, dt, A, k, q, 256, D=D, dt_bias=dt_bias, dt_softplus=True)


def luattn(p):
    import luattn as package

    if p.operator == "mamba2":
        from luattn.fla import mamba_chunk_scan_combined

        return ssd_call(mamba_chunk_scan_combined)
    attention = package.linear_attention(f"return linear_attention {{ name = {p.operator!r}, {SPECS[p.operator]} }}")
    return lambda **t: attention(**t)


def fla(p):
    import os

    os.environ["FLA_FLASH_QLA"] = "0"  # which has its own column
    if p.operator == "retention":
        from fla.ops.retention import chunk_retention

        return lambda q, k, v: chunk_retention(q, k, v)[0]
    if p.operator in ("simple_gla", "mamba2"):
        from fla.ops.simple_gla import chunk_simple_gla

        if p.operator == "simple_gla":
            return lambda q, k, v, g: chunk_simple_gla(q, k, v, g=g)[0]
        heads = p.tensors["v"].shape[2]

        def ssd(q, k, v, dt, A, D, dt_bias):
            dt = F.softplus(dt.float() + dt_bias)
            q, k = (x.expand(-1, -1, heads, -1) for x in (q, k))
            return chunk_simple_gla(q, k, v * dt[..., None].bfloat16(), g=A * dt, scale=1.0)[0] + (D[:, None] * v).bfloat16()

        return ssd
    if p.operator == "gla":
        from fla.ops.gla import chunk_gla

        return lambda q, k, v, g: chunk_gla(q, k, v, g)[0]
    if p.operator == "delta":
        from fla.ops.delta_rule import chunk_delta_rule

        return lambda q, k, v, beta: chunk_delta_rule(q, k, v, beta)[0]
    if p.operator == "gated_delta":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        return lambda q, k, v, g, beta: chunk_gated_delta_rule(q, k, v, g, beta)[0]
    from fla.ops.kda import chunk_kda

    return lambda q, k, v, g, beta: chunk_kda(q, k, v, g, beta)[0]


def flash_qla(p):
    from flash_qla import chunk_gated_delta_rule

    return lambda q, k, v, g, beta: chunk_gated_delta_rule(q=q, k=k, v=v, g=g, beta=beta)[0]


def ends(q):
    return torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device) * q.shape[1]


def flashinfer(p):
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    q, v = p.tensors["q"], p.tensors["v"]
    alpha, cu = p.tensors["g"].detach().exp().flatten(0, 1), ends(q)  # it takes the factor, and has no backward

    def call(q, k, v, g, beta):
        o = chunk_gated_delta_rule(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), alpha, beta.flatten(0, 1), cu_seqlens=cu)
        return o.view(v.shape)

    return call


def cudnn(p):
    from cudnn.linear_attention import kimi_delta_attention

    q = p.tensors["q"]
    cu = ends(q)

    def call(q, k, v, g, beta):
        flat = (x.flatten(0, 1) for x in (q, k, v, g, beta))
        return kimi_delta_attention(*flat, cu, plan_name="kda_hopper_cuda")[0].view(v.shape)

    return call


def mamba_ssm(p):
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return ssd_call(mamba_chunk_scan_combined)


def recurrence(p):
    """o and gradients in float64, token by token."""
    t = {n: x.detach().double().requires_grad_() for n, x in p.tensors.items()}
    q, k, v = t["q"], t["k"], t["v"]
    heads = v.shape[2]
    q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    g, beta, w, scale = t.get("g"), t.get("beta"), v, K**-0.5
    if p.operator == "retention":
        g = (1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device=v.device))).log().expand(v.shape[:3])
    if p.operator == "mamba2":
        dt = F.softplus(t["dt"] + t["dt_bias"])
        g, w, scale = t["A"] * dt, dt[..., None] * v, 1.0
    state, rows = torch.zeros(v.shape[0], heads, K, v.shape[3], dtype=torch.float64, device=v.device), []
    for i in range(v.shape[1]):
        if g is not None:
            decay = g[:, i].exp()
            state = state * (decay[..., None] if g.dim() == 4 else decay[..., None, None])
        u = w[:, i]
        if beta is not None:
            u = beta[:, i, :, None] * (u - torch.einsum("bhk,bhkv->bhv", k[:, i], state))
        state = state + k[:, i, :, :, None] * u[:, :, None]
        rows.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, i], state))
    o = torch.stack(rows, 1)
    o = o + t["D"][:, None] * v if p.operator == "mamba2" else o
    return o.detach(), torch.autograd.grad(o, list(t.values()), p.dout.double())


PEERS = {"luattn": (luattn, SPECS), "fla": (fla, SPECS), "flash_qla": (flash_qla, ["gated_delta"]), "flashinfer": (flashinfer, ["gated_delta"]),
         "cudnn": (cudnn, ["kda"]), "mamba_ssm": (mamba_ssm, ["mamba2"])}  # fmt: skip
FORWARD_ALONE = ("flashinfer",)


def few_configs(n):
    import triton.testing
    from triton.runtime.autotuner import Autotuner

    whole, bench = Autotuner.prune_configs, triton.testing.do_bench
    triton.testing.do_bench = lambda f, warmup=2, rep=10, **more: bench(f, warmup=2, rep=10, **more)  # milliseconds

    def prune(self, *args, **more):
        found = sorted(
            whole(self, *args, **more), key=lambda c: (c.num_warps not in (4, 8), c.num_stages not in (2, 3), -c.kwargs.get("BV", 0) - c.kwargs.get("BK", 0))
        )
        likely = [c for c in found if c.num_warps in (4, 8) and c.num_stages in (2, 3)]
        likely = likely if len(likely) > 1 else found[:n]  # one alone may not fit
        return [likely[i * len(likely) // n] for i in range(n)] if len(likely) > n else found if len(found) <= n else likely

    Autotuner.prune_configs = prune


# ---- times ----


class Clock:
    def __init__(self, sleep):
        self.flush, self.sleep = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), sleep

    def us(self, f):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        torch.cuda._sleep(self.sleep)
        start.record()
        f()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3


def size(*tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def floors(p, clock, rounds):
    """Of forward and of backward: the time in which a copy moves as many bytes."""
    t, found = list(p.tensors.values()), []
    for moved in (size(*t) + size(p.dout), 2 * size(*t) + size(p.dout)):
        half = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        to = torch.empty_like(half)
        found.append(statistics.median(clock.us(lambda: to.copy_(half)) for _ in range(rounds)))
    return found


def off(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


class Contender:
    def __init__(self, name, p):
        self.name, self.p, self.message, self.times = name, p, {}, {"forward": [], "backward": []}
        self.o = self.grads = None
        try:
            self.call = PEERS[name][0](p)
            self.first("forward", self.forward)
            if name not in FORWARD_ALONE:
                self.first("backward", self.backward)
        except Exception as e:  # a peer that does not run says so in the table
            self.message["forward"] = f"{type(e).__name__}: {e}"

    def first(self, which, f):
        try:
            begin = time.monotonic()
            f()
            if self.p.dout.is_cuda:
                torch.cuda.synchronize()
            self.message[which] = None
            self.seconds = getattr(self, "seconds", 0) + time.monotonic() - begin
        except Exception as e:
            self.message[which] = f"{type(e).__name__}: {e}"

    def forward(self):
        with torch.no_grad():
            self.o = self.call(**self.p.tensors)

    def backward(self):
        if self.grads is None:
            self.graph = self.call(**self.p.tensors)
        self.grads = torch.autograd.grad(self.graph, list(self.p.tensors.values()), self.p.dout, retain_graph=True)

    def runs(self, which):
        return self.message.get(which, "") is None

    def turn(self, which, clock):
        if self.runs(which):
            self.times[which].append(clock.us(self.forward if which == "forward" else self.backward))

    def differs(self, ours):
        found = {}
        if self.o is not None and ours.o is not None:
            found["o"] = off(self.o, ours.o)
        if self.grads is not None and ours.grads is not None:
            found.update({f"d{n}": off(a, b) for n, a, b in zip(self.p.tensors, self.grads, ours.grads)})
        return {n: round(x, 5) for n, x in found.items()}


def check(p, those):
    o, grads = recurrence(p)
    rows = []
    for c in those:
        found = {"o": off(c.o, o)} if c.o is not None else {}
        found.update({f"d{n}": off(a, b) for n, a, b in zip(p.tensors, c.grads or (), grads)})
        rows.append({"problem": p.name, "contender": c.name, "off": {n: round(x, 5) for n, x in found.items()}, **{w: m for w, m in c.message.items() if m}})
    return rows


def run(p, names, a, clock):
    those = [Contender(n, p) for n in names if p.operator in PEERS[n][1]]
    if a.check:
        return check(p, those)
    if a.compile_only:
        return [{"problem": p.name, "contender": c.name, "seconds": round(getattr(c, "seconds", 0), 1), **{w: m for w, m in c.message.items() if m}} for c in those]
    of = dict(zip(("forward", "backward"), floors(p, clock, a.rounds)))
    rows = []
    for which in a.passes.split(","):
        for _ in range(a.rounds):
            for c in those:
                c.turn(which, clock)
        ours = next((statistics.median(c.times[which]) for c in those if c.name == "luattn" and c.times[which]), math.nan)
        for c in those:
            us = statistics.median(c.times[which]) if c.times[which] else math.nan
            rows.append({"problem": p.name, "pass": which, "contender": c.name, "us": us, "floors": us / of[which], "ratio": us / ours, "message": c.message.get(which)})
            if c.name != "luattn" and c.runs(which) and which == "backward" or c.name in FORWARD_ALONE:
                rows[-1]["differs"] = c.differs(those[0])
    return rows


def line(r):
    if "us" not in r:
        return str(r)
    said = "" if r["message"] is None else f"  {r['message'][:160]}"
    return f"{r['problem']:24} {r['pass']:9} {r['contender']:10} {r['us']:9.1f} us {r['floors']:6.2f} floors {r['ratio']:6.2f} of luattn's  {r.get('differs', '')}{said}"


def spread(a):
    """Compiles by processes of their own, several at a time."""
    left = [(o, n) for o in SPECS for n in PEERS if re.search(a.only, o) and n in a.contenders.split(",") and o in PEERS[n][1]]
    busy = []
    while left or busy:
        while left and len(busy) < a.processes:
            operator, name = left.pop(0)
            busy.append(subprocess.Popen([sys.executable, __file__, "--compile-only", "--only", f"^{operator}$", "--contenders", name, "--cells", a.cells, "--configs", str(a.configs)]))
        busy = [x for x in busy if x.poll() is None]
        time.sleep(0.05)


def write(to, rows, there):
    """Begins the file anew: after each problem, so that a later one that hangs costs none of the figures before it."""
    if to:
        with open(to, "w") as f:
            json.dump({"device": torch.cuda.get_device_name() if there else "", "torch": torch.__version__, "command": sys.argv[1:], "rows": rows}, f, indent=1)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", default="", help="operators that match this regular expression")
    a.add_argument("--cells", default="A,B,C,G,M")
    a.add_argument("--contenders", default=",".join(PEERS))
    a.add_argument("--passes", default="forward,backward")
    a.add_argument("--gates", default="weak", help="weak, production")
    a.add_argument("--rounds", type=int, default=15)
    a.add_argument("--configs", type=int, default=0, help="of each Triton kernel; 0: all")
    a.add_argument("--sleep", type=int, default=2000000, help="cycles before each launch")
    a.add_argument("--compile-only", action="store_true")
    a.add_argument("--check", type=int, default=0, metavar="N")
    a.add_argument("--processes", type=int, default=0)
    a.add_argument("--budget-seconds", type=float, default=math.inf, help="begins no cell after this")
    a.add_argument("--json")
    a = a.parse_args()
    begin, rows = time.monotonic(), []
    if a.processes:
        return spread(a)
    if a.configs:
        few_configs(a.configs)
    there = torch.cuda.is_available()
    clock = Clock(a.sleep) if there and not a.compile_only else None
    torch.manual_seed(0)
    for operator in SPECS:
        for cell in a.cells.split(","):
            for gates in a.gates.split(",") if " g = " in SPECS[operator] else ("weak",):
                if not re.search(a.only, operator) or cell not in CELLS_OF.get(operator, "ABC"):
                    continue
                if time.monotonic() - begin > a.budget_seconds:
                    rows.append({"problem": f"{operator} {cell}", "skipped": "no time was left"})
                    continue
                _, _, *heads = CELLS[cell]
                small = (2, a.check, *heads) if a.check else None if there else (1, 40, *heads[:2], 16)  # without a GPU: whether the script is right
                for row in run(make(operator, cell, gates, "cuda" if there else "cpu", small), a.contenders.split(","), a, clock):
                    rows.append(row)
                    print(line(row), flush=True)
                write(a.json, rows, there)
                if there:
                    torch.cuda.empty_cache()
    write(a.json, rows, there)


if __name__ == "__main__":
    main()
