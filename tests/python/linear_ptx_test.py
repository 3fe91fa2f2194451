"""linear_ptx_test.py: luattn.linear_attention of tensors on a GPU, on the PTX machine (tests/ptx/run.sh), as ptx_test.py has it. Exits with
77 without torch or NVRTC."""

import unittest
from unittest import mock

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
from luattn import _tensors, _torch_linear
from ptx_test import fill, on_device

SPECS = f"{ROOT}/tests/specs/linear"
half = torch.bfloat16


def there(test):
    """Tensors of the machine's memory lie on GPU 0."""
    for name, value in (("fill", fill), ("gpu_of", lambda t: 0), ("stream_of", lambda gpu: 0)):
        test = mock.patch.object(_tensors, name, value)(test)
    return mock.patch.object(_torch_linear, "empty", lambda q, shape, dtype: on_device(torch.zeros(tuple(shape), dtype=dtype)))(test)


def rows(*shape, size=1.0):
    return (torch.randn(*shape) * size).to(half)


class Machine(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def compare(self, name, heads, heads_v, lengths, given, packed):
        """Beside the CPU, in float64 from the same rounded tensors."""
        attention = luattn.linear_attention(f"{SPECS}/{name}.lua")
        batch, total, entries = (1, sum(lengths), len(lengths)) if packed else (len(lengths), lengths[0], len(lengths))
        q, k = (rows(batch, total, heads, 64, size=0.125) for _ in range(2))
        v, first = rows(batch, total, heads_v, 64), torch.randn(entries, heads_v, 64, 64) / 8
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) if packed else None
        states = {"state_layout": "vk", "output_final_state": True}
        want = attention(q.double(), k.double(), v.double(), cu_seqlens=ends, initial_state=first.double(), **states, **given)
        found = self.run_there(attention, (q, k, v), ends, first, states, given)
        self.assertEqual(found[0].dtype, half)
        self.assertEqual(found[1].dtype, torch.float32)
        for what, a, b, most in (("o", found[0], want[0], 0.005), ("state", found[1], want[1], 0.003)):
            self.assertLess((a.double() - b).norm() / b.norm(), most, what)

    @there
    def run_there(self, attention, qkv, ends, first, states, given):
        to = {name: on_device(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        return attention(*map(on_device, qkv), cu_seqlens=None if ends is None else on_device(ends), initial_state=on_device(first), **states, **to)

    def test_beside_the_cpu(self):
        self.compare("retention", 2, 2, (70, 70), {}, False)
        self.compare("retention", 1, 2, (70, 0, 3), {}, True)
        self.compare("simple_gla", 1, 2, (100,), {"g": -torch.rand(1, 100, 2) / 8}, False)
        own = {"dt": torch.randn(1, 74, 2), "dt_bias": torch.randn(2), "A_log": torch.rand(2), "D": torch.randn(2)}
        self.compare("mamba2", 1, 2, (4, 70), own, True)

    @there
    def test_refusals(self):
        attention = luattn.linear_attention(f"{SPECS}/retention.lua")
        q, k, v = (on_device(rows(1, 8, 1, 64)) for _ in range(3))
        with self.assertRaisesRegex(luattn.Unsupported, r"retention: v: requires a gradient, and linear attention has kernels of forward alone on a GPU"):
            attention(q, k, v.requires_grad_())
        v = v.detach()
        with self.assertRaisesRegex(luattn.InvalidError, r"cu_seqlens: is .*give a torch tensor"):
            attention(q, k, v, cu_seqlens=[0, 8])
        with self.assertRaisesRegex(luattn.InvalidError, r"cu_seqlens: is .*give an int32 or int64 tensor"):
            attention(q, k, v, cu_seqlens=torch.tensor([0.0, 8.0]))
        with self.assertRaisesRegex(luattn.Unsupported, r"target: dtype: is f64, and kernels of linear attention compute in f32"):
            attention(*(on_device(torch.randn(1, 8, 1, 64).double()) for _ in range(3)))


if __name__ == "__main__":
    unittest.main()
