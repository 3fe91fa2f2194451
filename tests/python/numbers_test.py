"""numbers_test.py: what a last bit decides, by luattn.flex beside PyTorch's own evaluation of the same mods. Exits with 77 without torch."""

import os
import sys
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import torch
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn import flex  # noqa: E402

N = 48


def eager(q, k, v, mask=None, bias=None):
    """Attention in float64; a row that keeps no key gives 0."""
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1).nan_to_num(0) @ v


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(1, 2, N, 16, dtype=dtype) for _ in "qkv"]


I, J = torch.arange(N)[:, None], torch.arange(N)[None]
IMPORTANCE = (torch.arange(N) % 10).float() / 10

THRESHOLDS = {
    "data": lambda b, h, i, j: IMPORTANCE[j] >= 0.7,
    "sum of data": lambda b, h, i, j: IMPORTANCE[j] + 0.1 >= IMPORTANCE[i] * 1.1,
    "positions": lambda b, h, i, j: j <= i * 0.7,
    "shifted": lambda b, h, i, j: i * 0.1 - 0.3 >= j * 0.1,
    "quotient": lambda b, h, i, j: j / 7 <= i / 3,
    "floor": lambda b, h, i, j: torch.floor(i * 0.7) >= j,
}


class Thresholds(unittest.TestCase):
    def test_masks(self):
        q, k, v = tensors()
        for name, mod in THRESHOLDS.items():
            with self.subTest(name):
                mask = mod(0, 0, I, J).expand(N, N)
                ours = flex.flex_attention(q, k, v, block_mask=flex.create_block_mask(mod, None, None, N, N))
                self.assertLess((ours.double() - eager(q, k, v, mask)).abs().max(), 1e-5)

    def test_branches_of_scores(self):
        q, k, v = tensors()
        for name, mod in THRESHOLDS.items():
            with self.subTest(name):
                bias = mod(0, 0, I, J).expand(N, N).double()
                ours = flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + torch.where(mod(b, h, i, j), 1.0, 0.0))
                self.assertLess((ours.double() - eager(q, k, v, bias=bias)).abs().max(), 1e-5)


WIDE = 2**25 + torch.arange(N)
IDS = torch.tensor([2**40 + 1, 2**40 + 2**33 + 1, 7, 2**60 + 7])[torch.arange(N) // 12]
MILLISECONDS = 1_764_345_600_000 + torch.arange(N) // 3


class Wide(unittest.TestCase):
    def test_ids_of_64_bits(self):
        q, k, v = tensors()
        for mod in (lambda b, h, i, j: IDS[i] == IDS[j], lambda b, h, i, j: MILLISECONDS[j] <= MILLISECONDS[i]):
            mask = mod(0, 0, I, J)
            ours = flex.flex_attention(q, k, v, block_mask=flex.create_block_mask(mod, None, None, N, N))
            self.assertLess((ours.double() - eager(q, k, v, mask)).abs().max(), 1e-5)

    def test_products(self):
        q, k, v = tensors()
        bias = ((MILLISECONDS[:, None] * 2 - MILLISECONDS[None] * 2) / 8).double()
        ours = flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + (MILLISECONDS[i] * 2 - MILLISECONDS[j] * 2) / 8)
        self.assertLess((ours.double() - eager(q, k, v, bias=bias)).abs().max(), 1e-5)

    def test_differences(self):
        q, k, v = tensors()
        for times in (MILLISECONDS, MILLISECONDS.int() * 0 + 1_764_345_600 + torch.arange(N, dtype=torch.int32), 1.7e9 + torch.rand(N).double()):
            bias = -torch.log1p((times[:, None] - times[None]).abs().double())
            ours = flex.flex_attention(q, k, v, lambda s, b, h, i, j: s - torch.log1p((times[i] - times[j]).abs().float()))
            self.assertLess((ours.double() - eager(q, k, v, bias=bias)).abs().max(), 1e-5)

    def test_integers_of_32_bits_that_floats_round(self):
        q, k, v = tensors()
        times = 2**25 + torch.arange(N, dtype=torch.int32)
        exact = {
            "differences": lambda s, b, h, i, j: s - 0.1 * (times[i] - times[j]),
            "comparisons": lambda s, b, h, i, j: torch.where(times[j] > times[i], s - 1, s),
            "i64": lambda s, b, h, i, j: s - 0.1 * (WIDE[i].double() - WIDE[j].double()).float(),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, mod in exact.items():
                with self.subTest(name):
                    flex.flex_attention(q, k, v, mod)
            flex.create_block_mask(lambda b, h, i, j: times[j] <= times[i], None, None, N, N)
        with self.assertWarnsRegex(RuntimeWarning, "element 0 is 33554432, .* less than 2\\^24 = 16777216 .*; declare the input i64"):
            flex.flex_attention(q, k, v, lambda s, b, h, i, j: s - 0.1 * (times[i].float() - times[j].float()))

    def test_a_picture_of_a_mask_warns(self):
        spec = "return attention { inputs = { t = { axes = {'n'}, dtype = 'i32' } }, block_mask = function(b, h, q, kv) return t[kv] * 2 <= t[q] end }"
        with self.assertWarnsRegex(RuntimeWarning, "input 't': element 0 is 33554432"):
            luattn.attention(spec).mask(N, N, t=2**25 + torch.arange(N, dtype=torch.int32))


if __name__ == "__main__":
    unittest.main()
