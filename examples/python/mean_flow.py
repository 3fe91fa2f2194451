"""Trains a small diffusion transformer by MeanFlow (Geng et al. 2025) twice from the same start, with luattn and with PyTorch's math attention, and
prints both losses. The target has the network's tangent along time, which torch.func.jvp takes through attention in one fused pass.

    python3 examples/python/mean_flow.py            on a GPU, 200 steps each
    python3 examples/python/mean_flow.py --tiny     a few steps of a tiny one on the CPU

With --through gradients go through the tangent as well, as in terminal velocity matching. The data are pictures of a few random colours, a token for
each of their patches."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import luattn

FULL = luattn.attention("full")


def by_luattn(q, k, v):
    return FULL(q, k, v)


def by_math(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch's other kernels have no tangents
        return F.scaled_dot_product_attention(q, k, v)


class Block(nn.Module):
    def __init__(self, dim, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim)

    def forward(self, x, times):
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(F.silu(times))[:, None].chunk(6, -1)
        b, n, dim = x.shape
        q, k, v = self.qkv(F.layer_norm(x, (dim,)) * (1 + scale) + shift).view(b, n, 3, self.heads, -1).unbind(2)
        o = self.attention(*(t.transpose(1, 2) for t in (q, k, v)))  # [batch, heads, length, head dim]
        x = x + gate * self.out(o.transpose(1, 2).reshape(b, n, dim))
        return x + gate2 * self.mlp(F.layer_norm(x, (dim,)) * (1 + scale2) + shift2)


class Dit(nn.Module):
    """u(z, t, r): the mean velocity between the times r and t, at z of time t."""

    def __init__(self, size, attention):
        super().__init__()
        self.size = size
        self.patches, self.places = nn.Linear(size.channels, size.dim), nn.Parameter(torch.randn(size.tokens, size.dim) * 0.02)
        self.times = nn.Sequential(nn.Linear(2 * size.waves, size.dim), nn.SiLU(), nn.Linear(size.dim, size.dim))
        self.blocks = nn.ModuleList(Block(size.dim, size.heads, attention) for _ in range(size.layers))
        self.last = nn.Linear(size.dim, size.channels)

    def waves(self, time):
        angles = time[:, None] * 2.0 ** torch.arange(self.size.waves // 2, device=time.device)
        return torch.cat([angles.cos(), angles.sin()], -1)

    def forward(self, z, t, r):
        times = self.times(torch.cat([self.waves(t), self.waves(t - r)], -1))
        x = self.patches(z) + self.places
        for block in self.blocks:
            x = block(x, times)
        return self.last(F.layer_norm(x, x.shape[-1:]))


def draw(size, generator, device):
    """Pictures, noise, and times r <= t, of which a quarter are equal."""
    colours = torch.rand(size.batch, 1, size.channels, generator=generator) * 2 - 1
    x = colours + 0.1 * torch.randn(size.batch, size.tokens, size.channels, generator=generator)
    noise = torch.randn(x.shape, generator=generator)
    r, t = torch.rand(2, size.batch, generator=generator).sort(0).values
    r = torch.where(torch.rand(size.batch, generator=generator) < 0.25, t, r)
    return [tensor.to(device) for tensor in (x, noise, t, r)]


def loss_of(net, x, noise, t, r, through=False):
    z, velocity = torch.lerp(x, noise, t[:, None, None]), noise - x
    u, du = torch.func.jvp(net, (z, t, r), (velocity, torch.ones_like(t), torch.zeros_like(r)))
    du = du if through else du.detach()
    return (u - velocity + (t - r)[:, None, None] * du).square().mean()


def train(size, attention, device, through=False):
    """The losses, and steps a second after the first one."""
    torch.manual_seed(0)
    net, generator, losses = Dit(size, attention).to(device), torch.Generator().manual_seed(1), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=size.rate)
    for step in range(size.steps):
        loss = loss_of(net, *draw(size, generator, device), through)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits
        start = time.perf_counter() if step == 0 else start
    return losses, (size.steps - 1) / max(1e-9, time.perf_counter() - start)


class Size(argparse.Namespace):
    steps, batch, tokens, channels, dim, heads, layers, waves, rate = 200, 64, 256, 16, 384, 6, 6, 16, 3e-4


class Tiny(Size):
    steps, batch, tokens, channels, dim, heads, layers, waves, rate = 10, 4, 16, 4, 32, 2, 2, 8, 3e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--through", action="store_true", help="gradients through the tangent")
    parser.add_argument("--steps", type=int)
    a = parser.parse_args()
    size, device = Tiny() if a.tiny else Size(), "cpu" if a.tiny else "cuda"
    size.steps = a.steps or size.steps
    for name, attention in (("luattn", by_luattn), ("math", by_math)):
        losses, rate = train(size, attention, device, a.through)
        print(f"{name}: first losses {', '.join(f'{x:.6f}' for x in losses[:3])}, last {', '.join(f'{x:.6f}' for x in losses[-3:])}; {rate:.1f} steps a second")


if __name__ == "__main__":
    main()
