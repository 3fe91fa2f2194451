"""linear_states_test.py: states between tokens (states_every), on the CPU and on the PTX machine (tests/ptx/run.sh), beside final states of runs over the tokens
before each. Exits with 77 without torch or NVRTC."""

import unittest

from with_torch import torch  # exits without torch, so first

import luattn
import luattn.fla
from linear_ptx_test import there
from linear_recurrent_test import ROUNDED, Case, off
from ptx_test import on_device


def _as_double(t):
    return t.double() if t.is_floating_point() else t


class States(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)

    def wanted(self, case, every):
        """By place: of entry i the state before token t."""
        starts = case.ends.tolist() if case.packed else [0] * (len(case.first) + 1)
        found = {}
        for i in range(len(starts) - 1):
            row = i if case.pool is None else case.pool[i]
            tokens, at = (starts[i + 1] - starts[i], slice(0, 1)) if case.packed else (case.q.shape[1], slice(i, i + 1))
            for t in range(0, tokens if row >= 0 else 0, every):
                given = {}
                for info in case.attention.inputs:
                    x = case.given[info.name]
                    if "b" in info.axes and x.shape[info.axes.index("b")] > 1:
                        x = x.narrow(info.axes.index("b"), i, 1)
                    given[info.name] = x.narrow(info.axes.index("t"), starts[i], t) if "t" in info.axes else x
                own = (x[at, starts[i] : starts[i] + t].double() for x in (case.q, case.k, case.v))
                first = case.first[row : row + 1].double()
                _, state = case.attention(*own, initial_state=first, output_final_state=True, state_layout=case.layout, **given)
                found[(0, starts[i] // every + i + t // every) if case.packed else (i, t // every)] = state[0]
        return found

    def states(self, case, every, put, of=lambda t: t):
        first = put(of(case.first))
        o, _, states = case.attention(
            *(put(of(t)) for t in (case.q, case.k, case.v)), cu_seqlens=None if case.ends is None else put(case.ends), initial_state=first,
            final_state=first, output_final_state=True, state_layout=case.layout, states_every=every,
            state_indices=None if case.pool is None else put(torch.tensor(case.pool, dtype=torch.int32)), **{n: put(x) for n, x in case.given.items()},
        )  # fmt: skip
        return o, states

    on_machine = there(lambda self, case, every: self.states(case, every, on_device))

    def compare(self, name, dtype, lengths, K, V, every=64, most=None, **more):
        case = Case(name, dtype, lengths, K, V, **more)
        wanted = self.wanted(case, every)
        on_cpu = self.states(case, every, lambda t: t.clone(), _as_double)
        for (_, states), close in ((on_cpu, 1e-12), (self.on_machine(case, every), most or ROUNDED[case.dtype])):
            rest = torch.ones(states.shape[:2], dtype=torch.bool)
            for at, state in wanted.items():
                rest[at] = False
                self.assertLessEqual(off(states[at], state), close, f"{name}: {at}")
            self.assertEqual(states[rest].abs().sum().item(), 0, f"{name}: states of nobody")

    def test_token_by_token(self):
        self.compare("gla", torch.float32, (130, 0, 64, 3), 32, 24, layout="kv")
        self.compare("linear", torch.float32, (130, 130), 32, 24, every=128, packed=False)
        self.compare("kda", torch.float32, (130, 70), 32, 24, pool=[1, -1])
        self.compare("rwkv7", torch.float32, (3, 1), 32, 24)

    def test_chunks(self):
        self.compare("gated_delta", torch.bfloat16, (70, 1), 64, 64)
        self.compare("simple_gla", torch.bfloat16, (140,), 64, 64, every=128, packed=False, layout="kv", state=torch.bfloat16)

    def test_chunks_of_channels(self):
        self.compare("kda", torch.bfloat16, (140,), 64, 64, packed=False)
        self.compare("gla", torch.bfloat16, (140, 70), 64, 64, every=128, layout="kv")

    def test_refusals(self):
        case = Case("gated_delta", torch.float32, (70,), 32, 32, packed=False)
        call = lambda **more: case.attention(case.q, case.k, case.v, **case.given, **more)  # noqa: E731
        for every in (0, 63, 100, -64):
            with self.assertRaisesRegex(luattn.InvalidError, f"states_every: is {every}, expected a multiple of 64 tokens, or None"):
                call(states_every=every, state_layout="vk")
        with self.assertRaisesRegex(luattn.InvalidError, "states_every: "):
            call(states_every=1.5, state_layout="vk")
        with self.assertRaisesRegex(luattn.InvalidError, "state_layout: is missing, and states_every asks for states"):
            call(states_every=64)

    def test_no_gradient(self):
        case = Case("gated_delta", torch.float32, (70,), 32, 32, packed=False)
        q = case.q.requires_grad_()
        o, states = case.attention(q, case.k, case.v, states_every=64, state_layout="vk", **case.given)
        self.assertTrue(o.requires_grad)
        self.assertFalse(states.requires_grad)
        o.sum().backward()
        self.assertTrue(q.grad.isfinite().all())

    def test_fla(self):
        ends, K = torch.tensor([0, 70, 70, 200]), 16
        q, k, v, g = (torch.randn(1, 200, 2, K) / 4 for _ in range(4))
        call = (q, k, v, -g.abs(), torch.rand(1, 200, 2))
        o, final, h = luattn.fla.chunk_kda(*call, cu_seqlens=ends, output_final_state=True, return_intermediate_states=True)
        self.assertEqual(tuple(h.shape), (1, 5, 2, K, K))
        _, before = luattn.fla.chunk_kda(*(t[:, 70:134] for t in call), output_final_state=True)
        self.assertLess(off(h[0, 3], before[0].double()), 1e-6)
        self.assertEqual(h[0, (0, 2)].abs().sum().item(), 0)
        self.assertEqual(luattn.fla.chunk_kda(*call, return_intermediate_states=True)[1], None)
        with self.assertRaisesRegex(luattn.InvalidError, "return_intermediate_states: a gradient is wanted"):
            luattn.fla.chunk_kda(q.requires_grad_(), *call[1:], return_intermediate_states=True)


if __name__ == "__main__":
    unittest.main()
