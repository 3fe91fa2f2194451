"""row_pass_test.py: functions whose backward takes a row pass, or whose maximum does not cancel: gradients on the CPU in float64 against torch,
to 1e-9 of the sum of magnitudes, over long rows, masks, groups of heads, packed sequences, rows that keep nothing, score mods and parameters.
Exits with 77 where torch is not installed."""

import os
import unittest
from unittest import mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import _capi as capi
from luattn._numpy import fill
from luattn.merge import MergeCall

SOFTMAX = """local m = max(r.m, reduce_max(s))
    local f, p = exp(r.m - m), exp(s - m)
    return p, { m = m, l = r.l * f + reduce_sum(p) }, f"""
SOFTPICK = """local m = max(r.m, reduce_max(s))
    local f, e = exp(r.m - m), exp(s - m) - exp(-m)
    return relu(e), { m = m, l = r.l * f + reduce_sum(abs(e)) }, f"""
SIGMOID = "local p = sigmoid(s) return p, { l = r.l + reduce_sum(p) }, 1"


def total(x, keep):
    return torch.where(keep, x, 0.0).sum(-1, keepdim=True)


def top(s, keep, start=-1e37):
    return torch.where(keep, s, start).amax(-1, keepdim=True)


def softmax_of(factor):
    """exp(s - m) times a factor of l, m and x, with the maximum as torch differentiates it."""

    def run(s, keep, x):
        m = top(s, keep)
        e = torch.where(keep, s - m, -torch.inf).exp()
        return e * factor(e.sum(-1, keepdim=True), m, x)

    return run


def softpick(s, keep, x):
    m = top(s, keep).clamp(min=0)
    e = (s - m).exp() - (-m).exp()
    return torch.where(keep, e.relu(), 0.0) / (total(e.abs(), keep) + 1e-6)


def sigmoid_of(factor):
    return lambda s, keep, x: torch.where(keep, s.sigmoid(), 0.0) * factor(total(s.sigmoid(), keep), x)


def moments(s, keep, x):
    n, a, b = total(torch.ones_like(s), keep), total(s, keep), total(s * s, keep)
    return torch.where(keep, s, 0.0) * (b - a * a / n.clamp(min=1) + x * x + 1e-3).rsqrt() * torch.tanh(a)


def of_sums(s, keep, x):
    a, b = total(s.sigmoid(), keep), total(s * s * s.sigmoid(), keep)
    return torch.where(keep, s.sigmoid(), 0.0) * torch.sin(x + b) / (1 + a * a)


def of_one_number(s, keep, x):
    p = s.sigmoid()
    return torch.where(keep, p, 0.0) / (1 + (x * total(p, keep) - 3 * total(p * p * s, keep)) ** 2)


def peak(s, keep, x):
    return torch.where(keep, s, 0.0) / torch.where(keep, s.abs(), 0.0).amax(-1, keepdim=True).clamp(min=1)


def starts(s, keep, x):
    m = top(s, keep)
    return torch.where(keep, s.sigmoid(), 0.0) / (m.clamp(min=0.2) + 2 * m.clamp(min=1) ** 2)


def start_of_x(s, keep, x):
    m = top(s, keep)
    m = torch.where(m < x, x, m)  # all of it at a tie
    e = torch.where(keep, s - m, -torch.inf).exp()
    return e * (1 + m.sin()) / (e.sum(-1, keepdim=True) + 1)


FUNCTIONS = {  # the state at its start, a step, what the epilogue returns, weights in torch
    "long rows": ("m = -1e37, l = 0", SOFTMAX, "o / min(r.l, 20)", softmax_of(lambda l, m, x: 1 / l.clamp(max=20))),
    "an arm of long rows": ("m = -1e37, l = 0", SOFTMAX, "o * where(r.l > 20, 0.5, 1) / max(r.l, 1e-25)",
                            softmax_of(lambda l, m, x: torch.where(l > 20, 0.5, 1.0) / l.clamp(min=1e-25))),
    "a small eps": ("m = -1e37, l = 0", SOFTMAX, "o / (r.l + 1e-6)", softmax_of(lambda l, m, x: 1 / (l + 1e-6))),
    "a scaled eps": ("m = -1e37, l = 0", SOFTMAX, "o / (r.l + 1e-6 * exp(-r.m))", softmax_of(lambda l, m, x: 1 / (l + 1e-6 * (-m).exp()))),
    "a gate of x": ("m = -1e37, l = 0", SOFTMAX, "o * (1 + sigmoid(-x) / (1 + r.l)) / r.l",
                    softmax_of(lambda l, m, x: (1 + torch.sigmoid(-x) / (1 + l)) / l)),
    "a factor that may be 0": ("m = -1e37, l = 0", SOFTMAX, "o * sin(x * (log(r.l) + r.m)) / r.l", softmax_of(lambda l, m, x: torch.sin(x * (l.log() + m)) / l)),
    "softpick": ("m = 0, l = 0", SOFTPICK, "o / (r.l + 1e-6)", softpick),
    "a normalised sigmoid": ("l = 0", SIGMOID, "o / max(r.l, x)", sigmoid_of(lambda l, x: 1 / torch.maximum(l, x))),
    "a logarithm of a sum": ("l = 0", SIGMOID, "o * log(1 + x * r.l) / (1 + r.l)", sigmoid_of(lambda l, x: (1 + x * l).log() / (1 + l))),
    "a factor above 1": ("l = 0", SIGMOID, "o * (2 + sin(x * r.l)) / (1 + r.l)", sigmoid_of(lambda l, x: (2 + torch.sin(x * l)) / (1 + l))),
    "a plain sum": ("l = 0", SIGMOID, "o / (1 + r.l)", sigmoid_of(lambda l, x: 1 / (1 + l))),
    "moments": ("n = 0, a = 0, b = 0", "return s, { n = r.n + reduce_sum(1 + 0 * s), a = r.a + reduce_sum(s), b = r.b + reduce_sum(s * s) }, 1",
                "o * rsqrt(r.b - r.a * r.a / max(r.n, 1) + x * x + 1e-3) * tanh(r.a)", moments),
    "two sums": ("a = 0, b = 0", "local p = sigmoid(s) return p, { a = r.a + reduce_sum(p), b = r.b + reduce_sum(s * s * p) }, 1",
                 "o * sin(x + r.b) / (1 + r.a * r.a)", of_sums),
    "a start of x": ("m = function(b, h) return x end, l = 0", SOFTMAX, "o * (1 + sin(r.m)) / (r.l + 1)", start_of_x),
    "a maximum of x": ("m = 0.1", "return sigmoid(s), { m = max(r.m, reduce_max(x * s)) }, 1", "o / (1 + r.m)",
                       lambda s, keep, x: torch.where(keep, s.sigmoid(), 0.0) / (1 + top(x * s, keep).clamp(min=0.1))),
    "two starts": ("x = 0.2, y = 1", "return sigmoid(s), { x = max(r.x, reduce_max(s)), y = max(r.y, reduce_max(s)) }, 1", "o / (r.x + 2 * r.y * r.y)", starts),
    "two starts, the higher first": ("y = 1, x = 0.2", "return sigmoid(s), { x = max(r.x, reduce_max(s)), y = max(r.y, reduce_max(s)) }, 1",
                                     "o / (r.x + 2 * r.y * r.y)", starts),
    "a sum times x": ("a = 2", "local p = sigmoid(s) return p, { a = r.a + x * reduce_sum(p) }, 1", "o / (1 + r.a * r.a)",
                      sigmoid_of(lambda l, x: 1 / (1 + (2 + x * l) ** 2))),
    "two sums in one number": ("a = 0", "local p = sigmoid(s) return p, { a = r.a + x * reduce_sum(p) - 3 * reduce_sum(p * p * s) }, 1",
                               "o / (1 + r.a * r.a)", of_one_number),
    "the largest magnitude": ("m = 1", "return s, { m = max(r.m, reduce_max(abs(s))) }, 1", "o / r.m", peak),
}
MASKS = {"none": ("true", lambda q, k: torch.ones(q, k, dtype=torch.bool)),
         "causal": ("kv_idx <= q_idx + kv_len - q_len", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q)),
         "holes": ("q_idx % 3 > 0 and kv_idx % 5 < 2", lambda q, k: ((torch.arange(q) % 3 > 0)[:, None] & (torch.arange(k) % 5 < 2)))}


def spec_of(name, mask="true"):
    init, step, epilogue, _ = FUNCTIONS[name]
    return f"""return attention {{ name = "f", scalars = {{ x = 1.0 }}, inputs = {{ bias = {{ axes = {{ "h" }}, dtype = "any", grad = true }} }},
  score_mod = function(s, b, h, q_idx, kv_idx) return s + bias[h] * cos(q_idx - kv_idx) end,
  block_mask = function(b, h, q_idx, kv_idx) return {mask} end,
  online_func = {{ online_rowscales = {{ {init} }},
    online_fwd = function(s, r) {step} end,
    online_fwd_epilogue = function(o, r) return {epilogue} end }} }}"""


def reference(name, q, k, v, bias, x, keep):
    """o in torch; rows that keep nothing have zeros, without the NaN of what they would compute."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    far = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    s = q @ k.mT * q.shape[3] ** -0.5 + bias[:, None, None] * torch.cos(far.double())
    some = keep.any(-1, keepdim=True)
    p = torch.where(some, FUNCTIONS[name][3](s, keep | ~some, x), 0.0)
    return p @ v


class Passes(unittest.TestCase):
    def check(self, what, got, want):
        for name, a, b in zip(("dq", "dk", "dv", "d_bias", "d_x"), got, want):
            a, b = (torch.zeros(()) if t is None else t for t in (a, b))
            self.assertTrue(torch.isfinite(a).all(), f"{what}: {name}")
            bound = 1e-9 * max(1e-3, b.abs().max().item())
            self.assertLessEqual((a - b).abs().max().item(), bound, f"{what}: {name}")

    def given(self, q_len, kv_len, heads=4, heads_kv=2, batch=2, size=1.0):
        make = lambda *n: (size * torch.randn(n, dtype=torch.float64)).requires_grad_()
        x = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        return [make(batch, heads, q_len, 6), make(batch, heads_kv, kv_len, 6), make(batch, heads_kv, kv_len, 6), make(heads), x]

    def compare(self, name, mask, q_len, kv_len, **sizes):
        text, keep = MASKS[mask]
        t = self.given(q_len, kv_len, **sizes)
        dout = torch.randn(*t[0].shape, dtype=torch.float64)
        o = luattn.attention(spec_of(name, text))(*t[:3], bias=t[3], x=t[4])
        want = reference(name, *t, keep(q_len, kv_len))
        what = f"{name}, mask {mask}, {q_len} x {kv_len}"
        self.assertLessEqual((o - want).abs().max().item(), 1e-10 * max(1.0, want.abs().max().item()), what)
        grad = lambda y: torch.autograd.grad((y * dout).sum(), t, allow_unused=True)
        self.check(what, grad(o), grad(want))

    def test_gradients(self):
        torch.manual_seed(1)
        for name in FUNCTIONS:
            for mask in MASKS:
                for q_len, kv_len in ((1, 1), (5, 3), (70, 150)):
                    self.compare(name, mask, q_len, kv_len, size=1.5)

    def test_sums_times_nothing(self):
        """The slope by x is a sum that the row's number does not hold where x is 0."""
        torch.manual_seed(9)
        for name in ("a sum times x", "two sums in one number"):
            t = self.given(5, 30, batch=1)
            t[4] = torch.zeros((), dtype=torch.float64, requires_grad=True)
            dout = torch.randn(*t[0].shape, dtype=torch.float64)
            grad = lambda y: torch.autograd.grad((y * dout).sum(), t)
            got = grad(luattn.attention(spec_of(name))(*t[:3], bias=t[3], x=t[4]))
            self.check(f"{name}, x = 0", got, grad(reference(name, *t, torch.ones(5, 30, dtype=torch.bool))))
            self.assertGreater(got[4].abs().item(), 1e-6)

    def test_long_rows(self):
        torch.manual_seed(2)
        for name in FUNCTIONS:
            for kv_len in (600, 4096):
                self.compare(name, "none", 2, kv_len, heads=2, heads_kv=1, batch=1)

    def test_equal_scores(self):
        """Elements that are the maximum together share its derivative, as torch's do."""
        for name in FUNCTIONS:
            t = self.given(3, 6, batch=1)
            t[1], t[3] = t[1].detach()[:, :, :1].expand(-1, -1, 6, -1).contiguous().requires_grad_(), torch.zeros(4, dtype=torch.float64, requires_grad=True)
            dout = torch.randn(*t[0].shape, dtype=torch.float64)
            grad = lambda y: torch.autograd.grad((y * dout).sum(), t, allow_unused=True)
            o = luattn.attention(spec_of(name))(*t[:3], bias=t[3], x=t[4])
            self.check(f"{name}, equal scores", grad(o), grad(reference(name, *t, torch.ones(3, 6, dtype=torch.bool))))

    def test_scores_of_minus_infinity(self):
        """A score of -inf has no part in a pass where its weight is 0."""
        torch.manual_seed(8)
        for name in FUNCTIONS.keys() - {"softpick", "moments", "two sums", "two sums in one number", "the largest magnitude"}:  # in whose sums it has one
            t = self.given(9, 20)
            far = torch.arange(9)[:, None] * 7 + torch.arange(20) * 3
            dout = torch.randn(*t[0].shape, dtype=torch.float64)
            text = spec_of(name).replace("return s +", "return where((q_idx * 7 + kv_idx * 3) % 5 < 2, -math.huge, s +").replace("cos(q_idx - kv_idx) end", "cos(q_idx - kv_idx)) end")
            o = luattn.attention(text)(*t[:3], bias=t[3], x=t[4])
            grad = lambda y: torch.autograd.grad((y * dout).sum(), t, allow_unused=True)
            self.check(f"{name}, scores of -inf", grad(o), grad(reference(name, *t, far % 5 >= 2)))

    def test_packed(self):
        torch.manual_seed(3)
        lengths = (3, 0, 70, 17)
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for name in FUNCTIONS:
            t = self.given(90, 90, batch=1)
            rows = [a[0].transpose(0, 1) for a in t[:3]]
            dout = torch.randn(90, 4, 6, dtype=torch.float64)
            o = luattn.attention(spec_of(name, MASKS["causal"][0]))(*rows, bias=t[3], x=t[4], cu_seqlens_q=offsets, cu_seqlens_k=offsets)
            parts = [reference(name, *(a[:, :, i:j] for a in t[:3]), *t[3:], MASKS["causal"][1](j - i, j - i))[0].transpose(0, 1)
                     for i, j in zip(offsets.tolist(), offsets.tolist()[1:]) if j > i]
            grad = lambda y: torch.autograd.grad((y * dout).sum(), t, allow_unused=True)
            self.check(f"{name}, packed", grad(o), grad(torch.cat(parts)))

    def test_dropout(self):
        """The weights that a call drops are those of its output: gradients are linear in dout, and o's own."""
        torch.manual_seed(4)
        for name in FUNCTIONS:
            f = luattn.attention(spec_of(name).replace("online_func = {", "online_func = dropout(0.4, {").replace("end } }", "end }) }"))
            t = self.given(4, 30, batch=1)
            eye = torch.eye(30, dtype=torch.float64).expand(1, 2, 30, 30)
            kept = f(*t[:2], eye, bias=t[3], x=t[4], seed=7).detach() != 0
            plain = luattn.attention(spec_of(name))(*t[:2], eye, bias=t[3], x=t[4]).detach() != 0
            scale = torch.where(kept, 256 / (256 - round(0.4 * 256)), 0.0)
            self.assertTrue((kept & ~plain).sum() == 0 and kept.sum() < plain.sum())
            group = t[0].shape[1] // t[1].shape[1]
            s = t[0] @ t[1].repeat_interleave(group, 1).mT * 6**-0.5 + t[3][:, None, None] * torch.cos((torch.arange(4)[:, None] - torch.arange(30)).double())
            p = FUNCTIONS[name][3](s, torch.ones(4, 30, dtype=torch.bool), t[4]) * scale
            dout = torch.randn(*t[0].shape, dtype=torch.float64)
            grad = lambda y: torch.autograd.grad((y * dout).sum(), t, allow_unused=True)
            self.check(f"{name}, dropout", grad(f(*t[:3], bias=t[3], x=t[4], seed=7)), grad(p @ t[2].repeat_interleave(group, 1)))

    def test_float32(self):
        """In float32 the CPU computes in double and stores less: the maximum is found all the same."""
        torch.manual_seed(5)
        for name in FUNCTIONS:
            t = self.given(5, 40, batch=1)
            low = [a.detach().float().requires_grad_() for a in t]
            t = [a.detach().double().requires_grad_() for a in low]
            dout = torch.randn(*t[0].shape)
            grad = lambda y, of: torch.autograd.grad((y * dout).sum(), of, allow_unused=True)
            got = grad(luattn.attention(spec_of(name))(*low[:3], bias=low[3], x=low[4]), low)
            want = grad(reference(name, *t, torch.ones(5, 40, dtype=torch.bool)), t)
            for a, b in zip(got, want):
                if b is not None:
                    self.assertLessEqual((a - b).abs().max().item(), 1e-5 * max(1.0, b.abs().max().item()), name)

    def test_parts(self):
        """Parts of a row merge as those of every function, without what only backward reads. A function whose parts merge has factors above 0,
        and takes passes only where it is told to."""
        torch.manual_seed(6)
        with mock.patch.dict(os.environ, LUATTN_ROW_PASSES="1"):
            f = luattn.attention(spec_of("a plain sum") + "  -- by passes")
        self.assertEqual(f._spec.row_passes, 1)
        t = [a.detach() for a in self.given(4, 30, batch=1)]
        cut = (0, 11, 30)
        parts = [f(t[0], t[1][:, :, i:j], t[2][:, :, i:j], bias=t[3], x=t[4], kv_offset=i, kv_len=30, return_state=True) for i, j in zip(cut, cut[1:])]
        o = f.merge(*zip(*parts))[0]
        torch.testing.assert_close(o, f(*t[:3], bias=t[3], x=t[4]), rtol=1e-12, atol=1e-12)
        outs, lses, states = ([a.numpy() for a in of] for of in zip(*parts))
        merge = MergeCall(fill, outs, lses)
        merge.set_states(f._spec.parts(), states, None, torch.empty(f._spec.num_saved, 1, 4, 4, dtype=torch.float64).numpy())
        with self.assertRaisesRegex(luattn.Unsupported, "saved: is given, and backward of f takes a row pass, which needs all keys of a row in one call"):
            merge.forward(outs[0].copy(), lses[0].copy(), capi.CPU, None)

    def test_lse_of_nothing(self):
        """An lse of -inf does not say that a row has no weights."""
        torch.manual_seed(7)
        f = luattn.attention(spec_of("a factor above 1").replace("l = 0", "l = 0, c = 0").replace("reduce_sum(p) }", "reduce_sum(p), c = r.c + reduce_sum(relu(s)) }")
                             .replace("(1 + r.l) end", "(1 + r.l), { lse = log(r.c) } end").replace("online_fwd =", 'final_rowscales = { "lse" }, online_fwd =', 1))
        t = self.given(20, 2)
        dout = torch.randn(*t[0].shape, dtype=torch.float64)
        o, lse = f(*t[:3], bias=t[3], x=t[4], return_lse=True)
        self.assertTrue(torch.isneginf(lse).any())
        grad = lambda y: torch.autograd.grad((y * dout).sum(), t)
        self.check("an lse of -inf", grad(o), grad(reference("a factor above 1", *t, torch.ones(20, 2, dtype=torch.bool))))

    def test_refusals(self):
        f = luattn.attention(spec_of("a logarithm of a sum"))
        t = [a.detach() for a in self.given(4, 6, batch=1)]
        with self.assertRaisesRegex(luattn.Unsupported, "gradients: backward takes a row pass, which needs all keys of a row in one call"):
            f.gradients(t[0], *t[:3], t[0], None, None, bias=t[3], x=t[4])
        q = t[0].clone().requires_grad_()
        o = f(q, *t[1:3], bias=t[3], x=t[4], kv_len=12)
        with self.assertRaisesRegex(luattn.Unsupported, "k: has 6 of 12 keys, and backward of f takes a row pass, which needs all keys"):
            o.sum().backward()


if __name__ == "__main__":
    unittest.main()
