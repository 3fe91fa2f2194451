"""jvp_gpu_test.py: errors of o, lse and their tangents in half types on a GPU, beside a plain computation that rounds P and P' to the type, of each family
with tensor cores. Exits with 77 without torch or a GPU."""

import itertools
import sys
import unittest
from unittest import mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import _tensors
from luattn.engine import engine_of

if not torch.cuda.is_available():
    print("no GPU: skipped")
    sys.exit(77)

FAMILIES = {"sm80": 2} | ({"sm90": 3} if torch.cuda.get_device_capability()[0] == 9 else {})
CAP, BEHIND, AHEAD, LENGTH = 20.0, 100, 30, 700
SPECS = {
    "full": "",
    "causal": "block_mask = causal()",
    "window": f"block_mask = function(b, h, q, kv) return q - kv <= {BEHIND} and kv - q <= {AHEAD} end",
    "cap": f"score_mod = softcap({CAP:g})",
    "mods": "query_mod = function(x, b, h, pos, d) return x * cos(0.01 * pos * d) end, key_mod = function(x) return 2 * tanh(x / 2) end, "
    "value_mod = function(x) return x * sigmoid(x) end",
}


def modded(q, k, v):
    at, channel = (torch.arange(n, device=q.device, dtype=torch.float64) for n in q.shape[2:])
    return q * torch.cos(0.01 * at[:, None] * channel).to(q.dtype), 2 * torch.tanh(k / 2), v * torch.sigmoid(v)


def hidden(name):
    at = torch.arange(LENGTH, device="cuda")
    behind = at[:, None] - at
    return behind < 0 if name == "causal" else (behind > BEHIND) | (behind < -AHEAD) if name == "window" else torch.zeros_like(behind, dtype=torch.bool)


def plainly(name, q, k, v, along, rounded):
    """o, lse and their tangents, of operands that are rounded before each product; in float64 exactly."""
    wide = torch.float64 if rounded == torch.float64 else torch.float32
    q, k, v, q_t, k_t, v_t = (t.to(wide) for t in (q, k, v, *along))
    if name == "mods":
        q, k, v, q_t, k_t, v_t = (t.to(rounded).to(wide) for made in torch.func.jvp(modded, (q, k, v), (q_t, k_t, v_t)) for t in made)
    scale, mask = q.size(-1) ** -0.5, hidden(name)
    s, s_t = q @ k.mT * scale, (q_t @ k.mT + q @ k_t.mT) * scale
    if name == "cap":
        bent = torch.tanh(s / CAP)
        s, s_t = CAP * bent, s_t * (1 - bent * bent)
    s = s.masked_fill(mask, -torch.inf)
    most = s.amax(-1, keepdim=True)
    p = torch.exp(s - most)
    p_t, total = p * s_t.masked_fill(mask, 0), p.sum(-1, keepdim=True)
    total_t = p_t.sum(-1, keepdim=True)

    def product(a, b):
        return a.to(rounded).to(wide) @ b

    a, b = product(p, v), product(p_t, v) + product(p, v_t)
    return (a / total).to(rounded), (most + total.log())[..., 0], ((b - total_t / total * a) / total).to(rounded), (total_t / total)[..., 0]


class Errors(unittest.TestCase):
    def check(self, name, dtype, dim, mean):
        q, k, v, *along = (torch.randn(2, 4, LENGTH, dim, device="cuda", dtype=dtype) for _ in range(6))
        if mean:  # scores' tangents have a large part that all keys share, which centring takes off
            q, k = q / mean, k + mean * torch.randn(dim, device="cuda", dtype=dtype)
        attention = luattn.attention(f'return attention {{ name = "{name}", {SPECS[name]} }}')
        attention._spec.signatures.clear()  # which know an engine
        with torch.no_grad():
            (o, lse), (o_t, lse_t) = luattn.jvp(attention, (q, k, v), along, return_lse=True)
        exact, plain = (plainly(name, q, k, v, along, to) for to in (torch.float64, dtype))
        off = [((a.double() - b).norm() / b.norm()).item() for a, b in zip((o, lse, o_t, lse_t), exact)]
        bar = [2 * ((a.double() - b).norm() / b.norm()).item() for a, b in zip(plain, exact)]
        self.assertLess(off[0], bar[0])
        self.assertLess(off[2], bar[2])
        self.assertLess(off[1], max(1e-4, bar[1]))  # modded rows are rounded to the type
        self.assertLess(off[3], max(2e-3, bar[3]))
        self.assertTrue(o_t.isfinite().all())
        return off[2]

    def with_engine(self, number):
        engine = engine_of(torch.cuda.current_device(), False, number)
        return mock.patch.object(_tensors, "engine_for", lambda *_: engine)

    def test_second_derivatives(self):
        """Tangents of gradients, by sm80, beside those of PyTorch's operations in the type."""
        torch.manual_seed(8)
        for dtype, dim, name in itertools.product((torch.bfloat16, torch.float16), (64, 128), ("full", "causal", "cap")):
            q, k, v, dout, *along = (torch.randn(2, 4, LENGTH, dim, device="cuda", dtype=dtype) for _ in range(7))
            mask = hidden(name)

            def math(q, k, v, name=name, mask=mask):
                s = q @ k.mT * q.size(-1) ** -0.5
                return torch.softmax((CAP * torch.tanh(s / CAP) if name == "cap" else s).masked_fill(mask, -torch.inf), -1) @ v

            def second(f, *given):
                q, k, v, dout, *along = given
                return torch.func.jvp(lambda *x: torch.func.vjp(f, *x)[1](dout), (q, k, v), tuple(along))[1]

            attention = luattn.attention(f'return attention {{ name = "{name}", {SPECS[name]} }}')
            attention._spec.signatures.clear()
            given = q, k, v, dout, *along
            with self.with_engine(FAMILIES["sm80"]):
                got = second(attention, *given)
            exact, plain = second(math, *(t.double() for t in given)), second(math, *given)
            for which, a, b, c in zip("qkv", got, exact, plain):
                with self.subTest(dtype=dtype, dim=dim, name=name, which=which):
                    self.assertLess((a.double() - b).norm().item(), 2 * (c.double() - b).norm().item())

    def test_at_most_twice_a_plain_computation(self):
        torch.manual_seed(7)
        for family, number in FAMILIES.items():
            with self.with_engine(number):
                for dtype in (torch.bfloat16, torch.float16):
                    for dim in (64, 72, 128):
                        for name in SPECS:
                            with self.subTest(family=family, dtype=dtype, dim=dim, name=name):
                                self.check(name, dtype, dim, 0)
                        with self.subTest("keys with a mean of 16 times their spread", family=family, dtype=dtype, dim=dim):
                            self.assertLess(self.check("full", dtype, dim, 16), 2 * self.check("full", dtype, dim, 0))


if __name__ == "__main__":
    unittest.main()
