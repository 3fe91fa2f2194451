"""cells.py: the benchmark's cells, and the FLOPs of each. Standard library only, so that tests run anywhere.

FLOPs follow FlashAttention's convention: two products forward and five backward, counting only the
scores that the mask keeps."""

import random
from dataclasses import dataclass, replace
from typing import Callable, Optional

PASSES = ("fwd", "bwd", "fwdbwd")


@dataclass(frozen=True)
class Problem:
    batch: int
    heads: int
    heads_kv: int
    length: int
    dim: int
    dim_v: int
    dtype: str = "bf16"
    heads_last: bool = True  # memory order [batch, length, heads, dim]; otherwise [batch, heads, length, dim]
    lengths: tuple = ()  # of packed sequences; batch is then 1, and length their sum


@dataclass(frozen=True)
class Variant:
    lua: str  # the spec, from the root of the repository
    kept: Optional[Callable[[int], float]]  # length -> the fraction of scores that the mask keeps; None: the data decide
    constants: Optional[Callable] = (
        None  # length -> a line of Lua that replaces the spec's line with the same names
    )
    window: Optional[Callable] = (
        None  # length -> (left, right) of the band of kv - q, if the mask is a band
    )


def _causal(length):
    return (length, 0)


def _side(length):
    side = round(length**0.5)
    assert side * side == length, f"{length} tokens are not a square grid"
    return side


VARIANTS = {
    "full": Variant("examples/full.lua", lambda s: 1.0, window=lambda s: (s, s)),
    "causal": Variant("examples/causal.lua", lambda s: 0.5, window=_causal),
    "local1024": Variant(
        "examples/sliding_window.lua",
        lambda s: (1024 * (s - 1024) + 1024 * 1024 / 2) / s / s,
        lambda s: "local W = 1025",
        window=lambda s: (1024, 0),
    ),
    "doc_causal8": Variant("examples/document.lua", lambda s: 0.5 / 8),
    "natten2d_k13": Variant(
        "examples/neighborhood_2d.lua",
        lambda s: 13 * 13 / s,
        lambda s: f"local H, W, K = {_side(s)}, {_side(s)}, 13",
    ),
    "alibi_causal": Variant("examples/alibi.lua", lambda s: 0.5, window=_causal),
    "softcap_causal": Variant("bench/specs/softcap_causal.lua", lambda s: 0.5, window=_causal),
    "relbias_full": Variant("bench/specs/relative_bias.lua", lambda s: 1.0, window=lambda s: (s, s)),
    "sigmoid_causal": Variant("examples/sigmoid.lua", lambda s: 0.5, window=_causal),
    # Variants with learned parameters. The mask is full unless the name says otherwise.
    "slopes_causal": Variant("bench/specs/alibi_slopes.lua", lambda s: 0.5, window=_causal),
    "t5_full": Variant("examples/t5_relative_bias.lua", lambda s: 1.0),
    "biasq_full": Variant("bench/specs/bias_of_query.lua", lambda s: 1.0),
    "biaskv_full": Variant("bench/specs/bias_of_key.lua", lambda s: 1.0),
    "bias2d_full": Variant("bench/specs/bias_of_pair.lua", lambda s: 1.0),
}


# Masks from data, of masks.py.
OF_DATA = {f"blocks_{percent}": "block_table" for percent in (5, 13, 30)} | {"chosen_10": "chosen_blocks"}
OF_DATA |= {x: x for x in ("bigbird", "padding", "image_groups", "adjacency", "document_window")}
STREAMS = {f"streams_{run}": "streams" for run in (16, 64, 256)}
STREAMS |= {f"streams_{run}_causal": "streams_causal" for run in (64, 256)}
OF_DATA |= STREAMS
VARIANTS |= {name: Variant(f"bench/specs/{spec}.lua", None) for name, spec in OF_DATA.items()}


def spec_text(root, variant, length):
    """Returns the spec's Lua text with its constants set for this length."""
    v = VARIANTS[variant]
    with open(f"{root}/{v.lua}") as f:
        text = f.read()
    if not v.constants:
        return text
    line = v.constants(length)
    names = line.split("=")[0]
    lines = text.split("\n")
    at = [i for i, old in enumerate(lines) if old.startswith(names + "=")]
    assert len(at) == 1, f"{v.lua}: {len(at)} lines start with '{names}='; one should"
    lines[at[0]] = line
    return "\n".join(lines)


def kept_of(variant, problem):
    """The fraction of scores that the mask keeps, or None if the data decide."""
    kept = VARIANTS[variant].kept
    if kept is None or not problem.lengths:
        return kept and kept(problem.length)
    return sum(kept(n) * n * n for n in problem.lengths) / problem.length**2


def flops(problem, kept, pass_):
    p = problem
    scores = p.batch * p.heads * p.length * p.length * kept
    forward = 2 * scores * (p.dim + p.dim_v)
    backward = 2 * scores * (3 * p.dim + 2 * p.dim_v)
    return {"fwd": forward, "bwd": backward, "fwdbwd": forward + backward}[pass_]


def kept_in_tiles(length, tile_m, tile_n, left, right):
    """Returns the fraction of scores in tiles that intersect the band q - left <= kv <= q + right."""
    area = 0
    for q0 in range(0, length, tile_m):
        q1 = min(q0 + tile_m, length) - 1
        first, last = max(0, q0 - left) // tile_n, min(length - 1, q1 + right) // tile_n
        area += (q1 + 1 - q0) * (min(length, (last + 1) * tile_n) - first * tile_n)
    return area / length / length


def orders(names, rounds, seed):
    """Yields the names in a random order for each round. The same seed gives the same orders.

    A kernel that runs after a slow one finds a cooler chip. When each round rotated one fixed order, two
    copies of one kernel differed by up to 5 %; in random orders they agree within 1 %."""
    shuffle = random.Random(seed).shuffle
    for _ in range(rounds):
        order = list(names)
        shuffle(order)
        yield order


@dataclass(frozen=True)
class Entry:
    """One column of a cell: a library that computes a variant of a problem."""

    name: str
    library: str
    variant: str
    problem: Problem
    gradients: bool = False  # gradients of the extra inputs as well; luattn only
    every_tile: bool = False  # do not skip tiles with negligible P; luattn only
    deterministic: bool = False  # backward gives the same bits in every run; luattn only


@dataclass(frozen=True)
class Cell:
    suite: str
    name: str
    labels: dict  # labels of the table and of the plot's axes
    entries: tuple  # the first is the base of all ratios


def _beside(libraries, variant, problem):
    return tuple(Entry(name, name, variant, problem) for name in libraries)


def plain():
    """Plain attention: 16k tokens, heads * head_dim = 2048."""
    for dim in (64, 128, 256):
        for mask in ("full", "causal"):
            for length in (1024, 4096, 16384):
                heads = 2048 // dim
                p = Problem(16384 // length, heads, heads, length, dim, dim)
                yield Cell(
                    "plain",
                    f"D{dim} {mask} S{length}",
                    dict(D=dim, mask=mask, S=length),
                    _beside(("luattn", "cudnn", "fa2", "fa3", "fa4"), mask, p),
                )


BESIDE_FLEX = (
    "full",
    "causal",
    "local1024",
    "doc_causal8",
    "natten2d_k13",
    "alibi_causal",
    "softcap_causal",
    "relbias_full",
)


def variants():
    """FlexAttention's typical masks and mods, with both of its backends. Includes FA3 and FA4 if they support
    the variant."""
    for batch, length in ((4, 4096), (1, 16384)):
        p = Problem(batch, 16, 16, length, 128, 128, heads_last=False)
        for variant in BESIDE_FLEX:
            beside = ("luattn", "flex", "flex_flash")
            beside += ("fa3",) if variant in ("full", "causal", "local1024") else ()
            beside += ("fa4",) if variant != "natten2d_k13" else ()
            yield Cell(
                "variants",
                f"{variant} B{batch} S{length}",
                dict(variant=variant, shape=f"B{batch} S{length}"),
                _beside(beside, variant, p),
            )


def flex():
    """The user's route: luattn.flex next to FlexAttention, whose functions it has, with the same mods in Python. An eager
    call of luattn.flex, and a compiled one of FlexAttention. The column luattn is the C API with a spec in Lua."""
    for cell in variants():
        p, variant = cell.entries[0].problem, cell.entries[0].variant
        entries = _beside(("luattn_flex", "luattn", "flex", "flex_flash"), variant, p)
        yield replace(cell, suite="flex", entries=entries)


def ratios():
    """The cost of a modification relative to luattn's own plain causal attention."""
    names = {
        "causal": "causal",
        "ALiBi": "alibi_causal",
        "ALiBi, every tile": "alibi_causal",
        "soft cap": "softcap_causal",
        "window 1024": "local1024",
        "sigmoid": "sigmoid_causal",
    }
    for batch, length in ((4, 4096), (1, 16384)):
        p = Problem(batch, 16, 16, length, 128, 128)
        yield Cell(
            "ratios",
            f"modifications B{batch} S{length}",
            {},
            tuple(
                Entry(name, "luattn", variant, p, every_tile="every tile" in name)
                for name, variant in names.items()
            ),
        )


LEARNED = {
    "slopes[h], ALiBi causal": "slopes_causal",
    "T5: t[h, bucket(kv - q)]": "t5_full",
    "t[h, q - kv + n]": "relbias_full",
    "t[h, q]": "biasq_full",
    "t[h, kv]": "biaskv_full",
    "t[h, q, kv]": "bias2d_full",
}


def gradients():
    """The cost of gradients of extra inputs in backward, relative to the same spec without them."""
    for dim in (64, 128, 256):
        p = Problem(4, 2048 // dim, 2048 // dim, 4096, dim, dim)
        for name, variant in LEARNED.items():
            yield Cell(
                "gradients",
                f"{name} D{dim} S4096",
                {},
                tuple(Entry(f"luattn{x}", "luattn", variant, p, x != "") for x in ("", " + gradients")),
            )


def biases():
    """Biases that are read from memory, per key and per (query, key) pair, compared with FlexAttention.

    Longer sequences are left out: FlexAttention reads a bias of more than 2^31 elements at wrong
    addresses."""
    names = {"t[h, kv]": "biaskv_full", "t[h, q, kv]": "bias2d_full"}
    for batch, length in ((16, 1024), (4, 4096)):
        for dim in (64, 128, 256):
            p = Problem(batch, 2048 // dim, 2048 // dim, length, dim, dim)
            entries = [Entry("plain", "luattn", "full", p)]
            for name, variant in names.items():
                entries.append(Entry(name, "luattn", variant, p))
                entries += [Entry(f"{flex} {name}", flex, variant, p) for flex in ("flex", "flex_flash")]
            yield Cell("biases", f"D{dim} B{batch} S{length}", {}, tuple(entries))


def deterministic():
    """The cost of a deterministic backward, also with gradients of extra inputs."""

    def cell(name, variant, p, gradients):
        entries = (
            Entry(f"luattn{x}", "luattn", variant, p, gradients, deterministic=x != "")
            for x in ("", " deterministic")
        )
        return Cell("deterministic", name, {}, tuple(entries))

    for dim in (64, 128, 192, 256):
        for mask in ("full", "causal"):
            for length in (1024, 4096, 16384):
                p = Problem(16384 // length, 2048 // dim, 2048 // dim, length, dim, dim)
                yield cell(f"D{dim} {mask} S{length}", mask, p, False)
    for dim in (64, 128, 256):
        p = Problem(4, 2048 // dim, 2048 // dim, 4096, dim, dim)
        for variant in ("doc_causal8", "alibi_causal"):
            yield cell(f"{variant} D{dim} S4096", variant, p, False)
        for name, variant in LEARNED.items():
            yield cell(f"{name} D{dim} S4096", variant, p, True)


def dims():
    """Different head dims, grouped heads, and f16, each relative to luattn's own plain case."""

    def entries(cases):
        return tuple(Entry(f"{library} {what}", library, mask, p) for library, what, mask, p in cases)

    at = {
        what: Problem(4, 16, 16, 4096, *map(int, what.split("/")))
        for what in ("128/128", "192/128", "128/256", "64/128")
    }
    yield Cell(
        "dims",
        "head dims D/Dv causal S4096",
        {},
        entries(
            [("luattn", what, "causal", p) for what, p in at.items()]
            + [
                (peer, what, "causal", at[what])
                for peer in ("cudnn", "fa3", "fa4")
                for what in ("128/128", "192/128")
            ]
        ),
    )
    mha, gqa = Problem(2, 32, 32, 4096, 128, 128), Problem(2, 32, 8, 4096, 128, 128)
    for mask in ("causal", "full"):
        yield Cell(
            "dims",
            f"heads H/Hkv D128 {mask} S4096",
            {},
            entries(
                [("luattn", "32/32", mask, mha), ("luattn", "32/8", mask, gqa)]
                + [(peer, "32/8", mask, gqa) for peer in ("cudnn", "fa3", "fa4")]
            ),
        )
    for dim in (64, 128, 256):
        for mask in ("full", "causal"):
            heads = 2048 // dim
            bf16, f16 = (Problem(4, heads, heads, 4096, dim, dim, dtype) for dtype in ("bf16", "f16"))
            yield Cell(
                "dims",
                f"types D{dim} {mask} S4096",
                {},
                entries(
                    [
                        ("luattn", "bf16", mask, bf16),
                        ("luattn", "f16", mask, f16),
                        ("cudnn", "f16", mask, f16),
                    ]
                ),
            )


def masks():
    """Masks that tensors hold, next to FlexAttention with its block mask made outside of the timing. A launch of
    luattn evaluates the mask, because no batch is given to it. bigbird and chosen_10 keep equally many scores, the
    former in rows and columns of very different lengths."""
    for variant in (x for x in OF_DATA if x not in STREAMS):
        batch, length = (4, 4096) if variant == "padding" else (1, 16384)
        p = Problem(batch, 16, 16, length, 128, 128, heads_last=False)
        yield Cell(
            "masks",
            f"{variant} B{batch} S{length}",
            dict(mask=variant, shape=f"B{batch} S{length}"),
            _beside(("luattn", "flex", "flex_flash"), variant, p),
        )


def streams():
    """Documents that do not lie together, whose blocks' minima and maxima keep every tile."""
    for batch, length in ((4, 4096), (1, 16384)):
        p = Problem(batch, 16, 16, length, 128, 128, heads_last=False)
        for variant in STREAMS:
            name, labels = f"{variant} B{batch} S{length}", dict(mask=variant, shape=f"B{batch} S{length}")
            yield Cell("streams", name, labels, _beside(("luattn", "flex"), variant, p))


TOKENS = 32768


def skewed(count, least, most, total, seed=1):
    """Lengths from `least` to `most` that add up to about `total`, most of them short, in a random order."""
    power, lengths = 1.0, [most] * count
    while sum(lengths) > total:
        power += 0.01
        lengths = [round(least + (most - least) * (i / (count - 1)) ** power) for i in range(count)]
    random.Random(seed).shuffle(lengths)
    return tuple(lengths)


# The first three are of equal length, of a corpus, and of one long document among short ones; the last has nothing to pack.
LENGTHS = {
    "8 of 4096": (4096,) * 8,
    "24 skewed": skewed(24, 256, 5490, TOKENS),
    "16384 and 32 of 512": (16384, *(512,) * 32),
    "64 of 512": (512,) * 64,
    "8 of 512": (512,) * 8,
    "128 of 256": (256,) * 128,
    "one of 32768": (TOKENS,),
}


def packed():
    """Packed sequences, causal in each, next to other libraries' and, where they are equally long, to a batch."""
    for dim in (128, 64):
        heads = 2048 // dim
        for name, lengths in LENGTHS.items():
            p = Problem(1, heads, heads, sum(lengths), dim, dim, lengths=lengths)
            entries = _beside(("luattn", "cudnn", "fa2", "fa3", "fa4"), "causal", p)
            if len(set(lengths)) == 1:
                batch = Problem(len(lengths), heads, heads, lengths[0], dim, dim)
                entries += (Entry("dense", "dense", "causal", batch),)
            yield Cell("packed", f"D{dim} {name}", dict(D=dim, lengths=name), entries)


SUITES = {"plain": plain, "variants": variants, "flex": flex, "masks": masks, "streams": streams, "packed": packed, "ratios": ratios, "dims": dims}
SUITES |= {"biases": biases, "gradients": gradients, "deterministic": deterministic}
