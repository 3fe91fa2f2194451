"""linear_recurrent_test.py: linear attention token by token, on the PTX machine (tests/ptx/run.sh), beside the CPU in float64: every spec of
tests/specs/linear. Exits with 77 without torch or NVRTC."""

import itertools
import os
import unittest

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
from linear_ptx_test import there
from ptx_test import on_device

SPECS = f"{ROOT}/tests/specs/linear"
NAMES = sorted(name.removesuffix(".lua") for name in os.listdir(SPECS))
ROUNDED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.004, torch.float16: 0.001}  # relative, root mean square
NAN = float("nan")


def _input(info, sizes, per_token):
    """Made up as the specs' authors would: gates at most 0, steps and factors of a sane size."""
    axes = [int(a) if a.isdigit() else sizes.get(a, 5) for a in info.axes]
    if per_token and "t" in info.axes:
        axes = [1 if a == "b" else n for a, n in zip(info.axes, axes)]
    if str(info.dtype) == "bool":
        return torch.rand(axes) < 0.5
    if "32" in str(info.dtype) and "int" in str(info.dtype):
        return torch.randint(0, 6, axes, dtype=torch.int32)
    x = torch.rand(axes)
    if info.name in ("g", "A"):
        return -x / 8
    return 0.5 + x / 3 if info.name == "decay" else x - 0.3


class Case:
    """Tensors of a call: entries of these lengths, packed or of one length."""

    def __init__(self, name, dtype, lengths, K, V, heads=1, heads_v=2, packed=True, layout="vk", state=torch.float32, pool=None):
        self.attention = luattn.linear_attention(f"{SPECS}/{name}.lua")
        self.name, self.dtype, self.packed, self.layout, self.pool = name, dtype, packed, layout, pool
        entries, total = len(lengths), sum(lengths) + 3 if packed else lengths[0]
        batch = 1 if packed else entries
        sizes = {"b": entries, "t": total, "h": heads, "hv": heads_v, "d": K, "dv": V}
        self.given = {info.name: _input(info, sizes, packed) for info in self.attention.inputs}
        if dtype is torch.float64:
            self.given = {n: x.double() if x.is_floating_point() else x for n, x in self.given.items()}
        self.q, self.k = ((torch.randn(batch, total, heads, K) / K**0.5).to(dtype) for _ in range(2))
        self.v = torch.randn(batch, total, heads_v, V).to(dtype)
        self.ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32) if packed else None
        if packed:
            for t in (self.q, self.k, self.v):
                t[:, sum(lengths) :] = NAN  # rows of nobody
        dims = (V + self.attention._spec.normalizes, K)
        rows = entries if pool is None else max(pool) + 2
        self.first = (torch.rand(rows, heads_v, *(dims if layout == "vk" else dims[::-1])) / 4).to(state)

    def _rows(self):
        return None if self.pool is None else torch.tensor(self.pool, dtype=torch.int32)

    def on_cpu(self):
        final = self.first.double().clone()
        o = self.attention(
            self.q.double(), self.k.double(), self.v.double(), cu_seqlens=self.ends, initial_state=self.first.double(), final_state=final,
            state_layout=self.layout, state_indices=self._rows(), **self.given,
        )  # fmt: skip
        return o, final

    @there
    def on_machine(self, in_place=True):
        first = on_device(self.first)
        final = first if in_place else on_device(torch.full_like(self.first, 7))
        ends, rows = (None if t is None else on_device(t) for t in (self.ends, self._rows()))
        o = self.attention(
            *map(on_device, (self.q, self.k, self.v)), cu_seqlens=ends, initial_state=first, final_state=final, state_layout=self.layout,
            state_indices=rows, **{name: on_device(x) for name, x in self.given.items()},
        )  # fmt: skip
        return o, final


def off(found, want):
    wrong = float((found.double() - want).norm())
    return wrong if wrong == 0 else wrong / float(want.norm())


class Recurrent(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def compare(self, *args, in_place=True, **more):
        case = Case(*args, **more)
        (o, final), (want_o, want_final) = case.on_machine(in_place), case.on_cpu()
        most = ROUNDED[case.dtype]
        self.assertEqual(o.dtype, case.dtype)
        self.assertLessEqual(off(o, want_o), most, f"{args}: o")
        rows = sorted(set(case.pool or range(len(final))) - {-1})
        self.assertLessEqual(off(final[rows], want_final[rows]), ROUNDED[final.dtype], f"{args}: state")
        rest = [i for i in range(len(final)) if i not in rows]
        before = case.first if in_place else torch.full_like(case.first, 7)
        self.assertTrue(torch.equal(final[rest], before[rest]), f"{args}: rows of nobody")

    def test_every_spec(self):
        for name in NAMES:
            if name not in ("hooks_of_all_kinds",):
                self.compare(name, torch.float32, (0, 1, 17, 65), 32, 24)
        self.compare("hooks_of_all_kinds", torch.float32, (0, 1, 17), 32, 24)

    def test_types_and_dims(self):
        for name, dtype, K, V in (
            ("gated_delta", torch.bfloat16, 128, 128), ("kda", torch.float16, 64, 40), ("rwkv7", torch.bfloat16, 256, 16),
            ("linear", torch.float16, 16, 256), ("mamba2", torch.bfloat16, 72, 64), ("comba", torch.float32, 256, 256),
        ):  # fmt: skip
            self.compare(name, dtype, (3, 20), K, V)

    def test_states(self):
        for layout, state in itertools.product(("vk", "kv"), (torch.float32, torch.bfloat16, torch.float16)):
            self.compare("gla", torch.float32, (5, 1), 64, 32, layout=layout, state=state)
            self.compare("linear", torch.float32, (4,), 24, 40, layout=layout, state=state, packed=False)

    def test_pools(self):
        self.compare("delta", torch.bfloat16, (4, 0, 2, 3), 64, 64, pool=[5, 2, -1, 0])
        self.compare("delta", torch.bfloat16, (4, 4), 64, 64, pool=[-1, 1], packed=False, in_place=False)

    def test_turns(self):
        """Blocks that have one value head after another, some of nobody, and rows of several batches."""
        pool = [*range(3, 20), -1, 0, 1]
        self.compare("kda", torch.float32, (1, 0, 3, 40, *[1] * 16), 32, 72, layout="kv", pool=pool)
        self.compare("linear", torch.float32, (2,) * 20, 32, 72, packed=False, state=torch.bfloat16)

    def test_lengths(self):
        self.compare("gated_delta", torch.float32, (0, 0), 64, 64)
        self.compare("gated_delta", torch.float32, (1, 1), 64, 64, packed=False, in_place=False)


class Steps(unittest.TestCase):
    """Few tokens of many states, whose parts TMA copies: eight parts for each multiprocessor, of which LUATTN_PTX_BLOCKS=1 leaves one."""

    setUp, compare = Recurrent.setUp, Recurrent.compare

    def test_states(self):
        for layout, state in itertools.product(("vk", "kv"), (torch.float32, torch.bfloat16, torch.float16)):
            self.compare("gla", torch.float32, (1,) * 4, 64, 40, layout=layout, state=state)
            self.compare("rwkv7", torch.float32, (2,) * 4, 24, 72, layout=layout, state=state, packed=False)

    def test_hooks(self):
        for name in ("comba", "mamba2", "hooks_of_all_kinds", "sums_in_branches"):
            self.compare(name, torch.float32, (1,) * 4, 32, 24)

    def test_lengths(self):
        """Rows come by batches of a few tokens; an entry may have none, and a state goes to another one."""
        self.compare("kda", torch.float32, (0, 1, 19, 4, 5, 0), 32, 72, layout="kv")
        self.compare("gated_delta", torch.float32, (9, 0, 0, 3), 64, 40, in_place=False)
        self.compare("gated_delta", torch.float32, (0,) * 4, 32, 24)

    def test_pools(self):
        for in_place in (True, False):
            self.compare("delta", torch.bfloat16, (4, 0, 2, 3, 1), 64, 64, pool=[5, 2, -1, 0, 3], in_place=in_place)
            self.compare("delta", torch.bfloat16, (3,) * 4, 128, 64, pool=[-1, 1, -1, 4], packed=False, in_place=in_place)

    def test_wide(self):
        self.compare("gated_delta", torch.bfloat16, (1, 3), 128, 256)
        self.compare("gated_delta", torch.bfloat16, (1, 3), 256, 128, layout="kv", state=torch.bfloat16)

    def test_one_token(self):
        """States along K are of small blocks, of fewer channels where these are float."""
        for state in (torch.float32, torch.bfloat16, torch.float16):
            self.compare("gated_delta", torch.bfloat16, (1,) * 4, 64, 40, state=state, packed=False)
        self.compare("rwkv7", torch.float32, (1,) * 4, 24, 72, state=torch.bfloat16, packed=False)
        self.compare("delta", torch.bfloat16, (1,) * 4, 128, 64, pool=[-1, 1, -1, 4], packed=False, in_place=False)

    def test_same_bits_as_token_by_token(self):
        """States whose lines TMA does not copy, as they begin at no multiples of 16 bytes, are walked by another kernel."""
        cases = ("gated_delta", "vk", 3, torch.float32), ("kda", "kv", 3, torch.float32), ("kda", "vk", 1, torch.bfloat16)
        for name, layout, tokens, state in (*cases, ("gated_delta", "vk", 1, torch.float32)):
            case = Case(name, torch.bfloat16, (tokens,) * 4, 64, 40, packed=False, layout=layout, state=state)
            o, final = case.on_machine()
            wider = torch.zeros(*case.first.shape[:-1], case.first.shape[-1] + 1, dtype=state)
            wider[..., :-1] = case.first
            case.first = wider[..., :-1]
            also, also_final = case.on_machine()
            self.assertTrue(torch.equal(o, also) and torch.equal(final, also_final), name)


class Tokens(unittest.TestCase):
    """Two to eight tokens of many states of bf16 along K, by tensor cores; LUATTN_PTX_BLOCKS=1 as above."""

    setUp = Recurrent.setUp

    def compare(self, name, dtype, lengths, K, V, in_place=True, **more):
        Recurrent.compare(self, name, dtype, lengths, K, V, in_place=in_place, packed=False, state=torch.bfloat16, **more)

    def test_tokens(self):
        for tokens in range(2, 9):
            self.compare("gated_delta", torch.bfloat16, (tokens,) * 4, 64, 40)

    def test_dims(self):
        self.compare("gated_delta", torch.bfloat16, (4,) * 4, 128, 128)
        self.compare("gated_delta", torch.float16, (7,) * 4, 40, 136)

    def test_other_bits(self):
        """States that begin at no multiples of 16 bytes are walked token by token, with other roundings: the others are not."""
        for tokens in (2, 8):
            case = Case("gated_delta", torch.bfloat16, (tokens,) * 4, 64, 40, packed=False, state=torch.bfloat16)
            o, final = case.on_machine()
            wider = torch.zeros(*case.first.shape[:-1], case.first.shape[-1] + 1, dtype=torch.bfloat16)
            wider[..., :-1] = case.first
            case.first = wider[..., :-1]
            also, also_final = case.on_machine()
            self.assertFalse(torch.equal(o, also) and torch.equal(final, also_final), "the kernel for few tokens was not taken")

    def test_hooks(self):
        for name in ("comba", "mamba2", "simple_gla"):
            for tokens in (2, 3, 8):
                self.compare(name, torch.bfloat16, (tokens,) * 4, 32, 24)

    def test_pools(self):
        for tokens in (4, 6):
            for in_place in (True, False):
                self.compare("delta", torch.bfloat16, (tokens,) * 4, 128, 64, pool=[-1, 1, -1, 4], in_place=in_place)

    def test_lines_apart(self):
        """States whose lines do not follow one another have the same bits."""
        for tokens in (2, 8):
            case = Case("gated_delta", torch.bfloat16, (tokens,) * 4, 64, 40, packed=False, state=torch.bfloat16)
            o, final = case.on_machine()
            wider = torch.zeros(*case.first.shape[:-1], case.first.shape[-1] + 8, dtype=torch.bfloat16)
            wider[..., :-8] = case.first
            case.first = wider[..., :-8]
            also, also_final = case.on_machine()
            self.assertTrue(torch.equal(o, also) and torch.equal(final, also_final))

    def test_gone(self):
        """What has decayed to nothing is gone, were it infinite."""
        for tokens in (3, 7):
            case = Case("simple_gla", torch.bfloat16, (tokens,) * 4, 32, 24, packed=False, state=torch.bfloat16)
            case.given = {name: torch.full_like(x, -torch.inf) for name, x in case.given.items()}
            o, final = case.on_machine()
            case.first = torch.full_like(case.first, torch.inf)
            also, also_final = case.on_machine()
            self.assertTrue(torch.isfinite(o).all() and torch.equal(o, also) and torch.equal(final, also_final))


class Gradients(unittest.TestCase):
    """Of every class, beside the CPU in float64."""

    def setUp(self):
        torch.manual_seed(11)

    def leaves(self, case, put):
        """q, k, v, the first state, and inputs that the spec marks."""
        marked = {info.name for info in case.attention.inputs if info.grad}
        named = {"q": case.q, "k": case.k, "v": case.v, "first": case.first, **{n: x for n, x in case.given.items() if n in marked}}
        return {name: put(x).requires_grad_() for name, x in named.items()}

    def gradients(self, case, put, ways):
        x = self.leaves(case, put)
        ends, rest = None if case.ends is None else put(case.ends), {n: put(t) for n, t in case.given.items() if n not in x}
        o, final = case.attention(
            x["q"], x["k"], x["v"], cu_seqlens=ends, initial_state=x["first"], output_final_state=True, state_layout=case.layout, **rest,
            **{n: x[n] for n in case.given if n in x},
        )  # fmt: skip
        keep = slice(None) if case.ends is None else slice(int(case.ends[-1]))
        dout = torch.zeros(o.shape, dtype=o.dtype)
        dout[:, keep] = ways[0][:, keep].to(o.dtype)
        found = torch.autograd.grad([o, final], list(x.values()), [put(dout), put(ways[1].to(final.dtype))])
        return dict(zip(x, found))

    @there
    def on_machine(self, case, ways):
        return self.gradients(case, on_device, ways)

    def compare(self, name, dtype, lengths, K, V, most, **more):
        case = Case(name, dtype, lengths, K, V, **more)
        if case.ends is not None:
            for t in (case.q, case.k, case.v):
                t[:, int(case.ends[-1]) :] = 1
        ways = torch.randn(case.v.shape), torch.randn(case.first.shape) / 4
        wide = lambda t: t.double().clone() if t.is_floating_point() else t  # noqa: E731
        ways = ways[0].to(dtype), ways[1]
        found, want = self.on_machine(case, ways), self.gradients(case, wide, ways)
        for one in want:
            self.assertLessEqual(off(found[one], want[one]), most, f"{name}: d{one}")

    def test_every_spec(self):
        for name in NAMES:
            self.compare(name, torch.float32, (0, 1, 37) if name != "hooks_of_all_kinds" else (0, 1, 17), 32, 24, 3e-5)

    def test_types_and_dims(self):
        for name, dtype, K, V, layout in (("kda", torch.bfloat16, 128, 128, "kv"), ("rwkv7", torch.float16, 64, 40, "vk"), ("linear", torch.float32, 256, 72, "kv")):
            self.compare(name, dtype, (3, 9), K, V, 0.006, layout=layout, heads=2, heads_v=2)

    def test_same_bits(self):
        case = Case("kda", torch.bfloat16, (20,), 32, 32, packed=False)
        ways = torch.randn(case.v.shape).bfloat16(), torch.randn(case.first.shape)
        one, two = (self.on_machine(case, ways) for _ in range(2))
        for name in one:
            self.assertTrue(torch.equal(one[name], two[name]), name)


class Nobody(unittest.TestCase):
    """Gradients of entries without a row of states are 0, and others' what they are without these; LUATTN_PTX_BLOCKS=1 runs one block
    after another, so that what one writes to the place of another is seen."""

    @there
    def on_machine(self, case, dout):
        return self.gradients(case, on_device, dout)

    def gradients(self, case, put, dout):
        x = {n: put(t).requires_grad_() for n, t in (("q", case.q), ("k", case.k), ("v", case.v), ("first", case.first))}
        o = case.attention(
            x["q"], x["k"], x["v"], initial_state=x["first"], state_layout="vk", state_indices=put(case._rows()),
            **{name: put(t) for name, t in case.given.items()},
        )  # fmt: skip
        return dict(zip(x, torch.autograd.grad([o], list(x.values()), [put(dout.to(o.dtype))])))

    def test_rows_of_nobody(self):
        torch.manual_seed(3)
        for name, dtype, most in (("normalized_skip", torch.bfloat16, 0.006), ("gla", torch.float32, 1e-5)):
            case = Case(name, dtype, (37,) * 4, 32, 24, packed=False, pool=[0, 1, 2, -1])
            dout = torch.randn(case.v.shape)
            found, want = self.on_machine(case, dout), self.gradients(case, lambda t: t.double().clone() if t.is_floating_point() else t, dout)
            for one in want:
                self.assertLessEqual(off(found[one], want[one]), most, f"{name}: d{one}")
                self.assertFalse(found[one][3].any(), f"{name}: d{one}")


class Doubles(Recurrent, Gradients):
    """Of q, k, v, states and inputs in float64, which AttentionEngine's names have none of: theirs are float32."""

    names = [name for name in NAMES if not name.endswith("_ae")]

    test_pools = test_turns = test_lengths = test_types_and_dims = test_same_bits = test_wide = None

    def test_every_spec(self):
        for name in self.names:
            Recurrent.compare(self, name, torch.float64, (0, 1, 9), 32, 24, state=torch.float64)
            Gradients.compare(self, name, torch.float64, (0, 1, 9), 16, 40, 1e-12, state=torch.float64)

    def test_dims(self):
        for name, K, V, layout in (("kda", 128, 24, "kv"), ("linear", 8, 256, "kv")):
            Recurrent.compare(self, name, torch.float64, (2, 6), K, V, layout=layout, state=torch.float64)
            Gradients.compare(self, name, torch.float64, (5,), K, V, 1e-12, layout=layout, state=torch.float64)

    def test_states(self):
        for state in (torch.float32, torch.bfloat16):
            Recurrent.compare(self, "gla", torch.float64, (5, 1), 64, 32, state=state)

    def test_rings(self):
        case = Case("retention", torch.float64, (2,), 32, 32, packed=False)
        with self.assertRaisesRegex(luattn.Unsupported, "target: dtype: is f64, and kernels of rings compute in f32"):
            Ring.steps(self, case, torch.float32, 4, [(1, 1)], "vk")


class Ring(unittest.TestCase):
    """A run over steps of a few tokens, of which some are taken back, beside one over the accepted tokens alone."""

    def setUp(self):
        torch.manual_seed(9)

    @there
    def steps(self, case, ring_type, rows, tries, layout, pitch=0):
        state = on_device(case.first)
        ring = case.attention.ring(state, len(case.first), state_layout=layout, rows=rows, dtype=ring_type)
        if pitch > 0:
            *outer, width = ring.decays.shape
            ring.decays = torch.zeros(*outer, pitch)[..., :width]
        for name in ("k", "u", "e", "y", "decays", "used"):
            if getattr(ring, name) is not None:
                setattr(ring, name, on_device(getattr(ring, name)))
        begin, o, accepted = 0, [], []
        for tried, kept in tries:
            at = slice(begin, begin + tried)
            given = {info.name: case.given[info.name][:, at] if "t" in info.axes else case.given[info.name] for info in case.attention.inputs}
            mine = case.attention.step(
                *(on_device(t[:, at].contiguous()) for t in (case.q, case.k, case.v)), state, state_layout=layout, ring=ring,
                **{name: on_device(x.contiguous()) for name, x in given.items()},
            )  # fmt: skip
            o.append(mine[:, :kept].clone())
            accepted += range(begin, begin + kept)
            ring.accept(kept)
            begin += tried
        return torch.cat(o, 1), accepted, ring, state

    def compare(self, name, dtype, ring_type, K, V, rows, tries, layout="vk", most=1e-5, entries=2, state=torch.float32):
        case = Case(name, dtype, [sum(tried for tried, _ in tries)] * entries, K, V, packed=False, layout=layout, state=state)
        o, accepted, _, _ = self.steps(case, ring_type, rows, tries, layout)
        for t in ("q", "k", "v"):
            setattr(case, t, getattr(case, t)[:, accepted])
        case.given = {info.name: x[:, accepted] if "t" in info.axes else x for info, x in zip(case.attention.inputs, case.given.values())}
        want, _ = case.on_cpu()
        self.assertLessEqual(off(o, want), most, name)

    def test_rollback(self):
        tries = [(1, 1), (3, 2), (4, 0), (2, 2), (4, 4), (4, 1), (1, 1), (3, 3)]
        for name in ("gated_delta", "kda", "rwkv7", "comba", "simple_gla", "gla", "mamba2", "delta", "retention"):
            self.compare(name, torch.float32, torch.float32, 64, 40, 5, tries)
        self.compare("gated_delta", torch.bfloat16, torch.bfloat16, 128, 128, 16, [(1, 1)] * 20, "kv", 0.006)
        self.compare("rwkv7", torch.float32, torch.float32, 256, 72, 8, tries, "kv")

    def test_states_of_half_precision(self):
        """Those of bfloat16 along K have a kernel of their own, which reads them exactly; folding a full ring rounds them once."""
        for name in ("gated_delta", "rwkv7", "comba"):
            self.compare(name, torch.float32, torch.float32, 72, 40, 8, [(1, 1), (3, 2), (4, 4)], state=torch.bfloat16)
        for name in ("kda", "retention"):
            self.compare(name, torch.float32, torch.float32, 64, 24, 3, [(2, 2), (2, 1), (3, 3)], most=0.004, state=torch.bfloat16)
        self.compare("gated_delta", torch.float32, torch.float32, 128, 256, 16, [(9, 9)], state=torch.bfloat16)

    def test_states_in_other_orders(self):
        self.compare("kda", torch.float32, torch.float32, 32, 48, 4, [(1, 1), (2, 2)], "kv", state=torch.bfloat16)
        self.compare("kda", torch.float32, torch.float32, 64, 48, 4, [(1, 1), (2, 2)], state=torch.float16)

    def test_turns(self):
        self.compare("rwkv7", torch.float32, torch.float32, 32, 72, 5, [(2, 2)] * 3, entries=20)

    def test_decays_between_others(self):
        """Rows of channels are read by 16 bytes, numbers of tokens alone."""
        for name, pitch in (("kda", 36), ("gated_delta", 3)):
            case = Case(name, torch.float32, [2, 2], 32, 32, packed=False)
            o, *_ = self.steps(case, torch.float32, 4, [(1, 1), (1, 1)], "vk", pitch)
            self.assertLessEqual(off(o, case.on_cpu()[0]), 1e-5, name)
        case = Case("kda", torch.float32, [2, 2], 32, 32, packed=False)
        with self.assertRaisesRegex(luattn.InvalidError, "ring_decays: its rows do not all begin at multiples of 16 bytes; make it contiguous"):
            self.steps(case, torch.float32, 4, [(1, 1), (1, 1)], "vk", 33)

    def test_state_is_read_alone(self):
        case = Case("gated_delta", torch.float32, [3, 3], 32, 32, packed=False)
        _, _, ring, state = self.steps(case, torch.float32, 4, [(2, 2), (1, 1)], "vk")
        self.assertTrue(torch.equal(state, case.first))
        self.assertEqual(ring.used.tolist(), [3, 3])

    def test_refusals(self):
        case = Case("gated_delta", torch.float32, [6, 6], 32, 32, packed=False)
        with self.assertRaisesRegex(luattn.InvalidError, "q: has 6 tokens, and a ring of 4 rows takes at most 4 a step; split them"):
            self.steps(case, torch.float32, 4, [(6, 6)], "vk")
        with self.assertRaisesRegex(luattn.InvalidError, "ring_k: has 40 rows, expected 1 to 32"):
            self.steps(case, torch.float32, 40, [(1, 1)], "vk")
        with self.assertRaisesRegex(luattn.InvalidError, "normalised"):
            self.steps(Case("linear", torch.float32, [1, 1], 32, 32, packed=False), torch.float32, 4, [(1, 1)], "vk")
        for given, words in (
            ({"rows": 1.5}, "ring: rows: "), ({"rows": 0}, "ring: rows: is 0, expected at least 1"),
            ({"dtype": torch.float64}, "ring: dtype: .*give torch.float32"), ({"dtype": "bf16"}, "ring: dtype: "),
        ):  # fmt: skip
            with self.subTest(given), self.assertRaisesRegex(luattn.InvalidError, words):
                case.attention.ring(case.first, 2, state_layout="vk", **given)
        for tokens in (3, -1):
            with self.subTest(tokens), self.assertRaisesRegex(luattn.InvalidError, f"ring: accept: tokens: is {tokens}, and the last step had 2; give 0 to 2"):
                self.steps(case, torch.float32, 4, [(2, tokens)], "vk")
        ring = case.attention.ring(case.first, 2, state_layout="vk")
        with self.assertRaisesRegex(luattn.Unsupported, "ring: q is on the CPU"):
            case.attention.step(case.q[:, :1], case.k[:, :1], case.v[:, :1], case.first, state_layout="vk", ring=ring, **{n: x[:, :1] if x.dim() > 1 else x for n, x in case.given.items()})


if __name__ == "__main__":
    unittest.main()
