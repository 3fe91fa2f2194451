#!/usr/bin/env python3
"""decode_lengths.py: decode over 512 to 8192 keys of even and uneven entries, without pages and in pages, beside other libraries.

    python3 bench/decode_lengths.py --fa3 fa3.so --json l.json          bf16, D 128, 32/8 and 64/8 heads, q 1 and 4
    python3 bench/decode_lengths.py --only 'B8 2048' --rounds 15

Lengths: all as long as the room ("even"), a quarter of it each, between an eighth and all of it ("drawn"), all of it for one
entry and 512 for the others ("one long"). Contenders, without a mask:
    luattn      a call as it is: seqused_k on the device, no batch
    batch       the same with a list of blocks that a batch holds for all layers; of uneven lengths
    NAME=PATH   a call by another build (--also)
    cudnn       through torch's scaled_dot_product_attention; of even lengths without pages
    fa3         FlashAttention-3 with num_splits = 0: its choice. Its wheel has no pages: beside ours in pages it reads a cache
                without, and its ratio stands in a column of its own
    flashinfer  FlashInfer, planned outside of the timing, fa2 kernels: the ragged prefill wrapper without pages, in pages the
                decode wrapper with tensor cores for one query, else the prefill wrapper
Every result is compared with float64 first, of the longest and of the last entry. A sample reads 256 MB first, so that K and V come from
memory, then spins until the host has queued the call between two events. Contenders take turns in a random order in each round. A time is
the median of all samples. Cells come in a random order (--seed), so that those that --budget-seconds leaves out are any.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from builds import Luattn
from contenders import load_fa3
from installed import version_of
from run import TOLERANCE, distance

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS, STORES, SHORT = (512, 1024, 2048, 4096, 8192), (None, 16, 64), 512
KINDS = ("even", "a quarter", "drawn", "one long")
SPEC = "return attention {}"


def cells():
    """(heads, batch, room, q_len, kind, page size or None)"""
    for room, page in itertools.product(ROOMS, STORES):
        for batch, q_len in itertools.product((1, 8, 16, 32, 128), (1, 4)):
            yield (32, 8), batch, room, q_len, "even", page
        for batch in (8, 32):
            yield (64, 8), batch, room, 1, "even", page
        for batch, kind in itertools.product((8, 32, 128), KINDS[1:]):
            if room > SHORT or kind != "one long":
                yield (32, 8), batch, room, 1, kind, page


def name_of(cell):
    (heads, heads_kv), batch, room, q_len, kind, page = cell
    return f"B{batch} {room} q{q_len} {heads}/{heads_kv} {kind}, {f'pages of {page}' if page else 'no pages'}"


def lengths_of(batch, room, kind):
    drawn = random.Random(f"{batch} {room}")
    return {
        "even": [room] * batch,
        "a quarter": [room // 4] * batch,
        "drawn": [drawn.randint(room // 8, room) for _ in range(batch)],
        "one long": [room] + [SHORT] * (batch - 1),
    }[kind]


class Problem:
    """K and V as [entries, room, heads_kv, dim]; those behind an entry's end are random too."""

    def __init__(self, cell, dim=128):
        (self.heads, self.heads_kv), self.batch, self.room, self.q_len, self.kind, self.page = cell
        self.dim, self.lengths = dim, lengths_of(self.batch, self.room, self.kind)

        def make(length, heads):
            return torch.randn(self.batch, length, heads, dim, device="cuda", dtype=torch.bfloat16)

        self.q, self.k, self.v = make(self.q_len, self.heads), make(self.room, self.heads_kv), make(self.room, self.heads_kv)
        self.used = torch.tensor(self.lengths, device="cuda", dtype=torch.int32)
        self.bytes = 2 * 2 * sum(self.lengths) * self.heads_kv * dim
        if self.page:
            n = self.batch * self.room // self.page
            order = torch.randperm(n, device="cuda")
            self.table, self.pools = order.int().reshape(self.batch, -1), []
            for x in (self.k, self.v):
                pool = torch.empty(n, self.page, self.heads_kv, dim, device="cuda", dtype=x.dtype)
                pool[order] = x.reshape(pool.shape)
                self.pools.append(pool)

    def check(self, name, o):
        group = self.heads // self.heads_kv
        for b in {self.batch - 1, self.lengths.index(max(self.lengths))}:
            n = self.lengths[b]
            k, v = (x[b, :n, -1].double() for x in (self.k, self.v))
            score = torch.einsum("qhd,kd->qhk", self.q[b, :, -group:].double(), k) * self.dim**-0.5
            error = distance(o.reshape(self.q.shape)[b, :, -group:], torch.softmax(score, -1) @ v)
            if not error <= TOLERANCE["bf16"]:
                sys.exit(f"{name}: entry {b} of {n} keys is off by {error:.2e}, expected at most {TOLERANCE['bf16']:.2e}")


def luattn(library, p, holds_list=False):
    spec, o = library.spec("decode.lua", SPEC), torch.full_like(p.q, torch.nan)
    k, v, batch = p.k, p.v, {} if p.kind == "even" and not p.page else {"seqused_k": p.used}
    if p.page:
        (k, v), batch["block_table"] = p.pools, p.table
    tensors = dict(zip("qkvo", (x.transpose(1, 2) for x in (p.q, k, v, o))))
    lse = torch.empty(p.batch, p.heads, p.q_len, device="cuda")
    launch = library.bind(spec, batch=batch, holds_tiles=holds_list, lse=lse, **tensors)

    def run():
        launch()
        return o

    return run


def cudnn(p):
    if p.page or p.kind != "even":
        raise ValueError("even lengths without pages alone")
    q, k, v = (x.transpose(1, 2) for x in (p.q, p.k, p.v))

    def run():
        with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)

    return run


def fa3(ops, p):
    given = {} if p.kind == "even" and not p.page else {"seqused_k": p.used}
    return lambda: ops.fwd(p.q, p.k, p.v, softmax_scale=p.dim**-0.5, num_splits=0, **given)[0]


def ends_of(numbers):
    return torch.tensor([0, *itertools.accumulate(numbers)], device="cuda", dtype=torch.int32)


def flashinfer(p, memory):
    import flashinfer

    types = dict(q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    sizes, q, at = (p.heads, p.heads_kv, p.dim), p.q.flatten(0, 1), ends_of([p.q_len] * p.batch)
    if not p.page:
        rows = [torch.cat([x[b, :n] for b, n in enumerate(p.lengths)]) for x in (p.k, p.v)]
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend="fa2")
        wrapper.plan(at, ends_of(p.lengths), *sizes, causal=False, **types)
        return lambda: wrapper.run(q, *rows)
    count = [-(-n // p.page) for n in p.lengths]
    indices = torch.cat([p.table[b, :n] for b, n in enumerate(count)])
    last = torch.tensor([(n - 1) % p.page + 1 for n in p.lengths], device="cuda", dtype=torch.int32)
    if p.q_len == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=True)
        wrapper.plan(ends_of(count), indices, last, *sizes, p.page, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory, "NHD", backend="fa2")
        wrapper.plan(at, ends_of(count), indices, last, *sizes, p.page, causal=False, **types)
    return lambda: wrapper.run(q, tuple(p.pools))


def made(p, builds, ops, memory, without):
    """The contenders' functions, and why others are missing, by name. A library's refusal is of any type."""
    makers = {name: lambda x=x: luattn(x, p) for name, x in builds.items()}
    if p.kind != "even" or p.page:
        makers["batch"] = lambda: luattn(builds["luattn"], p, holds_list=True)
    makers |= {"cudnn": lambda: cudnn(p), "flashinfer": lambda: flashinfer(p, memory)}
    if ops:
        makers["fa3"] = lambda: fa3(ops, p)
    found, missing = {}, {}
    for name, make in makers.items():
        if re.fullmatch(without, name):
            continue
        try:
            run = make()
            o = run()
        except Exception as e:
            missing[name] = f"{type(e).__name__}: " + " ".join(str(e).split())[:160]
            continue
        p.check(f"{p.batch} {p.room} {p.kind}, {name}", o)
        found[name] = run
    return found, missing


class Clock:
    """Times calls whose inputs are not in the L2 cache."""

    def __init__(self):
        self.flushed = torch.zeros(64 << 20, device="cuda")
        self.sum = torch.zeros((), device="cuda")

    def host(self, run):
        """The seconds that the host takes for a call."""
        times = []
        for _ in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    def sample(self, run, host):
        """Microseconds of a call."""
        torch.sum(self.flushed, 0, out=self.sum)
        torch.cuda._sleep(int((host * 1.5 + 2e-5) * 1.9e9))
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3


def measure(found, clock, rounds, seed):
    shuffle, times = random.Random(seed).shuffle, {name: [] for name in found}
    hosts = {name: clock.host(run) for name, run in found.items()}
    for _ in range(rounds):
        order = list(found)
        shuffle(order)
        for name in order:
            times[name] += [clock.sample(found[name], hosts[name]) for _ in range(2)]
    return {name: statistics.median(x) for name, x in times.items()}


PEERS = {True: ("flashinfer",), False: ("cudnn", "fa3", "flashinfer")}  # by whether keys are in pages


def summary(rows, of, over):
    """Lines of the geometric mean of each group, the least, and how many are below 0.9. over: a row's ratio of `of`."""
    groups = {}
    for row in rows:
        x = over(row)
        if x is not None:
            for key in ("all", f"{'even' if row['kind'] == 'even' else 'uneven'}, {row['store']}", f"{row['room']} keys", f"{row['store']}"):
                groups.setdefault(key, []).append((x, row["cell"]))
    lines = [f"{of}: cells, geometric mean, least, below 0.90"]
    for key, found in sorted(groups.items()):
        least, mean = min(found), statistics.geometric_mean(x for x, _ in found)
        lines.append(f"  {key:28} {len(found):4} {mean:6.3f} {least[0]:6.3f} ({least[1]}) {sum(x < 0.9 for x, _ in found):3}")
    return lines


def best_ratio(row, name, peers):
    times = [row["us"][x] for x in peers if x in row["us"]]
    return min(times) / row["us"][name] if times and name in row["us"] else None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/engine/libluattn.so")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=PATH", help="another build beside it")
    parser.add_argument("--fa3", help="as for run.py")
    parser.add_argument("--only", default="", help="cells whose name has this regular expression")
    parser.add_argument("--without", default="", help="leaves out contenders of these names, a regular expression")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--json", help="writes all numbers here")
    return parser.parse_args()


def main():
    a, begun = arguments(), time.monotonic()
    torch.manual_seed(a.seed)
    builds = {name: Luattn(path) for name, path in (("luattn", a.library), *(x.split("=", 1) for x in a.also))}
    ops, clock, memory = a.fa3 and load_fa3(a.fa3), Clock(), torch.empty(512 << 20, device="cuda", dtype=torch.uint8)
    chosen, rows, left = [x for x in cells() if re.search(a.only, name_of(x))], [], 0
    random.Random(a.seed).shuffle(chosen)
    versions = {x: version_of(x) for x in ("torch", "flashinfer-python", "fa3-fwd")} | {"cudnn": torch.backends.cudnn.version()}
    print(f"{torch.cuda.get_device_name()}, {versions}, {len(chosen)} cells, {a.rounds} rounds of 2 samples; us", flush=True)
    for cell in chosen:
        if time.monotonic() - begun > a.budget_seconds:
            left += 1
            continue
        p = Problem(cell)
        found, missing = made(p, builds, ops, memory, a.without)
        store = f"pages of {p.page}" if p.page else "no pages"
        row = dict(cell=name_of(cell), kind=p.kind, store=store, room=p.room, bytes=p.bytes, us=measure(found, clock, a.rounds, name_of(cell)), missing=missing)
        rows.append(row)
        print(f"{row['cell']}: " + ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items()), flush=True)
        del p, found
    print(f"{len(rows)} cells in {time.monotonic() - begun:.0f} s, {left} left out for time")
    lines = []
    for name in (*builds, "batch"):
        lines += summary(rows, f"{name} to the best of the others", lambda row: best_ratio(row, name, PEERS[row["store"] != "no pages"]))
    lines += summary(rows, "luattn in pages to fa3 without pages", lambda row: best_ratio(row, "luattn", ["fa3"]) if row["store"] != "no pages" else None)
    for name in list(builds)[1:]:
        lines += summary(rows, f"luattn to {name}", lambda row: best_ratio(row, "luattn", [name]))
    print("\n".join(lines))
    for name, why in {name: why for row in rows for name, why in row["missing"].items()}.items():
        print(f"{name}: {why}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), versions=versions, rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
