"""flex_test.py: luattn.flex beside FlexAttention: masks and score mods of attention-gym, gradients of captured tensors, refusals.
Exits with 77 where torch or attention-gym is not installed."""

import functools
import math
import os
import sys
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import attn_gym.masks as masks
    import attn_gym.mods as mods
    import torch
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn import flex  # noqa: E402
from luattn.flex import _attention, _programs  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

warnings.filterwarnings("ignore", module="torch")
N = 128
offsets = torch.tensor([0, 20, 21, 70, N])
prefixes = torch.tensor([0, 0, 0, 2])
flags = torch.zeros(N, dtype=torch.bool)
flags[torch.tensor([3, 77])] = True
parents = [-1, 0, 0, 1, 1, 2]
intervals = torch.tensor([[0, 9], [9, 40], [40, 64], [64, N]])

MASKS = {
    "causal": lambda: masks.causal_mask,
    "noop": lambda: theirs.noop_mask,
    "batchify": lambda: masks.batchify_mask_mod(masks.causal_mask, 24),
    "block_diffusion": lambda: masks.generate_block_diffusion_mask(N // 2, 8),
    "dilated": lambda: masks.generate_dilated_sliding_window(30, 3),
    "document": lambda: masks.generate_doc_mask_mod(masks.causal_mask, offsets),
    "packed_causal_document": lambda: masks.generate_packed_causal_doc_mask_mod(offsets),
    "flamingo": lambda: masks.generate_vision_cross_attention_mask_mod(intervals, 32),
    "global_sliding": lambda: masks.generate_global_sliding_window(5, flags),
    "jetspec_tree": lambda: masks.generate_jetspec_tree_causal_mask_mod(
        N - 6, masks.build_tree_ancestor_matrix(parents, "cpu")
    ),
    "jetspec_training": lambda: masks.generate_jetspec_training_mask_mod(32, 8),
    "natten": lambda: masks.generate_natten(16, 8, 5, 3),
    "tiled_natten": lambda: masks.generate_tiled_natten(16, 8, 5, 3, 4, 4),
    "morton_natten": lambda: masks.generate_morton_natten(16, 8, 5, 3),
    "prefix_lm": lambda: masks.generate_prefix_lm_mask(33),
    "shared_prefix": lambda: masks.generate_shared_prefix_mask_mod(offsets, prefixes),
    "sliding_window": lambda: masks.generate_sliding_window(17),
    "sta_2d": lambda: masks.generate_sta_mask_mod_2d((8, 16), (6, 12), (2, 4)),
    "sta_3d": lambda: masks.generate_sta_mask_mod_3d((4, 4, 8), (2, 6, 6), (2, 2, 2)),
    "spatial_head": lambda: masks.generate_spatial_head_mask_mod(8, 10, 12),
    "vsa": lambda: masks.generate_vsa_mask_mod(torch.tensor([[[[0, 2], [1, 3], [0, 1], [2, 3]]]]), 32),
    "temporal_head": lambda: masks.generate_temporal_head_mask_mod(8, 10, 12),
}
HEADS, LENGTH = 4, 24
adjacency = torch.rand(2, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.15
distances = mods.shortest_path_distances(adjacency, 4)
edge_types, edge_lengths = mods.shortest_path_edge_types(
    adjacency, torch.randint(0, 3, adjacency.shape, dtype=torch.int32), 3
)


def parameter(*shape):
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()


def graphormer_edges():
    table = parameter(HEADS, 3, 3)
    return mods.generate_graphormer_edge_bias(table, edge_types, edge_lengths), [table]


# name: a mod, and its parameters.
SCORES = {
    "alibi": lambda: (mods.generate_alibi_bias(HEADS), []),
    "softcap": lambda: (mods.generate_tanh_softcap(20), []),
    "softcap_approx": lambda: (mods.generate_tanh_softcap(20, approx=True), []),
    "sandwich": lambda: (mods.generate_sandwich_bias(HEADS, LENGTH), []),
    "graphormer_spatial": lambda: (
        lambda table: (mods.generate_graphormer_spatial_bias(table, distances), [table])
    )(parameter(HEADS, 6)),
    "graphormer_edge": graphormer_edges,
    "activation_gelu": lambda: (mods.generate_activation_score_mod(), []),
    "activation_relu": lambda: (mods.generate_activation_score_mod(torch.nn.functional.relu), []),
    "activation_sigmoid": lambda: (mods.generate_activation_score_mod(torch.sigmoid), []),
    "mla_rope": lambda: (
        lambda rows, keys: (mods.generate_mla_rope_score_mod(rows, keys, HEADS), [rows, keys])
    )(parameter(2, HEADS, LENGTH, 8), parameter(2, 1, LENGTH, 8)),
}
# The others have N queries, as keys.
QUERIES = {"jetspec_tree": len(parents)}


def kept(mask_mod, n):
    """Which scores a mask keeps: equal weights, and values that tell keys apart."""
    q, k = (torch.zeros(1, 1, m, 8, dtype=torch.float64) for m in (n, N))
    mask = flex.create_block_mask(mask_mod, None, None, n, N, device="cpu")
    return flex.flex_attention(q, k, torch.eye(N, dtype=torch.float64)[None, None], block_mask=mask)[0, 0] > 0


def reference(q, k, v, score_mod, mask):
    """FlexAttention's definition, by vmap."""
    b, h, i, j = (torch.arange(n) for n in (*q.shape[:3], k.shape[2]))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = theirs._vmap_for_bhqkv(score_mod, prefix=(0,))(
        q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, b, h, i, j
    )
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


class Gym(unittest.TestCase):
    def test_masks_bit_for_bit(self):
        for name, make in MASKS.items():
            with self.subTest(name):
                mod = make()
                n = QUERIES.get(name, N)
                self.assertTrue(
                    torch.equal(kept(mod, n), theirs.create_mask(mod, 1, 1, n, N, device="cpu")[0, 0])
                )

    def test_every_mask_of_the_gym_is_tested(self):
        generators = {n for n in dir(masks) if n.startswith("generate_")}
        self.assertEqual(len(generators), len(MASKS) - 3, generators)  # and causal, noop, batchify

    def test_scores_and_gradients(self):
        torch.manual_seed(3)
        for name, make in SCORES.items():
            with self.subTest(name):
                mod, parameters = make()
                q = torch.randn(2, HEADS, LENGTH, 8, dtype=torch.float64, requires_grad=True)
                k, v = (torch.randn(2, 2, LENGTH, 8, dtype=torch.float64, requires_grad=True) for _ in "kv")
                mask = flex.create_block_mask(masks.causal_mask, None, None, LENGTH, LENGTH)
                run = functools.partial(flex.flex_attention, q, k, v, mod, mask, enable_gqa=True)
                tensors = [q, k, v, *parameters]
                causal = torch.ones(LENGTH, LENGTH).tril().bool()
                want, want_lse = reference(q, k, v, mod, causal)
                o, lse = run(return_lse=True)
                torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(lse, want_lse, atol=1e-5, rtol=1e-5)
                weights = torch.randn_like(o)
                found = torch.autograd.grad((o * weights).sum() + lse.sum(), tensors)
                for a, b in zip(found, torch.autograd.grad((want * weights).sum() + want_lse.sum(), tensors)):
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


class Mods(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.q, self.k, self.v = (
            torch.randn(2, 2, 12, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"
        )

    def same(self, mod, **given):
        want, _ = reference(self.q, self.k, self.v, mod, None)
        torch.testing.assert_close(flex.flex_attention(self.q, self.k, self.v, mod, **given), want)

    def test_a_negative_index_wraps(self):
        table = torch.randn(7, dtype=torch.float64)
        self.same(lambda s, b, h, i, j: s + table[(i - j) % 7 - 3])
        self.same(lambda s, b, h, i, j: s + table[-1] + table[h - 2])
        rows = torch.randn(2, 12, dtype=torch.float64)
        self.same(lambda s, b, h, i, j: s + rows[h][j] * rows[b][-2])

    def test_operations(self):
        one, many = torch.tensor(0.7, dtype=torch.float64), torch.randint(0, 9, (2, 12))
        for mod in (
            lambda s, b, h, i, j: torch.where((i > 3) & ~(j == 2) | (h == 1), s * one, s.abs() + 2),
            lambda s, b, h, i, j: s.clamp(-0.5, 0.5) + s.clamp(min=0.1) * s.clamp(max=0.2),
            lambda s, b, h, i, j: s + (i > j) * 2.0 + (i > j).to(torch.float64) + ((i == j) ^ (h == 0)) * 0.5,
            lambda s, b, h, i, j: (
                s**2 - 1 / (s.square() + 2) + (s.clamp(-9, 9) * 3).to(torch.int64) + s.sigmoid() + (-s).exp2()
            ),
            lambda s, b, h, i, j: s + torch.maximum(i, j) // 3 + (i - j) // 5 + (i & 3) + (i >> 1),
            lambda s, b, h, i, j: s + ((i & 15) ^ (j & 31)) + ((j & 15) << 1),
            lambda s, b, h, i, j: s + many[b, i] / 7 - torch.floor(many[b, j] / 2),
            lambda s, b, h, i, j: 2 - torch.rsub(s, h, alpha=2) + torch.zeros_like(s) + s.new_ones(()),
            lambda s, b, h, i, j: (
                torch.tan(s.clamp(-1, 1))
                + torch.sign(s - 0.1)
                + torch.nn.functional.gelu(s, approximate="tanh")
            ),
        ):
            self.same(mod)

    def test_rows_of_captured_tensors(self):
        """Whatever has axes on the way to one number."""
        points, table = parameter(12, 3), parameter(2, 4, 5)
        flags, order = torch.randint(0, 2, (2, 12, 4)) > 0, torch.tensor([3, 0, 2])
        for mod in (
            lambda s, b, h, i, j: s * torch.exp(-(points[i] - points[j]).pow(2).sum(-1).add(0.1).sqrt()),
            lambda s, b, h, i, j: s + torch.dot(points[i], points[j]) - points[i].norm(),
            lambda s, b, h, i, j: s + (table[h] @ points.new_ones(5)).amax() + table[h, :, 2].mean(),
            lambda s, b, h, i, j: (
                s + (table[h][order] * 2).sum() + table[h, 1:3, i % 5].prod() + table[h].t()[2:].max()
            ),
            lambda s, b, h, i, j: torch.where(flags[b, i].any() & flags[h, j, :3].all(), s, s - 1),
            lambda s, b, h, i, j: s + table[..., h, 0].sum() - table[None, h, 1, 2:].sum(),
            lambda s, b, h, i, j: s + (torch.arange(5) * table[h, 0] - 1).sum() + table.view(8, 5)[3 + h, -1],
            lambda s, b, h, i, j: (
                s + (table[h].unsqueeze(0) * points[i].view(3, 1, 1)).sum((1, 2)).min() * flags[b, i, 0]
            ),
            lambda s, b, h, i, j: (
                s + table[h].max(dim=1).values[i % 4] + table[h].sum(0, keepdim=True)[0, j % 5]
            ),
        ):
            want, _ = reference(self.q, self.k, self.v, mod, None)
            o = flex.flex_attention(self.q, self.k, self.v, mod)
            torch.testing.assert_close(o, want)
            tensors = (self.q, self.k, points, table)
            grads = (
                torch.autograd.grad(x.square().sum(), tensors, materialize_grads=True) for x in (o, want)
            )
            for a, b in zip(*grads):
                torch.testing.assert_close(a, b)

    def test_pages(self):
        """An integer of a tensor times a size, in a score and in a mask, does not need more than 32 bits."""
        pages = torch.tensor([[1, 0, 2], [2, 1, 0]], dtype=torch.int32)

        def logical(b, kv):
            return pages[b, kv // 4] * 4 + kv % 4

        self.same(lambda s, b, h, i, j: torch.where(logical(b, j) >= 0, s + (i - logical(b, j)), -torch.inf))
        mask = flex.create_block_mask(lambda b, h, i, j: i >= logical(b, j), 2, None, 12, 12)
        keep = logical(torch.arange(2)[:, None, None, None], torch.arange(12)) <= torch.arange(12)[:, None]
        want, _ = reference(self.q, self.k, self.v, lambda s, b, h, i, j: s, keep)
        torch.testing.assert_close(flex.flex_attention(self.q, self.k, self.v, block_mask=mask), want)
        self.assertIn("max(min(", flex.to_lua(mask.mask_mod))

    def test_numbers_that_change_are_scalars(self):
        """From its second value on a number is an argument, and another one no other spec."""
        _programs.clear()

        def scaled(factor, cap):
            return lambda s, b, h, i, j: torch.tanh(s * factor / cap) * cap + torch.where(i < j, s, factor)

        def outer(mod, shift):
            return lambda s, b, h, i, j: mod(s, b, h, i, j) + shift * (i - j)

        def decides(x):
            return lambda s, b, h, i, j: s * math.sqrt(x) if x > 0 else s + math.floor(x)

        for count, mod in (
            (1, scaled(0.5, 3.0)),
            (2, scaled(1.5, 0.0 + 2.0)),
            (2, scaled(2.5, 1.0)),
            (3, scaled(1.25, 1.25)),  # one scalar for what is equal
            (3, scaled(2.25, 2.25)),
            (4, outer(scaled(1.5, 2.0), -0.25)),
            (5, outer(scaled(2.5, 2.0), 0.5)),
            (6, decides(2.0)),
            (7, decides(3.0)),
            (7, decides(5.0)),
            (8, decides(-1.5)),
            (9, scaled(1e-50, 2.0)),  # less than kernels have
        ):
            self.same(mod)
            self.assertEqual(len(_programs.specs()), count)
        text = [spec.text for spec in _programs.specs()][1]
        self.assertIn("scalars = { c0 = 1.5, c1 = 2.0 }", text)

    def test_tensors_of_no_dimensions(self):
        """They are inputs, with gradients; a number on the CPU goes along with any device."""
        temperature, shift = parameter(1)[0].detach().requires_grad_(), torch.tensor(3)
        mod = lambda s, b, h, i, j: s * temperature + shift * (i == j)  # noqa: E731
        want, _ = reference(self.q, self.k, self.v, mod, None)
        o = flex.flex_attention(self.q, self.k, self.v, mod)
        torch.testing.assert_close(o, want)
        torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), temperature) for x in (o, want)))

    def test_a_long_mod(self):
        def mod(s, b, h, i, j):
            for n in range(120):
                s = s * 0.99 + torch.tanh(s + 0.01 * torch.maximum(j - n, i))
            return s

        self.same(mod)

    def test_to_lua(self):
        slopes = torch.ones(2)
        self.assertEqual(
            flex.to_lua(lambda score, b, h, q, kv: score + slopes[h] * (kv - q)),
            'return attention {\n  inputs = {\n    x0 = { axes = {"x0_0"}, dtype = "float32" },\n  },\n'
            "  score_mod = function(score, b, h, q_idx, kv_idx)\n    return score + (x0[h] * (kv_idx - q_idx))\n  end,\n}\n",
        )
        self.assertIn("return q_idx >= kv_idx\n", flex.to_lua(masks.causal_mask))

    def test_captured_tensors_are_found_anew(self):
        """One trace for closures that are alike; another one for another shape, type, number or function."""

        def make(tensor, factor, f=torch.tanh):
            return lambda s, b, h, i, j: f(s) + tensor[h] * factor

        _programs.clear()
        table = torch.randn(2, dtype=torch.float64)
        for count, args in (
            (1, (table, 1)),
            (1, (table.clone() + 1, 1)),
            (2, (table, 2)),
            (2, (table, 3)),
            (3, (table, 2.0)),
            (4, (table.float(), 1)),
            (5, (torch.randn(3, dtype=torch.float64), 1)),
            (6, (table, 1, torch.sigmoid)),
            (7, (table.clone().requires_grad_(), 1)),
        ):
            self.same(make(*args))
            self.assertEqual(len(_programs.specs()), count, args)
        both = flex.and_masks(
            masks.causal_mask, flex.or_masks(masks.generate_prefix_lm_mask(3), flex.noop_mask)
        )
        for _ in "ab":
            flex.flex_attention(
                self.q, self.k, self.v, None, flex.create_block_mask(both, None, None, 12, 12)
            )
        self.assertEqual(len(_programs.specs()), 8)

    def test_globals_and_attributes(self):
        global changing
        for changing in (1.0, 2.0):
            self.same(uses_a_global)

        class Holder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.factor, self.inner = (
                    1.0,
                    torch.nn.ParameterDict({"bias": torch.nn.Parameter(parameter(2))}),
                )
                self.table = torch.nn.Parameter(parameter(2))

            def scaled(self, s):
                return s * self.factor

            def mod(self, s, b, h, i, j):
                return self.scaled(s) + self.table[h]

        holder = Holder()
        for holder.factor in (1.0, 2.0):
            self.same(holder.mod)
        holder.table = torch.nn.Parameter(parameter(2) + 1)
        self.same(holder.mod)
        self.same(lambda s, b, h, i, j: holder.mod(s, b, h, i, j) + 1)

        class Slots:
            __slots__ = ("factor",)

            def mod(self, s, b, h, i, j):
                return s * self.factor

        slots = Slots()
        for slots.factor in (1.5, 2.5):
            self.same(slots.mod)

    def test_what_luattn_refuses_names_the_mod(self):
        line = sys._getframe().f_lineno + 1
        mod = lambda s, b, h, i, j: s + (s * 3).to(torch.int64)  # noqa: E731
        with self.assertRaisesRegex(luattn.Error, rf"<lambda> \(.*flex_test.py:{line}\):4: an integer"):
            flex.flex_attention(self.q, self.k, self.v, mod)

    def test_refusals_name_the_line(self):
        def branches(s, b, h, i, j):
            if s > 0:
                return s
            return -s

        def calls(s, b, h, i, j):
            return s + torch.special.i0(s)

        table, large = torch.randn(3, 4), torch.randn(2, 1000)
        line = branches.__code__.co_firstlineno
        for mod, message in (
            (branches, f"flex_test.py:{line + 1}: a decision of Python on a value"),
            (calls, r"flex_test.py:\d+: aten.i0.* has no counterpart"),
            (lambda s, b, h, i, j: s + table[h], r"flex_test.py:\d+: returns a tensor of 4 elements"),
            (
                lambda s, b, h, i, j: s + table[h].cumsum(0)[i],
                r"flex_test.py:\d+: aten.cumsum.* has no counterpart",
            ),
            (lambda s, b, h, i, j: s + table[h][table[h] > 0].sum(), r"flex_test.py:\d+: "),
            (lambda s, b, h, i, j: s + large[h].sum(), r"flex_test.py:\d+: a reduction of 1000 elements"),
        ):
            with self.assertRaisesRegex(flex.NotTranslatable, message):
                flex.to_lua(mod)


changing = 0.0


def uses_a_global(s, b, h, i, j):
    return s * changing


def blocky(b, h, i, j):
    return (i // 64 + j // 32 + h) % 3 > 0


class BlockMasks(unittest.TestCase):
    """Beside PyTorch's, which has the lists of blocks."""

    def both(self, *args, **given):
        return flex.create_block_mask(*args, **given), theirs.create_block_mask(*args, **given)

    def alike(self, mine, other):
        self.assertIsInstance(mine, flex.BlockMask)
        self.assertTrue(torch.equal(mine.to_dense(), other.to_dense()))
        for name in ("shape", "seq_lengths", "BLOCK_SIZE"):
            self.assertEqual(getattr(mine, name), getattr(other, name))
        self.assertEqual(mine.sparsity(), other.sparsity())
        self.assertEqual((str(mine), repr(mine)), (str(other), repr(other)))

    def test_like_pytorchs(self):
        for size in (64, (64, 128), (128, 32)):
            self.alike(*self.both(masks.causal_mask, 1, 2, 256, 300, device="cpu", BLOCK_SIZE=size))
        mine, other = self.both(blocky, 2, 3, 256, 256, device="cpu", BLOCK_SIZE=64)
        self.assertEqual((mine.shape, mine.numel()), (other.shape, other.numel()))
        for index in (0, (0, 1), (slice(0, 1), slice(1, 3)), (slice(None), 2, slice(1, 3))):
            self.alike(mine[index], other[index])
        self.alike(mine.to("cpu"), other)
        self.assertEqual(mine.to("meta").kv_indices.device.type, "meta")

    def test_nothing_is_computed_before_it_is_asked(self):
        mask = flex.create_block_mask(masks.causal_mask, None, None, 1 << 20, 1 << 20, device="cpu")
        self.assertEqual(mask.shape, (1, 1, 1 << 20, 1 << 20))
        self.assertNotIn("kv_indices", vars(mask))
        with self.assertRaises(AttributeError):
            mask.nothing_of_this_name  # noqa: B018

    def same(self, mask, keep, n=256):
        torch.manual_seed(1)
        q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv")
        want, lse = reference(q, k, v, lambda s, b, h, i, j: s * 2, keep)
        want = torch.where(lse[..., None].isinf(), 0, want)
        found, found_lse = flex.flex_attention(q, k, v, lambda s, b, h, i, j: s * 2, mask, return_lse=True)
        torch.testing.assert_close((found, found_lse), (want, lse))
        if not lse.isinf().any():
            for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (found, want))):
                torch.testing.assert_close(a, b)

    def test_blocks_and_mask_mod_decide(self):
        """Lists that differ from what the mask_mod leaves empty: blocks of PyTorch's, from_kv_blocks, slices."""
        i, j = torch.arange(256)[:, None], torch.arange(256)
        causal = i >= j
        num = torch.tensor([1, 2], dtype=torch.int32).view(1, 1, 2)
        indices = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32).view(1, 1, 2, 2)
        listed = ((i // 128 == 0) & (j // 128 == 1)) | (i // 128 == 1)
        full, which = torch.tensor([0, 1]).view(1, 1, 2), torch.tensor([[1, 0], [1, 0]]).view(1, 1, 2, 2)
        for of in (flex.BlockMask, theirs.BlockMask):
            mask = of.from_kv_blocks(num, indices, mask_mod=masks.causal_mask)
            self.same(mask, listed & causal)
            self.same(of.from_kv_blocks(num, indices), listed)
            mask = of.from_kv_blocks(num - 1, indices, full, which, mask_mod=masks.causal_mask)
            self.same(mask, (i // 128 == 1) & ((j // 128 == 1) | causal))
        mask.kv_num_blocks.add_(1)  # in place
        self.same(mask, listed & causal | (i // 128 == 1))

    def test_other_sizes_and_pytorchs_own(self):
        i, j = torch.arange(250)[:, None], torch.arange(250)
        for size in (128, 64, (64, 32), (32, 128)):
            for mask in self.both(blocky, 2, 2, 250, 250, device="cpu", BLOCK_SIZE=size):
                h = torch.arange(2)[:, None, None]
                self.same(mask, blocky(0, h, i, j), 250)

    def test_another_mask_mod(self):
        """As in PyTorch the blocks stay: those of the mask_mod that there was."""
        for mask in self.both(lambda b, h, i, j: j < 100, None, None, 256, 256, device="cpu"):
            mask.mask_mod = lambda b, h, i, j: j % 2 == 0
            j = torch.arange(256)
            self.same(mask, (j < 128) & (j % 2 == 0))

    def test_slices(self):
        """A slice has no mask_mod of its own; with one it counts from its start."""
        mine, other = self.both(masks.causal_mask, 2, 2, 512, 256, device="cpu")
        q = torch.randn(2, 2, 256, 8)
        for mask in (mine[:, :, 2:], other[:, :, 2:]):
            with self.assertRaisesRegex(ValueError, "Cannot use mask_mod from a sliced BlockMask"):
                flex.flex_attention(q, q, q, block_mask=mask)
            mask.mask_mod = flex.noop_mask
            if mask.shape[-2] == 512:  # torch 2.11 and before keeps the length, and refuses to attend with it
                continue
            self.same(mask, torch.ones(256, 256, dtype=torch.bool))

    def test_for_pytorchs_functions(self):
        """Ours is also one for FlexAttention, as transformers and others ask."""
        mask = flex.create_block_mask(masks.causal_mask, None, None, 256, 256, device="cpu")
        self.assertIsInstance(mask, theirs.BlockMask)
        q = torch.randn(1, 2, 256, 8)
        torch.testing.assert_close(
            theirs.flex_attention(q, q, q, block_mask=mask), flex.flex_attention(q, q, q, block_mask=mask)
        )


class Arguments(unittest.TestCase):
    def test_refusals(self):
        q, k = torch.randn(1, 4, 16, 8), torch.randn(1, 2, 16, 8)
        short = flex.create_block_mask(masks.causal_mask, None, None, 16, 12)
        for call, message in (
            (lambda: flex.flex_attention(q, k, k), "query has 4 heads and key 2: set enable_gqa=True"),
            (
                lambda: flex.flex_attention(q, q, q, block_mask=short),
                r"block_mask was created for \(1, 1, 16, 12\)",
            ),
            (lambda: flex.flex_attention(q, q, q, block_mask=3), "block_mask: is 3, expected one of"),
            (lambda: flex.flex_attention(q, q.half(), q), "have the same dtype"),
            (lambda: flex.flex_attention(q, q.to("meta"), q), "have the same device type"),
            (
                lambda: flex.flex_attention(q, k[:, :1].expand(1, 3, 16, 8), q, enable_gqa=True),
                "no multiple of key's 3",
            ),
            (lambda: flex.flex_attention(q, q.expand(2, 4, 16, 8), q), "query is a batch of 1, and key of 2"),
            (lambda: flex.flex_attention(q[0], q, q), "3 dimensions, expected 4"),
            (
                lambda: flex.flex_attention(q, q, q, return_lse=True, return_aux=theirs.AuxRequest(lse=True)),
                "return_lse and return_aux",
            ),
            (lambda: flex.create_block_mask(masks.causal_mask, 1, 1, 9, 9, BLOCK_SIZE=0), "BLOCK_SIZE is 0"),
            (
                lambda: flex.flex_attention(q, q, q, return_aux=theirs.AuxRequest(max_scores=True)),
                "max_scores do not exist",
            ),
        ):
            with self.assertRaisesRegex((ValueError, NotImplementedError), message):
                call()

    def test_kernel_options_warn_once(self):
        q = torch.randn(1, 1, 16, 8)
        _attention._warned.clear()
        with self.assertWarnsRegex(UserWarning, "kernel_options change nothing") as seen:
            for _ in "ab":
                flex.flex_attention(q, q, q, kernel_options={"BLOCK_M": 64})
        self.assertEqual((len(seen.warnings), seen.filename), (1, __file__))

    def test_keys_of_one_batch_entry(self):
        q, k = torch.randn(3, 2, 16, 8, dtype=torch.float64), torch.randn(1, 2, 16, 8, dtype=torch.float64)
        k.requires_grad_()
        want, _ = reference(
            q, k.expand(3, 2, 16, 8), k.expand(3, 2, 16, 8), lambda s, b, h, i, j: s + b, None
        )
        o = flex.flex_attention(q, k, k, lambda s, b, h, i, j: s + b)
        torch.testing.assert_close(o, want)
        torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), k) for x in (o, want)))

    def test_lse_and_aux(self):
        q = torch.randn(1, 2, 16, 8, dtype=torch.float64)
        want, want_lse = reference(q, q, q, lambda s, b, h, i, j: s, None)
        o, aux = flex.flex_attention(q, q, q, return_aux=theirs.AuxRequest(lse=True))
        torch.testing.assert_close((o, aux.lse), (want, want_lse))

    def test_compile(self):
        """One graph, with the mods in it; captured tensors keep their gradients."""
        q, k, v = (torch.randn(2, 2, 70, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv")
        table, shift, factor = parameter(2, 70), torch.tensor(3), 1.5

        def score_mod(s, b, h, i, j):
            return torch.where(i + shift >= j, s * factor + table[h, j] + table[b][i], s)

        def mask_mod(b, h, i, j):
            return (i >= j) | (j < shift)

        blocks = flex.BlockMask.from_kv_blocks(
            torch.ones(1, 1, 2, dtype=torch.int32),
            torch.tensor([[[[0, 1], [0, 1]]]]),
            None,
            None,
            64,
            mask_mod,
            (70, 70),
        )
        pytorchs = theirs.create_block_mask(mask_mod, None, None, 70, 70, device="cpu", BLOCK_SIZE=64)
        for backend in ("eager", "aot_eager"):
            for mask in (None, flex.create_block_mask(mask_mod, None, None, 70, 70), blocks, pytorchs):
                torch._dynamo.reset()
                run = torch.compile(flex.flex_attention, backend=backend, fullgraph=True)
                for mod, tensors in ((score_mod, (q, k, v, table)), (None, (q, k, v))):
                    found, want = (f(q, k, v, mod, mask, return_lse=True) for f in (run, flex.flex_attention))
                    torch.testing.assert_close(found, want)
                    for a, b in zip(
                        *(torch.autograd.grad((o * o).sum() + lse.sum(), tensors) for o, lse in (found, want))
                    ):
                        torch.testing.assert_close(a, b)
        torch._dynamo.reset()
        other = torch.compile(
            lambda q, table: flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i]) * 2,
            backend="eager",
            fullgraph=True,
        )
        for _ in range(2):
            table = torch.randn_like(table)
            torch.testing.assert_close(
                other(q, table), flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i]) * 2
            )

    def test_compile_refuses_with_the_line(self):
        q = torch.randn(1, 2, 16, 8)

        def mod(s, b, h, i, j):
            s = s * 2
            return torch.special.i0(s)

        line = mod.__code__.co_firstlineno + 2
        for full in (False, True):
            torch._dynamo.reset()
            with self.assertRaisesRegex(Exception, rf"flex_test.py:{line}: aten.i0.* has no counterpart"):
                torch.compile(flex.flex_attention, backend="eager", fullgraph=full)(q, q, q, mod)


if __name__ == "__main__":
    unittest.main()
