#!/usr/bin/env python3
"""append.py: new rows of keys and values into a cache: bytes read and written a second.

    python3 bench/append.py                                 bf16, 8 heads, D 128, 32 entries of 8192 keys, 512 and 1 new rows
    python3 bench/append.py --json a.json

Contenders write the same rows, [batch, rows, heads_kv, dim], behind different lengths of entries: to a cache without pages, and to pages of
16 and of 64 in a random order, of the same layout:
    luattn      luattn_append
    torch       index_put_ for K and for V, with indices made before
    flashinfer  append_paged_kv_cache (flashinfer-python), its batch indices and positions made before; pages alone
A contender that is not installed is left out. Each has a CUDA graph of --sets calls, with new rows of their own at places of their own, so
that rows come from memory; the caches are compared with the expected bytes first. Rates are medians over interleaved rounds.
"""

import argparse
import json
import os
import statistics
import sys

import torch

from builds import Luattn
from run import measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = (None, 16, 64)


class Problem:
    def __init__(self, rows, page, a):
        self.batch, self.keys, self.rows, self.page, self.sets = a.batch, a.keys, rows, page, a.sets
        shape = (a.batch, a.keys, a.heads_kv, a.head_dim) if page is None else (a.batch * a.keys // page, page, a.heads_kv, a.head_dim)
        self.caches = [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
        self.table = None if page is None else torch.randperm(shape[0], device="cuda").int().reshape(a.batch, -1)
        new = (a.sets, 2, a.batch, rows, a.heads_kv, a.head_dim)
        self.new = torch.randn(new, device="cuda", dtype=torch.bfloat16)
        # An entry's rows of all sets lie behind each other, and those of entries begin at different places in a page.
        ends = a.keys - torch.arange(a.batch, device="cuda") * 7 % 61
        self.firsts = [(ends - (i + 1) * rows).int() for i in range(a.sets)]
        self.bytes = a.sets * 2 * 2 * self.new[0].numel()  # 2 bytes an element, read and written
        self.name = f"{rows} rows, {'no pages' if page is None else f'pages of {page}'}"

    def positions(self, i):
        """The rows' positions in their entries, [batch, rows]."""
        return self.firsts[i][:, None] + torch.arange(self.rows, device="cuda", dtype=torch.int32)

    def places(self, i):
        """Indices of the caches' first two axes, [batch, rows] each."""
        at = self.positions(i).long()
        if self.page is None:
            return torch.arange(self.batch, device="cuda")[:, None].expand_as(at), at
        return self.table.long().gather(1, at // self.page), at % self.page


def luattn(library, p):
    spec, (k, v) = library.spec("append.lua", "return attention {}"), (x.transpose(1, 2) for x in p.caches)
    q = torch.zeros(p.batch, k.shape[1], 1, k.shape[3], device="cuda", dtype=k.dtype)
    table = {} if p.table is None else {"block_table": p.table}
    calls = [library.append(spec, q, k, v, {"seqused_k": first, **table}, *new.transpose(2, 3)) for first, new in zip(p.firsts, p.new)]
    return lambda: [call() for call in calls]


def by_torch(p):
    places = [p.places(i) for i in range(p.sets)]
    return lambda: [cache.index_put_(at, new) for at, sets in zip(places, p.new) for cache, new in zip(p.caches, sets)]


def flashinfer(p):
    from flashinfer import append_paged_kv_cache

    if p.page is None:
        raise ValueError("has pages alone")
    entries = torch.arange(p.batch, device="cuda", dtype=torch.int32).repeat_interleave(p.rows)
    ends = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32) * p.table.shape[1]
    last = torch.full((p.batch,), p.page, device="cuda", dtype=torch.int32)
    calls = [(*new.flatten(1, 2), entries, p.positions(i).flatten()) for i, new in enumerate(p.new)]
    return lambda: [append_paged_kv_cache(*x, tuple(p.caches), p.table.flatten(), ends, last) for x in calls]


def graph_of(run):
    """Returns a function that replays what `run` launches."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return lambda kept=run: graph.replay()


def functions_of(p, library):
    """Returns the contenders' functions, and the reasons of those that are missing, by name."""
    want = [torch.zeros_like(x) for x in p.caches]
    for i, sets in enumerate(p.new):
        for cache, new in zip(want, sets):
            cache[p.places(i)] = new
    found, missing = {}, {}
    for name, make in (("luattn", lambda: luattn(library, p)), ("torch", lambda: by_torch(p)), ("flashinfer", lambda: flashinfer(p))):
        for x in p.caches:
            x.zero_()
        try:
            run = make()
            run()
            replay = graph_of(run)
        except Exception as e:  # libraries raise different types for what they do not have
            missing[name] = " ".join(str(e).split())[:120] or type(e).__name__
            continue
        for called in ("directly", "in a graph"):
            if not all(torch.equal(*pair) for pair in zip(p.caches, want)):
                sys.exit(f"{p.name}: {name}, called {called}, wrote other bytes than expected")
            for x in p.caches:
                x.zero_()
            replay()
        found[name] = replay
    return found, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/libluattn.so")
    parser.add_argument("--rows", default="512,1", type=lambda x: tuple(map(int, x.split(","))), help="new rows of an entry (default 512,1)")
    for name, value in dict(batch=32, keys=8192, heads_kv=8, head_dim=128, sets=4, rounds=15, seed=1).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"(default {value})")
    parser.add_argument("--round-ms", type=float, default=4)
    parser.add_argument("--json", help="also writes all numbers here")
    a = parser.parse_args()
    if a.keys < (least := a.sets * max(a.rows) + 60):
        parser.error(f"--keys {a.keys}: {a.sets} sets of {max(a.rows)} new rows behind up to 60 others need {least} at least")
    library, rows = Luattn(a.library), []
    torch.manual_seed(a.seed)
    names = ("luattn", "torch", "flashinfer")
    print(f"{torch.cuda.get_device_name()}, bf16, {a.heads_kv} heads, D {a.head_dim}, {a.batch} entries of {a.keys} keys, {a.rounds} rounds;"
          " GB/s of rows read and written (us a call)\n")
    print("| cell | " + " | ".join(names) + " | luattn / flashinfer |\n|" + "---|" * (len(names) + 2), flush=True)
    for count in a.rows:
        for page in PAGES:
            p = Problem(count, page, a)
            found, missing = functions_of(p, library)
            ms = measure(found, a.rounds, a.round_ms, f"{a.seed} {p.name}")
            took = {name: statistics.median(t) for name, t in ms.items()}
            rates = {name: round(p.bytes / t / 1e6) for name, t in took.items()}
            us = {name: round(t / p.sets * 1e3, 2) for name, t in took.items()}
            both = "luattn" in ms and "flashinfer" in ms
            ratio = statistics.median(theirs / ours for ours, theirs in zip(ms["luattn"], ms["flashinfer"])) if both else None
            rows.append(dict(cell=p.name, gb_s=rates, us=us, ratio=ratio, missing=missing))
            cells = (f"{rates[x]} ({us[x]})" if x in ms else "-" for x in names)
            print(f"| {p.name} | " + " | ".join(cells) + f" | {f'{ratio:.3f}' if ratio else '-'} |", flush=True)
            del p, found
            torch.cuda.empty_cache()
    for name, why in {name: why for row in rows for name, why in row["missing"].items()}.items():
        print(f"{name}: {why}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
