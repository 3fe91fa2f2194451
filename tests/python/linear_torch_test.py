"""linear_torch_test.py: linear attention of torch tensors on the CPU: its gradients by autograd."""

import os
import pickle
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from with_torch import ROOT, torch  # noqa: E402

import luattn  # noqa: E402

FOLDER = f"{ROOT}/tests/specs/linear"


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


class Autograd(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.op = luattn.linear_attention(f"{FOLDER}/kda.lua")
        self.qkv = rand(2, 5, 1, 4), rand(2, 5, 1, 4), rand(2, 5, 2, 3)
        self.given = {"A_log": rand(2), "a": rand(2, 5, 2, 4), "beta": rand(2, 5, 2), "dt_bias": rand(2, 4)}

    def test_gradients(self):
        state, bound = rand(2, 2, 3, 4), torch.tensor(-5.0, dtype=torch.float64, requires_grad=True)

        def run(q, k, v, state, bound, *inputs):
            given = dict(zip(self.given, inputs))
            return self.op(q, k, v, initial_state=state, output_final_state=True, state_layout="vk", bound=bound, **given)

        self.assertTrue(torch.autograd.gradcheck(run, (*self.qkv, state, bound, *self.given.values())))

    def test_packed(self):
        cu = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
        rows = rand(1, 8, 1, 4), rand(1, 8, 1, 4), rand(1, 8, 2, 3)
        given = {**self.given, "a": rand(1, 8, 2, 4), "beta": rand(1, 8, 2)}

        def run(q, k, v, *inputs):
            return self.op(q, k, v, cu_seqlens=cu, output_final_state=True, state_layout="kv", **dict(zip(given, inputs)))

        self.assertTrue(torch.autograd.gradcheck(run, (*rows, *given.values())))

    def test_half(self):
        rows = [x.detach().bfloat16().requires_grad_() for x in self.qkv]
        given = {name: x.detach().float().requires_grad_() for name, x in self.given.items()}
        o = self.op(*rows, **given)
        o.float().sum().backward()
        self.assertIs(o.dtype, torch.bfloat16)
        self.assertTrue(all(x.grad.dtype is x.dtype and x.grad.isfinite().all() for x in (*rows, *given.values())))

    def test_in_place(self):
        state = torch.zeros(2, 2, 3, 4)
        with self.assertRaisesRegex(luattn.InvalidError, "final_state: is written in place, and a gradient is wanted"):
            self.op(*self.qkv, initial_state=state, final_state=state, state_layout="vk", **self.given)
        with torch.no_grad():
            self.op(*self.qkv, initial_state=state, final_state=state, state_layout="vk", **self.given)
        self.assertTrue(state.any())
        leaf = torch.zeros(2, 2, 3, 4, requires_grad=True)
        with self.assertRaisesRegex(luattn.InvalidError, "final_state: is written in place"):
            self.op(*(x.detach() for x in self.qkv), final_state=leaf, state_layout="vk", **{name: x.detach() for name, x in self.given.items()})

    def test_changed_before_backward(self):
        """What autograd has saved, and a call or somebody else has written to since, is not taken as it was."""
        state = torch.zeros(2, 2, 3, 4, dtype=torch.float64)
        y = (rand(2, 2, 3, 4) * state).sum()
        with torch.no_grad():
            self.op(*self.qkv, final_state=state, state_layout="vk", **self.given)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.backward()
        for name in ("cu_seqlens", "state_indices"):
            rows = rand(1, 8, 1, 4), rand(1, 8, 1, 4), rand(1, 8, 2, 3)
            arrays = {"cu_seqlens": torch.tensor([0, 3, 8]), "state_indices": torch.tensor([2, 0])}
            op = luattn.linear_attention("return linear_attention { }")
            o = op(*rows, initial_state=rand(3, 2, 3, 4), state_layout="vk", **arrays)
            arrays[name][1] = 1
            with self.subTest(name), self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                o.sum().backward()

    def test_second_derivatives(self):
        """There are none, which is said even where the gradient of o does not depend on anything."""
        for loss in (lambda o: o.sum(), lambda o: o.square().sum()):
            o = self.op(*self.qkv, **self.given)
            first = torch.autograd.grad(loss(o), (*self.qkv, *self.given.values()), create_graph=True)
            self.assertTrue(all(g.requires_grad for g in first))
            with self.assertRaisesRegex(luattn.Unsupported, "kda: there are no second derivatives: leave out create_graph=True"):
                (loss(o) + first[0].square().sum()).backward()
        first = torch.autograd.grad(self.op(*self.qkv, **self.given).sum(), self.qkv)
        self.assertFalse(any(g.requires_grad for g in first))

    def test_tangents_of_what_is_written(self):
        from torch.autograd import forward_ad

        state = torch.zeros(2, 2, 3, 4, dtype=torch.float64)
        rows, given = [x.detach() for x in self.qkv], {name: x.detach() for name, x in self.given.items()}
        with forward_ad.dual_level():
            with self.assertRaisesRegex(luattn.Unsupported, "has no forward-mode derivative"):
                self.op(*rows, final_state=forward_ad.make_dual(state, state + 1), state_layout="vk", **given)
            o = self.op(*self.qkv, **self.given)
            with self.assertRaisesRegex(luattn.Unsupported, "has no forward-mode derivative"):
                torch.autograd.grad(o, self.qkv, forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))

    def test_rings(self):
        """Rows that no step has written do not come to count."""
        state = torch.zeros(2, 2, 3, 4)
        ring = self.op.ring(state, 2, state_layout="vk", rows=4)
        rows, given = [x.detach()[:, :2] for x in self.qkv], {name: x.detach()[:, :2] if x.shape[:2] == (2, 5) else x.detach() for name, x in self.given.items()}
        with self.assertRaisesRegex(luattn.Unsupported, "ring: q is on the CPU"):
            self.op.step(*rows, state, state_layout="vk", ring=ring, **given)
        ring.accept()
        self.assertEqual(ring.used.tolist(), [0, 0])
        for words, call in (
            ("accept: tokens: is a tensor of float32", lambda: ring.accept(torch.ones(2))),
            ("accept: tokens: is a tensor of int32.* expected integers, of shape .2,.", lambda: ring.accept(torch.ones(1, dtype=torch.int32))),
            ("ring: is 3, expected what ring", lambda: self.op.step(*rows, state, state_layout="vk", ring=3, **given)),
        ):
            with self.subTest(words), self.assertRaisesRegex(luattn.InvalidError, words):
                call()

    def test_negatives(self):
        """Of tensors that are the negative of their memory, as imaginary parts of conjugates are."""
        q, k, v = (x.detach() for x in self.qkv)

        def negative(x):
            return torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag

        op, state = luattn.linear_attention("return linear_attention { }"), torch.zeros(2, 2, 3, 4, dtype=torch.float64)
        self.assertTrue(torch.equal(op(negative(q), k, negative(v)), op(q, k, v)))
        with self.assertRaisesRegex(luattn.InvalidError, "final_state: is the negative"):
            op(q, k, v, final_state=negative(state), state_layout="vk")

    def test_copies(self):
        again = pickle.loads(pickle.dumps(self.op))
        self.assertTrue(torch.equal(again(*self.qkv, **self.given), self.op(*self.qkv, **self.given)))

    def test_other_kinds(self):
        with self.assertRaisesRegex(luattn.InvalidError, "k: is a NumPy array of float64; give a torch tensor, as q is"):
            self.op(self.qkv[0], self.qkv[1].detach().numpy(), self.qkv[2], **self.given)
        meta = {name: x.to("meta") for name, x in self.given.items()}
        for kind, words, more in (
            (luattn.InvalidError, "cu_seqlens: is .*; give a torch tensor", {"cu_seqlens": [0, 5]}),
            (luattn.InvalidError, "initial_state: is a tensor of float32 on meta", {"initial_state": torch.zeros(2, 2, 3, 4, device="meta"), "state_layout": "vk"}),
            (luattn.InvalidError, "input 'A_log': is a tensor of float64 on meta", meta),
            (luattn.InvalidError, "scale: requires a gradient", {"scale": torch.tensor(1.0, requires_grad=True)}),
            (luattn.InvalidError, "scalar 'bound': has shape", {"bound": torch.ones(2)}),
        ):
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                self.op(*self.qkv, **{**self.given, **more})
        q, k, v = (x.detach() for x in self.qkv)
        for transform, x in ((torch.func.grad, q), (torch.func.vmap, torch.stack([q, q]))):
            with self.assertRaisesRegex(luattn.Unsupported, "torch.func .* do not exist for linear attention yet"):
                transform(lambda q: self.op(q, k, v, **self.given).sum())(x)


class Examples(unittest.TestCase):
    def test_blocks_train_alike(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        import linear_blocks

        for kind in ("gated delta", "mamba2"):
            losses, want = (linear_blocks.train(kind, by_luattn, 6, tokens=20) for by_luattn in (True, False))
            self.assertLess(losses[-1], losses[0] - 0.1)
            self.assertLess(max(abs(a - b) for a, b in zip(losses, want)), 1e-4)


if __name__ == "__main__":
    unittest.main()
