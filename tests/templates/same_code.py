"""same_code.py: shows that a change left the machine code of kernels unchanged.

  python3 tests/templates/same_code.py OLD NEW [--quick] [--spec WORD] [--arch sm_90a] [--dtype bf16] .. [--cache DIR]

OLD and NEW are the luattn programs of two builds. For every example x dtype x architecture x head dim x
pass, and on three examples also for a deterministic backward, a backward of only dq, and head dim 192,
compares the code sections (and the constants in them) of the cubins. Prints differences, and exits with 1
if there are any.

A kernel is compiled only as far as necessary. If NEW's source differs only in comments, or its PTX only in
C++ names, unused variables and the order of kernels, ptxas has already compiled it to the same code with the
same spills. memo_nvrtc.c, which is built with NEW, looks these results up. --cubin always compiles
completely. With --cache, OLD's results and compiled code are kept for the next run, in 100 MB."""

import argparse
import collections
import hashlib
import os
import struct
import sys
import tempfile
import time

import builds

DTYPES = ("f32", "f16", "bf16", "f64")
ARCHES = ("sm_80", "sm_90a")
DIMS = (64, 128, 256)
PASSES = ("forward", "backward")
THREE = ("causal", "gemma2", "t5_relative_bias")  # plain; a soft cap and scalars; gradients of an input
PARAMETERS, ADDRESSES = ".nv.constant0", ".nv.constant4"  # constant banks that are not part of the code:
                                                          # zero, and relocated


def elf_sections(elf):
    """Yields name and bytes of each section that has bytes in the file."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("is no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + size * i) for i in range(count)]
    table = headers[names][4]
    for name, kind, _, _, start, length in headers:
        if kind != 8 and length > 0:  # SHT_NOBITS has none
            end = elf.index(b"\0", table + name)
            yield elf[table + name:end].decode(), elf[start:start + length]


def is_code(section):
    constants = section.startswith(".nv.constant") and not section.startswith((PARAMETERS, ADDRESSES))
    return section.startswith(".text") or constants


def code_of(cubin):
    """Returns a dict from section to [bytes, hash]."""
    return {n: [len(b), hashlib.sha256(b).hexdigest()] for n, b in elf_sections(cubin) if is_code(n)}


def result(cli, cell, env):
    """Returns the code, or the error of the CLI."""
    ran = builds.run(cli, cell, env=env)
    if ran.returncode != 0:
        return {"error": ran.stderr.decode(errors="replace").strip() or f"exit {ran.returncode}"}
    return {"code": code_of(ran.stdout)}


def difference(old, new):
    """Returns None, or a line that describes the difference."""
    if old == new:
        return None if "error" in old or old["code"] else "neither has code"
    if "error" in old or "error" in new:
        return f"old: {old.get('error', 'compiles')}; new: {new.get('error', 'compiles')}"
    a, b = old["code"], new["code"]
    sizes = ((n, a.get(n, [0])[0], b.get(n, [0])[0]) for n in sorted(a.keys() | b.keys()) if a.get(n) != b.get(n))
    return ", ".join(f"{n} {x} bytes" if x == y else f"{n} {x} to {y} bytes" for n, x, y in sizes)


def cells_of(specs, arches=ARCHES, dtypes=DTYPES, dims=None, passes=PASSES, quick=False):
    """Lists the cells to compare. Filters also apply to the additional cells of three examples. dims=None:
    DIMS, and there those of `more`."""
    grid_dims = dims or ((128,) if quick else DIMS)
    grid = [builds.Cell(s, a, t, d, p) for s in specs for a in arches for t in dtypes for d in grid_dims for p in passes]
    more = []
    for spec in (s for s in specs if os.path.splitext(os.path.basename(s))[0] in THREE):
        for a in arches:
            for t in dtypes:
                if "backward" in passes and 128 in grid_dims:
                    more += [builds.Cell(spec, a, t, 128, "backward", x) for x in (("--deterministic",), ("--wants", "dq"))]
                if dims is None and not quick:
                    more += [builds.Cell(spec, a, t, 192, p) for p in passes]
    return grid + more


class Memo:
    """Environments in which OLD and NEW compile; counts how their programs were found."""

    def __init__(self, library, folder):
        self.log = os.path.join(folder, f"log.{os.getpid()}")
        env = {"LUATTN_NVRTC": library, "LUATTN_MEMO_DIR": folder}
        if "LUATTN_NVRTC" in os.environ:
            env["LUATTN_PTX_NVRTC"] = os.environ["LUATTN_NVRTC"]
        self.old = {**env, "LUATTN_MEMO_FIRST": "1"}
        self.new = {**env, "LUATTN_MEMO_LOG": self.log}

    def found(self):
        letters = collections.Counter()
        if os.path.exists(self.log):
            with open(self.log) as f:
                letters.update(f.read())
            os.remove(self.log)
        return f"of NEW's programs {letters['s']} have the same source, {letters['p']} the same PTX, {letters['c']} were compiled"


def memo_library(new):
    path = os.path.join(os.path.dirname(os.path.dirname(new)), "tests/templates/libluattn_memo_nvrtc.so")
    if not os.path.exists(path):
        sys.exit(f"{path}: is missing; build luattn_memo_nvrtc there, or give --cubin")
    return path


def arguments():
    parser = argparse.ArgumentParser(description="Compares the machine code of two builds.")
    builds.common_options(parser)
    parser.add_argument("--quick", action="store_true", help="head dim 128 alone")
    parser.add_argument("--arch", action="append", help=f"in place of {' '.join(ARCHES)}; may be repeated")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="one of them alone; may be repeated")
    parser.add_argument("--head-dim", action="append", type=int, metavar="D", help=f"in place of {DIMS}; may be repeated")
    parser.add_argument("--cache", metavar="DIR", help="keep OLD's results and what was compiled")
    parser.add_argument("--cubin", action="store_true", help="compile everything as far as the cubin")
    return parser.parse_args()


def compare(given, cells, folder):
    old, new = builds.check_cli(given.old), builds.check_cli(given.new)
    kept = builds.Kept(folder)
    memo = None if given.cubin else Memo(memo_library(new), folder)
    kind = "cubin" if given.cubin else "code"

    def both(cell):
        first = kept.get(old, cell, kind, lambda: result(old, cell, memo.old if memo else ()))
        return first, result(new, cell, memo.new if memo else ())

    differ = refused = 0
    for cell, (a, b) in builds.each(cells, given.jobs, both):
        line = difference(a, b)
        refused += line is None and "error" in a
        if line is not None:
            differ += 1
            print(f"DIFFERS {cell}: {line}", flush=True)
    return differ, refused, memo.found() if memo else "everything was compiled"


def main():
    given = arguments()
    specs = builds.examples(given.examples, given.spec)
    passes = (given.pass_name,) if given.pass_name else PASSES
    cells = cells_of(specs, given.arch or ARCHES, given.dtype or DTYPES, given.head_dim, passes, given.quick)
    if not cells:
        sys.exit("no cell is left; see --spec and --examples")
    start = time.time()
    if given.cache:
        os.makedirs(given.cache, exist_ok=True)
        differ, refused, found = compare(given, cells, given.cache)
    else:
        with tempfile.TemporaryDirectory() as folder:
            differ, refused, found = compare(given, cells, folder)
    print(f"{len(cells)} cells: {differ} differ; {refused} are refused by both, with the same words; {found}; {time.time() - start:.0f} s")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
