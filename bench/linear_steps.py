#!/usr/bin/env python3
"""linear_steps.py: decode of gated DeltaNet, states in place and behind a ring, beside a copy of as many bytes, FlashInfer and
flash-linear-attention, whichever are installed.

    python3 bench/linear_steps.py --sizes 64,256 --states f32,bf16 --tokens 1,4,8 --json results.json

K = V = 128, 16 heads, bf16 q, k and v; the l2norm of q and k and the gates are inside. A contender is a CUDA graph over states that rotate, 384 MB and more of them, so that nothing of a state is in L2;
medians of rounds in which every contender has its turn. A copy moves as many bytes as a step in place reads and writes:
`of copy` is its time over the contender's. `differs`: o beside the recurrence in float64, relative, root mean square."""

import argparse
import json
import re
import statistics

import torch
import torch.nn.functional as F

HEADS, K = 16, 128
SPEC = """return linear_attention { name = "gated_delta", inputs = { a = { axes = {"b", "t", "hv"} }, beta = { axes = {"b", "t", "hv"} }, A_log = { axes = {"hv"} },
dt_bias = { axes = {"hv"} } }, query_mod = function(x) return l2norm(x) end, key_mod = function(x) return l2norm(x) end,
decay = function(b, h, t) return -exp(A_log[h]) * softplus(a[{b, t, h}] + dt_bias[h]) end,
update = delta_rule(function(b, h, t) return sigmoid(beta[{b, t, h}]) end) }"""
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Problem:
    """Rows of `tokens` a step, and states of `megabytes` each, as many as no cache holds."""

    def __init__(self, megabytes, state, tokens):
        self.megabytes, self.type, self.tokens, self.size = megabytes, state, tokens, TYPES[state].itemsize
        self.entries = entries = (megabytes << 20) // (HEADS * K * K * self.size)
        rows = lambda *n: torch.randn(entries, tokens, *n, device="cuda").bfloat16()  # noqa: E731
        self.q, self.k, self.v = (rows(HEADS, K) for _ in range(3))
        self.a, self.beta = rows(HEADS), rows(HEADS)
        self.A_log, self.dt_bias = (torch.rand(HEADS, device="cuda") - x for x in (0.0, 4.0))
        self.index = torch.arange(entries, dtype=torch.int32, device="cuda")
        self.turns = max(2, -(-384 // megabytes))
        self.first = torch.randn(entries, HEADS, K, K, device="cuda").to(TYPES[state]) / 8
        self.states = [self.first.clone() for _ in range(self.turns)]

    @property
    def given(self):
        return {"a": self.a.float(), "beta": self.beta.float(), "A_log": self.A_log, "dt_bias": self.dt_bias}

    def want(self, entries=3):
        """o of some entries, in float64."""
        wide = lambda x: x[:entries].double()  # noqa: E731
        norm = lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()  # noqa: E731
        S, q, k, v = wide(self.first), norm(wide(self.q)) * K**-0.5, norm(wide(self.k)), wide(self.v)
        g = (-self.A_log.double().exp() * F.softplus(wide(self.a) + self.dt_bias.double())).exp()
        beta, o = wide(self.beta).sigmoid(), []
        for t in range(self.tokens):
            S = S * g[:, t, :, None, None]
            u = beta[:, t, :, None] * (v[:, t] - torch.einsum("ehvk,ehk->ehv", S, k[:, t]))
            S = S + u[..., None] * k[:, t, :, None, :]
            o.append(torch.einsum("ehvk,ehk->ehv", S, q[:, t]))
        return torch.stack(o, 1)


# ---- contenders: of a problem and a state's number, a function without arguments that returns o ----


def copy(p, i):
    if not hasattr(p, "other"):
        p.other = torch.empty_like(p.first)
    return lambda: p.other.copy_(p.states[i])


def attention(name="gated_delta"):
    import luattn

    return luattn.linear_attention(SPEC.replace("gated_delta", name))


def in_place(p, i, name="gated_delta"):
    mine, given = attention(name), p.given
    return lambda: mine.step(p.q, p.k, p.v, p.states[i], state_layout="vk", **given)


def ring(used):
    def make(p, i):
        mine, given = attention(), p.given
        rows = mine.ring(p.states[i], p.entries, state_layout="vk", rows=16, dtype=TYPES[p.type])
        for name in ("k", "u", "decays"):
            getattr(rows, name).copy_(torch.randn_like(getattr(rows, name)) / 8 if name != "decays" else -torch.rand_like(rows.decays))
        rows.used.fill_(used)
        return lambda: mine.step(p.q, p.k, p.v, p.states[i], state_layout="vk", ring=rows, **given)

    return make


def fla(p, i):
    """It writes its state, in float32, to memory of its own."""
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    inside = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True, "A_log": p.A_log, "dt_bias": p.dt_bias}
    return lambda: fused_recurrent_gated_delta_rule(
        p.q, p.k, p.v, g=p.a, beta=p.beta, initial_state=p.states[i], output_final_state=True, state_v_first=True, **inside
    )[0]


def flashinfer(p, i):
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

    o = torch.empty_like(p.v)
    return lambda: gated_delta_rule_decode_pretranspose(
        p.q, p.k, p.v, None, p.A_log, p.a, p.dt_bias, p.beta, output=o, initial_state=p.states[i], initial_state_indices=p.index
    )[0]


CONTENDERS = {"copy": copy, "in place": in_place, **{f"ring {n}": ring(n) for n in (0, 8, 15)}, "fla": fla, "flashinfer": flashinfer}


# ---- times ----


class Contender:
    def __init__(self, name, p, want):
        self.name, self.p, self.times, self.message, self.differs = name, p, [], None, None
        try:
            calls = self.calls = [CONTENDERS[name](p, i) for i in range(p.turns)]  # whose memory and kernels the graph has
            o = calls[0]()
            torch.cuda.synchronize()
            if name not in ("copy", "ring 8", "ring 15"):
                self.differs = ((o[: len(want)].double() - want).norm() / want.norm()).item()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.kept = [call() for call in calls]
        except Exception as e:  # a peer that does not run says so in the table
            self.message = f"{type(e).__name__}: {e}"
            torch.cuda.synchronize()
        for state in p.states:
            state.copy_(p.first)

    def turn(self):
        if self.message is not None:
            return
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200000)
        start.record()
        self.graph.replay()
        stop.record()
        try:
            stop.synchronize()
        except RuntimeError as e:
            raise RuntimeError(f"{self.name}: {e}") from None
        self.times.append(start.elapsed_time(stop) * 1e3 / self.p.turns)


def run(p, names, rounds):
    want, title = p.want(), f"{p.type} {p.megabytes} MB {p.tokens}"
    those = [Contender(n, p, want) for n in names if p.tokens == 1 or n not in ("ring 15",)]
    for _ in range(rounds + 1):
        for c in those:
            c.turn()
    of = statistics.median(those[0].times[1:])
    for c in those:
        us = statistics.median(c.times[1:]) if c.message is None else None
        row = {"problem": title, "contender": c.name, "us": us, "of_copy": us and of / us, "differs": c.differs, "message": c.message}
        said = c.message[:200] if us is None else f"{us:8.1f} us  {of / us:5.2f} of copy  {'' if c.differs is None else f'{c.differs:.5f}'}"
        print(f"{title:16} {c.name:12} {said}", flush=True)
        yield row


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sizes", default="64,256", help="megabytes of a state")
    a.add_argument("--states", default="f32,bf16")
    a.add_argument("--tokens", default="1,4,8")
    a.add_argument("--only", default="", help="contenders that match this regular expression, and the copy")
    a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--json")
    a = a.parse_args()
    torch.manual_seed(0)
    names, rows = [n for n in CONTENDERS if n == "copy" or re.search(a.only, n)], []
    for tokens in map(int, a.tokens.split(",")):
        for state in a.states.split(","):
            for megabytes in map(int, a.sizes.split(",")):
                rows += run(Problem(megabytes, state, tokens), names, a.rounds)
                torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
