"""compile_budget.py: checks the compiler's estimate of compile time on random specs.

    python3 tests/templates/compile_budget.py LUATTN [--count 500] [--first 0] [--seed 1] [--jobs N] [SPEC ..]

Each spec of random_specs.py, and each SPEC, is compiled for one of six targets and passes. Its CPU time is
compared with the time of a causal mask for the same target. A spec that the compiler accepts may take at most
10 times as long. A spec that it refuses is compiled without a limit, and must take at least 4 times as long.
Prints a line for each spec, with VIOLATED if a bound does not hold. Exits with 1 in that case, and with 77
without NVRTC. The reference is the fastest of three causal runs just before each spec, because other programs
on the machine slow all runs down.
"""

import argparse
import concurrent.futures
import math
import os
import random
import resource
import subprocess
import sys
import tempfile

import random_specs

MOST, LEAST = 10.0, 4.0
CELLS = [(target, p) for target in (("sm_90a", "bf16", 128), ("sm_80", "f16", 64), ("sm_80", "f32", 64)) for p in ("forward", "backward")]
CAUSAL = "return attention { name = 'causal', block_mask = causal() }\n"
REFUSED = "times what `causal` takes"


def run(luattn, path, cell, limit=None, seconds=None):
    """Compiles once. Returns (status, CPU seconds, message); status None: the run exceeded `seconds`."""
    (arch, dtype, dim), pass_name = cell
    env = {**os.environ, "LUATTN_CACHE_DIR": "", **({} if limit is None else {"LUATTN_COMPILE_LIMIT": str(limit)})}
    command = [luattn, "emit", path, "--stage", "cubin", "--arch", arch, "--dtype", dtype, "--head-dim", str(dim), "--pass", pass_name,
               "--no-tuned"]

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


def judge(luattn, name, path, causal, cell):
    """Checks one spec. Returns (line, whether a bound is violated)."""
    unit = min(run(luattn, causal, cell)[1] for _ in range(3))
    status, used, text = run(luattn, path, cell, seconds=math.ceil(3 * MOST * unit))
    where = f"{name:24} {cell[0][0]:6} {cell[0][1]:4} {cell[1]:8}"
    if status == 0 or status is None:
        times = used / unit
        return f"{where} accepted {'above ' if status is None else ''}{times:6.2f}", times > MOST
    if REFUSED not in text:
        return f"{where} no spec: {text[-100:]}", False
    status, used, _ = run(luattn, path, cell, limit=0, seconds=math.ceil(LEAST * unit))
    times, short = used / unit, status == 0
    estimate = text.split("estimated at ")[1].split(" ")[0]
    return f"{where} refused {estimate:>6}, takes {'' if short else 'above '}{times:6.2f}", short and times < LEAST


def main():
    parser = argparse.ArgumentParser(description="Compares the compiler's estimate with the CPU time of random specs.")
    parser.add_argument("luattn")
    parser.add_argument("specs", nargs="*", metavar="SPEC")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        causal = os.path.join(folder, "causal.lua")
        with open(causal, "w") as f:
            f.write(CAUSAL)
        status, _, text = run(given.luattn, causal, CELLS[0])
        if status != 0:
            print(f"skipped: {text}")
            return 77
        work = []
        for number in range(given.first, given.first + given.count):
            path = os.path.join(folder, f"random_{number}.lua")
            with open(path, "w") as f:
                f.write(random_specs.spec(given.seed, number))
            work.append((f"random_{number}", path, random.Random(f"cell {given.seed} {number}").choice(CELLS)))
        work += [(os.path.basename(s), s, cell) for s in given.specs for cell in CELLS]
        violations = 0
        for line, violated in pool.map(lambda w: judge(given.luattn, w[0], w[1], causal, w[2]), work):
            violations += violated
            print(line + (" VIOLATED" if violated else ""), flush=True)
    print(f"{len(work)} compilations, {violations} outside of the bounds (seed {given.seed})")
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
