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


def empty(q, shape, dtype):
    """Memory of the machine that nobody has written: NaN."""
    t = torch.empty(tuple(shape), dtype=dtype)
    t.reshape(-1).view(torch.uint8).fill_(255)
    return on_device(t)


def there(test):
    """Tensors of the machine's memory lie on GPU 0."""
    for name, value in (("fill", fill), ("gpu_of", lambda t: 0), ("stream_of", lambda gpu: 0)):
        test = mock.patch.object(_tensors, name, value)(test)
    return mock.patch.object(_torch_linear, "empty", empty)(test)


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
    def test_unaligned(self):
        """Rows that TMA cannot read are copied."""
        attention = luattn.linear_attention(f"{SPECS}/retention.lua")
        wide = [on_device(rows(1, 70, 1, 68)) for _ in range(3)]
        q, k, v = (t[..., 4:] for t in wide)
        o = attention(q, k, v)
        self.assertTrue(torch.equal(o, attention(*(on_device(t.contiguous()) for t in (q, k, v)))))

    def gradients(self, name, dims, heads, lengths, given, packed=False, states=True, bounds={}, once=False):
        """Of all that has one, beside those of the CPU in float64 from the same rounded tensors."""
        attention = luattn.linear_attention(name if "return" in name else f"{SPECS}/{name}.lua")
        marked = {one.name for one in attention.inputs if one.grad} | set(attention.scalars)
        (dim, dim_v), (h, hv) = dims, heads
        batch, total, entries = (1, sum(lengths) + 3, len(lengths)) if packed else (len(lengths), lengths[0], len(lengths))
        of = {"q": rows(batch, total, h, dim, size=dim**-0.5), "k": rows(batch, total, h, dim, size=dim**-0.5), "v": rows(batch, total, hv, dim_v)}
        dout = [rows(batch, total, hv, dim_v)]
        if packed:
            for x in (*of.values(), *dout):
                x[:, -3:] = torch.nan  # rows of nobody
        if states:
            of["initial_state"] = torch.randn(entries, hv, dim_v, dim) / 8
            dout.append(torch.randn(entries, hv, dim_v, dim) / 8)
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) if packed else None
        want = self.run_back(attention, marked, {n: x.double() for n, x in of.items()}, [x.double() for x in dout], ends, given, lambda x: x.clone())
        found = self.run_back_there(attention, marked, of, dout, ends, given, once)
        self.assertEqual(list(found), list(want))
        for what, a in found.items():
            most = bounds.get(what, 0.0098 if name == "gated_delta" or name == "delta" else 0.006)
            self.assertTrue((a.double() - want[what]).norm() <= most * want[what].norm(), (what, (a.double() - want[what]).norm() / want[what].norm()))
        return found

    def run_back(self, attention, marked, of, dout, ends, given, put, **how):
        there = {n: put(x) for n, x in of.items()}
        own = {n: put(x) for n, x in given.items()}
        for n, x in (*there.items(), *own.items()):
            x.requires_grad_(n in there or n in marked)
        states = {"state_layout": "vk", "output_final_state": True} if "initial_state" in of else {}
        made = attention(**there, **own, **states, **how, cu_seqlens=None if ends is None else put(ends))
        leaves = {n: x for n, x in (*there.items(), *own.items()) if x.requires_grad}
        outputs = made if states else [made]
        return dict(zip(leaves, torch.autograd.grad(outputs, list(leaves.values()), [put(x) for x in dout])))

    @there
    def run_back_there(self, attention, marked, of, dout, ends, given, once=False):
        first = self.run_back(attention, marked, of, dout, ends, given, on_device)
        # What forward has kept is what backward computes else.
        again = first if once else self.run_back(attention, marked, of, dout, ends, given, on_device, recompute=True)
        for n, x in first.items():
            self.assertTrue(torch.equal(x, again[n]), n)
        return first

    def test_gradients(self):
        self.gradients("retention", (64, 64), (1, 2), (70, 0, 3), {}, packed=True)
        self.gradients("simple_gla", (128, 64), (1, 2), (130,), {"g": -torch.rand(1, 130, 2) / 8})
        own = {"dt": torch.randn(1, 77, 2), "dt_bias": torch.randn(2), "A_log": torch.rand(2), "D": torch.randn(2)}
        self.gradients("mamba2", (64, 64), (1, 2), (4, 70), own, packed=True)

    def test_gradients_of_groups(self):
        """Where a block adds up the value heads of a head of q and k: steps of Mamba-2; what skips, of a number a token; rows of v that a
        kernel makes, which skip as they were; decays of heads, and none."""
        own = {"dt": torch.randn(1, 140, 6), "dt_bias": torch.randn(6), "A_log": torch.rand(6), "D": torch.randn(6)}
        self.gradients("mamba2", (128, 64), (2, 6), (70, 0, 3, 64), own, packed=True, bounds={"A_log": 0.02, "dt_bias": 0.02})
        text = """return linear_attention { name = "skips", inputs = { D = { axes = {"b", "t", "hv"}, grad = true }, c = { axes = {"dv"}, grad = true } },
          %s decay = function(b, h) return -0.1 * h end,
          skip = function(x, b, h, t, d) return D[{b, t, h}] * c[d] * x end }"""
        for mod in ("", "value_mod = function(x) return x * x end,"):
            self.gradients(text % mod, (72, 40), (1, 3), (70,), {"D": torch.randn(1, 70, 3), "c": torch.randn(40)})
        self.gradients('return linear_attention { name = "plain" }', (96, 8), (1, 2), (65, 65), {})

    def test_gradients_of_segments_of_groups(self):
        text = """return linear_attention { name = "segments", inputs = { g = { axes = {"b", "t", "hv"}, grad = true } },
          decay = function(b, h, t) return g[{b, t, h}] end }"""
        g = torch.nn.functional.logsigmoid(torch.randn(1, 2048, 1)) / 16
        self.gradients(text, (72, 8), (1, 1), (2048,), {"g": g}, bounds=dict.fromkeys(("q", "k", "v", "initial_state", "g"), 0.0078), once=True)

    def test_gradients_of_strong_decays(self):
        g = torch.where(torch.rand(1, 130, 1) < 0.5, -20.0, 0.0)
        self.gradients("simple_gla", (64, 64), (1, 1), (130,), {"g": g}, states=False)

    def test_gradients_of_the_delta_rule(self):
        own = {"a": torch.randn(1, 100, 2), "beta": torch.randn(1, 100, 2), "A_log": torch.rand(2), "dt_bias": torch.randn(2)}
        # Sums over tokens of terms of both signs are off by more, as they are smaller than these.
        self.gradients("gated_delta", (64, 64), (1, 2), (100,), own, bounds={"A_log": 0.04, "dt_bias": 0.04})

    def test_gradients_of_segments(self):
        """Of a sequence that both chains cut, whose maps they share."""
        text = """return linear_attention { name = "segments", inputs = { g = { axes = {"b", "t", "hv"}, grad = true },
          beta = { axes = {"b", "t", "hv"}, grad = true } }, key_mod = function(x) return l2norm(x) end,
          decay = function(b, h, t) return -g[{b, t, h}] end,
          update = delta_rule(function(b, h, t) return beta[{b, t, h}] end) }"""
        own = {"g": torch.rand(1, 3072, 1) / 16, "beta": torch.rand(1, 3072, 1)}
        bounds = dict.fromkeys(("q", "k", "v", "initial_state", "g", "beta"), 0.0098)
        self.gradients(text, (64, 64), (1, 1), (3072,), own, bounds=bounds, once=True)

    def test_gradients_of_segments_of_channels(self):
        """The same where decays differ between channels, of updates that add and that erase."""
        text = """return linear_attention { name = "segments", inputs = { g = { axes = {"b", "t", "hv", "d"}, grad = true }%s },
          decay = function(b, h, t, d) return g[{b, t, h, d}] end%s }"""
        beta = (""", beta = { axes = {"b", "t", "hv"}, grad = true }""", ", update = delta_rule(function(b, h, t) return beta[{b, t, h}] end)")
        for more, bound in (("", ""), 0.0078), (beta, 0.0112):
            own = {"g": torch.nn.functional.logsigmoid(torch.randn(1, 3072, 1, 64)) / 16}
            if more is beta:
                own["beta"] = torch.rand(1, 3072, 1)
            self.gradients(text % more, (64, 64), (1, 1), (3072,), own, bounds=dict.fromkeys(("q", "k", "v", "initial_state", *own), bound), once=True)

    def test_gradients_of_channels(self):
        """Decays that differ between these: of elements, and of sums over a token's channels, and over tokens."""
        self.gradients("gla", (64, 64), (1, 2), (100,), {"gk": torch.randn(1, 100, 2, 64)})
        self.gradients("gla", (40, 72), (2, 2), (70, 0, 3), {"gk": 4 - 8 * torch.rand(1, 76, 2, 40)}, packed=True, bounds={"gk": 0.0078})
        text = """return linear_attention { name = "channels", scalars = { c = 0.1 },
          inputs = { a = { axes = {"b", "t", "hv"}, grad = true }, w = { axes = {"hv", "d"}, grad = true } },
          query_mod = function(x) return l2norm(x) end,
          key_mod = function(x) return x * 0.5 end,
          decay = function(b, h, t, d) return -c * sigmoid(a[{b, t, h}] + w[{h, d}]) end }"""
        own = {"c": torch.tensor(0.1), "a": torch.randn(1, 70, 2), "w": torch.randn(2, 64)}
        self.gradients(text, (64, 64), (1, 2), (70,), own, bounds={"a": 0.0078, "w": 0.0156, "c": 0.0156})

    def test_gradients_of_channels_that_erase(self):
        """Of KDA, whose writes and reads are one number of a token, and rows of length 1."""

        def own(rows, hv, dim):
            return {"a": torch.randn(1, rows, hv, dim), "beta": torch.randn(1, rows, hv), "A_log": torch.rand(hv), "dt_bias": torch.randn(hv, dim)}

        bounds = dict.fromkeys(("q", "k", "v", "initial_state", "beta"), 0.0098)
        # Of strong gates as of weak ones: what does not cross a decay leaves nothing in its gradient. Numbers of a head are sums over all
        # of it of terms of both signs, and smaller than these.
        bounds |= {"a": 0.0098, "dt_bias": 0.0098, "A_log": 0.04, "bound": 0.04}
        self.gradients("kda", (64, 64), (1, 2), (100,), own(100, 2, 64) | {"bound": torch.tensor(-0.3)}, bounds=bounds)
        self.gradients("kda", (40, 72), (2, 2), (70, 0, 3), own(76, 2, 40), packed=True, bounds=bounds)

    def test_gradients_of_mods(self):
        """Of sums over channels, scalars, gathers, what skips, and of an input that broadcasts."""
        text = """return linear_attention { name = "mods", scalars = { c = 1.5 },
          inputs = { tab = { axes = {"far"}, grad = true }, D = { axes = {"hv"}, grad = true }, w = { axes = {"b", "t", "hv"}, grad = true } },
          query_mod = function(x, b, h, t, d) return l2norm(x) + tab[t] end,
          key_mod = function(x) return tanh(c * x) end,
          value_mod = function(x, b, h, t, d) return x * x * c + tab[d] end,
          decay = function(b, h, t) return -0.1 * c end,
          update = { write = function(b, h, t) return w[{b, t, h}] end },
          skip = function(x, b, h, t, d) return D[h] * x end }"""
        own = {"c": torch.tensor(1.5), "tab": torch.randn(80) / 4, "D": torch.randn(2), "w": torch.rand(1, 70, 2) + 0.2}
        self.gradients(text, (64, 64), (1, 2), (70,), own)
        own["w"] = torch.rand(1, 70, 1) + 0.2
        self.gradients(text, (64, 64), (1, 2), (70, 70), own)

    @there
    def test_decays_that_are_nan(self):
        """Stay so in o and in the state."""
        for name, of, axes in (("simple_gla", "g", (1,)), ("gla", "gk", (1, 64))):
            decay = torch.zeros(1, 20, *axes)
            decay[:, 5] = torch.nan
            qkv = (on_device(rows(1, 20, 1, 64)) for _ in range(3))
            o, state = luattn.linear_attention(f"{SPECS}/{name}.lua")(*qkv, output_final_state=True, state_layout="vk", **{of: on_device(decay)})
            self.assertTrue(o[:, 5:].isnan().all() and state.isnan().all(), name)

    @there
    def test_gradients_without_an_entry(self):
        """Of rows of no sequence are 0, where there is none at all, too."""
        sevens = lambda q, shape, dtype: on_device(torch.full(tuple(shape), 7, dtype=dtype))  # noqa: E731
        with mock.patch.object(_torch_linear, "empty", sevens):
            for dtype in (half, torch.float32):
                qkv = [on_device(torch.randn(1, 5, 1, 64).to(dtype)).requires_grad_() for _ in range(3)]
                o = luattn.linear_attention(f"{SPECS}/retention.lua")(*qkv, cu_seqlens=on_device(torch.zeros(1, dtype=torch.int32)))
                for x in torch.autograd.grad(o, qkv, on_device(torch.ones(o.shape, dtype=dtype))):
                    self.assertFalse(x.any(), dtype)

    @there
    def test_refusals(self):
        attention = luattn.linear_attention(f"{SPECS}/retention.lua")
        q, k, v = (on_device(rows(1, 8, 1, 64)) for _ in range(3))
        with self.assertRaisesRegex(luattn.InvalidError, r"cu_seqlens: is .*give a torch tensor"):
            attention(q, k, v, cu_seqlens=[0, 8])
        with self.assertRaisesRegex(luattn.InvalidError, r"cu_seqlens: is .*give an int32 or int64 tensor"):
            attention(q, k, v, cu_seqlens=torch.tensor([0.0, 8.0]))
        with self.assertRaisesRegex(luattn.Unsupported, r"target: head_dim: is 60, and kernels of linear attention take multiples of 8 up to 256"):
            attention(*(on_device(torch.randn(1, 8, 1, 60)) for _ in range(3)))


if __name__ == "__main__":
    unittest.main()
