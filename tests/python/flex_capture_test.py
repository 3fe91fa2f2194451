"""flex_capture_test.py: what mods of luattn.flex read: nothing is stale, learned numbers have gradients, and numbers that change are arguments.
Exits with 77 where torch is not installed."""

import collections
import copy
import dataclasses
import enum
import functools
import gc
import os
import sys
import threading
import types
import unittest
import weakref

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn import flex  # noqa: E402
from luattn.flex import _programs  # noqa: E402
from eager_mods import Case, N  # noqa: E402


def number(x):
    return nn.Parameter(torch.tensor(x, dtype=torch.float64))


window = 2
temperature = number(1.5)


class Settings:
    window, cap = 2, 2.0


class Window:
    """A mask that is an object, and calls another of its methods."""

    def __init__(self, width):
        self.width = width

    def near(self, i, j):
        return i - j < self.width

    def __call__(self, b, h, i, j):
        return (i >= j) & self.near(i, j)


class Reads(Case):
    """Every value that a mod reads counts, wherever it is."""

    def test_windows(self):
        module, space = types.ModuleType("settings"), types.SimpleNamespace()
        table, objects = {}, Window(1)

        def set_to(x):
            global window
            window = Settings.window = module.window = space.window = table["window"] = objects.width = x

        for name, mod in {
            "global": lambda b, h, i, j: i - j < window,
            "class": lambda b, h, i, j: i - j < Settings.window,
            "module": lambda b, h, i, j: i - j < module.window,
            "getattr": lambda b, h, i, j: i - j < getattr(space, "win" + "dow"),
            "item": lambda b, h, i, j: i - j < table["window"],
            "object": objects,
            "method": lambda b, h, i, j: objects.near(i, j),
            "partial": functools.partial(lambda x, b, h, i, j: i - j < x["window"], table),
        }.items():
            with self.subTest(name):
                results = []
                for x in (2, 6, 3, 6):
                    set_to(x)
                    results.append(self.same(mask_mod=mod))
                self.assertFalse(torch.equal(results[0], results[1]))
                self.assertTrue(torch.equal(results[1], results[3]))

    def test_caps(self):
        for Settings.cap in (2.0, 20.0, 0.5):
            self.same(lambda s, b, h, i, j: Settings.cap * torch.tanh(s / Settings.cap))

    def test_cached_helpers(self):
        for w in (4, 9, 2):

            @functools.lru_cache
            def width():
                return w

            @functools.lru_cache
            def near(i, j):
                return i - j < w

            self.same(mask_mod=lambda b, h, i, j: i - j < width())
            self.same(mask_mod=lambda b, h, i, j: (i >= j) & near(i, j))

    def test_values_of_tensors(self):
        position = torch.tensor(0)
        for x in (3, 4, 11, 4):
            position.fill_(x)
            self.same(mask_mod=lambda b, h, i, j: j <= position.item())
            self.same(lambda s, b, h, i, j: s * int(position) if position > 3 else s)
            self.same(lambda s, b, h, i, j: s + position.tolist() * 0.5 + float(position) * i)

    def test_names_of_functions(self):
        """Mods and helpers with the names of functions that they call."""

        def relu(score, b, h, i, j):
            return torch.relu(score)

        def softplus(score, b, h, i, j):
            return torch.nn.functional.softplus(score)

        def abs(score, b, h, i, j):
            return score - (i - j).abs()

        for mod in (relu, softplus, abs):
            self.same(mod)

    def test_slots_properties_and_descriptors(self):
        class Slots:
            __slots__ = ("x",)

            @property
            def twice(self):
                return self.x * 2

            def __getattr__(self, name):
                return self.x if name == "any" else super().__getattribute__(name)

        slots = Slots()
        for slots.x in (0.5, 1.5):
            self.same(lambda s, b, h, i, j: s * slots.x + slots.twice * i + slots.any)

    def test_a_layer(self):
        """The most usual way to write one: a mod that is a method, and a mask that reads self."""

        class Layer(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.width, self.slopes = width, nn.Parameter(torch.rand(2, dtype=torch.float64))
                self.inner = nn.ModuleList([nn.Linear(1, 1).double()])

            def alibi(self, score, b, h, i, j):
                return score - self.slopes[h] * (i - j).abs() * self.inner[0].weight[0, 0]

            def near(self, b, h, i, j):
                return (i - j).abs() <= self.width // 2

            def forward(self, q, k, v):
                mask = flex.create_block_mask(self.near, None, None, N, N)
                return flex.flex_attention(q, k, v, self.alibi, mask)

        for width in (4, 8):
            layer = Layer(width)
            layer(self.q, self.k, self.v)
            for one in (layer, copy.deepcopy(layer)):
                torch.testing.assert_close(one(self.q, self.k, self.v), self.eager(one.alibi, one.near))
            self.same(layer.alibi, layer.near, (layer.slopes, layer.inner[0].weight))


class Learned(Case):
    """A tensor is an input with its gradient, wherever it is."""

    def test_steps_of_an_optimizer(self):
        listed, named = nn.ParameterList([number(0.5), number(1.5)]), nn.ParameterDict({"t": number(1.5)})
        held = type("Held", (), {"t": number(0.5)})
        cases = {
            "ParameterList": (listed[1], lambda s, b, h, i, j: s * listed[1]),
            "ParameterDict": (named["t"], lambda s, b, h, i, j: s * named["t"]),
            "class": (held.t, lambda s, b, h, i, j: s * held.t),
            "global": (temperature, lambda s, b, h, i, j: s * temperature),
            "computed": (temperature, lambda s, b, h, i, j: s * torch.exp(temperature) + temperature.sin() * i),
        }
        for name, (x, mod) in cases.items():
            with self.subTest(name):
                optimizer = torch.optim.SGD([x], lr=0.1)
                for _ in range(3):
                    self.same(mod, learned=[x])
                    self.ours(mod).square().sum().backward()
                    self.assertGreater(x.grad.abs().item(), 0)
                    optimizer.step()
                    optimizer.zero_grad()

    def test_containers(self):
        @dataclasses.dataclass
        class Config:
            width: int
            cap: float
            t: torch.Tensor

        for width, cap in ((2, 0.5), (5, 1.5), (7, 2.5)):
            c = Config(width, cap, number(cap))
            box = [c.t, {"w": width}, (cap, collections.OrderedDict(t=c.t))]
            for mod in (
                lambda s, b, h, i, j: s * c.t + c.cap * (i < c.width),
                lambda s, b, h, i, j: s * box[0] + (i < box[1]["w"]) * box[2][0] + box[2][1]["t"],
            ):
                self.same(mod, lambda b, h, i, j: i - j < c.width, learned=[c.t])

    def test_what_is_computed_of_captured_tensors(self):
        table, order = nn.Parameter(torch.randn(2, N, dtype=torch.float64)), torch.randperm(N)
        for mod in (
            lambda s, b, h, i, j: s + table.cumsum(1)[h, j] - table.softmax(-1)[h, i],
            lambda s, b, h, i, j: s + table[:, order][h, j] * table[0, 3] + table[table > 0].sum(),
            lambda s, b, h, i, j: s + sum(table[n % 2, n] * (j == n) for n in range(N)),
            lambda s, b, h, i, j: s + torch.tensor([0.5, 2.0], dtype=torch.float64)[h] * torch.arange(N)[i],
        ):
            self.same(mod, learned=[table])

    def test_another_parameter_in_its_place(self):
        class Holder(nn.Module):
            pass

        holder = Holder()
        for x in (number(0.5), number(2.0), torch.tensor(3.0, dtype=torch.float64)):
            holder.t = x if isinstance(x, nn.Parameter) else None
            holder.u = x
            self.same(lambda s, b, h, i, j: s * (holder.u if holder.t is None else holder.t))
            del holder.t, holder.u

    def test_a_tensor_of_no_elements(self):
        table, nothing = torch.randn(2, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        self.same(lambda s, b, h, i, j: s + table[h] * (nothing.numel() + 1) + nothing.sum())
        self.same(lambda s, b, h, i, j: s + (nothing == j).sum() + (nothing * s).sum() + torch.searchsorted(nothing, s))
        self.same(mask_mod=lambda b, h, i, j: (nothing == j).any() | (nothing != i).all() & (i >= j))
        mod = lambda s, b, h, i, j: torch.where(i < 0, s + nothing[i], s)  # noqa: E731
        with self.assertRaisesRegex(ValueError, r"flex_capture_test.py:\d+: .*: input .x0.: reads an element of .* shape \(0,\)"):
            self.ours(mod)
        self.q = self.q[:, :, :0]
        self.assertEqual(self.ours(mod).shape, self.q.shape)

    @unittest.skipIf(torch.__version__ < "2.7", "vmap of this torch has no layer_norm of one row")
    def test_layers(self):
        """nn.Module on values."""
        mlp = nn.Sequential(nn.Linear(1, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)).double()

        def mod(s, b, h, i, j):
            return s + mlp((i - j)[None].double()).softmax(-1)[h]

        self.same(mod, learned=list(mlp.parameters()))


class Once(Case):
    """A call runs a mod once, the first one too."""

    def test_python_that_counts(self):
        numbers = iter([1.0, 2.0, 3.0, 4.0])
        _programs.clear()
        for n in (1.0, 2.0, 3.0):
            o = self.ours(lambda s, b, h, i, j: s + next(numbers) * (i - j))
            torch.testing.assert_close(o, self.eager(lambda s, b, h, i, j: s + n * (i - j)))
        self.assertEqual(next(numbers), 4.0)

    def test_numbers_that_no_argument_can_be(self):
        for width in (1, 2, 3):
            self.same(lambda s, b, h, i, j: s + (j >> width))
        self.assertTrue(all(len(program.varying) == 0 for program in _programs._programs.values() if program.fixed))


class Stops(Case):
    """detach(), no_grad() and data are constants to backward."""

    def mods(self):
        x = self.x = number(0.7)

        def no_grad(s, b, h, i, j):
            with torch.no_grad():
                rounded = torch.floor(s * 4 * x) / 4 - s
            return s * x + rounded

        def element(s, b, h, i, j):
            pair = torch.stack([x * 2, x * 3])
            first = pair[0]
            with torch.no_grad():
                stopped = pair[1] + first
            return s * stopped + first * (i - j)

        def decorated(s, b, h, i, j):
            return s + torch.no_grad()(lambda: s * x)()

        return (
            lambda s, b, h, i, j: s + (torch.floor(s * 4) / 4 - s).detach(),
            lambda s, b, h, i, j: s + (s.clamp(-0.1, 0.1) - s).detach() * x,
            lambda s, b, h, i, j: s * x.detach() + x,
            no_grad,
            element,
            decorated,
        )

    def test_eager(self):
        for mod in self.mods():
            o, want = self.ours(mod), self.eager(mod)
            torch.testing.assert_close(o, want)
            found, wanted = (
                torch.autograd.grad(y.square().sum(), (self.q, self.k, self.x), materialize_grads=True)
                for y in (o, want)
            )
            for a, b in zip(found, wanted):
                torch.testing.assert_close(a, b)

    def test_compiled(self):
        for mod in self.mods()[:-1]:  # torch 2.6 does not know no_grad() around a lambda
            torch._dynamo.reset()
            run = torch.compile(flex.flex_attention, backend="aot_eager", fullgraph=True)
            o, want = run(self.q, self.k, self.v, mod), self.ours(mod)
            found, wanted = (
                torch.autograd.grad(y.square().sum(), (self.q, self.x), materialize_grads=True)
                for y in (o, want)
            )
            for a, b in zip(found, wanted):
                torch.testing.assert_close(a, b)

    def test_under_no_grad_and_in_inference_mode(self):
        x = number(0.7)
        mod = lambda s, b, h, i, j: s * x + s.detach()  # noqa: E731
        want = self.eager(mod)
        for mode in (torch.no_grad, torch.inference_mode):
            _programs.clear()
            with mode():
                torch.testing.assert_close(self.ours(mod), want)
            self.same(mod, learned=[x])

    def test_a_function_with_a_backward_of_its_own(self):
        """Gradients are those of what it computes."""

        class Twice(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(s):
                return s * 2

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        self.same(lambda s, b, h, i, j: Twice.apply(s) + i)

    def test_writes_that_pass_detach_by(self):
        def written(s, b, h, i, j):
            s.detach().mul_(2)
            return s

        def of_no_grad(s, b, h, i, j):
            with torch.no_grad():
                s *= 2
            return s

        self.refuses(r"flex_capture_test.py:\d+: mul_ writes into what detach\(\) returned", written)
        self.refuses(r"flex_capture_test.py:\d+: mul_+ writes in place under torch.no_grad\(\)", of_no_grad)


class Steps(Case):
    def test_checkpoint_of_the_first_step(self):
        for make in (
            lambda x: lambda s, b, h, i, j: s + x[h] * (i - j),
            lambda x: lambda s, b, h, i, j: s + x.exp()[h] * (i - j),
        ):
            _programs.clear()
            x = nn.Parameter(torch.randn(2, dtype=torch.float64))
            mod = make(x)

            def block(q):
                return flex.flex_attention(q.sin(), self.k, self.v, mod).square()

            found = torch.autograd.grad(checkpoint(block, self.q, use_reentrant=False).sum(), (self.q, x))
            for a, b in zip(found, torch.autograd.grad(block(self.q).sum(), (self.q, x))):
                torch.testing.assert_close(a, b)

    def test_a_trace_saves_nothing(self):
        saved, x = [], number(0.5)
        _programs.clear()
        q, k, v = (t.detach() for t in (self.q, self.k, self.v))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
            flex.flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s * x) * s)
        self.assertLessEqual(len(saved), 7)

    def test_threads(self):
        """First calls at once."""
        found, errors = [], []

        def work(n):
            try:
                for w in range(1, 9):
                    mod = [lambda b, h, i, j: i - j < w + n, lambda b, h, i, j: (i >= j) & (i % (n + 2) < w)][w % 2]
                    x = torch.randn(1, 2, N, 8, dtype=torch.float64)
                    mask = flex.create_block_mask(mod, None, None, N, N)
                    i, j = torch.arange(N)[:, None], torch.arange(N)[None]
                    s = (x @ x.transpose(2, 3) / 8**0.5).masked_fill(~mod(0, 0, i, j), -torch.inf)
                    want = s.softmax(-1).nan_to_num(0) @ x
                    torch.testing.assert_close(flex.flex_attention(x, x, x, block_mask=mask), want)
                found.append(n)
            except Exception as e:  # noqa: BLE001
                errors.append(e)

        _programs.clear()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((errors, len(found)), ([], 6))


class Numbers(Case):
    def test_a_decode_loop_has_two_specs(self):
        """And tiles are skipped as with a constant."""
        self.q = torch.randn(1, 2, 1, 8, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(2, 2 * N, dtype=torch.float64)
        _programs.clear()
        for offset in (0, 1, 2, 5, 11):
            self.same(
                lambda s, b, h, i, j: s + bias[h, i + offset - j + N],
                lambda b, h, i, j: (i + offset >= j) & (i + offset - j < 5),
            )
        self.assertEqual(len(_programs.specs()), 2)
        constant, lifted = _programs.specs()
        self.assertEqual([x.dtype for x in lifted.inputs].count("int64"), 1)
        spec = (
            "return attention {{ inputs = {{ x = {{ axes = {{}}, dtype = 'i32' }} }}, "
            "block_mask = function(b, h, q, kv) return q + {0} >= kv and q + {0} - kv < 300 end }}"
        )
        pictures = [
            str(luattn.attention(spec.format(n)).mask(1024, 4096, x=np.array(3000, dtype=np.int32)))
            for n in ("x", "3000")
        ]
        self.assertEqual(*pictures)

    def test_numbers_that_no_spec_has_as_arguments(self):
        """Each value is a spec."""
        table = torch.randn(2, 6, dtype=torch.float64)
        for n in (1, 2, 3):
            self.same(lambda s, b, h, i, j: s + table[h, :n].sum() + table.narrow(1, n, 2)[h, 1],
                eager_score=lambda s, b, h, i, j: s + table[:, :n].sum(1)[h] + table[:, n + 1][h])

    def test_arguments_that_would_be_clamped(self):
        """What is an error of PyTorch stays one where a number has become an argument."""
        table = torch.randn(2, 3, dtype=torch.float64)
        for n in (0, 1, 2, -1, -3):
            self.same(
                lambda s, b, h, i, j: s + table[h, n] * table[1, n],
                eager_score=lambda s, b, h, i, j: s + table[:, n][h] * table[1, n],
            )
        for n in (3, -4):
            for mod in (lambda s, b, h, i, j: s + table[h, n], lambda s, b, h, i, j: s + table[..., n][h]):
                self.refuses("IndexError: index .* is out of bounds for dimension", mod)
        for n in (2, 3, -5):
            self.same(lambda s, b, h, i, j: s + i % n + j // n)
        with self.assertRaisesRegex(luattn.Error, "an integer is divided by zero"):
            n = 0
            self.ours(lambda s, b, h, i, j: s + i % n + j // n)

    def test_powers(self):
        for n in (2, 3, 5, 1, 4, 0):
            self.same(lambda s, b, h, i, j: s + s**n + torch.pow(s, n) + (i - j) ** n * 0.125)
        for x in (0.5, 2.0, 3.0, 1.5):
            self.same(lambda s, b, h, i, j: s + (s.abs() + 0.1) ** x + x**s + (1 + i) ** x)
        for x in (2.0, 3.0, 1.0):
            self.same(lambda s, b, h, i, j: s + s**x)

    def test_few_specs_are_kept(self):
        _programs.clear()
        most, _programs._MOST = _programs._MOST, 8
        loaded = weakref.WeakSet()
        try:
            for n in range(12):
                table = torch.arange(N + n)
                self.same(mask_mod=lambda b, h, i, j: table[i] >= j)
                loaded.update(_programs.specs())
            self.assertLessEqual(len(_programs.specs()), 8)
            gc.collect()
            self.assertLessEqual(len(loaded), 9)  # and one that the last call has used
        finally:
            _programs._MOST = most

    def test_numbers_of_numpy_and_enums(self):
        class Size(enum.IntEnum):
            small, large = 3, 7

        for width, slope, size in (
            (np.array([3, 7]).max(), np.float32(0.25), Size.large),
            (np.int64(5), np.float64(0.5), Size.small),
            (np.array(4), np.float16(2), np.uint8(9)),
        ):
            self.same(
                lambda s, b, h, i, j: s - slope * (i - j) + (j < size) * 0.5,
                lambda b, h, i, j: (i >= j) & (i - j < width) | (width > i),
                eager_score=lambda s, b, h, i, j: s - float(slope) * (i - j) + (j < int(size)) * 0.5,
                eager_mask=lambda b, h, i, j: (i >= j) & (i - j < int(width)) | (int(width) > i),
            )

    def test_equal_numbers_of_other_types(self):
        """1, 1.0 and True are equal in Python, and -0.0 is 0.0."""
        for x in (1, 1.0, True, 2, 2.0, 0.0, -0.0, 0):
            self.same(lambda s, b, h, i, j: s + torch.where(i > j, s * 0 + x, 1 + (i * 3) // 2))
        for x in (0.0, -0.0):
            self.same(lambda s, b, h, i, j: s + torch.where(1 / torch.full_like(s, x) > 0, 1.0, 2.0))

    def test_alpha(self):
        """A sum with a factor of its own may be negative, and counts from the end then."""
        table = torch.randn(2 * N, dtype=torch.float64)
        for alpha in (-1, 1, -2):
            self.same(lambda s, b, h, i, j: s + table[torch.add(i, j, alpha=alpha) % N - N])
        self.same(lambda s, b, h, i, j: s + table[torch.add(i, j, alpha=-1)])
        self.same(lambda s, b, h, i, j: s + table[torch.sub(j, i, alpha=2)])


if __name__ == "__main__":
    unittest.main()
