"""compile_budget.py: checks the compiler's estimate of compile time on random specs.

    python3 tests/templates/compile_budget.py LUATTN [--count 500] [--first 0] [--seed 1] [--jobs N] [--journal FILE] [--seconds S]
        [--family sm90 ..] [--head-dim 64 ..] [--pass forward] [--hard] [SPEC ..]

Each spec of random_specs.py, with --hard of hard_specs.py, is compiled for one cell, of a family, a head dim and a pass, and each SPEC for all: by default those of
FAMILIES, at 128 in sm90 and 64 elsewhere. The CPU time of the
process, retries with other tiles included, is compared with that of a causal mask for the same target, and printed beside the
estimate for the first choice of tiles. A spec
that the compiler accepts may take at most 8 times as long. A spec that it refuses is compiled without a limit, and
must take at least 4 times as long. Prints a line for each spec, with VIOLATED if a bound does not hold, and a table.
Exits with 1 in that case, and with 77 without NVRTC. The reference is the median of the last five causal runs for the
target, one before each spec, because other programs on the machine slow all runs down.

With a journal, a sweep can be stopped, also after S seconds, and goes on where it was; `nice` it on a machine that is
shared. CPU time stands for instructions, which few virtual machines count: a spec at a bound is worth a second run.
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import hard_specs
import random_specs

MOST, LEAST = 8.0, 4.0
FAMILIES = {"sm90": ("sm_90a", "bf16", 128), "sm80": ("sm_80", "f16", 64), "simt": ("sm_80", "f32", 64)}
CAUSAL = "return attention { name = 'causal', block_mask = causal() }\n"
REFUSED = "times what `causal` takes"


def estimate_of(text):
    return float(text.split("estimated at ")[1].split(" ")[0])


def run(luattn, path, cell, limit=None, seconds=None, more=()):
    """Compiles once. Returns (status, CPU seconds, message); status None: the run exceeded `seconds`."""
    (arch, dtype, dim), pass_name = cell
    env = {**os.environ, "LUATTN_CACHE_DIR": "", **({} if limit is None else {"LUATTN_COMPILE_LIMIT": str(limit)})}
    command = [luattn, "emit", path, "--stage", "cubin", "--arch", arch, "--dtype", dtype, "--head-dim", str(dim), "--pass", pass_name,
               "--no-tuned", *more]

    def bound():
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=env, preexec_fn=bound)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = 0
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    return (None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), used.ru_utime + used.ru_stime, text


def estimated(luattn, path, cell):
    """The compiler's estimate for its first choice of tiles: a limit that nothing meets makes it say so."""
    text = run(luattn, path, cell, limit=1e-6, more=("--family", "sm90") if cell[0][0] == "sm_90a" else ())[2]
    return estimate_of(text) if REFUSED in text else None


class Reference:
    """What causal takes for each cell, in CPU seconds."""

    def __init__(self, luattn, path):
        self.luattn, self.path, self.times, self.lock = luattn, path, {}, threading.Lock()

    def unit(self, cell):
        used = run(self.luattn, self.path, cell)[1]
        with self.lock:
            times = self.times.setdefault(cell, [])
            times.append(used)
            return statistics.median(times[-5:])


def judge(luattn, name, path, reference, cell):
    """Checks one spec. Returns a record: times is what it took, at least that if `stopped`, None if it is no spec."""
    unit = reference.unit(cell)
    record = {"spec": name, "cell": [*cell[0], cell[1]], "unit": round(unit, 3)}
    status, used, text = run(luattn, path, cell, seconds=math.ceil(2 * MOST * unit))
    if status == 0 or status is None:
        return {**record, "accepted": True, "times": round(used / unit, 2), "stopped": status is None, "estimate": estimated(luattn, path, cell)}
    if REFUSED not in text:
        return {**record, "accepted": False, "times": None, "said": text[-100:]}
    status, used, _ = run(luattn, path, cell, limit=0, seconds=math.ceil(LEAST * unit))
    return {**record, "accepted": False, "times": round(used / unit, 2), "stopped": status != 0, "estimate": estimate_of(text)}


def is_violated(r):
    if r["times"] is None:
        return False
    return r["times"] > MOST if r["accepted"] else not r["stopped"] and r["times"] < LEAST


def line_of(r):
    arch, dtype, dim, pass_name = r["cell"]
    where = f"{r['spec']:24} {arch:6} {dtype:4} D{dim:<4} {pass_name:8}"
    if r["times"] is None:
        return f"{where} no spec: {r['said']}"
    took = f"{'above ' if r['stopped'] else ''}{r['times']:6.2f}"
    first = f" of {r['estimate']:5.1f} estimated" if r.get("estimate") else ""
    said = f"accepted {took}{first}" if r["accepted"] else f"refused {r['estimate']:6.1f}, takes {took}"
    return f"{where} {said}{' VIOLATED' if is_violated(r) else ''}"


def table(records):
    """Returns the lines of a summary by cell."""
    lines = [f"{'':24} accepted  most  refused  least  no spec  violated"]
    for cell in sorted({tuple(r["cell"]) for r in records}, key=str):
        of = [r for r in records if tuple(r["cell"]) == cell]
        taken = [r["times"] for r in of if r["accepted"]]
        refused = [r["times"] for r in of if not r["accepted"] and r["times"] is not None]
        lines.append(f"{cell[0]:6} {cell[1]:4} D{cell[2]:<4} {cell[3]:8} {len(taken):7} {max(taken, default=0):6.2f} {len(refused):7} "
                     f"{min(refused, default=0):6.2f} {len(of) - len(taken) - len(refused):8} {sum(map(is_violated, of)):8}")
    return lines


def read_journal(path):
    if path is None or not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f]


def cells_of(given):
    """Returns ((arch, dtype, head dim), pass) of all cells."""
    return [((arch, dtype, d), p) for arch, dtype, dim in (FAMILIES[f] for f in given.family or FAMILIES) for d in given.head_dim or (dim,)
            for p in given.passes or ("forward", "backward")]


def work_of(given, cells, folder):
    """Returns (name, path, cell) of all that is to be compiled."""
    work = []
    for number in range(given.first, given.first + given.count):
        name = f"{'hard' if given.hard else 'random'}_{given.seed}_{number}"
        path = os.path.join(folder, f"{name}.lua")
        with open(path, "w") as f:
            f.write((hard_specs if given.hard else random_specs).spec(given.seed, number))
        work.append((name, path, random.Random(f"cell {given.seed} {number}").choice(cells)))
    return work + [(os.path.basename(s), s, cell) for s in given.specs for cell in cells]


def main():
    parser = argparse.ArgumentParser(description="Compares the compiler's estimate with the CPU time of random specs.")
    parser.add_argument("luattn")
    parser.add_argument("specs", nargs="*", metavar="SPEC")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--journal", help="a file of results, which are not measured again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no compilation after so many")
    parser.add_argument("--hard", action="store_true", help="specs of shapes that are hard to estimate")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="of these alone; may be repeated")
    parser.add_argument("--head-dim", action="append", type=int, metavar="D", help="at these; may be repeated")
    parser.add_argument("--pass", action="append", dest="passes", choices=("forward", "backward"), help="one of them alone")
    given = parser.parse_intermixed_args()
    cells = cells_of(given)
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        causal = os.path.join(folder, "causal.lua")
        with open(causal, "w") as f:
            f.write(CAUSAL)
        status, _, text = run(given.luattn, causal, cells[0])
        if status != 0:
            print(f"skipped: {text}")
            return 77
        records, reference, lock = read_journal(given.journal), Reference(given.luattn, causal), threading.Lock()
        done = {(r["spec"], tuple(r["cell"])) for r in records}

        def one(w):
            name, path, cell = w
            if (name, (*cell[0], cell[1])) in done or time.monotonic() > end:
                return
            r = judge(given.luattn, name, path, reference, cell)
            with lock:
                records.append(r)
                print(line_of(r), flush=True)
                if given.journal is not None:
                    with open(given.journal, "a") as f:
                        f.write(json.dumps(r) + "\n")

        list(pool.map(one, work_of(given, cells, folder)))
    print(*table(records), sep="\n")
    violations = sum(map(is_violated, records))
    print(f"{len(records)} compilations, {violations} outside of the bounds (seed {given.seed})")
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
