#!/usr/bin/env python3
"""decode.py: attention of a few queries over many keys, as in decoding: bytes of K and V a second.

    python3 bench/decode.py                                 bf16, 32/8 heads, D 128, q 1 and 4, three shapes
    python3 bench/decode.py --only 'B32 .* q1' --json d.json

Each of a cell's contenders runs on the same K and V, [batch, keys, heads_kv, dim], without a mask, in interleaved rounds as in run.py:
    luattn      the kernel that an engine chooses: decode
    softcap, alibi, sigmoid
                the same with other specs: the cost of a score_mod, of one by heads, of another online function
    all_lengths luattn's kernel for all lengths (LUATTN_DECODE_NEVER)
    cudnn, fa2  through torch's scaled_dot_product_attention
    fa3         FlashAttention-3, a build of which --fa3 names, with num_splits = 0: its choice
    flashinfer  FlashInfer (flashinfer-python, which compiles its kernels: minutes), planned outside of the timing, with tensor cores: its
                decode wrapper for one query over pages, else its prefill wrappers, with --flashinfer-backend
and over the same keys in pages of 16 and of 64, which lie in memory in a random order:
    pages16, pages64, fa3_pages16, fa3_pages64, flashinfer_pages16, flashinfer_pages64
A contender that is not installed is left out, and one that refuses a cell has the reason in its place. Results are compared with float64
first. A rate is the median over the rounds. The last columns have the medians of the rounds' ratios: of luattn's rate to the best of the
libraries', in pages too; of the slowest spec's to luattn's; and of luattn's in pages to its own without.
"""

import argparse
import json
import os
import re
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from builds import Luattn
from contenders import load_fa3
from run import TOLERANCE, distance, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPES = ((32, 8192), (4, 65536), (1, 131072))
SLOPES = "inputs = { slope = { axes = {'h'}, dtype = 'f32' } },"
SPECS = {
    "luattn": "return attention {}",
    "softcap": "return attention { score_mod = softcap(20) }",
    "alibi": f"return attention {{ {SLOPES} score_mod = function(s, b, h, q, kv) return s + slope[h] * (kv - kv_len + 1) end }}",
    "sigmoid": "return attention { online_func = sigmoid_attention }",
}
NEVER = 2  # LUATTN_DECODE_NEVER
LIBRARIES, PAGES = ("cudnn", "fa2", "fa3", "flashinfer"), (16, 64)
PAGED = [f"{x}{n}" for x in ("pages", "fa3_pages", "flashinfer_pages") for n in PAGES]


class Problem:
    def __init__(self, batch, keys, q_len, a):
        self.batch, self.keys, self.q_len, self.heads, self.heads_kv, self.dim = batch, keys, q_len, *a.heads, a.head_dim

        def make(length, heads):
            return torch.randn(batch, length, heads, self.dim, device="cuda", dtype=torch.bfloat16)

        self.q, self.k, self.v = make(q_len, self.heads), make(keys, self.heads_kv), make(keys, self.heads_kv)
        self.slopes = torch.exp2(-8 * torch.arange(1, self.heads + 1, device="cuda") / self.heads)
        self.of_size, self.lengths = {}, torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        self.bytes = 2 * self.k.numel() * 2
        self.name = f"B{batch} Sk{keys} q{q_len}"

    def pages(self, size):
        """K and V in pages [pages, size, heads_kv, dim] in a random order, and the table of each entry's."""
        if size not in self.of_size:
            n = self.batch * self.keys // size
            table, pools = torch.randperm(n, device="cuda"), []
            for x in (self.k, self.v):
                pool = torch.empty(n, size, self.heads_kv, self.dim, device="cuda", dtype=x.dtype)
                pool[table] = x.reshape(pool.shape)
                pools.append(pool)
            self.of_size[size] = *pools, table.int().reshape(self.batch, -1)
        return self.of_size[size]

    def reference(self, name):
        """O of the last batch entry's last kv head's query heads, [q_len, group, dim] in float64."""
        group = self.heads // self.heads_kv
        q, k, v = self.q[-1, :, -group:].double(), self.k[-1, :, -1].double(), self.v[-1, :, -1].double()
        score = torch.einsum("qhd,kd->qhk", q, k) * self.dim**-0.5
        if name == "softcap":
            score = 20 * torch.tanh(score / 20)
        elif name == "alibi":
            score += self.slopes[-group:, None].double() * torch.arange(1 - self.keys, 1, device="cuda")
        weight = torch.sigmoid(score) if name == "sigmoid" else torch.softmax(score, -1)
        return weight @ v


def luattn(library, p, name, decode=0, page=None):
    spec, batch = library.spec(f"{name}.lua", SPECS[name]), None
    k, v = p.k, p.v
    if page:
        k, v, table = p.pages(page)
        batch = {"block_table": table, "seqused_k": p.lengths}
    q, k, v = (x.transpose(1, 2) for x in (p.q, k, v))
    o = torch.full_like(p.q, torch.nan)
    given = dict(q=q, k=k, v=v, o=o.transpose(1, 2))
    if spec.has_lse:
        given["lse"] = torch.empty(p.batch, p.heads, p.q_len, device="cuda")
    launch = library.bind(spec, inputs={"slope": (p.slopes, None)}, options={"decode": decode}, batch=batch, **given)
    if ("decode: " in launch.plan()) != (decode != NEVER):
        raise RuntimeError(f"another kernel: {launch.plan()}")

    def run():
        launch()
        return o

    return run


def sdpa(backend, p):
    q, k, v = (x.transpose(1, 2) for x in (p.q, p.k, p.v))

    def run():
        with torch.no_grad(), sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=p.heads != p.heads_kv).transpose(1, 2)

    return run


def fa3(ops, p, page=None):
    k, v, in_pages = p.k, p.v, {}
    if page:
        k, v, table = p.pages(page)
        in_pages = dict(page_table=table, seqused_k=p.lengths)
    return lambda: ops.fwd(p.q, k, v, softmax_scale=p.dim**-0.5, num_splits=0, **in_pages)[0]


def flashinfer(p, backend, page=None):
    import flashinfer

    memory = torch.empty(512 << 20, device="cuda", dtype=torch.uint8)
    at, sizes, q = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32), (p.heads, p.heads_kv, p.dim), p.q.flatten(0, 1)
    types = dict(q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    if page is None:
        wrapper, kv = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD", backend=backend), (p.k.flatten(0, 1), p.v.flatten(0, 1))
        wrapper.plan(at * p.q_len, at * p.keys, *sizes, causal=False, **types)
        return lambda: wrapper.run(q, *kv).reshape(p.q.shape)
    *pools, table = p.pages(page)
    keys = at * table.shape[1], table.flatten(), torch.full((p.batch,), page, device="cuda", dtype=torch.int32)
    if p.q_len == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=True)
        wrapper.plan(*keys, *sizes, page, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory, "NHD", backend=backend)
        wrapper.plan(at * p.q_len, *keys, *sizes, page, causal=False, **types)
    return lambda: wrapper.run(q, tuple(pools)).reshape(p.q.shape)


def functions_of(p, library, a, ops):
    """Returns the contenders' functions, and the reasons of those that are missing, by name."""
    makers = {name: lambda name=name: luattn(library, p, name) for name in SPECS}
    makers["all_lengths"] = lambda: luattn(library, p, "luattn", NEVER)
    makers["cudnn"] = lambda: sdpa(SDPBackend.CUDNN_ATTENTION, p)
    makers["fa2"] = lambda: sdpa(SDPBackend.FLASH_ATTENTION, p)
    if ops:
        makers["fa3"] = lambda: fa3(ops, p)
    makers["flashinfer"] = lambda: flashinfer(p, a.flashinfer_backend)
    for page in PAGES:
        makers[f"pages{page}"] = lambda page=page: luattn(library, p, "luattn", page=page)
        if ops:
            makers[f"fa3_pages{page}"] = lambda page=page: fa3(ops, p, page)
        makers[f"flashinfer_pages{page}"] = lambda page=page: flashinfer(p, a.flashinfer_backend, page)
    found, missing, group = {}, {}, p.heads // p.heads_kv
    for name, make in makers.items():
        if re.fullmatch(a.without, name):
            continue
        try:
            run = make()
            got = run()[-1, :, -group:]
        except Exception as e:  # libraries raise different types for unsupported problems
            missing[name] = " ".join(str(e).split())[:120] or type(e).__name__
            continue
        error = distance(got, p.reference(name))
        if not error <= TOLERANCE["bf16"]:
            sys.exit(f"{p.name}: {name} is off by {error:.2e}, expected at most {TOLERANCE['bf16']:.2e}")
        found[name] = run
    return found, missing


def ratio(ms, over, under):
    """The median of the rounds' ratios of the rate of `over` to the highest of `under`; None where there are none."""
    if over not in ms or not under:
        return None
    return statistics.median(min(times) / t for t, *times in zip(ms[over], *(ms[x] for x in under)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/libluattn.so")
    parser.add_argument("--heads", default="32,8", type=lambda x: tuple(map(int, x.split(","))), help="of q, of k (default 32,8)")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--queries", default="1,4", type=lambda x: tuple(map(int, x.split(","))), help="with commas between (default 1,4)")
    parser.add_argument("--only", default="", help="cells whose name has this regular expression")
    parser.add_argument("--without", default="", help="leaves out contenders of these names, a regular expression")
    parser.add_argument("--fa3", help="as for run.py")
    parser.add_argument("--flashinfer-backend", default="fa2", help="fa2 (the default, which splits keys), fa3 or auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--round-ms", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also writes all numbers here")
    a = parser.parse_args()
    library, ops, rows, ratios = Luattn(a.library), a.fa3 and load_fa3(a.fa3), [], []
    torch.manual_seed(a.seed)
    names = [x for x in (*SPECS, "all_lengths", *LIBRARIES, *PAGED) if not re.fullmatch(a.without, x)]
    print(f"{torch.cuda.get_device_name()}, bf16, {a.heads[0]}/{a.heads[1]} heads, D {a.head_dim}, {a.rounds} rounds; GB/s of K and V\n")
    print("| cell | " + " | ".join(names) + " | luattn / best library | slowest spec / luattn"
          + "".join(f" | pages{n} / luattn | pages{n} / best library" for n in PAGES) + " |")
    print("|" + "---|" * (len(names) + 3 + 2 * len(PAGES)), flush=True)
    for batch, keys in SHAPES:
        for q_len in a.queries:
            if not re.search(a.only, f"B{batch} Sk{keys} q{q_len}"):
                continue
            p = Problem(batch, keys, q_len, a)
            found, missing = functions_of(p, library, a, ops)
            ms = measure(found, a.rounds, a.round_ms, f"{a.seed} {p.name}")
            rates = {name: round(p.bytes / statistics.median(ms[name]) / 1e6) for name in names if name in ms}
            best = ratio(ms, "luattn", [x for x in LIBRARIES if x in ms])
            specs = [ratio(ms, x, ["luattn"]) for x in SPECS if x in ms and x != "luattn" and "luattn" in ms]
            slowest = min(specs) if specs else None
            in_pages = []
            for n in PAGES:
                peers = [x for x in (f"fa3_pages{n}", f"flashinfer_pages{n}") if x in ms]
                in_pages += [ratio(ms, f"pages{n}", ["luattn"] if "luattn" in ms else []), ratio(ms, f"pages{n}", peers)]
            rows.append(dict(cell=p.name, gb_s=rates, best=best, slowest=slowest, in_pages=in_pages, missing=missing))
            ratios += [best] if best else []
            shown = (f"{x:.3f}" if x else "-" for x in (best, slowest, *in_pages))
            print(f"| {p.name} | " + " | ".join(str(rates.get(x, "-")) for x in names) + " | " + " | ".join(shown) + " |", flush=True)
            del p, found
            torch.cuda.empty_cache()
    if ratios:
        print(f"\nluattn / best library, geometric mean: {statistics.geometric_mean(ratios):.3f}")
    for name, why in {name: why for row in rows for name, why in row["missing"].items()}.items():
        print(f"{name}: {why}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), rows=rows), f, indent=1)


if __name__ == "__main__":
    main()
