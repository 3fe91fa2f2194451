#!/usr/bin/env python3
"""prefill_pages.py: causal attention of a chunk of queries over a paged cache, as in prefill: TFLOP/s.

    python3 bench/prefill_pages.py --fa3 fa3.so             bf16, 32/8 heads, D 128, pages of 256, 64 and 16
    python3 bench/prefill_pages.py --only 'q512' --json p.json

The last query of a cell sees the last key. Each of a cell's contenders runs on the same K and V, in interleaved rounds as in run.py:
    luattn      examples/causal_bottom_right.lua over K and V without a cache, [batch, keys, heads_kv, dim]
    cache       the same with the lengths of the entries on the device (seqused_k)
    fa3         FlashAttention-3, a build of which --fa3 names
    fa3_cache   the same with lengths on the device, as flash_attn_with_kvcache calls it
and over the same keys in pages, which lie in memory in a random order, with lengths on the device:
    pages N     luattn
    fa3 N       FlashAttention-3; not all of its builds read pages
    fi_fa2 N, fi_fa3 N
                FlashInfer's BatchPrefillWithPagedKVCacheWrapper (flashinfer-python, which compiles its kernels: minutes) with both of its
                backends, planned outside of the timing
A contender that is not installed is left out, and one that refuses a cell has the reason in its place. Results are compared with float64 on
one head and with luattn's on all heads first. FLOPs are counted from the scores that the mask keeps. A rate is the median over the rounds.
The second table has the medians of the rounds' ratios: of luattn's rates to its own without a cache, and to the best of the others'.
"""

import argparse
import json
import os
import re
import statistics
import sys

import torch

from builds import Luattn
from contenders import load_fa3
from decode import ratio
from run import TOLERANCE, distance, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CELLS = ((4, 8192, 4096), (4, 8192, 512), (1, 32768, 2048))  # batch, keys, queries
SPEC = "causal_bottom_right.lua"
BACKENDS = ("fa2", "fa3")


class Problem:
    def __init__(self, batch, keys, q_len, a):
        self.batch, self.keys, self.q_len, self.heads, self.heads_kv, self.dim = batch, keys, q_len, *a.heads, a.head_dim

        def make(length, heads):
            return torch.randn(batch, length, heads, self.dim, device="cuda", dtype=torch.bfloat16)

        self.q, self.k, self.v = make(q_len, self.heads), make(keys, self.heads_kv), make(keys, self.heads_kv)
        self.lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        self.of_size = {}
        kept = batch * self.heads * q_len * (2 * keys - q_len + 1) // 2
        self.flop = 4 * kept * self.dim
        self.name = f"B{batch} Sk{keys} q{q_len}"

    def pages(self, size):
        """K and V in pages [pages, size, heads_kv, dim] in a random order, and the table of each entry's."""
        if size not in self.of_size:
            n = self.batch * self.keys // size
            table = torch.randperm(n, device="cuda")
            pools = [torch.empty(n, size, self.heads_kv, self.dim, device="cuda", dtype=x.dtype) for x in (self.k, self.v)]
            for pool, x in zip(pools, (self.k, self.v)):
                pool[table] = x.reshape(pool.shape)
            self.of_size[size] = *pools, table.int().reshape(self.batch, -1)
        return self.of_size[size]

    def reference(self):
        """O of the last batch entry's last head, [q_len, dim] in float64."""
        q, k, v = self.q[-1, :, -1].double(), self.k[-1, :, -1].double(), self.v[-1, :, -1].double()
        last = torch.arange(self.keys - self.q_len, self.keys, device="cuda")[:, None]
        hidden = torch.arange(self.keys, device="cuda") > last
        return torch.softmax((q @ k.T * self.dim**-0.5).masked_fill_(hidden, -torch.inf), -1) @ v


def luattn(library, p, page=None, cache=False):
    with open(os.path.join(ROOT, "examples", SPEC)) as f:
        spec = library.spec(SPEC, f.read())
    k, v, batch = p.k, p.v, {"seqused_k": p.lengths} if cache or page else None
    if page:
        k, v, batch["block_table"] = p.pages(page)
    o, lse = torch.full_like(p.q, torch.nan), torch.empty(p.batch, p.heads, p.q_len, device="cuda")
    tensors = dict(zip("qkvo", (x.transpose(1, 2) for x in (p.q, k, v, o))))
    launch = library.bind(spec, batch=batch, lse=lse, **tensors)
    if "decode: " in launch.plan():
        raise RuntimeError(f"another kernel: {launch.plan()}")

    def run():
        launch()
        return o

    return run


def fa3(ops, p, page=None, cache=False):
    k, v, given = p.k, p.v, {"seqused_k": p.lengths} if cache or page else {}
    if page:
        k, v, given["page_table"] = p.pages(page)
    return lambda: ops.fwd(p.q, k, v, softmax_scale=p.dim**-0.5, is_causal=True, num_splits=0, **given)[0]


def flashinfer(p, backend, page):
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    *pools, table = p.pages(page)
    at, q = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32), p.q.flatten(0, 1)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.empty(512 << 20, device="cuda", dtype=torch.uint8), "NHD", backend=backend)
    keys = at * table.shape[1], table.flatten(), torch.full((p.batch,), page, device="cuda", dtype=torch.int32)
    sizes, types = (p.heads, p.heads_kv, p.dim, page), dict(q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    wrapper.plan(at * p.q_len, *keys, *sizes, causal=True, **types)
    return lambda: wrapper.run(q, tuple(pools)).reshape(p.q.shape)


def makers_of(p, library, a, ops):
    """Returns functions that make the contenders, by name; luattn's own first."""
    makers = {"luattn": lambda: luattn(library, p), "cache": lambda: luattn(library, p, cache=True)}
    if ops:
        makers |= {"fa3": lambda: fa3(ops, p), "fa3_cache": lambda: fa3(ops, p, cache=True)}
    for n in a.pages:
        makers[f"pages {n}"] = lambda n=n: luattn(library, p, n)
        if ops:
            makers[f"fa3 {n}"] = lambda n=n: fa3(ops, p, n)
        for backend in BACKENDS:
            makers[f"fi_{backend} {n}"] = lambda n=n, backend=backend: flashinfer(p, backend, n)
    return {name: make for name, make in makers.items() if not re.fullmatch(a.without, name)}


def functions_of(p, makers):
    """Returns the contenders' functions, and the reasons of those that are missing, by name."""
    exact, first, found, missing = p.reference(), None, {}, {}
    for name, make in makers.items():
        try:
            run = make()
            got = run()
            torch.cuda.synchronize()
        except Exception as e:  # libraries raise different types for unsupported problems
            missing[name] = " ".join(str(e).split())[:120] or type(e).__name__
            continue
        first = got.clone() if first is None else first
        # Two results in bf16 may differ by the errors of both.
        errors = ("float64", distance(got[-1, :, -1], exact), 1), ("the first", distance(got, first.float()), 2)
        for what, error, times in errors:
            if not error <= (allowed := times * TOLERANCE["bf16"]):
                sys.exit(f"{p.name}: {name} is off {what} by {error:.2e}, expected at most {allowed:.2e}")
        found[name] = run
    return found, missing


def ratios_of(ms, pages):
    """Returns luattn's ratios of a cell, by what they are."""
    found = {"luattn / fa3": ratio(ms, "luattn", [x for x in ("fa3", "fa3_cache") if x in ms])}
    for name in ("cache", *(f"pages {n}" for n in pages)):
        found[f"{name} / luattn"] = ratio(ms, name, ["luattn"] if "luattn" in ms else [])
    for n in pages:
        found[f"pages {n} / best"] = ratio(ms, f"pages {n}", [x for x in (f"fa3 {n}", *(f"fi_{b} {n}" for b in BACKENDS)) if x in ms])
    return found


def numbers(text):
    return tuple(map(int, text.split(",")))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/libluattn.so")
    parser.add_argument("--heads", default="32,8", type=numbers, help="of q, of k (default 32,8)")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--pages", default="256,64,16", type=numbers, help="rows of a page, with commas between (default 256,64,16)")
    parser.add_argument("--only", default="", help="cells whose name has this regular expression")
    parser.add_argument("--without", default="", help="leaves out contenders of these names, a regular expression")
    parser.add_argument("--fa3", help="as for run.py")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--round-ms", type=float, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also writes all numbers here")
    a = parser.parse_args()
    for n in a.pages:
        if n < 1 or any(keys % n for _, keys, _ in CELLS):
            parser.error(f"--pages {n}: a page has a power of two of rows, at most 8192, as it divides all cells' keys")
    return a


def report(rows, names):
    """Prints the cells' ratios, and why contenders are missing."""
    print("\n| ratio | " + " | ".join(row["cell"] for row in rows) + " |\n|" + "---|" * (len(rows) + 1))
    for name in names:
        print(f"| {name} | " + " | ".join(f"{x:.3f}" if (x := row["ratios"][name]) else "-" for row in rows) + " |")
    print()
    for name, why in {name: why for row in rows for name, why in row["missing"].items()}.items():
        print(f"{name}: {why}")


def main():
    a = arguments()
    library, ops, rows = Luattn(a.library), a.fa3 and load_fa3(a.fa3), []
    torch.manual_seed(a.seed)
    print(f"{torch.cuda.get_device_name()}, bf16, {a.heads[0]}/{a.heads[1]} heads, D {a.head_dim}, causal, {a.rounds} rounds; TFLOP/s\n")
    for batch, keys, q_len in CELLS:
        if not re.search(a.only, f"B{batch} Sk{keys} q{q_len}"):
            continue
        p = Problem(batch, keys, q_len, a)
        makers = makers_of(p, library, a, ops)
        if not rows:
            print("| cell | " + " | ".join(makers) + " |\n|" + "---|" * (len(makers) + 1), flush=True)
        found, missing = functions_of(p, makers)
        ms = measure(found, a.rounds, a.round_ms, f"{a.seed} {p.name}")
        rates = {x: round(p.flop / statistics.median(t) / 1e9) for x, t in ms.items()}
        rows.append(dict(cell=p.name, tflop_s=rates, ratios=ratios_of(ms, a.pages), missing=missing))
        print(f"| {p.name} | " + " | ".join(str(rates.get(x, "-")) for x in makers) + " |", flush=True)
        del p, found, makers
        torch.cuda.empty_cache()
    if rows:
        report(rows, rows[0]["ratios"])
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
