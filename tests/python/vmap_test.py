"""torch.vmap: a mapped dimension becomes a part of the batch, of calls, their gradients and their tangents; what has no such form is refused."""

import unittest

from problems import torch  # exits without torch, so first

import luattn

BIASED = luattn.attention(
    "return attention { name = 'biased', inputs = { bias = { axes = {'b', 'h', 'kv'}, dtype = 'f64', grad = true } }, score_mod = "
    "function(s, b, h, q, kv) return s + bias[{b, h, kv}] end, block_mask = causal() }"
)


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def ours(q, k, v, bias):
    return BIASED(q, k, v, bias=bias)


def math(q, k, v, bias):
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    s = q @ k.mT * 8**-0.5 + bias[:, :, None]
    s = s.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf)
    return s.softmax(-1) @ v


class Vmap(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.q, self.k, self.v, self.bias = rand(3, 2, 4, 7, 8), rand(3, 2, 2, 7, 8), rand(2, 2, 7, 6), rand(2, 4, 7)

    def same(self, of):
        for got, want in zip(*(of(f) for f in (ours, math)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)

    def test_calls(self):
        self.same(lambda f: torch.vmap(f, (0, 0, None, None))(self.q, self.k, self.v, self.bias))
        self.same(lambda f: torch.vmap(f, (1, None, None, 2), 3)(self.q.transpose(0, 1), self.k[0], self.v, rand(2, 4, 3, 7).fill_(0.5)))
        self.same(lambda f: torch.vmap(lambda v: f(self.q[0], self.k[0], v, self.bias))(torch.stack([self.v, -self.v])))

    def test_gradients(self):
        every = self.q, self.k, self.v, self.bias
        self.same(lambda f: torch.vmap(torch.func.grad(lambda *some: f(*some).square().sum(), argnums=(0, 1, 2, 3)), (0, 0, None, None))(*every))
        self.same(lambda f: [torch.func.grad(lambda q: torch.vmap(f, (0, 0, None, None))(q, *every[1:]).square().sum())(self.q)])

    def test_inputs_of_one_entry(self):
        """Which each index of the mapped dimension has for all of its entries."""
        q, k, v, bias = self.q[0], self.k[0], self.v, rand(3, 1, 4, 7)
        self.same(lambda f: torch.vmap(lambda x: f(q, k, v, x))(bias))
        self.same(lambda f: torch.vmap(torch.func.grad(lambda x: f(q, k, v, x).square().sum()), 3, 3)(bias.movedim(0, 3)))
        self.same(lambda f: [torch.vmap(lambda x: torch.func.jvp(lambda y: f(q, k, v, y), (x,), (x * 2,))[1])(bias)])
        self.same(lambda f: torch.vmap(torch.func.grad(lambda x: f(q[:1], k[:1], v[:1], x).square().sum()))(bias[:1]))

    def test_one_entry_of_two_shapes(self):
        """An input of one entry, or its tangent, is mapped, and the other is not."""
        q, k, v, bias = self.q[0], self.k[0], self.v, rand(3, 1, 4, 7)
        for b in (1, 2):
            rows = q[:b], k[:b], v[:b]

            def tangent(f, x, t, rows=rows):
                return torch.func.jvp(lambda y: f(*rows, y), (x,), (t,))[1]

            self.same(lambda f: [torch.vmap(lambda t: tangent(f, bias[0], t))(bias)])
            self.same(lambda f: [torch.vmap(lambda x: tangent(f, x, bias[0]))(bias)])
            self.same(lambda f: [torch.func.jacfwd(lambda x: f(*rows, x))(bias[0])])

            def product(f, x, t, rows=rows):
                return torch.func.jvp(torch.func.grad(lambda q: f(q, *rows[1:], x).square().sum()), (rows[0],), (t,))[1]

            self.same(lambda f: [torch.vmap(lambda x: product(f, x, rows[0]))(bias)])
        with self.assertRaisesRegex(luattn.Unsupported, "torch.vmap: the mapped dimension has size 0"):
            torch.vmap(lambda x: BIASED(q, k, v, bias=x))(bias[:0])

    def test_jacobians(self):
        q, k, v = self.q[0], self.k[0], self.v
        for transform in (torch.func.jacfwd, torch.func.jacrev):
            with self.subTest(transform=transform.__name__):
                self.same(lambda f: [transform(lambda q: f(q, k, v, self.bias).sum((0, 1, 3)))(q)])
        self.same(lambda f: [torch.func.hessian(lambda q: f(q, k, v, self.bias).square().sum())(q)])

    def test_refused(self):
        q, k, v = self.q[0], self.k[0], self.v
        by_head = luattn.attention("return attention { name = 'h', inputs = { slopes = { axes = {'h'}, dtype = 'f64', grad = true } }, score_mod = function(s, b, h) return s * slopes[h] end }")
        reads_b = luattn.attention("return attention { name = 'b', score_mod = function(s, b) return s * (b + 1) end }")
        first = luattn.attention("return attention { name = 'f', inputs = { x = { axes = {'b', 'h'}, dtype = 'f64' } }, score_mod = function(s, b, h) return s * x[{0, h}] end }")
        drops = luattn.attention("return attention { name = 'd', online_func = dropout(0.5) }")
        slopes = rand(4)
        for call, words in (
            (lambda: torch.vmap(lambda x: by_head(q, k, v, slopes=x))(torch.stack([slopes, slopes])), "input 'slopes' is mapped, and has no axis b"),
            (lambda: torch.vmap(torch.func.grad(lambda x, q: by_head(q, k, v, slopes=x).sum()), (None, 0))(slopes, self.q), "input 'slopes' has a gradient"),
            (lambda: torch.vmap(lambda q: reads_b(q, k, v))(self.q), "the spec computes with b"),
            (lambda: torch.vmap(lambda x: first(q, k, v, x=x))(rand(3, 2, 4)), "or reads another entry"),
            (lambda: torch.vmap(lambda q: drops(q, k, v, seed=1))(self.q), "randomness is 'error'"),
        ):
            with self.subTest(words), self.assertRaisesRegex(luattn.Unsupported, "torch.vmap: .*" + words):
                call()
        torch.vmap(lambda q: by_head(q, k, v, slopes=slopes))(self.q)


if __name__ == "__main__":
    unittest.main()
