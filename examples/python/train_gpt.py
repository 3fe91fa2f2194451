"""Trains a small GPT twice on the same tokens, with PyTorch's scaled_dot_product_attention and with luattn, and prints both
losses and steps a second.

    python3 examples/python/train_gpt.py            GPT-2's small size on a GPU, 200 steps each: less than a minute
    python3 examples/python/train_gpt.py --tiny     a few steps of a tiny one on the CPU

The tokens are random, and every sequence repeats its beginning, so that attention has something to find."""

import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

import luattn

CAUSAL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "causal.lua")


class Block(nn.Module):
    def __init__(self, dim, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, dim = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).unbind(2)
        o = self.attention(*(t.transpose(1, 2) for t in (q, k, v)))  # [batch, heads, length, head dim]
        x = x + self.out(o.transpose(1, 2).reshape(b, n, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, size, attention):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.dim), nn.Embedding(size.length, size.dim)
        self.blocks = nn.ModuleList(Block(size.dim, size.heads, attention) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.dim)
        self.apply(self.start)

    def start(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def draw(size, generator, device):
    """[batch, length + 1]: the second half of each sequence is its first half again."""
    half = torch.randint(size.vocabulary, (size.batch, size.length // 2 + 1), generator=generator)
    return torch.cat([half, half], 1)[:, : size.length + 1].to(device)


def train(size, attention, device):
    """The loss of every step, and steps a second (without the first ten)."""
    torch.manual_seed(1)
    model = Gpt(size, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, fused=device == "cuda")
    generator = torch.Generator().manual_seed(2)
    losses = []
    for step in range(size.steps):
        if step == min(10, size.steps - 1):
            losses[-1].item()
            start = time.perf_counter()
        tokens = draw(size, generator, device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).cpu()
    return losses, (size.steps - min(10, size.steps - 1)) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    for name, value in dict(layers=12, heads=12, dim=768, length=1024, batch=12, vocabulary=4096, steps=200).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    size = parser.parse_args()
    if size.tiny:
        size.layers, size.heads, size.dim, size.length, size.batch, size.vocabulary, size.steps = 2, 2, 32, 32, 4, 64, 5
    device = "cuda" if torch.cuda.is_available() and not size.tiny else "cpu"
    runs = {
        "scaled_dot_product_attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "luattn": luattn.attention(CAUSAL),
    }
    if device == "cuda":  # how far two correct implementations are apart
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def efficient(q, k, v):
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        runs["the same, its efficient backend"] = efficient
    losses = {}
    for name, attention in runs.items():
        losses[name], speed = train(size, attention, device)
        print(f"{name:>32}: {speed:6.2f} steps a second")
    first, *others = losses
    for name in others:
        apart = (losses[name] - losses[first]).abs()
        print(f"{name}: losses differ by {apart.max():.2g} at most, {apart.mean():.2g} on average")
    print("step " + " ".join(f"{name:>32}" for name in losses))
    for step in sorted({*range(0, size.steps, max(1, size.steps // 10)), size.steps - 1}):
        print(f"{step:4} " + " ".join(f"{x[step]:32.4f}" for x in losses.values()))


if __name__ == "__main__":
    main()
