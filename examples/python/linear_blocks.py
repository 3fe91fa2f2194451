"""Trains a gated DeltaNet block, as in Qwen3-Next, and a Mamba-2 block on random sequences, once with luattn and once with the recurrence token
by token in torch, and prints both losses: they are the same.

    python3 examples/python/linear_blocks.py --steps 20

What a block computes between its projections is a spec of ten lines. It runs here on the CPU; tensors on a GPU take kernels."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import luattn

GATED_DELTA = """
return linear_attention {
  name      = "gated_delta",
  inputs    = { a = { axes = {"b", "t", "hv"}, grad = true }, beta = { axes = {"b", "t", "hv"}, grad = true },
                A_log = { axes = {"hv"}, grad = true }, dt_bias = { axes = {"hv"}, grad = true } },
  query_mod = function(x) return l2norm(x) end,
  key_mod   = function(x) return l2norm(x) end,
  decay     = function(b, h, t) return -exp(A_log[h]) * softplus(a[{b, t, h}] + dt_bias[h]) end,
  update    = delta_rule(function(b, h, t) return sigmoid(beta[{b, t, h}]) end),
}"""

MAMBA2 = """
local function step(b, h, t) return softplus(dt[{b, t, h}] + dt_bias[h]) end
return linear_attention {
  name      = "mamba2",
  inputs    = { dt = { axes = {"b", "t", "hv"}, grad = true }, dt_bias = { axes = {"hv"}, grad = true },
                A_log = { axes = {"hv"}, grad = true }, D = { axes = {"hv"}, grad = true } },
  value_mod = function(x, b, h, t) return step(b, h, t) * x end,
  decay     = function(b, h, t) return -exp(A_log[h]) * step(b, h, t) end,
  skip      = function(x, b, h) return D[h] * x end,
  scale     = 1,
}"""


def recurrence(q, k, v, g, strength=None):
    """o of q' S, token by token: the state decays by e^g, and with a strength what k reads of it is replaced."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    state, o = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        write = v[:, t]
        if strength is not None:
            write = strength[:, t, :, None] * (write - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(o, 1)


class Block(nn.Module):
    """A projection, a short convolution, linear attention, a gated norm, a projection back."""

    def __init__(self, dim, heads, heads_v, head_dim, head_dim_v, kind, by_luattn):
        super().__init__()
        self.sizes, self.heads, self.heads_v, self.by_luattn = [heads * head_dim, heads * head_dim, heads_v * head_dim_v], heads, heads_v, by_luattn
        self.is_delta, channels = kind == "gated delta", sum(self.sizes)
        self.op = luattn.linear_attention(GATED_DELTA if self.is_delta else MAMBA2)
        self.in_proj = nn.Linear(dim, channels + self.sizes[2], bias=False)
        self.numbers = nn.Linear(dim, (2 if self.is_delta else 1) * heads_v, bias=False)
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels, padding=3, bias=False)
        self.A_log, self.dt_bias, self.D = (nn.Parameter(x) for x in (torch.rand(heads_v).log(), torch.ones(heads_v), torch.ones(heads_v)))
        self.norm, self.out_proj = nn.RMSNorm(head_dim_v, eps=1e-6), nn.Linear(heads_v * head_dim_v, dim, bias=False)

    def attend(self, q, k, v, numbers):
        if self.is_delta:
            a, beta = numbers.chunk(2, -1)
            if self.by_luattn:
                return self.op(q, k, v, a=a, beta=beta, A_log=self.A_log, dt_bias=self.dt_bias)
            q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
            return recurrence(q * q.shape[-1] ** -0.5, k, v, -self.A_log.exp() * F.softplus(a + self.dt_bias), beta.sigmoid())
        if self.by_luattn:
            return self.op(q, k, v, dt=numbers, A_log=self.A_log, dt_bias=self.dt_bias, D=self.D)
        step = F.softplus(numbers + self.dt_bias)
        return recurrence(q, k, step[..., None] * v, -self.A_log.exp() * step) + self.D[:, None] * v

    def forward(self, x):
        mixed, gate = self.in_proj(x).split([sum(self.sizes), self.sizes[2]], -1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        q, k, v = mixed.split(self.sizes, -1)
        q, k = (t.unflatten(-1, (self.heads, -1)) for t in (q, k))
        o = self.attend(q, k, v.unflatten(-1, (self.heads_v, -1)), self.numbers(x))
        return self.out_proj((self.norm(o) * F.silu(gate.unflatten(-1, (self.heads_v, -1)))).flatten(2))


def train(kind, by_luattn, steps, tokens=48, dim=64):
    """The loss of each step, of predicting a fixed random sequence."""
    torch.manual_seed(1)
    block = Block(dim, 2, 4, 16, 16, kind, by_luattn)
    x, wanted = torch.randn(2, tokens, dim), torch.randn(2, tokens, dim)
    optimizer, losses = torch.optim.AdamW(block.parameters(), lr=3e-3), []
    for _ in range(steps):
        loss = F.mse_loss(block(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains blocks of linear attention on random data.")
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    for kind in ("gated delta", "mamba2"):
        ours, plain = train(kind, True, steps), train(kind, False, steps)
        print(f"{kind}: loss {ours[0]:.5f} at first, {ours[-1]:.5f} after {steps} steps; by the recurrence in torch {plain[0]:.5f}, {plain[-1]:.5f}")
