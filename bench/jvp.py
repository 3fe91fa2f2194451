#!/usr/bin/env python3
"""jvp.py: forward with tangents: milliseconds beside luattn's own forward, SDPA's math path and other libraries' kernels.

    python3 bench/jvp.py                                   bf16, 16384 tokens, heads times head dim 2048, lengths of 4096 and 16384
    python3 bench/jvp.py --only 'D128 S4096' --also old=/path/to/another/libluattn.so
    python3 bench/jvp.py --only 'D128 S4096' --family sm80 --family simt
    python3 bench/jvp.py --rcm flash_attention_jvp_triton.py --jvp-flash --json j.json
    python3 bench/jvp.py --host                            host time of luattn.jvp beside a plain call, and no more

Of a cell all run on the same tensors in one process, in interleaved rounds as in run.py, and each is a CUDA graph of one call, if it has one:
    forward     luattn without tangents
    jvp         luattn.jvp along q, k and v
    jvp q       along q alone
    causal, cap, sink, documents
                the same along q, k and v (and sinks): the share of time over jvp's is divided by the share of scores that the mask keeps
    math        torch.func.jvp of SDPA's math path, where S * S scores are few
    rcm         NVlabs/rcm's Triton kernel: --rcm names rcm/utils/flash_attention_jvp_triton.py; it needs no flash_attn here
    jvp_flash   jvp-flash-attention, where it is installed; its kernel is called as its fwd_dual calls it
o and its tangent are first compared with float64 on one head. A ratio is the median of the rounds' ratios. LUATTN_LIBRARY names the library.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import re
import statistics
import sys
import time
import types

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from builds import Luattn
from contenders import replayed
from run import TOLERANCE, distance, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS, WIDTH, DOCUMENTS = 16384, 2048, 8
DIT = (64, 16, 256, 72)  # DiT-XL/2 at 256 x 256: batch, heads, length, head dim
CAP = 50.0
FULL, CAUSAL = 'return attention { name = "full" }', 'return attention { name = "causal", block_mask = causal() }'
SPECS = {
    "causal": CAUSAL,
    "cap": f'return attention {{ name = "cap", score_mod = softcap({CAP:g}) }}',
    "sink": 'return attention { name = "sink", inputs = { sinks = { axes = {"h"}, grad = true } }, online_func = attention_sink("sinks") }',
    "documents": 'return attention { name = "documents", inputs = { doc_q = { axes = {"q"}, dtype = "i32" }, doc_kv = { axes = {"kv"}, dtype = "i32" } }, '
    "block_mask = function(b, h, q, kv) return eq(doc_q[q], doc_kv[kv]) end }",
}
PRODUCTS = {"forward": 2, "jvp q": 4}  # others: 6


class Problem:
    def __init__(self, batch, heads, length, dim):
        self.shape, self.name = (batch, heads, length, dim), f"B{batch} H{heads} S{length} D{dim}"
        self.scores = batch * heads * length * length

        def make():  # memory order [batch, length, heads, dim]
            return torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        self.primals, self.tangents = [make() for _ in "qkv"], [make() for _ in "qkv"]
        self.sinks, self.sinks_tangent = torch.randn(2, heads, device="cuda").unbind()
        self.documents = torch.arange(length, device="cuda", dtype=torch.int32) // (length // DOCUMENTS)

    def kept(self, name):
        """The share of scores that the mask keeps."""
        length = self.shape[2]
        return (length + 1) / (2 * length) if name.endswith("causal") else 1 / DOCUMENTS if name == "documents" else 1.0

    def exact(self, name, along):
        """o and its tangent of the last entry's last head, in float64."""
        q, k, v, *of = (t[-1, -1].double() for t in (*self.primals, *self.tangents))
        sink = (self.sinks[-1].double(), self.sinks_tangent[-1].double()) if name == "sink" else None
        of = [t if x in along else torch.zeros_like(t) for x, t in zip("qkv", of)]
        s, ds = q @ k.T * q.size(-1) ** -0.5, (of[0] @ k.T + q @ of[1].T) * q.size(-1) ** -0.5
        if name == "cap":
            s = torch.tanh(s / CAP)
            ds, s = ds * (1 - s * s), CAP * s
        hidden = torch.zeros_like(s, dtype=torch.bool)
        if name.endswith("causal"):
            hidden = torch.ones_like(hidden).triu_(1)
        elif name == "documents":
            hidden = self.documents[:, None] != self.documents
        s.masked_fill_(hidden, -torch.inf)
        log_l = s.logsumexp(-1) if sink is None else torch.logaddexp(s.logsumexp(-1), sink[0])
        p = torch.exp(s - log_l[:, None])
        mean = (p * ds).sum(-1) + (0 if sink is None else torch.exp(sink[0] - log_l) * sink[1])
        return p @ v, (p * (ds - mean[:, None])) @ v + p @ of[2]


def ours(library, p, name, text, along="qkv", forward=False):
    """A call of one build: o, and its tangent unless `forward`."""
    spec, tensors = library.spec(f"jvp_{name}", text), library.package("_tensors")

    def engine(*_):
        return library.engine

    inputs = [p.sinks] if name == "sink" else [p.documents, p.documents] if name == "documents" else []
    if forward:

        def plain():
            tensors.engine_for = engine  # which a build's families share
            return tensors.forward(spec, *p.primals, inputs, [], 0.0, {})[:1]

        return plain
    tangents = [t if x in along else None for x, t in zip("qkv", p.tangents)]
    tangents += [p.sinks_tangent] if name == "sink" else [None] * len(inputs)

    def call():
        tensors.engine_for = engine
        made = tensors.forward_jvp(spec, *p.primals, inputs, [], 0.0, tangents, [], {})
        return made[0], made[3]

    return call


def math(p):
    def call():
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(scaled_dot_product_attention, tuple(p.primals), tuple(p.tangents))

    return call


def load_rcm(path, configs):
    """The module; of its autotuner's configurations those alone that `configs` lists, or all."""
    absent = types.SimpleNamespace(_flash_attn_backward=lambda: None, _flash_attn_varlen_backward=lambda: None)
    sys.modules.setdefault("flash_attn", types.ModuleType("flash_attn"))
    sys.modules.setdefault("flash_attn.flash_attn_interface", absent)  # which its backward alone calls
    spec = importlib.util.spec_from_file_location("rcm_jvp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if configs:
        module._attn_fwd.configs = [
            c for c in module._attn_fwd.configs if (c.kwargs["BLOCK_M"], c.kwargs["BLOCK_N"], c.num_stages, c.num_warps) in configs
        ]
    return module


def rcm(p, a):
    module = load_rcm(a.rcm, a.rcm_configs)
    q, k, v, *of = (t.contiguous() for t in (*p.primals, *p.tangents))
    return lambda: module._attention.apply(q, k, v, *of)


def jvp_flash(p, causal):
    from jvp_flash_attention.jvp_attention import JVPAttn
    from torch.autograd import forward_ad

    q, k, v, *of = (t.contiguous() for t in (*p.primals, *p.tangents))

    def call():
        with torch.no_grad(), forward_ad.dual_level():
            made = JVPAttn.fwd_dual(*map(forward_ad.make_dual, (q, k, v), of), causal=causal)
            return tuple(forward_ad.unpack_dual(made))

    return call


def contenders(p, libraries, a):
    """name -> (what makes a call, the spec's name, along what)."""
    found = {}
    for prefix, library in libraries.items():

        def add(name, spec, text, along="qkv", forward=False, library=library, prefix=prefix):
            found[prefix + name] = (lambda: ours(library, p, spec, text, along, forward)), spec, along

        add("forward", "full", FULL, forward=True)
        add("jvp", "full", FULL)
        if p.shape != DIT:
            add("jvp q", "full", FULL, "q")
            for name, text in SPECS.items():
                add(name, name, text)
    if p.shape[2] <= 256 or p.shape[2] == 4096 and a.math:
        found["math"] = (lambda: math(p)), "full", "qkv"
    if p.shape[2] == 4096 and a.rcm:
        found["rcm"] = (lambda: rcm(p, a)), "full", "qkv"
    if p.shape[2] == 4096 and a.jvp_flash:
        for causal in (False, True):
            found["jvp_flash" + " causal" * causal] = (lambda causal=causal: jvp_flash(p, causal)), "causal" if causal else "full", "qkv"
    return {name: x for name, x in found.items() if re.search(a.contenders, name)}


def prepared(p, name, make, spec, along, row):
    """The graph of a call whose results are right, or the call where it has no graph; None: it is refused, and the row says why."""
    try:
        call = make()
        start = time.monotonic()
        made = call()
        torch.cuda.synchronize()
        row["first_s"] = round(time.monotonic() - start, 2)
        row["error"] = [distance(got[-1, -1], want) for got, want in zip(made, p.exact(spec, along))]
        allowed = 2 * TOLERANCE["bf16"]  # twice that of o: two sums, of P' V and P V', are rounded as one is
        if not all(e <= allowed for e in row["error"]) and name != "math":
            raise RuntimeError(f"wrong: errors {row['error']}")
        del made
    except Exception as e:  # libraries raise different types
        row["refused"] = " ".join(str(e).split())[:200] or type(e).__name__
        return None
    try:
        return replayed(call)
    except RuntimeError as e:  # others' calls alone: they are launched one by one, in milliseconds each
        row["graph"] = str(e)[:200]
        return call


def compile_all(p, libraries, a):
    """Kernels of a cell at once, as each takes seconds where the cache has it not."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = [pool.submit(lambda make=make: make()()) for name, (make, *_) in contenders(p, libraries, a).items() if "flash" not in name and name not in ("math", "rcm")]
        concurrent.futures.wait(made)


def run_cell(p, libraries, a):
    compile_all(p, libraries, a)
    rows, calls = {}, {}
    for name, (make, spec, along) in contenders(p, libraries, a).items():
        rows[name] = row = {}
        call = prepared(p, name, make, spec, along, row)
        if call is not None:
            calls[name] = call
    ms = measure(calls, a.rounds, a.round_ms, f"{a.seed} {p.name}")
    print(f"\n{p.name}\n\n| call | ms | TFLOP/s | time of forward's | of jvp's, at the same scores | error of o, of its tangent |\n|---|---|---|---|---|---|")
    for name, row in rows.items():
        if "refused" in row:
            print(f"| {name} | {row['refused']} | | | | |")
            continue
        prefix = name.rpartition(":")[0]
        prefix += ":" * bool(prefix)
        own, kept = ms[name], p.kept(name)
        row["ms"] = statistics.median(own)
        row["tflops"] = 2 * PRODUCTS.get(name[len(prefix) :], 6) * p.scores * kept * p.shape[3] / row["ms"] / 1e9
        for of, divided in (("forward", 1.0), ("jvp", kept)):
            if prefix + of in ms:
                row[f"of {of}"] = statistics.median(x / y / divided for x, y in zip(own, ms[prefix + of]))
        shown = (f"{row[x]:.2f}" if x in row else "-" for x in ("of forward", "of jvp"))
        print(f"| {name} | {row['ms']:.3f} | {row['tflops']:.0f} | {' | '.join(shown)} | {', '.join(f'{e:.2g}' for e in row['error'])} |", flush=True)
    return dict(cell=p.name, rows=rows)


def host_times(count=1000):
    """Prints medians of the host's time of a call, without a wait between calls."""
    import luattn

    def median_us(run):
        times = []
        for i in range(count + count // 10):
            start = time.perf_counter_ns()
            run()
            times.append(time.perf_counter_ns() - start)
            if i % 100 == 0 and torch.cuda.is_initialized():
                torch.cuda.synchronize()
        return sorted(times[count // 10 :])[count // 2] / 1000

    on_gpu = torch.cuda.is_available()
    shape, device = ((1, 2, 128, 64), "cuda") if on_gpu else ((1, 1, 4, 8), "cpu")
    q, k, v, *of = (torch.randn(shape, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32) for _ in range(6))
    full, found = luattn.attention(FULL), {}
    with torch.no_grad():
        found["attention"] = median_us(lambda: full(q, k, v))
        found["luattn.jvp"] = median_us(lambda: luattn.jvp(full, (q, k, v), of))
        found["luattn.jvp of q"] = median_us(lambda: luattn.jvp(full, (q, k, v), {"q": of[0]}))
        found["torch.func.jvp of attention"] = median_us(lambda: torch.func.jvp(full, (q, k, v), tuple(of)))
        with sdpa_kernel(SDPBackend.MATH):
            found["torch.func.jvp of SDPA's math path"] = median_us(lambda: torch.func.jvp(scaled_dot_product_attention, (q, k, v), tuple(of)))
    wants = [t.clone().requires_grad_() for t in (q, k, v)]
    found["attention, with gradients"] = median_us(lambda: full(*wants))
    found["luattn.jvp, with gradients"] = median_us(lambda: luattn.jvp(full, wants, of))
    print("\n| host time of a call | us |\n|---|---|")
    for name, us in found.items():
        print(f"| {name} | {us:.1f} |", flush=True)
    return found


def take_configs(text):
    return [tuple(map(int, x.split(","))) for x in text.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--also", action="append", default=[], help="NAME=LIBRARY: another build, beside the first")
    parser.add_argument("--family", action="append", default=[], choices=("simt", "sm80", "sm90"), help="all of a family's kernels, beside the plan's own choice")
    parser.add_argument("--only", default="", help="cells whose name has this regular expression")
    parser.add_argument("--contenders", default="", help="likewise of a cell's calls")
    parser.add_argument("--rcm", help="the file of rCM's kernel")
    parser.add_argument("--rcm-configs", type=take_configs, help="its autotuner's configurations: 'M,N,stages,warps M,N,..' (default: all)")
    parser.add_argument("--jvp-flash", action="store_true", help="with jvp-flash-attention")
    parser.add_argument("--math", action="store_true", help="with the math path at 4096, too, where it fits")
    parser.add_argument("--host", action="store_true", help="host times alone")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--round-ms", type=float, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also writes all numbers here")
    a = parser.parse_args()
    if a.host:
        host_times()
        return
    libraries = {"": Luattn(os.environ.get("LUATTN_LIBRARY") or f"{ROOT}/build/release/engine/libluattn.so")}
    libraries |= {f"{name}:": Luattn(path) for name, _, path in (x.partition("=") for x in a.also)}
    libraries |= {f"{family}:": Luattn(libraries[""].options[0], family) for family in a.family}
    torch.manual_seed(a.seed)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, {a.rounds} rounds")
    shapes = [(TOKENS // length, WIDTH // dim, length, dim) for dim in (128, 64) for length in (4096, 16384)]
    shapes += [(4, 16, 4096, 64), DIT]
    found = []
    torch.cuda.set_stream(torch.cuda.Stream())  # whose calls a graph can have
    for shape in shapes:
        batch, heads, length, dim = shape
        if re.search(a.only, f"B{batch} H{heads} S{length} D{dim}"):
            found.append(run_cell(Problem(*shape), libraries, a))
            torch.cuda.empty_cache()
    found.append(dict(cell="host", us=host_times()))
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(device=torch.cuda.get_device_name(), cells=found), f, indent=1)


if __name__ == "__main__":
    main()
