"""eager_mods.py: mods of luattn.flex beside what eager PyTorch makes of them."""

import contextlib
import os
import sys
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
import torch  # noqa: E402
from luattn import flex  # noqa: E402
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

warnings.filterwarnings("ignore", module="torch")
N = 12


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.q, self.k, self.v = (
            torch.randn(1, 2, N, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"
        )

    def eager(self, score_mod=None, mask_mod=None):
        """FlexAttention's definition, by vmap."""
        with TransformGetItemToIndex() if torch.__version__ < "2.7" else contextlib.nullcontext():
            return self.eager_scores(score_mod, mask_mod)

    def eager_scores(self, score_mod, mask_mod):
        b, h, i, j = (torch.arange(n, dtype=torch.int32) for n in (1, 2, self.q.shape[2], N))
        s = self.q @ self.k.transpose(2, 3) * self.q.shape[-1] ** -0.5
        if score_mod is not None:
            s = theirs._vmap_for_bhqkv(score_mod, prefix=(0,))(s, b, h, i, j)
        if mask_mod is not None:
            s = s.masked_fill(~theirs._vmap_for_bhqkv(mask_mod, prefix=())(b, h, i, j), -torch.inf)
        return s.softmax(-1).nan_to_num(0) @ self.v

    def ours(self, score_mod=None, mask_mod=None):
        mask = None if mask_mod is None else flex.create_block_mask(mask_mod, None, None, self.q.shape[2], N)
        return flex.flex_attention(self.q, self.k, self.v, score_mod, mask)

    def same(self, score_mod=None, mask_mod=None, learned=(), **given):
        """given: the mods for eager PyTorch, where these differ."""
        o = self.ours(score_mod, mask_mod)
        want = self.eager(given.get("eager_score", score_mod), given.get("eager_mask", mask_mod))
        torch.testing.assert_close(o, want)
        tensors = (self.q, self.k, self.v, *learned)
        for a, b in zip(
            *(torch.autograd.grad(x.square().sum(), tensors, materialize_grads=True) for x in (o, want))
        ):
            torch.testing.assert_close(a, b)
        return o

    def refuses(self, message, score_mod=None, mask_mod=None):
        with self.assertRaisesRegex(flex.NotTranslatable, message):
            self.ours(score_mod, mask_mod)
