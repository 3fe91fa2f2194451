"""compile_cost.py: compares the cost of compiling each example with two builds, in instructions.

  python3 tests/templates/compile_cost.py OLD NEW [--arch sm_90a] [--dtype bf16] [--head-dim 128] [--spec WORD] .. [--cache DIR]

OLD and NEW are the luattn programs of two builds. Counts the user-space instructions of `luattn emit --stage
cubin`, from the spec to machine code, with `perf stat`, or, without hardware counters, with valgrind's
exp-bbv, which takes a fifth of callgrind's time. Both count a repeated string instruction once; callgrind
counts repetitions, which are half a percent. Prints millions and NEW / OLD for each example and pass, and the
geometric mean and maximum of the ratios."""

import argparse
import math
import re
import subprocess
import sys

import builds

PASSES = ("forward", "backward")
COUNTERS = {
    "perf": ["perf", "stat", "-x,", "-e", "instructions:u", "--"],
    "exp-bbv": ["valgrind", "--tool=exp-bbv", "--instr-count-only=yes", "--bb-out-file=/dev/null"],
    "callgrind": ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"],
}
PATTERNS = {  # exp-bbv prints a line per thread
    "perf": r"^(\d+),[^,]*,instructions:u",
    "exp-bbv": r"# +Total instructions: (\d+)",
    "callgrind": r"Collected : (\d+)",
}


def instructions(counter, stderr):
    """Returns the count that `counter` printed, or None."""
    counts = re.findall(PATTERNS[counter], stderr, re.MULTILINE)
    return sum(int(c) for c in counts) or None


def works(counter):
    try:
        ran = subprocess.run([*COUNTERS[counter], "true"], capture_output=True, text=True)
    except OSError:
        return False
    return ran.returncode == 0 and instructions(counter, ran.stderr) is not None


def count(counter, cli, cell):
    ran = builds.run(cli, cell, before=COUNTERS[counter])
    stderr = ran.stderr.decode(errors="replace")
    found = instructions(counter, stderr)
    if ran.returncode != 0 or found is None:
        sys.exit(f"{cli}: {cell}: {stderr.strip() or 'no count'}")
    return found


def summary(ratios):
    """Returns the geometric mean and the maximum of {name: ratio} as text."""
    mean = math.exp(sum(math.log(r) for r in ratios.values()) / len(ratios))
    worst = max(ratios, key=ratios.get)
    return f"geometric mean {mean:.4f}, maximum {ratios[worst]:.4f} ({worst})"


def arguments():
    parser = argparse.ArgumentParser(description="Compares the instructions that two builds take to compile.")
    builds.common_options(parser)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--head-dim", type=int, default=128, metavar="D")
    parser.add_argument("--counter", choices=COUNTERS, help="default: perf where it counts, else exp-bbv")
    parser.add_argument("--cache", metavar="DIR", help="keep OLD's counts")
    return parser.parse_args()


def main():
    given = arguments()
    old, new = builds.check_cli(given.old), builds.check_cli(given.new)
    counter = given.counter or ("perf" if works("perf") else "exp-bbv")
    if not works(counter):
        sys.exit(f"{counter}: counts nothing here; install valgrind, or give another --counter")
    passes = (given.pass_name,) if given.pass_name else PASSES
    cells = [builds.Cell(s, given.arch, given.dtype, given.head_dim, p) for s in builds.examples(given.examples, given.spec) for p in passes]
    if not cells:
        sys.exit("no cell is left; see --spec and --examples")
    kept = builds.Kept(given.cache)
    ratios = {}
    print(f"{counter}, millions of instructions: {given.arch} {given.dtype} D{given.head_dim}")
    for cell, (a, b) in builds.each(cells, given.jobs, lambda c: (kept.get(old, c, counter, lambda: count(counter, old, c)), count(counter, new, c))):
        ratios[str(cell)] = b / a
        print(f"{cell.command()[1].split('/')[-1]:28} {cell.pass_name:8} {a / 1e6:8.0f} {b / 1e6:8.0f} {b / a:7.4f}", flush=True)
    print(summary(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
