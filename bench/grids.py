#!/usr/bin/env python3
"""grids.py: attention over grids: each bar of speed as a ratio to what it is compared with.

    python3 bench/grids.py --json g.json                       both passes of everything, bf16, 24 heads of 128
    python3 bench/grids.py --only 'w80|dense 2-D' --pass bwd   groups with such cases alone
    python3 bench/grids.py --also other=build/libluattn.so     another build beside it
    python3 bench/grids.py --family sm80 --also sm90=LIBRARY   kernels of another family, beside those of the plan's choice
    python3 bench/grids.py --only swin --turn /tmp/turn        compiles while another process measures

TFLOP/s are of the scores that a mask keeps: four products of the head dim for each in forward, ten in backward. What a case is
compared with ran in turn with it (dense: as many queries by as many keys as a query keeps, on a line; "by a line": the same mask over
q_idx // width), but for NATTEN, of which a run of its Hopper kernels on another H200 is recorded (NATTEN below), and for what the first
version of luattn took. Swin's windows: bench/swin.py. Results are compared with float64 first, for some queries, keys and displacements.
"""

import argparse
import fcntl
import functools
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import swin
from builds import FAMILIES, Luattn
from run import TOLERANCE, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, DIM, CAP = 24, 128, 30.0
PLACES = 24  # compared with float64 in each case
# NATTEN 0.21.7, its Hopper kernels, TFLOP/s with its permutations (forward, backward).
NATTEN = {"w80": (294, 207), "w80 s16": (615, 258), "w18x24x24": (195, 141), "w18x24x24 s16x8x8": (634, None)}
FIRST = {"w13": (67, 47)}  # luattn with tiles along a line alone


# --- masks along an axis: keep(i, j, L) of tensors ---


def near(kernel, stride=1):
    def keep(i, j, length):
        leader = (i // stride * stride + stride // 2).clamp(max=length - 1) if stride > 1 else i
        first = (leader - kernel // 2).clamp(0, length - kernel)
        return (first <= j) & (j < first + kernel)

    return keep


def tiles(tile, window):
    def keep(i, j, length):
        count, across = -(-length // tile), window // tile
        first = (i // tile - across // 2).clamp(max=count - across).clamp(min=0)
        return (first <= j // tile) & (j // tile < first + across)

    return keep


def causal(i, j, length):
    return j <= i


# --- cases ---


@dataclass(frozen=True)
class Case:
    """grid: extents of queries; keys: of keys, if these differ. axes: what is kept along each axis (none: all). along_line: the spec has no
    grid, and tensors have one axis for all places. bias: the extents of a learned bias for each displacement."""

    name: str
    spec: str
    grid: tuple[int, ...]
    axes: tuple[Callable, ...] = ()
    keys: tuple[int, ...] = ()
    kept: float = 0  # of each query, in the mean
    along_line: bool = False
    cap: bool = False
    bias: tuple[int, ...] = ()
    build: str = "luattn"

    @property
    def of_keys(self):
        return self.keys or self.grid

    def text(self):
        return f'return attention {{ name = "{re.sub("[^a-z0-9]", "_", self.name)}", {self.spec} }}\n'

    def flops(self, is_backward):
        return (10 if is_backward else 4) * DIM * HEADS * math.prod(self.grid) * self.kept


def names(n):
    return ", ".join(f'"{x}"' for x in "tyx"[-n:])


def listed(numbers):
    return ", ".join(map(str, numbers))


def windows(name, grid, kernel, stride=None, mods="", **more):
    stride = stride or (1,) * len(kernel)
    mask = f"neighborhood {{ kernel_size = {{{listed(kernel)}}}, stride = {{{listed(stride)}}} }}"
    spec = f"grid = {{{names(len(grid))}}}, {mods}block_mask = {mask}"
    return Case(name, spec, grid, tuple(map(near, kernel, stride)), kept=math.prod(kernel), **more)


def biased(name, grid, kernel):
    sizes = tuple(2 * k - 1 for k in kernel)
    index = listed(f"kv_idx.{x} - q_idx.{x} + {k - 1}" for x, k in zip("tyx"[-len(grid) :], kernel))
    mods = (
        f'inputs = {{ rpb = {{ axes = {{"h", {listed(sizes)}}}, dtype = "any", grad = true }} }}, '
        f"score_mod = function(score, b, h, q_idx, kv_idx) return score + rpb[{{h, {index}}}] end, "
    )
    return windows(name, grid, kernel, mods=mods, bias=sizes)


def dense(name, queries, keys):
    return Case(name, "", (queries,), keys=(keys,), kept=keys, along_line=True)


TWO, THREE, SMALL, VIDEO, LINE = (256, 256), (30, 48, 80), (128, 128), (21, 45, 80), (16384,)
W3 = (18, 24, 24)
BY_LINE = """block_mask = neighborhood { size = {128, 128}, kernel = {13, 13} }"""
GROUPS = {
    "2-D": [
        windows("w80", TWO, (80, 80)),
        windows("w80 cap", TWO, (80, 80), mods=f"score_mod = softcap({CAP:g}), ", cap=True),
        biased("w80 bias", TWO, (80, 80)),
        windows("w80 s16", TWO, (80, 80), (16, 16)),
        dense("dense 2-D", 65536, 6400),
    ],
    "3-D": [
        windows("w18x24x24", THREE, W3),
        windows("w18x24x24 s16x8x8", THREE, W3, (16, 8, 8)),
        Case("tiles 6x8x8", f'grid = {{{names(3)}}}, block_mask = sliding_tile {{ tile = {{6, 8, 8}}, window = {{{listed(W3)}}} }}', THREE,
             tuple(map(tiles, (6, 8, 8), W3)), kept=math.prod(W3)),
        dense("dense 3-D", 115200, math.prod(W3)),
    ],
    "small": [
        windows("w13", SMALL, (13, 13)),
        replace(windows("w13 by a line", SMALL, (13, 13)), spec=BY_LINE, along_line=True),
    ],
    "video": [
        windows("video", VIDEO, (11, 24, 24)),
        replace(windows("video lattice", VIDEO, (11, 24, 24)), build="lattice"),
    ],
    "1-D": [
        windows("w1025 grid", LINE, (1025,)),
        Case("w1025 line", "block_mask = neighborhood { kernel = {1025} }", LINE, (near(1025),), kept=1025, along_line=True),
        Case("causal grid", 'grid = {"x"}, block_mask = function(b, h, q_idx, kv_idx) return kv_idx.x <= q_idx.x end', LINE, (causal,),
             kept=8192.5),
        Case("causal line", "block_mask = causal()", LINE, (causal,), kept=8192.5, along_line=True),
    ],
}  # fmt: skip

# (row, pass, case, compared with: a case, or a recorded rate and where from, floor, aim)
BARS = [
    ("forward, 2-D w80, of NATTEN", 0, "w80", NATTEN, 1.6, 2.0),
    ("forward, 3-D w18x24x24, of NATTEN", 0, "w18x24x24", NATTEN, 1.7, 2.3),
    ("backward, 2-D w80, of NATTEN", 1, "w80", NATTEN, 1.8, 2.4),
    ("backward, 3-D w18x24x24, of NATTEN", 1, "w18x24x24", NATTEN, 1.9, 2.6),
    ("forward, 2-D s16, of dense", 0, "w80 s16", "dense 2-D", 0.90, 0.96),
    ("forward, 3-D s16x8x8, of dense", 0, "w18x24x24 s16x8x8", "dense 3-D", 0.90, 0.96),
    ("backward, 2-D s16, of dense", 1, "w80 s16", "dense 2-D", 0.87, 0.94),
    ("backward, 3-D s16x8x8, of dense", 1, "w18x24x24 s16x8x8", "dense 3-D", 0.87, 0.94),
    ("forward, 3-D sliding tile 6x8x8, of dense", 0, "tiles 6x8x8", "dense 3-D", 0.90, 0.96),
    ("forward, 2-D w13, of by a line", 0, "w13", "w13 by a line", 1.8, 2.3),
    ("forward, 2-D w13, of the first version (recorded)", 0, "w13", FIRST, 1.8, 2.3),
    ("backward, 2-D w13, of by a line", 1, "w13", "w13 by a line", 2.0, 2.8),
    ("backward, 2-D w13, of the first version (recorded)", 1, "w13", FIRST, 2.0, 2.8),
    ("forward, video, free boxes of a lattice", 0, "video", "video lattice", 1.10, 1.2),
    ("forward, soft cap on w80, of plain", 0, "w80 cap", "w80", 0.85, 0.92),
    ("forward, learned bias on w80, of plain", 0, "w80 bias", "w80", 0.85, 0.92),
    ("backward, soft cap on w80, of plain", 1, "w80 cap", "w80", 0.75, 0.85),
    ("backward, learned bias with its gradient on w80, of plain", 1, "w80 bias", "w80", 0.75, 0.85),
    ("backward, learned bias without it, of plain", 1, "w80 bias, constant", "w80", None, None),
    *((f"{p}, {mask} over grid {{x}}, of a line", i, f"{mask} grid", f"{mask} line", 0.98, 1.0) for mask in ("w1025", "causal")
      for i, p in enumerate(("forward", "backward"))),
]  # fmt: skip


# --- luattn ---


def heads_last(extents, type=torch.bfloat16):
    """[1, heads, extents.., dim] that lies in memory as [1, extents.., heads, dim]."""
    return torch.randn(1, *extents, HEADS, DIM, device="cuda", dtype=type).movedim(-2, 1)


class Problem:
    """Tensors of a group's cases, whose extents' products are equal."""

    def __init__(self):
        self.of = {}

    def get(self, name, extents):
        x = self.of.setdefault((name, math.prod(extents)), None)
        if x is None:
            x = self.of[name, math.prod(extents)] = heads_last((math.prod(extents),))
        return x.unflatten(2, extents)


class Bound:
    """A case of a build. Its launches, and what they write."""

    def __init__(self, library, case, problem, with_gradient=True):
        self.case, q_extents, kv_extents = case, case.grid, case.of_keys
        if case.along_line:
            q_extents, kv_extents = (math.prod(q_extents),), (math.prod(kv_extents),)
        self.tensors = dict(q=problem.get("q", q_extents), k=problem.get("k", kv_extents), v=problem.get("v", kv_extents))
        self.dout = problem.get("dout", q_extents)
        self.out = dict(o=torch.full_like(self.tensors["q"], math.nan), lse=torch.full((1, HEADS, *q_extents), math.nan, device="cuda"))
        self.bias = self.dbias = None
        self.inputs = {}
        if case.bias:
            generator = torch.Generator("cuda").manual_seed(1)
            self.bias = torch.randn(HEADS, *case.bias, device="cuda", generator=generator).bfloat16()
            self.dbias = torch.full(self.bias.shape, math.nan, device="cuda") if with_gradient else None
            self.inputs = {"rpb": (self.bias, self.dbias)}
        self.library, self.spec = library, library.spec(case.name, case.text())
        self.forward = library.bind(self.spec, inputs=self.inputs, **self.tensors, **self.out)
        self.grads = {}

    @property
    def backward(self):
        if not self.grads:
            self.grads = {f"d{x}": torch.full_like(t, math.nan) for x, t in self.tensors.items()}
            given = {**self.tensors, **self.out, **self.grads, "dout": self.dout}
            self.launch_backward = self.library.bind(self.spec, backward=True, inputs=self.inputs, **given)
        return self.launch_backward

    def run(self, is_backward):
        """Launches a pass, and returns its errors by result."""
        self.forward()
        if not is_backward:
            return self.errors_forward()
        self.backward()
        return self.errors_backward()

    # --- what float64 says ---

    def flat(self, x):
        """[places, dim] of the last head."""
        return x[0, -1].flatten(0, -2).double()

    def all_kept(self, at, of_key):
        """The coordinates of what a place at `at` keeps, or what keeps it (of_key), and their numbers."""
        mine, others = (self.case.of_keys, self.case.grid) if of_key else (self.case.grid, self.case.of_keys)
        along = []
        for a, length in enumerate(others):
            j, i = torch.arange(length, device="cuda"), torch.tensor(at[a], device="cuda")
            if not self.case.axes:
                along.append(j)
                continue
            keep = self.case.axes[a]
            along.append(j[keep(j, i, mine[a]) if of_key else keep(i, j, length)])
        places = torch.cartesian_prod(*along).reshape(-1, len(along))
        return places, self.numbers(places, others)

    def numbers(self, places, extents):
        number = torch.zeros(len(places), dtype=torch.long, device="cuda")
        for a, length in enumerate(extents):
            number = number * length + places[:, a]
        return number

    def scores(self, dots, displacements):
        """The scores, and their derivatives by dots."""
        s = dots * DIM**-0.5
        if self.case.cap:
            t = torch.tanh(s / CAP)
            return t * CAP, (1 - t * t) * DIM**-0.5
        if self.bias is not None:
            index = [displacements[:, a] + (n - 1) // 2 for a, n in enumerate(self.case.bias)]
            s = s + self.bias[-1][tuple(index)].double()
        return s, DIM**-0.5

    def drawn(self, extents, seed):
        generator = torch.Generator().manual_seed(seed)
        corners = list(itertools.product(*((0, n - 1) for n in extents)))
        inner = [tuple(int(torch.randint(n, (1,), generator=generator)) for n in extents) for _ in range(PLACES - len(corners))]
        return corners + inner

    def errors_forward(self):
        q, k, v, o = (self.flat(x) for x in (*self.tensors.values(), self.out["o"]))
        lse = self.out["lse"][0, -1].flatten()
        got, want = [], []
        for at in self.drawn(self.case.grid, 1):
            i = int(self.numbers(torch.tensor([at], device="cuda"), self.case.grid))
            places, js = self.all_kept(at, False)
            s, _ = self.scores(k[js] @ q[i], places - torch.tensor(at, device="cuda"))
            got.append(torch.cat([o[i], lse[i, None].double()]))
            want.append(torch.cat([torch.softmax(s, 0) @ v[js], torch.logsumexp(s, 0)[None]]))
        got, want = torch.stack(got), torch.stack(want)
        return {"o": _off(got[:, :-1], want[:, :-1]), "lse": _off(got[:, -1], want[:, -1])}

    def errors_backward(self):
        q, k, v, o, dout, dq, dk, dv = (self.flat(x) for x in (*self.tensors.values(), self.out["o"], self.dout, *self.grads.values()))
        lse, delta = self.out["lse"][0, -1].flatten().double(), (o * dout).sum(-1)

        def ds_of(i, j, displacements):
            """P and dS of pairs of a query and a key."""
            s, slope = self.scores((q[i] * k[j]).sum(-1), displacements)
            p = torch.exp(s - lse[i])
            return p, p * ((dout[i] * v[j]).sum(-1) - delta[i]), slope

        results = {name: ([], []) for name in ("dq", "dk", "dv", "bias")}

        def add(name, got, want):
            results[name][0].append(got), results[name][1].append(want)

        for at in self.drawn(self.case.grid, 2):
            i = int(self.numbers(torch.tensor([at], device="cuda"), self.case.grid))
            places, js = self.all_kept(at, False)
            _, ds, slope = ds_of(torch.full_like(js, i), js, places - torch.tensor(at, device="cuda"))
            add("dq", dq[i], (ds * slope) @ k[js])
        for at in self.drawn(self.case.of_keys, 3):
            j = int(self.numbers(torch.tensor([at], device="cuda"), self.case.of_keys))
            places, ids = self.all_kept(at, True)
            p, ds, slope = ds_of(ids, torch.full_like(ids, j), torch.tensor(at, device="cuda") - places)
            add("dk", dk[j], (ds * slope) @ q[ids]), add("dv", dv[j], p @ dout[ids])
        if self.dbias is not None:
            for at in self.drawn(self.case.bias, 4):
                displacement = torch.tensor([x - (n - 1) // 2 for x, n in zip(at, self.case.bias)], device="cuda")
                i, j = self.pairs_at(displacement)
                _, ds, _ = ds_of(i, j, displacement.expand(len(i), -1))
                add("bias", self.dbias[-1][at].double()[None], ds.sum()[None])
        return {name: _off(torch.stack(got), torch.stack(want)) for name, (got, want) in results.items() if got}

    def pairs_at(self, displacement):
        """Queries and keys of all kept pairs with this kv - q."""
        along = []
        for a, length in enumerate(self.case.grid):
            i = torch.arange(length, device="cuda")
            j = i + displacement[a]
            along.append(i[(j >= 0) & (j < length) & self.case.axes[a](i, j, length)])
        places = torch.cartesian_prod(*along).reshape(-1, len(along))
        return self.numbers(places, self.case.grid), self.numbers(places + displacement, self.case.grid)


def _off(got, want):
    return ((got - want).norm() / want.norm()).item()


# --- runs ---


def checked(name, errors):
    wrong = {x: e for x, e in errors.items() if not e <= 1.5 * TOLERANCE["bf16"]}
    print(f"{name}: {', '.join(f'{x} {e:.1e}' for x, e in errors.items())}{' WRONG' if wrong else ''}", flush=True)
    return not wrong


def run_group(cases, builds, passes, a):
    """Returns {(case, build): {pass: [ms of each round]}} of a group, and whether every result is right."""
    problem, bound, times, right = Problem(), {}, {}, True
    for case in cases:
        for name, library in builds.items():
            if name == case.build or case.build == "luattn" and name in a.others and re.search(a.others[name][1], case.name):
                bound[case.name, name] = functools.partial(Bound, library, case, problem)
                if case.bias and 1 in passes and name == case.build:
                    bound[f"{case.name}, constant", name] = functools.partial(Bound, library, case, problem, with_gradient=False)
    for i in passes:
        functions = {}
        for key, x in list(bound.items()):
            if (i == 1 and key[1] == "lattice") or (i == 0 and key[0].endswith("constant")):
                continue
            label = f"{('forward', 'backward')[i]} {' '.join(key)}"
            try:
                x = bound[key] = x() if isinstance(x, functools.partial) else x
                right &= checked(label, x.run(i))
                functions[key] = x.backward if i else x.forward
            except Exception as e:  # what a build refuses ends no run
                print(f"{label}: {' '.join(str(e).split())[:300]}", flush=True)
                right = False
        with a.lock():
            for key, ms in measure(functions, a.rounds, a.round_ms, f"{a.seed} {i}").items():
                times.setdefault(key, {})[i] = ms
    return {key: (bound[key].case, of) for key, of in times.items()}, right


def rates_of(times):
    """{(case, build, pass): TFLOP/s of each round}"""
    return {(*key, i): [case.flops(i) / ms / 1e9 for ms in rounds] for key, (case, of) in times.items() for i, rounds in of.items()}


def bars_of(rates, build):
    """Rows: name, rate, what it is compared with, ratio, floor, aim."""
    rows = []
    for row, i, case, beside, floor, aim in BARS:
        mine = rates.get((case, build, i))
        if mine is None:
            continue
        if isinstance(beside, dict):
            other = beside[case][i]
            ratio, of = statistics.median(mine) / other, f"{other} recorded"
        else:
            key = next((k for k in ((beside, of, i) for of in (build, "luattn", "lattice")) if k in rates), None)
            if key is None:
                continue
            ratio, of = statistics.median(m / o for m, o in zip(mine, rates[key])), f"{statistics.median(rates[key]):.1f}"
        rows.append((row, statistics.median(mine), of, ratio, floor, aim))
    return rows


def print_rows(title, rows):
    print(f"\n{title}\n\n| | TFLOP/s | compared with | ratio | floor | aim |\n|---|---|---|---|---|---|")
    for row, rate, of, ratio, floor, aim in rows:
        bold = "**" if floor and ratio < floor else ""
        print(f"| {row} | {rate:.1f} | {of} | {bold}{ratio:.2f}{', missed' if bold else ''}{bold} | {floor or ''} | {aim or ''} |")


def rows_of(rates):
    return {" ".join((case, build, ("forward", "backward")[i])): [round(x, 1) for x in r] for (case, build, i), r in rates.items()}


def write(path, rows):
    if path:
        with open(path, "w") as f:
            json.dump(rows, f)


class Turn:
    """Holds the lock of --turn, so that of several processes one measures at a time."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.file = open(self.path or os.devnull, "a")
        if self.path:
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.file.close()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{ROOT}/build/release/engine/libluattn.so", help="libluattn.so")
    parser.add_argument("--family", choices=FAMILIES, help="of all kernels of that build (default: the plan's choice)")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=PATH[@REGEX]", help="another build beside it, in these cases")
    parser.add_argument("--lattice", metavar="PATH", help="a build whose boxes of keys begin at multiples of their extents: `lo` rounded down in "
                        "BoxesOfRange::of of templates/ops/free_boxes.cuh (LUATTN_TEMPLATE_DIR is read in one process for all)")  # fmt: skip
    parser.add_argument("--pass", dest="passes", default="fwd,bwd")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches, and swin")
    parser.add_argument("--without", default="^$", metavar="REGEX", help="none of these, nor contenders of swin")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-ms", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turn", metavar="FILE", help="measure while no other process with this file does")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="begin no group after that")
    parser.add_argument("--json", metavar="FILE")
    a = parser.parse_args()
    a.passes = [("fwd", "bwd").index(x) for x in a.passes.split(",")]
    a.others = {name: path.partition("@")[::2] for name, path in (x.split("=", 1) for x in a.also)}
    a.lock = lambda: Turn(a.turn)
    return a


def main():
    a, start, right, found = arguments(), time.monotonic(), True, {}
    builds = {"luattn": Luattn(a.library, a.family)} | {name: Luattn(path) for name, (path, _) in a.others.items()}
    if a.lattice:
        builds["lattice"] = Luattn(a.lattice)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, {HEADS} heads of {DIM}, medians of {a.rounds} rounds")

    def wanted(name):
        return re.search(a.only, name) and not re.search(a.without, name)

    for group, cases in GROUPS.items():
        chosen = [c for c in cases if wanted(c.name)]
        if not chosen or time.monotonic() - start > a.budget_seconds:
            continue
        times, all_right = run_group(chosen, builds, a.passes, a)
        found, right = found | rates_of(times), right and all_right
        print(f"-- {group}: {time.monotonic() - start:.0f} s", flush=True)
        write(a.json, rows_of(found))
    for name in builds:
        if name != "lattice" and found:
            print_rows(name, bars_of(found, name))
    rows = rows_of(found)
    print("\n" + "\n".join(f"{name}: {statistics.median(r):.1f}" for name, r in rows.items()), flush=True)
    if wanted("swin") and time.monotonic() - start < a.budget_seconds:
        rows["swin"], all_right = swin.run(builds["luattn"], a)
        right &= all_right
    write(a.json, rows)
    sys.exit(0 if right else "results are wrong")


if __name__ == "__main__":
    main()
