"""torch.compile around forward mode: one graph, in which the op that computes o and its tangent takes the attention's place."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import flash_attn
from torch.autograd import forward_ad

FULL = luattn.attention('return attention { name = "full" }')
BIAS = luattn.attention("""return attention { name = "biased", inputs = { bias = { axes = {"h", "kv"}, dtype = "f32", grad = true } },
    score_mod = function(s, b, h, q, kv) return 3 * tanh(s / 3) + bias[{h, kv}] end, block_mask = causal() }""")


class Ops:
    """A backend that notes the ops of luattn in the graph that it is given, and runs it as it is."""

    def __init__(self):
        self.seen = []

    def __call__(self, graph, examples):
        self.seen += [str(node.target) for node in graph.graph.nodes if "luattn" in str(node.target)]
        return graph.forward


class Compiled(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        torch._dynamo.reset()
        self.q, self.k, self.v, *self.along = (torch.randn(2, 3, 5, 8) for _ in range(6))
        self.bias, self.bias_along = torch.randn(2, 3, 5)

    def same(self, made, want):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (made, want)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def compare(self, call, *args):
        for backend in ("eager", "aot_eager"):
            with self.subTest(backend=backend):
                torch._dynamo.reset()
                self.same(torch.compile(call, backend=backend, fullgraph=True)(*args), call(*args))

    def test_jvp(self):
        self.compare(lambda q, k, v, *along: torch.func.jvp(FULL, (q, k, v), along), self.q, self.k, self.v, *self.along)
        self.compare(lambda q, along: torch.func.jvp(lambda q: FULL(q, self.k, self.v), (q,), (along,)), self.q, self.along[0])

    @unittest.skipIf(torch.__version__ < "2.7", "torch.compile of 2.6 fails at inputs")
    def test_inputs(self):
        self.compare(
            lambda q, bias, *along: torch.func.jvp(lambda q, bias: BIAS(q, self.k, self.v, bias=bias), (q, bias), along), self.q, self.bias, self.along[0], self.bias_along
        )

    def test_forward_ad(self):
        def call(q, along):
            with forward_ad.dual_level():
                return tuple(forward_ad.unpack_dual(FULL(forward_ad.make_dual(q, along), self.k, self.v)))

        self.compare(call, self.q, self.along[0])

    def test_one_op(self):
        """Of a graph after autograd's part, the op with tangents alone."""
        from torch._dynamo.backends.common import aot_autograd

        ops = Ops()
        call = torch.compile(lambda q, along: torch.func.jvp(lambda q: FULL(q, self.k, self.v), (q,), (along,)), backend=aot_autograd(fw_compiler=ops), fullgraph=True)
        call(self.q, self.along[0])
        self.assertEqual(ops.seen, ["luattn.forward_jvp.default"])

    def test_gradients_of_the_primal(self):
        """MeanFlow: a target of the tangent, which has no gradient, and a loss of o."""

        def loss(w, x, along):
            o, tangent = torch.func.jvp(lambda q: FULL(q @ w, self.k, self.v), (x,), (along,))
            return ((o - tangent.detach()) ** 2).mean()

        w = torch.randn(8, 8)
        found = []
        for call in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
            leaf = w.clone().requires_grad_()
            value = call(leaf, self.q, self.along[0])
            found.append((value.detach(), *torch.autograd.grad(value, leaf)))
        for a, b in zip(*found):
            torch.testing.assert_close(a, b)

    def test_dual_tensors_from_outside(self):
        """torch.compile leaves its graphs at tensors that have tangents: none is lost on the way."""

        def call(q):
            o, lse = FULL(q, self.k, self.v, return_lse=True)
            return luattn.merge([o, o], [lse, lse])[0] * 2, q.sin()

        torch._dynamo.reset()
        compiled = torch.compile(call, backend="aot_eager")
        with forward_ad.dual_level():
            q = forward_ad.make_dual(self.q, self.along[0])
            made, want = ([forward_ad.unpack_dual(t).tangent for t in run(q)] for run in (compiled, call))
            if made[1] is None:
                self.skipTest("this version of torch loses all tangents there")
            self.same(tuple(made), tuple(want))

    def test_refused_where_a_graph_is_there(self):
        """A graph that was made of tensors without tangents is not taken where a level of forward mode is open: what is refused, still is."""
        q, cap = self.q.transpose(1, 2).contiguous(), torch.tensor(3.0)
        linear = luattn.linear_attention("return linear_attention { }")
        for name, x, call in (
            ("softcap", cap, lambda x: flash_attn.flash_attn_func(q, q, q, softcap=x)),
            ("state", self.q, lambda x: FULL(x, self.k, self.v, return_state=True)[0]),
            ("linear", q, lambda x: linear(x, q, q)),
        ):
            torch._dynamo.reset()
            compiled = torch.compile(call, backend="eager")
            torch.testing.assert_close(compiled(x), call(x))
            with self.subTest(name), forward_ad.dual_level():
                dual = forward_ad.make_dual(x, torch.ones_like(x))
                if forward_ad.unpack_dual(torch.compile(torch.sin, backend="eager")(dual)).tangent is None:
                    self.skipTest("this version of torch loses all tangents there")
                with self.assertRaisesRegex(luattn.Unsupported, "has no forward-mode derivative"):
                    compiled(dual)

    @unittest.skipIf(torch.__version__ < "2.7", "torch.compile of 2.6 fails at arguments of luattn.jvp and at inputs")
    def test_explicit_calls(self):
        """luattn.jvp in a graph, and between graphs."""
        along = (self.along[0], None, self.along[2])
        self.compare(lambda q: luattn.jvp(FULL, (2 * q, self.k, self.v), along, return_lse=True)[1][0] * 3, self.q)
        self.compare(lambda q: luattn.jvp(BIAS, (q, self.k, self.v), {"bias": self.bias_along}, bias=self.bias), self.q)

        def broken(q):
            torch._dynamo.graph_break()
            return luattn.jvp(FULL, (2 * q, self.k, self.v), along)[1] * 3

        torch._dynamo.reset()
        call = torch.compile(broken, backend="aot_eager")
        for _ in range(2):
            self.same(call(self.q), broken(self.q))


if __name__ == "__main__":
    unittest.main()
