"""linear_gpu_test.py: what linear_ptx_test.py and linear_recurrent_test.py compare on the PTX machine, on a GPU: both passes of linear
attention beside the CPU in float64, through the engine. Exits with 77 without torch or a GPU."""

import sys
import types
import unittest

from with_torch import torch  # exits without torch, so first

if not torch.cuda.is_available():
    print("no GPU: skipped")
    sys.exit(77)
from luattn import _tensors  # noqa: E402

machine = types.ModuleType("ptx_test")  # in the place of the machine's
machine.fill, machine.on_device = _tensors.fill, lambda tensor: tensor.detach().cuda()
sys.modules["ptx_test"] = machine
import linear_ptx_test  # noqa: E402
import linear_recurrent_test  # noqa: E402


def on_host(method):
    """Results that are compared with those of the CPU."""

    def run(*args, **more):
        found = method(*args, **more)
        return {n: x.cpu() for n, x in found.items()} if isinstance(found, dict) else tuple(x.cpu() for x in found)

    return run


linear_recurrent_test.Case.on_machine = on_host(linear_recurrent_test.Case.on_machine)


class Chunks(linear_ptx_test.Machine):
    run_there = on_host(linear_ptx_test.Machine.run_there)
    run_back_there = on_host(linear_ptx_test.Machine.run_back_there)
    test_refusals = None  # of host tensors, which there are told apart by less

    def long(self, name, lengths, given, dims=(128, 128), heads=(1, 2), **more):
        """Chunks in all their numbers: of some thousand tokens, and with segments."""
        self.gradients(name, dims, heads, lengths, given(sum(lengths)), **more)

    def test_long_additive(self):
        self.long("retention", (1500, 1500), lambda t: {})
        self.long("simple_gla", (2100,), lambda t: {"g": -torch.rand(1, t, 2) / 8})
        self.long("simple_gla", (5000,), lambda t: {"g": -torch.rand(1, t, 2) / 8})

    def test_long_channels(self):
        self.long("gla", (1200,), lambda t: {"gk": torch.randn(1, t, 2, 128)}, bounds={"gk": 0.0098})

    def test_long_delta(self):
        own = lambda t: {"a": torch.randn(1, t, 2) - 3, "beta": torch.randn(1, t, 2), "A_log": torch.rand(2), "dt_bias": torch.randn(2)}  # noqa: E731
        for lengths in ((1300,), (4500,)):
            self.long("gated_delta", lengths, own, bounds={"A_log": 0.04, "dt_bias": 0.04})
        self.long("delta", (1300,), lambda t: {"beta": torch.randn(1, t, 2)})

    def test_kda(self):
        """Forward in chunks, backward in whichever kernel the plan has."""
        text = """return linear_attention { name = "kda", inputs = { g = { axes = {"b", "t", "hv", "d"}, grad = true },
          beta = { axes = {"b", "t", "hv"}, grad = true } }, query_mod = function(x) return l2norm(x) end, key_mod = function(x) return l2norm(x) end,
          decay = function(b, h, t, d) return g[{b, t, h, d}] end, update = delta_rule(function(b, h, t) return beta[{b, t, h}] end) }"""
        bounds = dict.fromkeys(("q", "k", "v", "initial_state", "g", "beta"), 0.0156)
        for gates in (-torch.rand(1, 300, 2, 128) / 8, -5 * torch.rand(1, 300, 2, 128)):
            self.gradients(text, (128, 128), (1, 2), (300,), {"g": gates, "beta": torch.rand(1, 300, 2)}, bounds=bounds)


class Recurrent(linear_recurrent_test.Recurrent):
    pass


class Gradients(linear_recurrent_test.Gradients):
    on_machine = on_host(linear_recurrent_test.Gradients.on_machine)

    def test_every_spec_in_bf16(self):
        """Of whichever kernels plans have for it. Sums over tokens of terms of both signs are off by more, as they are smaller than these."""
        for name in linear_recurrent_test.NAMES:
            self.compare(name, torch.bfloat16, (0, 1, 150), 64, 64, {"kda": 0.04, "linear": 0.04}.get(name, 0.0098))


class Doubles(linear_recurrent_test.Doubles):
    on_machine = on_host(linear_recurrent_test.Doubles.on_machine)

    def test_gradcheck(self):
        """Differences of what kernels compute, of every spec that has them: not of steps and flags."""
        for name in self.names:
            if name in ("hooks_of_all_kinds", "sums_in_branches"):
                continue
            case = linear_recurrent_test.Case(name, torch.float64, (3,), 8, 8, heads_v=1, packed=False, state=torch.float64)
            x = self.leaves(case, lambda t: t.cuda())
            rest = {n: t.cuda() for n, t in case.given.items() if n not in x}

            def call(*given, case=case, names=tuple(x), rest=rest):
                own = dict(zip(names, given))
                first = own.pop("first")
                return case.attention(**own, **rest, initial_state=first, output_final_state=True, state_layout="vk")

            self.assertTrue(torch.autograd.gradcheck(call, tuple(x.values())), name)


def load_tests(loader, tests, pattern):
    return unittest.TestSuite(loader.loadTestsFromTestCase(x) for x in (Chunks, Recurrent, Gradients, Doubles))


if __name__ == "__main__":
    unittest.main()
