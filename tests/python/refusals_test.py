"""refusals_test.py: what calls refuse by name and with what to do: float8, of a cache too, and names that a method hides. What an input without a type costs.
On the CPU. Exits with 77 without torch."""

import unittest
from unittest import mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import _spec, flash_attn

causal = luattn.attention("causal")


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class Float8(unittest.TestCase):
    def test_every_way_in(self):
        q = torch.randn(1, 2, 4, 16)
        swapped = q.transpose(1, 2)
        f, lse, bias = q.to(torch.float8_e4m3fn), q[..., 0], luattn.attention("return attention { name = 'b', inputs = { bias = { axes = {'h'}, dtype = 'any' } }, score_mod = function(s, b, h) return s + bias[h] end }")
        cases = (
            ("k", "float8_e4m3fn", lambda: causal(q, f, f)), ("q", "float8_e5m2", lambda: causal(q.to(torch.float8_e5m2), q, q)), ("v", "float8_e4m3fn", lambda: causal(q, q, f)),
            ("k", "float8_e4m3fn", lambda: causal(q, f, f, seqused_k=ints(3))), ("k", "float8_e4m3fn", lambda: causal(q, f, f, seqused_k=ints(3), block_table=ints(0)[None])),
            ("k", "float8_e4m3fn", lambda: causal.append(f, f, q, q, seqused_k=ints(0))), ("new_k", "float8_e4m3fn", lambda: causal.append(q, q, f, f, seqused_k=ints(0))),
            ("k", "float8_e4m3fn", lambda: causal.plan(q, f, f)), ("k", "float8_e4m3fn", lambda: causal.explain(q, f, f)), ("k", "float8_e4m3fn", lambda: causal.weights(q, f, f)),
            ("k", "float8_e4m3fn", lambda: luattn.Batch().prepare(causal, q, f)), ("k", "float8_e4m3fn", lambda: causal.gradients(q, q, f, f, q, lse)),
            ("k", "float8_e4m3fn", lambda: torch.compile(lambda: causal(q, f, f), backend="eager")()), ("q", "float8_e4m3fn", lambda: flash_attn.flash_attn_func(*[f.transpose(1, 2)] * 3)),
            ("k", "float8_e4m3fn", lambda: flash_attn.flash_attn_with_kvcache(swapped, *[f.transpose(1, 2)] * 2, cache_seqlens=3, causal=True)),
            ("input 'bias'", "float8_e5m2", lambda: bias(q, q, q, bias=torch.ones(2).to(torch.float8_e5m2))),
        )  # fmt: skip
        for name, dtype, call in cases:
            variable = name.removeprefix("input '").removesuffix("'")
            message = rf"{name}: has type {dtype}, and no kernel reads float8, of a cache neither: pass {variable}\.to\(torch\.bfloat16\), and multiply it by its scale"
            with self.subTest(name), self.assertRaisesRegex(luattn.InvalidError, message):
                call()


    def test_numpy(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("without ml_dtypes")
        q = torch.randn(1, 2, 4, 16).numpy()
        f = q.astype(ml_dtypes.float8_e4m3fn)
        for call in (lambda: causal(q, f, f), lambda: causal.plan(q, f, f), lambda: causal.append(f, f, q, q, seqused_k=ints(0).numpy()), lambda: causal.weights(q, f, f)):
            with self.assertRaisesRegex(luattn.InvalidError, r"k: has type float8_e4m3fn, and no kernel reads float8, .*: pass k\.astype\(numpy\.float32\), and multiply"):
                call()


class Numbers(unittest.TestCase):
    def test_of_more_than_64_bits(self):
        """Whose low bits are other numbers."""
        q = torch.randn(1, 2, 4, 16)
        packed, cu = q[0].transpose(0, 1), ints(0, 4)
        for name in ("q_offset", "kv_offset", "q_len", "kv_len", "head_offset", "heads", "heads_kv"):
            for x in (q, q.numpy()):
                with self.subTest(name), self.assertRaisesRegex(luattn.InvalidError, f"{name}: is {2**64}, expected 0 to"):
                    causal(x, x, x, **{name: 2**64})
        with self.assertRaisesRegex(luattn.InvalidError, f"max_seqlen_q: is {2**64}, expected 0 to"):
            causal(packed, packed, packed, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=2**64)


class Names(unittest.TestCase):
    def test_what_an_argument_of_one_method_hides(self):
        """The spec is called as ever, and the method says that it cannot tell its argument from the spec's."""
        q = torch.randn(1, 2, 4, 16)
        for name, method, call in (
            ("tile", "mask", lambda a: a.mask(8, 8, tile=2)), ("head", "mask", lambda a: a.mask(8, 8)), ("whole_q_len", "mask", lambda a: a.mask(8, 8)),
            ("backward", "plan", lambda a: a.plan(q, q, q, backward=True)), ("arch", "explain", lambda a: a.explain(q, q, q)), ("new_k", "append", lambda a: a.append(q, q, q, q, seqused_k=ints(0))),
            ("saved", "gradients", lambda a: a.gradients(q, q, q, q, q, q[..., 0])), ("time_limit", "tune", lambda a: a.tune(q, q, q)),
        ):  # fmt: skip
            shadowed = luattn.attention(f"return attention {{ name = 's', scalars = {{ {name} = 2 }}, block_mask = function(b, h, i, j) return i - j < {name} end }}")
            shadowed(q, q, q, **{name: 3.0})
            with self.subTest(name), self.assertRaisesRegex(luattn.InvalidError, f"s: {method}: {name}: is an argument of {method}, and a scalar of the spec too: rename"):
                call(shadowed)
        for name in ("batch", "self"):
            with self.assertRaisesRegex(luattn.InvalidError, f"'{name}' is an argument of every attention: rename what the spec declares"):
                luattn.attention(f"return attention {{ name = 's', scalars = {{ {name} = 2 }} }}")


class InputsWithoutAType(unittest.TestCase):
    def test_their_spec_is_loaded_once(self):
        made = luattn.attention("return attention { name = 'm', inputs = { bias = { axes = {'h'} } }, score_mod = function(s, b, h) return s + bias[h] end }")
        q, loaded = torch.randn(1, 2, 4, 16), _spec.Spec.__init__
        with mock.patch.object(_spec.Spec, "__init__", autospec=True, side_effect=loaded) as load:
            for _ in range(3):
                made(q, q, q, bias=torch.ones(2, dtype=torch.float64))
        self.assertEqual(load.call_count, 1)


if __name__ == "__main__":
    unittest.main()
