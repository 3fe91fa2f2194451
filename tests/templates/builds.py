"""builds.py: runs two CLI builds on the same kernels, for same_code.py and compile_cost.py, and keeps
their results."""

import concurrent.futures
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import astuple, dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Cell:
    """One kernel: the arguments of `luattn emit`."""

    spec: str  # a path
    arch: str
    dtype: str
    dim: int
    pass_name: str
    extra: tuple = ()  # further options

    def command(self):
        return ["emit", self.spec, "--stage", "cubin", "--arch", self.arch, "--dtype", self.dtype, "--head-dim", str(self.dim),
                "--pass", self.pass_name, *self.extra]

    def __str__(self):
        name = os.path.splitext(os.path.basename(self.spec))[0]
        return " ".join([name, self.arch, self.dtype, f"D{self.dim}", self.pass_name, *self.extra])


def examples(folder, words):
    """Returns the specs of a folder whose names contain one of `words`, or all if `words` is empty."""
    names = sorted(n for n in os.listdir(folder) if n.endswith(".lua") and (not words or any(w in n for w in words)))
    return [os.path.join(folder, n) for n in names]


@functools.lru_cache(maxsize=None)
def digest_of_file(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Kept:
    """Stores results by CLI, cell and kind in a folder. None: stores nothing."""

    def __init__(self, folder):
        self.folder = folder
        if folder:
            os.makedirs(folder, exist_ok=True)

    def path(self, cli, cell, kind):
        name = (kind, digest_of_file(cli), digest_of_file(cell.spec), astuple(cell)[1:], os.environ.get("LUATTN_NVRTC"))
        return os.path.join(self.folder, hashlib.sha256(repr(name).encode()).hexdigest() + ".json")

    def get(self, cli, cell, kind, compute):
        if not self.folder:
            return compute()
        path = self.path(cli, cell, kind)
        if os.path.exists(path):
            with open(path) as f:
                return json.load(f)
        result = compute()
        temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
        with open(temporary, "w") as f:
            json.dump(result, f)
        os.replace(temporary, path)
        return result


def run(cli, cell, before=(), env=()):
    """Runs `before` + the CLI, without a disk cache or tuned tiles."""
    return subprocess.run([*before, cli, *cell.command(), "--no-tuned"], capture_output=True,
                          env={**os.environ, "LUATTN_CACHE_DIR": "", **dict(env)})


def check_cli(path):
    path = os.path.abspath(path)
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        sys.exit(f"{path}: is no program; give the luattn of a build, such as build/release/cli/luattn")
    return path


def each(cells, jobs, work):
    """Yields (cell, work(cell)) in the order of `cells`; runs `jobs` at a time."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        yield from zip(cells, pool.map(work, cells))


def common_options(parser):
    parser.add_argument("old", metavar="OLD", help="the luattn of a build from before the change")
    parser.add_argument("new", metavar="NEW", help="that of a build with it")
    parser.add_argument("--spec", action="append", default=[], metavar="WORD", help="specs with WORD in their names; may be repeated")
    parser.add_argument("--examples", default=f"{ROOT}/examples", metavar="DIR", help="specs for both (default: those of this tree)")
    parser.add_argument("--pass", dest="pass_name", choices=("forward", "backward"), help="one of them alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="at a time (default: as many as processors)")
