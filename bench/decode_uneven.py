#!/usr/bin/env python3
"""decode_uneven.py: decode over a paged cache whose entries differ in length, beside one of equal lengths with as many bytes.

    python3 bench/decode_uneven.py                     bf16, 32/8 heads, D 128, pages of 64, q 1, 32 entries
    python3 bench/decode_uneven.py --fa3 fa3.so --json u.json

Contenders, in interleaved rounds as in run.py; rates are bytes of K and V that entries have, a second:
    batch           luattn, with a list of blocks that a batch holds for all launches (luattn_batch_prepare_tiles)
    launch          without a list: as many blocks for each entry, by the longest
    deterministic   as batch, with blocks of 2048 keys, so that an entry's bits do not depend on its neighbours
    splits N        N blocks for each entry, whatever its length is
    fa3             FlashAttention-3, with num_splits = 0, over a cache without pages, as not all of its builds read those
    prepare         (microseconds) making the list alone; beside it, its part of 60 layers of `batch`
Results are compared with float64 first.
"""

import argparse
import json
import os
import statistics
import sys

import torch

from builds import Luattn
from contenders import load_fa3
from run import TOLERANCE, distance, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = 60


def lengths_of():
    """Lengths of the entries, by name; each uneven batch is followed by an even one of about as many keys."""
    generator = torch.Generator().manual_seed(3)
    drawn = (1024 + (torch.rand(32, generator=generator) * 15360)).int().tolist()
    batches = {
        "one of 64k, 31 of 1k": [1024] * 13 + [65536] + [1024] * 18,
        "32 of 1k to 16k": drawn,
        "4 of 4k, 16k, 32k, 200k": [4096, 204800, 16384, 32768],
    }
    for name, lengths in batches.items():
        yield name, lengths
        yield f"{len(lengths)} of {sum(lengths) // len(lengths)}", [sum(lengths) // len(lengths)] * len(lengths)


class Problem:
    def __init__(self, lengths, a):
        self.heads, self.heads_kv, self.dim, self.page, self.lengths = *a.heads, a.head_dim, a.page, lengths
        pages = [-(-n // a.page) for n in lengths]
        order, at = torch.randperm(sum(pages), device="cuda").int(), 0
        self.table = torch.full((len(lengths), max(pages)), -1, device="cuda", dtype=torch.int32)
        for b, n in enumerate(pages):
            self.table[b, :n] = order[at : at + n]
            at += n

        def make(*shape):
            return torch.randn(*shape, self.dim, device="cuda", dtype=torch.bfloat16)

        self.q, self.k, self.v = make(len(lengths), a.queries, self.heads), *(make(at, a.page, self.heads_kv) for _ in range(2))
        self.used = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        self.bytes = 2 * 2 * sum(lengths) * self.heads_kv * self.dim

    def without_pages(self, x):
        """The same rows as [entries, longest, heads_kv, dim]; those behind an entry's end are zeros."""
        whole = torch.zeros(len(self.lengths), max(self.lengths), *x.shape[2:], device="cuda", dtype=x.dtype)
        for b, n in enumerate(self.lengths):
            whole[b, :n] = x[self.table[b, : -(-n // self.page)].long()].reshape(-1, *x.shape[2:])[:n]
        return whole

    def reference(self, b):
        """O of an entry's last kv head's query heads."""
        group, n = self.heads // self.heads_kv, self.lengths[b]
        pages = self.table[b, : -(-n // self.page)].long()
        k, v = (x[pages].reshape(-1, self.heads_kv, self.dim)[:n, -1].double() for x in (self.k, self.v))
        score = torch.einsum("qhd,kd->qhk", self.q[b, :, -group:].double(), k) * self.dim**-0.5
        return torch.softmax(score, -1) @ v

    def check(self, name, o):
        for b in {0, len(self.lengths) - 1, self.lengths.index(max(self.lengths))}:
            error = distance(o[b, :, -self.heads // self.heads_kv :], self.reference(b))
            if not error <= TOLERANCE["bf16"]:
                sys.exit(f"{name}: entry {b} of {self.lengths[b]} keys is off by {error:.2e}")


def luattn(library, p, num_splits=0, holds_list=True):
    spec, o = library.spec("decode.lua", "return attention {}"), torch.full_like(p.q, torch.nan)
    tensors = dict(zip("qkvo", (x.transpose(1, 2) for x in (p.q, p.k, p.v, o))))
    lse = torch.empty(len(p.lengths), p.heads, p.q.shape[1], device="cuda")
    batch = {"block_table": p.table, "seqused_k": p.used, "max_seqlen_k": max(p.lengths)}
    options = {"decode": 1, "num_splits": num_splits}
    return library.bind(spec, options=options, batch=batch, holds_tiles=holds_list, lse=lse, **tensors), o


def functions_of(p, library, ops, splits):
    made = {"batch": luattn(library, p), "launch": luattn(library, p, holds_list=False),
            "deterministic": luattn(library.deterministic(), p), f"splits {splits}": luattn(library, p, splits, False)}  # fmt: skip
    for name, (launch, o) in made.items():
        launch()
        torch.cuda.synchronize()
        p.check(name, o)
    found = {name: launch for name, (launch, _) in made.items()}
    found["prepare"] = made["batch"][0].prepare
    if ops:
        k, v = (p.without_pages(x) for x in (p.k, p.v))
        found["fa3"] = lambda: ops.fwd(p.q, k, v, seqused_k=p.used, num_splits=0, softmax_scale=p.dim**-0.5)[0]
        p.check("fa3", found["fa3"]())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/libluattn.so")
    parser.add_argument("--heads", default="32,8", type=lambda x: tuple(map(int, x.split(","))), help="of q, of k (default 32,8)")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--fa3", help="as for run.py")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--round-ms", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also writes all numbers here")
    a = parser.parse_args()
    library, ops, rows = Luattn(a.library), a.fa3 and load_fa3(a.fa3), []
    torch.manual_seed(a.seed)
    names = ["batch", "launch", "deterministic", f"splits {a.splits}", *(["fa3"] if ops else [])]
    print(f"{torch.cuda.get_device_name()}, bf16, {a.heads[0]}/{a.heads[1]} heads, D {a.head_dim}, q {a.queries}, pages of {a.page},")
    print(f"{a.rounds} rounds; GB/s of K and V\n")
    print("| lengths | " + " | ".join(names) + (" | batch / fa3" if ops else "") + f" | prepare, us | of {LAYERS} layers |")
    print("|" + "---|" * (len(names) + 3 + bool(ops)), flush=True)
    for name, lengths in lengths_of():
        p = Problem(lengths, a)
        found = functions_of(p, library, ops, a.splits)
        ms = measure(found, a.rounds, a.round_ms, f"{a.seed} {name}")
        rates = {x: round(p.bytes / statistics.median(ms[x]) / 1e6) for x in names}
        prepare, layer = (statistics.median(ms[x]) for x in ("prepare", "batch"))
        row = dict(lengths=name, gb_s=rates, prepare_us=prepare * 1e3, part=prepare / LAYERS / layer)
        shown = [str(rates[x]) for x in names]
        if ops:
            row["to_fa3"] = statistics.median(x / y for x, y in zip(ms["fa3"], ms["batch"]))
            shown.append(f"{row['to_fa3']:.3f}")
        rows.append(row)
        print(f"| {name} | " + " | ".join(shown) + f" | {row['prepare_us']:.1f} | {row['part']:.2%} |", flush=True)
        del p, found
        torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
