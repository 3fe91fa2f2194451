#!/usr/bin/env python3
"""run.py: measures luattn next to cuDNN, FlashAttention-2, -3 and -4, and FlexAttention.

    python3 bench/run.py                                           plain attention, forward
    python3 bench/run.py --suite all --pass fwd,bwd --json r.json  everything, into r.json, r.md and r_*.svg
    python3 bench/run.py --only 'D128 causal' --also old=/path/to/another/libluattn.so
    python3 bench/run.py --suite plain,variants --graphs           launches replayed from CUDA graphs

Contenders, by the names that --with and --without take:
    luattn      this repository's libluattn.so
    cudnn, fa2  cuDNN and FlashAttention-2, through torch's scaled_dot_product_attention; for packed sequences cuDNN
                through nvidia-cudnn-frontend, and FlashAttention-2 through torch.nn.attention.varlen
    fa3         FlashAttention-3, a build of which --fa3 names, such as the package fa3-fwd's, forward alone
    fa4         FlashAttention-4: pip install --pre 'flash-attn-4[cu13]', for CUDA 12 without [cu13]
    flex        FlexAttention, compiled to Triton
    flex_flash  FlexAttention with BACKEND="FLASH", which calls FlashAttention-4; torch 2.11 or later
    luattn_flex luattn.flex of python/luattn: FlexAttention's functions, called as they are, without torch.compile
    dense       luattn, a batch of equal lengths beside the same lengths packed
A contender that is not installed is left out, and the report's first lines say why. With --with it is an
error.

--graphs takes the host out of the times: each contender's launch is captured once per pass into a CUDA graph,
and the rounds replay it. A contender that cannot be captured is refused, with the reason.

All contenders of a cell run on the same tensors in one process, in interleaved rounds, each in a random order
(--seed). A rate is the median over the rounds, a ratio the median of the per-round ratios. Results are first
compared with float64 on one head, and with luattn's on all heads.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import re
import shlex
import statistics
import sys
import time

import torch

import contenders
import report
from builds import FAMILIES, Luattn
from cells import PASSES, SUITES, VARIANTS, flops, kept_in_tiles, orders
from installed import NotInstalled, check_wanted, open_contenders, version_of

# A result is rounded to the half type, and so are up to four intermediate tensors (P, dS, dO, and O in the
# row sums of dO * O). A rounding is off by at most u, which is 2^-8 in bf16 and 2^-11 in f16. Its root mean
# square is 0.43 u (u / sqrt(3) for a mantissa of 1, half of that near 2), so five independent roundings give
# 0.95 u.
TOLERANCE = {"bf16": 2**-8, "f16": 2**-11}
RESULTS = ("o", "dq", "dk", "dv")


def distance(got, want):
    """Returns the RMS of got - want over the RMS of want. A NaN fails any tolerance."""
    return ((got.to(want.dtype) - want).norm() / want.norm()).item()


def positions(results, pass_):
    """Returns [o, dq, dk, dv], with None for tensors that the pass does not compute."""
    return {"fwd": results + [None] * 3, "bwd": [None] + results, "fwdbwd": results}[pass_]


class Contender:
    """Launches each pass of an entry once; holds its functions and, for each pass, a row of results.

    graphs: captures each pass into a CUDA graph, which the pass's function replays.
    """

    def __init__(self, entry, variation, make, passes, graphs=False):
        self.entry, self.variation, self.run, self.rows = entry, variation, None, {}
        for pass_ in passes:
            start = time.monotonic()
            row = self.rows[pass_] = dict(name=entry.name, library=entry.library)
            try:
                self.run = self.run or make()
                self.run[pass_]()
                if graphs:
                    self.run[pass_] = contenders.replayed(self.run[pass_])
            except Exception as e:  # libraries raise different types for unsupported problems
                row["refused"] = " ".join(str(e).split())[:200] or type(e).__name__
            torch.cuda.synchronize()  # outside the try: a device fault ends the run
            row["setup_s"] = round(time.monotonic() - start, 2)

    def flops(self, pass_):
        return flops(self.entry.problem, self.variation.kept, pass_)


def measure(functions, rounds, round_ms, seed):
    """Returns the milliseconds of a launch in each round, by name. Queues all launches before a single
    wait, so that the device is never idle."""

    def launch(f, n):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(n):
            f()
        stop.record()
        return start, stop, n

    def wait(timed):
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / n for start, stop, n in timed]

    trial = dict(zip(functions, wait([launch(f, 4) for f in functions.values()])))
    counts = {name: min(64, max(3, round(round_ms / ms))) for name, ms in trial.items()}
    timed = {name: [] for name in functions}
    for order in orders(functions, 1 + rounds, seed):
        for name in order:
            timed[name].append(launch(functions[name], counts[name]))
    return {name: wait(t)[1:] for name, t in timed.items()}  # the first round warms up


def check(members, pass_, exact):
    """Records each contender's error, its difference from the first, and whether both are in tolerance."""
    first = None
    for m in members:
        p, row, allowed = m.entry.problem, m.rows[pass_], TOLERANCE[m.entry.problem.dtype]
        results = positions(m.run[pass_](), pass_)
        parts = zip(RESULTS, contenders.of_reference(results, p), exact[m.entry.variant, p])
        errors = {name: distance(got, want) for name, got, want in parts if got is not None}
        row["error"] = {name: float(f"{e:.3g}") for name, e in errors.items()}
        row["right"] = all(e <= allowed for e in errors.values())
        same = m.entry.variant, p
        if first is None:
            first = same, [None if r is None else r.clone() for r in results]
        elif first[0] == same:
            pairs = zip(results, first[1])
            differences = [distance(got, want.float()) for got, want in pairs if got is not None]
            row["difference"] = float(f"{max(differences):.3g}")
            row["right"] = row["right"] and all(d <= 2 * allowed for d in differences)  # NaN is not


def add_rates(members, pass_, times, base):
    """Adds to the rows the median rates, and the median ratios of the base's rate to each entry's."""
    rates = {m.entry.name: [m.flops(pass_) / ms / 1e9 for ms in times[m.entry.name]] for m in members}
    for m in members:
        row, name = m.rows[pass_], m.entry.name
        row["ms"], row["tflops"] = (round(statistics.median(x[name]), n) for x, n in ((times, 4), (rates, 1)))
        if base in rates and name != base:
            ratios = [b / r for b, r in zip(rates[base], rates[name])]
            row["base_ratio"] = round(statistics.median(ratios), 4)


def add_plan(m, pass_):
    """Records the plan of a luattn entry and, for a band mask, the ratio of scores in computed tiles to kept
    scores."""
    family, tile_m, tile_n = m.run["plan"](pass_ != "fwd")
    m.rows[pass_]["plan"] = f"{family} {tile_m}x{tile_n}"
    v, length = VARIANTS[m.entry.variant], m.entry.problem.length
    if v.window and pass_ == "fwd":
        covered = kept_in_tiles(length, tile_m, tile_n, *v.window(length))
        m.rows[pass_]["tile_work"] = round(covered / v.kept(length), 4)


def run_cell(cell, makers, a):
    """Measures one cell. Returns its rows, one per pass."""
    tensors, variations, exact, members = {}, {}, {}, []
    if {"flex", "flex_flash"} & set(makers):
        contenders.forget_compiled()
    for e in cell.entries:
        if e.library not in makers:
            continue
        key = e.variant, e.problem
        if e.problem not in tensors:
            tensors[e.problem] = contenders.Tensors(e.problem)
        t = tensors[e.problem]
        if key not in variations:
            variations[key] = contenders.Variation(*key)
            if not a.compile_only:
                exact[key] = contenders.reference(variations[key], t, a.passes != ["fwd"])
        asked = {name: True for name in ("gradients", "every_tile", "deterministic") if getattr(e, name)}
        make = functools.partial(makers[e.library], variations[key], t, **asked)
        members.append(Contender(e, variations[key], make, a.passes, a.graphs))
    if a.compile_only:
        for m in members:
            print(cell.name, m.entry.name, *(f"{p} {x.get('refused') or x['setup_s']}" for p, x in m.rows.items()), flush=True)
        return []
    rows = []
    for pass_ in a.passes:
        running = [m for m in members if "refused" not in m.rows[pass_]]
        check(running, pass_, exact)
        functions = {m.entry.name: m.run[pass_] for m in running}
        times = measure(functions, a.rounds, a.round_ms, f"{a.seed} {cell.name} {pass_}")
        add_rates(running, pass_, times, cell.entries[0].name)
        for m in running:
            if "plan" in m.run:
                add_plan(m, pass_)
        labels = {"suite": cell.suite, "cell": cell.name, **cell.labels, "pass": pass_}
        rows.append({**labels, "entries": [m.rows[pass_] for m in members]})
    return rows


def openers_of(a):
    """Returns a dict from library to a function that returns its maker: (variation, tensors) -> passes."""

    def open_luattn(path):
        library, at, how = path.partition("@")
        if at and how not in ("offsets", "arrays", "large_scores", "bits"):
            raise NotInstalled(f"'{path}': after @ comes offsets, arrays, large_scores or bits, or nothing")
        offsets = {"offsets": "numbers", "arrays": "arrays"}.get(how)
        opened = Luattn(library, a.family, offsets=offsets, large_scores=how == "large_scores", bits=how == "bits")
        return functools.partial(contenders.luattn, opened)

    def open_fa3():
        if not a.fa3:
            raise NotInstalled("no build of it is given (--fa3 PATH)")
        return functools.partial(contenders.fa3, contenders.load_fa3(a.fa3))

    builds = [("luattn", a.library), *a.also]
    openers = {name: functools.partial(open_luattn, path) for name, path in builds}
    for name, backend in contenders.SDPA.items():
        openers[name] = functools.partial(functools.partial, contenders.sdpa, backend)
    return openers | {
        "flex": lambda: contenders.flex,
        "flex_flash": contenders.open_flex_flash,
        "fa3": open_fa3,
        "fa4": contenders.open_fa4,
        "dense": functools.partial(open_luattn, a.library),
        "luattn_flex": functools.partial(contenders.open_luattn_flex, a.library.partition("@")[0]),
    }


def with_also(cell, also):
    """Returns the cell with each luattn entry followed by the same entry for every other build."""
    entries = []
    for e in cell.entries:
        entries.append(e)
        if e.library == "luattn":
            entries += [
                dataclasses.replace(
                    e,
                    library=name,
                    name=e.name.replace("luattn", name) if "luattn" in e.name else f"{name} {e.name}",
                )
                for name, _ in also
            ]
    return dataclasses.replace(cell, entries=tuple(entries))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library", default=f"{contenders.ROOT}/build/release/engine/libluattn.so", help="libluattn.so"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another build of libluattn.so beside it; PATH@offsets: with kernels that take offsets, PATH@arrays: with "
        "offsets from arrays on the device, PATH@large_scores: with those for large scores, PATH@bits: with masks from data "
        "evaluated before the timing",
    )
    parser.add_argument(
        "--fa3",
        metavar="PATH",
        help="FlashAttention-3: its extension's .so, or the folder of flash_attn_interface.py",
    )
    parser.add_argument(
        "--no-flex",
        action="store_true",
        help="without flex and flex_flash: FlexAttention compiles for seconds a variant",
    )
    parser.add_argument("--without", default="", metavar="NAME,..", help="leave these contenders out")
    parser.add_argument(
        "--with",
        dest="wanted",
        default="",
        metavar="NAME,..",
        help="end with an error where one of these is not installed",
    )
    parser.add_argument(
        "--graphs",
        action="store_true",
        help="capture each contender's launch into a CUDA graph, and time the graph's replays",
    )
    parser.add_argument("--family", choices=FAMILIES, help="of luattn's kernels (default: the plan's choice)")
    parser.add_argument("--suite", default="plain", help=f"{', '.join(SUITES)} or all, with commas between")
    parser.add_argument(
        "--pass", dest="passes", default="fwd", help=f"{', '.join(PASSES)}, with commas between"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="cells whose name matches, e.g. 'D128 causal'"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0, help="of the order of contenders in each round")
    parser.add_argument(
        "--round-ms",
        type=float,
        default=12,
        help="about how long one contender launches in a round (at least 3 times)",
    )
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=float("inf"),
        help="start no cell after this, and say which are left",
    )
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="launch each contender once and measure nothing, so that caches have its kernels; several processes may "
        "share the work, with --only",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="where the results go; the table and the plots go beside it"
    )
    a = parser.parse_args()
    a.suites = list(SUITES) if a.suite == "all" else a.suite.split(",")
    a.passes = a.passes.split(",")
    a.without, a.wanted = ([x for x in names.split(",") if x] for names in (a.without, a.wanted))
    a.also = [tuple(x.split("=", 1)) for x in a.also]
    if any(len(x) != 2 for x in a.also):
        parser.error("--also: takes NAME=PATH")
    a.openers = openers_of(a)
    for given, known, flag in (
        (a.suites, SUITES, "--suite"),
        (a.passes, PASSES, "--pass"),
        (a.without, a.openers, "--without"),
        (a.wanted, a.openers, "--with"),
    ):
        for x in given:
            if x not in known:
                parser.error(f"{flag}: '{x}' is unknown; there are {', '.join(known)}")
    a.without += ["flex", "flex_flash"] if a.no_flex else []
    for x in a.wanted:
        if x in a.without:
            parser.error(f"--with: '{x}' is also left out, by --without or --no-flex; drop one of the two")
    return a


def packages_of(makers):
    """Returns the versions of the packages that fa4 and flex_flash use; empty if neither is measured."""
    names = ("flash-attn-4", "nvidia-cutlass-dsl") if {"fa4", "flex_flash"} & set(makers) else ()
    return {name: version_of(name) for name in names}


def main():
    a = arguments()
    start = time.monotonic()
    torch.manual_seed(0)
    cells = [with_also(c, a.also) for s in a.suites for c in SUITES[s]() if re.search(a.only, c.name)]
    needed = {e.library for c in cells for e in c.entries}
    makers, absent = open_contenders(a.openers, needed, a.without)
    missing = check_wanted(a.wanted, makers, absent)
    if missing:
        sys.exit(f"run.py: --with: {missing}")
    data = dict(
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cudnn=torch.backends.cudnn.version(),
        packages=packages_of(makers),
        absent=absent,
        graphs=a.graphs,
        rounds=a.rounds,
        seed=a.seed,
        command=shlex.join(["bench/run.py", *sys.argv[1:]]),
        rows=[],
        skipped=[],
    )
    for line in report.absences(data):
        print(line, flush=True)
    # The default stream cannot be captured.
    with torch.cuda.stream(torch.cuda.Stream()) if a.graphs else contextlib.nullcontext():
        for cell in cells:
            if time.monotonic() - start > a.budget_seconds:
                data["skipped"].append(f"{cell.suite}: {cell.name}")
                continue
            for row in run_cell(cell, makers, a):
                data["rows"].append(row)
                print(report.line(row), flush=True)
    data["seconds"] = round(time.monotonic() - start, 1)
    print("\n" + report.markdown(data))
    if a.json:
        report.write(data, os.path.splitext(a.json)[0])
    return 1 if report.wrong(data) else 0


if __name__ == "__main__":
    sys.exit(main())
