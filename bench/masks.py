"""masks.py: masks that depend on the values of tensors, as luattn's inputs and as FlexAttention's functions.

Each function draws the data of one mask for a problem, and returns (inputs, mask_mod, reads). inputs: tensors by the
names in the spec. mask_mod: the same mask for FlexAttention. reads: which of "b" and "h" it depends on.
The data are the same for every contender and every run (SEED)."""

import math

import torch

SEED = 1
BLOCK = 64  # of BigBird and of lists of blocks, in the specs too


def _random(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(SEED))


def block_table(p, fraction):
    """Blocks of 128 x 128, each kept with this probability, and all on the diagonal."""
    n = math.ceil(p.length / 128)
    on = ((_random(n, n) < fraction) | torch.eye(n, dtype=torch.bool)).cuda()
    return {"on": on}, lambda b, h, q, k: on[q // 128, k // 128], ""


def chosen_blocks(p, count):
    """For each head and block of queries, a list of different blocks of keys."""
    n = math.ceil(p.length / BLOCK)
    chosen = _random(p.heads, n, n).argsort(-1)[..., :count].int().contiguous().cuda()

    def keep(b, h, q, k):
        kept = chosen[h, q // BLOCK, 0] == k // BLOCK
        for i in range(1, count):
            kept = kept | (chosen[h, q // BLOCK, i] == k // BLOCK)
        return kept

    return {"chosen": chosen}, keep, "h"


def bigbird(p):
    """The first and the last block see and are seen by all; elsewhere three blocks around the diagonal, and three
    random ones for each head."""
    n = math.ceil(p.length / BLOCK)
    chosen = (_random(p.heads, n, 3) * n).int().cuda()

    def keep(b, h, q, k):
        i, j = q // BLOCK, k // BLOCK
        kept = ((i - j).abs() <= 1) | (i < 1) | (j < 1) | (i >= n - 1) | (j >= n - 1)
        for r in range(3):
            kept = kept | (chosen[h, i, r] == j)
        return kept

    return {"chosen": chosen}, keep, "h"


def padding(p):
    """Causal; batch entry b of B has (b + 2) / (B + 1) of the length, in whole tokens."""
    lengths = torch.tensor([p.length * (b + 2) // (p.batch + 1) for b in range(p.batch)])
    real = (torch.arange(p.length) < lengths[:, None]).cuda()
    return {"real": real}, lambda b, h, q, k: (q >= k) & real[b, q] & real[b, k], "b"


def image_groups(p):
    """Gemma 3: text is causal in a window of 1024; the 256 tokens of an image see each other. -1 is text."""
    at = torch.arange(p.length)
    group = torch.where(at % 1024 >= 768, at // 1024, -1).expand(p.batch, -1).int().contiguous().cuda()

    def keep(b, h, q, k):
        return ((q >= k) & (q - k < 1024)) | ((group[b, q] >= 0) & (group[b, q] == group[b, k]))

    return {"group": group}, keep, "b"


def adjacency(p):
    """Tokens lie in 64 cells of random sizes; a cell sees itself and a random quarter of the others, symmetrically."""
    cells = 64
    half = _random(cells, cells) < 0.134  # 1 - (1 - 0.134)^2 = 0.25
    adjacent = (half | half.T | torch.eye(cells, dtype=torch.bool)).cuda()
    cell = (_random(p.length) * cells).int().sort().values.cuda()
    return {"adjacent": adjacent, "cell": cell}, lambda b, h, q, k: adjacent[cell[q], cell[k]], ""


def document_window(p):
    """Documents of 64 to 4096 tokens; causal in a window of 512 positions of the document."""
    ends, lengths = [0], (64 * 2 ** (6 * _random(p.length // 64))).int().tolist()
    while ends[-1] < p.length:
        ends.append(min(p.length, ends[-1] + lengths[len(ends)]))
    start = torch.tensor(ends).int()
    doc = (torch.searchsorted(start, torch.arange(p.length), right=True) - 1).int().cuda()
    start = start.cuda()

    def keep(b, h, q, k):
        at_q, at_k = q - start[doc[q]], k - start[doc[k]]
        return (doc[q] == doc[k]) & (at_q >= at_k) & (at_q - at_k < 512)

    return {"doc": doc, "start": start}, keep, ""


def streams(p, run, causal=False):
    """Eight streams, which take turns with runs of this many tokens; a stream sees itself."""
    stream = (torch.arange(p.length) // run % 8).int().cuda()

    def keep(b, h, q, k):
        same = stream[q] == stream[k]
        return same & (q >= k) if causal else same

    return {"stream": stream}, keep, ""


MASKS = {
    "blocks_5": lambda p: block_table(p, 0.05),
    "blocks_13": lambda p: block_table(p, 0.13),
    "blocks_30": lambda p: block_table(p, 0.30),
    "bigbird": bigbird,
    "chosen_10": lambda p: chosen_blocks(p, 10),
    "padding": padding,
    "image_groups": image_groups,
    "adjacency": adjacency,
    "document_window": document_window,
    "streams_16": lambda p: streams(p, 16),
    "streams_64": lambda p: streams(p, 64),
    "streams_256": lambda p: streams(p, 256),
    "streams_64_causal": lambda p: streams(p, 64, causal=True),
    "streams_256_causal": lambda p: streams(p, 256, causal=True),
}


def kept(mask_mod, reads, p):
    """Returns the fraction of scores that the mask keeps, counted in blocks of rows."""
    entries, heads = (range(n if axis in reads else 1) for axis, n in (("b", p.batch), ("h", p.heads)))
    k, count = torch.arange(p.length, device="cuda")[None], 0
    for b in entries:
        for h in heads:
            at = [torch.tensor(x, device="cuda") for x in (b, h)]
            for q in torch.arange(p.length, device="cuda").split(2048):
                count += int(mask_mod(*at, q[:, None], k).expand(len(q), -1).sum())
    return count / (len(entries) * len(heads) * p.length**2)
