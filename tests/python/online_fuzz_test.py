"""online_fuzz_test.py: random online functions, with conditions on sums that only long rows meet and scalars far from their defaults: each
gradient is right or refused. On the CPU in float64, against torch. Exits with 77 where torch is not installed."""

import random
import unittest

from with_torch import torch  # exits without torch, so first

import luattn

FUNCTIONS = 120
STEP = """local m = max(r.m, reduce_max(s))
      local f, p = exp(r.m - m), exp(s - m)
      return p, {{ m = m, l = r.l * f + reduce_sum(p), k = r.k * {} + reduce_sum({}) }}, f"""
SECOND = {  # a second sum of a softmax: how a step scales it, its term, and that in torch
    "p * p": ("f * f", lambda p, s: p * p),
    "p * sigmoid(s)": ("f", lambda p, s: p * torch.sigmoid(s)),
    "sigmoid(s)": ("1", lambda p, s: torch.sigmoid(s)),
}


class Expression:
    """A number: its text in Lua, and its value of a dict of tensors."""

    def __init__(self, text, value):
        self.text, self.value = text, value


def number(x):
    return Expression(f"({x!r})", lambda e: torch.tensor(x, dtype=torch.float64))


def name(text, key):
    return Expression(text, lambda e: e[key])


def grow(r, leaves, depth):
    """A random expression of leaves, which has a value everywhere."""
    if depth == 0 or r.random() < 0.15:
        return r.choice(leaves)
    x, y = grow(r, leaves, depth - 1), grow(r, leaves, depth - 1)
    forms = [
        ("sigmoid({x})", lambda a, b: torch.sigmoid(a)),
        ("tanh({x})", lambda a, b: torch.tanh(a)),
        ("exp(-abs({x}))", lambda a, b: torch.exp(-a.abs())),
        ("({x} + {y})", torch.add),
        ("({x} * {y})", torch.mul),
        ("({x} - {y})", torch.sub),
        ("({x} / (1 + abs({y})))", lambda a, b: a / (1 + b.abs())),
        ("max({x}, {y})", torch.maximum),
        ("min({x}, {y})", torch.minimum),
        ("where({x} < {y}, {x}, 2 * {y})", lambda a, b: torch.where(a < b, a, 2 * b)),
        ("softplus({x})", lambda a, b: torch.nn.functional.softplus(a)),
        ("log(1 + abs({x}))", lambda a, b: torch.log(1 + a.abs())),
        ("relu({x})", lambda a, b: torch.relu(a)),
    ]
    text, value = r.choice(forms)
    return Expression(text.format(x=x.text, y=y.text), lambda e: value(x.value(e), y.value(e)))


def softmax_like(r):
    """exp(s - m) / l times a factor of the row, and what torch makes of scores and x."""
    term = r.choice(list(SECOND))
    scale, value = SECOND[term]
    lse = Expression("(log(r.l) + r.m)", lambda e: e["l"].log() + e["m"])
    ratio = Expression("(r.k / r.l)", lambda e: e["k"] / e["l"])
    limit = number(r.choice([0.5, 1.0, 2.0, 5.0, 20.0, 1e-25, -3.0]))
    leaves = [lse, name("x", "x"), limit] + ([ratio, name("r.l", "l")] if r.random() < 0.5 else [])
    factor = grow(r, leaves, r.randrange(0, 4))

    def run(s, x):
        m = s.amax(-1, keepdim=True)
        p = (s - m).exp()
        e = {"m": m, "l": p.sum(-1, keepdim=True), "k": value(p, s).sum(-1, keepdim=True), "x": x}
        return p * factor.value(e) / e["l"], e["l"].log() + m

    epilogue = f"return o * {factor.text} / r.l, {{ lse = {lse.text} }}"
    return "m = -1e37, l = 0, k = 0", STEP.format(scale, term), epilogue, run


def by_sums(r):
    """A weight of a score times a factor of two sums."""
    s, x = name("s", "s"), name("x", "x")
    weight = grow(r, [s, s, x, number(2.0)], r.randrange(1, 3))
    first = r.choice([weight, Expression(f"abs({weight.text})", lambda e: weight.value(e).abs())])
    second = grow(r, [s, s, x], 1)
    limit = number(r.choice([0.5, 2.0, 20.0, 100.0, 1e-25]))
    factor = grow(r, [name("r.l", "l"), name("r.l", "l"), name("r.k", "k"), x, limit], r.randrange(1, 4))

    def run(scores, x):
        e = {"s": scores, "x": x}
        e["l"], e["k"] = (t.value(e).expand_as(scores).sum(-1, keepdim=True) for t in (first, second))
        return weight.value(e).expand_as(scores) * factor.value(e), (1 + e["l"].abs()).log()

    step = f"return {weight.text}, {{ l = r.l + reduce_sum({first.text}), k = r.k + reduce_sum({second.text}) }}, 1"
    return "l = 0, k = 0", step, f"return o * {factor.text}, {{ lse = log(1 + abs(r.l)) }}", run


class Online(unittest.TestCase):
    def compare(self, seed):
        """Whether the function has a backward; fails where that is wrong."""
        r = random.Random(seed)
        torch.manual_seed(seed)
        init, step, epilogue, run = softmax_like(r) if seed % 2 else by_sums(r)
        default = r.choice([1.0, 0.3, -2.0, 0.0, 10 ** r.uniform(-30, 30), -(10 ** r.uniform(-30, 30))])
        source = f"""return attention {{ scalars = {{ x = {default!r} }}, online_func = {{
    online_rowscales = {{ {init} }}, final_rowscales = {{ "lse" }},
    online_fwd = function(s, r)
      {step}
    end,
    online_fwd_epilogue = function(o, r) {epilogue} end }} }}"""
        keys = r.choice([1, 3, 8, 40, 400])
        size = r.choice([0.3, 1, 2])
        shapes = (1, 1, 3, 4), (1, 1, keys, 4), (1, 1, keys, 4), ()
        given = [(size * torch.randn(n, dtype=torch.float64)).requires_grad_() for n in shapes]
        dout, dlse = torch.randn(1, 1, 3, 4, dtype=torch.float64), torch.randn(1, 1, 3, dtype=torch.float64)
        try:
            o, lse = luattn.attention(source)(*given[:3], x=given[3], return_lse=True)
            got = torch.autograd.grad((o * dout).sum() + (lse * dlse).sum(), given, allow_unused=True)
        except luattn.Error:
            return False
        p, want_lse = run(given[0] @ given[1].mT * 4**-0.5, given[3])
        loss = ((p @ given[2]) * dout).sum() + (want_lse[..., 0] * dlse).sum()
        want = torch.autograd.grad(loss, given, allow_unused=True)
        for what, a, b in zip(("dq", "dk", "dv", "d x"), got, want):
            a, b = (torch.zeros(1, dtype=torch.float64) if t is None else t for t in (a, b))
            error, bound = (a - b).abs().max().item(), 1e-8 * (1e-2 + b.abs().max().item())
            self.assertLessEqual(error, bound, f"seed {seed}, {keys} keys: {what} of\n{source}")
        return True

    def test_none_is_wrong(self):
        derived = sum(self.compare(seed) for seed in range(FUNCTIONS))
        self.assertGreater(derived, FUNCTIONS // 3)


if __name__ == "__main__":
    unittest.main()
