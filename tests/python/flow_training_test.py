"""Training of flow maps: MeanFlow, whose target is the tangent of the network, and terminal velocity matching, whose loss has gradients through it; each with
luattn's attention beside the math in torch's ops, in float32: the losses of every step agree. An argument: how many steps."""

import os
import sys
import unittest

from with_torch import ROOT, torch  # exits without torch, so first

import luattn

CAPPED = luattn.attention("return attention { name = 'capped', score_mod = function(s) return 8 * tanh(s / 8) end }")
STEPS = int(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1].isdigit() else 20
TOKENS, WIDTH, HEADS = 8, 16, 2


def fused(q, k, v):
    return CAPPED(q, k, v)


def math(q, k, v):
    s = 8 * torch.tanh(q @ k.mT * (WIDTH // HEADS) ** -0.5 / 8)
    return torch.softmax(s, -1) @ v


class Block(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH))
        self.shift = torch.nn.Linear(2, WIDTH)

    def forward(self, x, times):
        x = x + self.shift(times)[:, None]
        q, k, v = self.qkv(torch.nn.functional.layer_norm(x, (WIDTH,))).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.mlp(torch.nn.functional.layer_norm(x, (WIDTH,)))


class Net(torch.nn.Module):
    """u(z, t, r): the mean velocity between the times r and t."""

    def __init__(self, attention):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(attention) for _ in range(2))
        self.last = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, z, t, r):
        times = torch.stack((t, t - r), -1)
        for block in self.blocks:
            z = block(z, times)
        return self.last(z)


def losses(attention, through):
    """through: the loss has gradients through the tangent."""
    torch.manual_seed(0)
    net = Net(attention)
    optimizer, found = torch.optim.Adam(net.parameters(), lr=5e-3), []
    for _ in range(STEPS):
        x, noise, times = torch.randn(4, TOKENS, WIDTH) * 0.5 + 1, torch.randn(4, TOKENS, WIDTH), torch.rand(2, 4).sort(0).values
        r, t = times
        z, velocity = torch.lerp(x, noise, t[:, None, None]), noise - x
        u, du = torch.func.jvp(net, (z, t, r), (velocity, torch.ones_like(t), torch.zeros_like(r)))
        du = du if through else du.detach()
        loss = (u - velocity + (t - r)[:, None, None] * du).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


class Training(unittest.TestCase):
    def test_mean_flow(self):
        self.compare(False)

    def test_gradients_through_tangents(self):
        self.compare(True)

    def test_example(self):
        """examples/python/mean_flow.py: a diffusion transformer beside SDPA's math path."""
        sys.path.append(os.path.join(ROOT, "examples", "python"))
        import mean_flow

        size = mean_flow.Tiny()
        size.steps = 4
        for through in (False, True):
            got, want = (torch.tensor(mean_flow.train(size, f, "cpu", through)[0]) for f in (mean_flow.by_luattn, mean_flow.by_math))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=0)

    def compare(self, through):
        got, want = (losses(f, through) for f in (fused, math))
        self.assertLess(float(got[-5:].mean()), float(got[:5].mean()))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=0)


if __name__ == "__main__":
    unittest.main()
