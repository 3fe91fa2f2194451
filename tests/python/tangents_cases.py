"""tangents_cases.py: an attention, its arguments and its math in torch's ops, for tests of forward mode."""

import unittest

from problems import torch  # exits without torch, so first

import luattn

VARIANT = luattn.attention(
    "return attention { name = 'variant', scalars = { cap = 2.0 }, inputs = { bias = { axes = {'h', 'kv'}, dtype = 'f64', grad = true }, shift = "
    "{ axes = {'q'}, dtype = 'f64' } }, score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) + bias[{h, kv}] * shift[q] end, "
    "block_mask = function(b, h, q, kv) return kv <= q + 2 end }"
)
NAMES = "q", "k", "v", "bias", "shift", "cap"


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def arguments():
    torch.manual_seed(0)
    return rand(1, 4, 7, 8), rand(1, 2, 9, 8), rand(1, 2, 9, 6), rand(4, 9), rand(7), torch.tensor(2.0, dtype=torch.float64)


def ours(q, k, v, bias, shift, cap):
    return VARIANT(q, k, v, bias=bias, shift=shift, cap=cap, return_lse=True)


def math(q, k, v, bias, shift, cap):
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    s = cap * torch.tanh(q @ k.mT * 8**-0.5 / cap) + bias[:, None] * shift[:, None]
    keep = torch.arange(9) <= torch.arange(7)[:, None] + 2
    s = torch.where(keep, s, -torch.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


class Case(unittest.TestCase):
    def close(self, got, want):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
