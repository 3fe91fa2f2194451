#!/usr/bin/env python3
"""models.py: a training step of three models with luattn, with PyTorch's scaled_dot_product_attention and with FlexAttention.

    python3 bench/models.py --json m.json                        4 sequences of 4096 tokens, bf16 autocast, eager and compiled
    python3 bench/models.py --only gpt --compile-only            compiles alone, so that torch's caches have it

    gpt     learned positions, LayerNorm, 16 heads of 64, a causal mask
    llama   RMSNorm, rotary embedding, gated MLP, 16/4 heads of 64, a causal mask
    gemma2  RMSNorm before and after, gated MLP, 4/2 heads of 256, soft-capped scores, a window of 1024 in every other layer

Each contender trains a model of its own from the same weights on the same random tokens. A step is zero_grad, forward, cross entropy,
backward and a fused AdamW step, between two events; contenders take turns in a random order in each round. "compiled": each block and the
head under torch.compile, which compiles equal blocks once. sdpa has no soft cap: with gemma2 it computes without cap and window, which says
how long that takes, and its loss is another. FlexAttention is compiled in eager models too, as it has to be.
"""

import argparse
import copy
import functools
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAP, WINDOW = 50.0, 1024
# Softmax in another order moves bf16's rounding; losses near 10 that agree to three digits after a few steps are those of one function.
LOSS_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Size:
    layers: int
    dim: int
    heads: int
    heads_kv: int
    head_dim: int
    hidden: int
    vocabulary: int


SIZES = {
    "gpt": Size(16, 1024, 16, 16, 64, 4096, 16384),
    "llama": Size(24, 1024, 16, 4, 64, 3072, 32000),
    "gemma2": Size(14, 1024, 4, 2, 256, 4096, 32000),
}
TINY = {name: Size(2, 32, 4, 4 if name == "gpt" else 2, 16, 64, 128) for name in SIZES}


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.scale.to(x.dtype))


def linear(a, b):
    return nn.Linear(a, b, bias=False)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    """attend: a function of q, k, v, [batch, heads, length, head dim]."""

    def __init__(self, name, size, attend):
        super().__init__()
        s, self.name, self.size, self.attend = size, name, size, attend
        norm = nn.LayerNorm if name == "gpt" else Norm
        self.norm, self.norm2 = norm(s.dim), norm(s.dim)
        if name == "gemma2":
            self.after, self.after2 = norm(s.dim), norm(s.dim)
        self.qkv = linear(s.dim, (s.heads + 2 * s.heads_kv) * s.head_dim)
        self.out = linear(s.heads * s.head_dim, s.dim)
        self.up, self.down = linear(s.dim, s.hidden * (1 if name == "gpt" else 2)), linear(s.hidden, s.dim)

    def mix(self, x, cos, sin):
        s, (b, n, _) = self.size, x.shape
        q, k, v = self.qkv(x).view(b, n, -1, s.head_dim).split([s.heads, s.heads_kv, s.heads_kv], 2)
        if self.name != "gpt":
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = self.attend(*(t.transpose(1, 2) for t in (q, k, v)))
        return self.out(o.transpose(1, 2).reshape(b, n, -1))

    def think(self, x):
        if self.name == "gpt":
            return self.down(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, -1)
        return self.down((F.silu(gate) if self.name == "llama" else F.gelu(gate, approximate="tanh")) * up)

    def forward(self, x, cos, sin):
        if self.name == "gemma2":
            x = x + self.after(self.mix(self.norm(x), cos, sin))
            return x + self.after2(self.think(self.norm2(x)))
        x = x + self.mix(self.norm(x), cos, sin)
        return x + self.think(self.norm2(x))


class Head(nn.Module):
    """The loss of the last hidden states; the tokens' embedding is its weight."""

    def __init__(self, name, size):
        super().__init__()
        self.norm = nn.LayerNorm(size.dim) if name == "gpt" else Norm(size.dim)
        self.cap = 30.0 if name == "gemma2" else 0.0

    def forward(self, x, weight, targets):
        logits = F.linear(self.norm(x), weight).flatten(0, 1).float()
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)
        return F.cross_entropy(logits, targets.flatten())


class Model(nn.Module):
    def __init__(self, name, size, length, attends):
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.dim)
        self.positions = nn.Embedding(length, size.dim) if name == "gpt" else None
        self.blocks = nn.ModuleList(Block(name, size, attends[i % len(attends)]) for i in range(size.layers))
        self.head = Head(name, size)
        self.apply(self.start)
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(size.head_dim // 2) * 2 / size.head_dim)
        self.register_buffer("cos", angles.cos()[None, :, None].bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin()[None, :, None].bfloat16(), persistent=False)

    def start(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens[:, :-1])
        if self.positions is not None:
            x = x + self.positions.weight
        x = x.bfloat16()
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(x, self.tokens.weight, tokens[:, 1:])

    def take_attention(self, attends):
        for i, block in enumerate(self.blocks):
            block.attend = attends[i % len(attends)]


# Ways of attention: for each model the functions that its layers take in turn.


def by_luattn(name, length):
    import luattn

    causal = luattn.attention(f"{ROOT}/examples/causal.lua")
    if name != "gemma2":
        return [causal]
    with open(f"{ROOT}/examples/gemma2.lua") as f:
        text = f.read()
    assert "local W = 4096" in text
    return [luattn.attention(text.replace("local W = 4096", f"local W = {n}")) for n in (WINDOW, length)]


def by_sdpa(name, length):
    grouped = name != "gpt"
    return [lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)]


def by_flex(name, length, compiled=False):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    device = "cuda" if torch.cuda.is_available() else "cpu"
    call = flex_attention if compiled or device == "cpu" else torch.compile(flex_attention, dynamic=False)
    masks = [lambda b, h, q, k: q >= k]
    if name == "gemma2":
        masks.insert(0, lambda b, h, q, k: (q >= k) & (q - k < WINDOW))
    options = dict(enable_gqa=name != "gpt")
    if name == "gemma2":
        options["score_mod"] = lambda score, b, h, q, k: CAP * torch.tanh(score / CAP)
    blocks = [create_block_mask(mask, None, None, length, length, device=device) for mask in masks]
    return [functools.partial(call, block_mask=block, **options) for block in blocks]


WAYS = {"luattn": by_luattn, "sdpa": by_sdpa, "flex": by_flex}


class Trainer:
    def __init__(self, model, compiled):
        self.model, self.losses, self.ms = model, [], []
        self.optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
        if compiled:
            for block in model.blocks:
                block.compile(dynamic=False)
            model.head.compile(dynamic=False)

    def step(self, tokens):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        stop.record()
        stop.synchronize()
        self.losses.append(loss.item())
        self.ms.append(start.elapsed_time(stop))


def trainers_of(name, size, a, compiled):
    """A trainer of each way that computes, and why the others do not. Equal blocks are compiled once."""
    size = replace(size, layers=2) if a.compile_only else size
    torch.manual_seed(a.seed)
    first, found, missing = Model(name, size, a.length, [None]).cuda(), {}, {}
    for way, make in WAYS.items():
        if way in a.without:
            continue
        try:
            attends = make(name, a.length, compiled) if way == "flex" else make(name, a.length)
            model = copy.deepcopy(first)
            model.take_attention(attends)
            trainer = Trainer(model, compiled)
            trainer.step(torch.zeros(a.batch, a.length + 1, dtype=torch.long, device="cuda"))
        except Exception as e:  # libraries raise different types for unsupported problems
            missing[way] = f"{type(e).__name__}: " + " ".join(str(e).split())[:200]
            continue
        found[way] = trainer
    return found, missing


def run(name, size, a, compiled):
    begun = time.monotonic()
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    found, missing = trainers_of(name, size, a, compiled)
    ready, shuffle = time.monotonic(), random.Random(a.seed).shuffle
    generator = torch.Generator("cuda").manual_seed(a.seed)
    for _ in range(0 if a.compile_only else a.rounds):
        tokens = torch.randint(size.vocabulary, (a.batch, a.length + 1), generator=generator, device="cuda")
        order = list(found)
        shuffle(order)
        for way in order:
            found[way].step(tokens)
    parameters = sum(p.numel() for p in next(iter(found.values())).model.parameters()) if found else 0
    row = dict(model=name, parameters=parameters, compiled=compiled, missing=missing, setup_s=round(ready - begun, 1))
    row["ms"] = {way: statistics.median(x.ms[3:]) for way, x in found.items() if x.ms[3:]}
    row["losses"] = {way: x.losses for way, x in found.items()}
    return row


def same_losses(row):
    """Whether flex, and of models without a soft cap sdpa, has luattn's losses."""
    ours = row["losses"].get("luattn", [])
    others = {way: x for way, x in row["losses"].items() if way == "flex" or (way == "sdpa" and row["model"] != "gemma2")}
    return all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for x in others.values() for a, b in zip(ours, x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="gpt,llama,gemma2", help="models, with commas between")
    parser.add_argument("--modes", default="eager,compiled", help="with commas between")
    parser.add_argument("--without", default="", help="ways to leave out, with commas between")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="very small models")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--json", help="writes all numbers here")
    a = parser.parse_args()
    a.without, rows = a.without.split(","), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {a.batch} x {a.length} tokens; ms a step", flush=True)
    for name in a.only.split(","):
        for mode in a.modes.split(","):
            row = run(name, (TINY if a.tiny else SIZES)[name], a, mode == "compiled")
            rows.append(row)
            row["same_losses"] = same_losses(row)
            times = ", ".join(f"{way} {ms:.1f}" for way, ms in row["ms"].items())
            last = ", ".join(f"{x[-1]:.4f}" for x in row["losses"].values())
            print(f"{name} {row['parameters'] / 1e6:.0f}M {mode}: {times}; losses {'equal' if row['same_losses'] else 'DIFFER'}: {last}"
                  f"; made in {row['setup_s']} s; {row['missing'] or ''}", flush=True)  # fmt: skip
            torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), torch=torch.__version__, rows=rows), f, indent=1)
    return 0 if all(row["same_losses"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
