#!/usr/bin/env python3
"""cpu_threads.py: measures the speedup of a CPU engine with several threads. Needs neither torch nor NumPy.

  python3 bench/cpu_threads.py build/release/engine/libluattn.so [--threads 1,2] [--repeat 5] [SPEC..]

Thread counts alternate, and the shortest wall time of each is reported, with that run's processor time
(user and system) over its wall time. If other programs keep the processors busy, that ratio is less than the
number of threads, and the speedup is not meaningful.
"""

import argparse
import ctypes as c
import os
import pathlib
import random
import resource
import time

from capi import Args, DLDataType, DLDevice, DLTensor, EngineOptions, Error, SpecInfo

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPU = -1  # LUATTN_CPU
SHAPES = "1,1,1,1024,1024,64 1,1,1,300,2000,64 2,8,2,256,256,64 16,8,8,64,64,64"


def tensor(*shape, fill=False):
    """Returns a float32 DLTensor and the object that owns its memory."""
    count = 1
    for size in shape:
        count *= size
    data = (c.c_float * max(count, 1))(*([random.gauss(0, 1) for _ in range(count)] if fill else []))
    sizes = (c.c_int64 * len(shape))(*shape)
    t = DLTensor(c.cast(data, c.c_void_p), DLDevice(1, 0), len(shape), DLDataType(2, 32, 1), sizes, None, 0)
    t.kept = (data, sizes)
    return t


class Library:
    def __init__(self, path):
        self.lib, self.err, self.engine = c.CDLL(path), Error(), c.c_void_p()
        options = EngineOptions(struct_size=c.sizeof(EngineOptions), device=CPU)
        self.call("luattn_engine_open", c.byref(options), c.byref(self.engine))

    def call(self, name, *args):
        if getattr(self.lib, name)(*args, c.byref(self.err)) != 0:
            raise SystemExit(f"{name}: {self.err.message.decode()}")


def bind(library, path, shape):
    """Returns a function (pass, threads) -> (wall, processor) seconds, or None if the spec has inputs."""
    b, h, hkv, sq, skv, d = shape
    spec, facts = c.c_void_p(), SpecInfo()
    library.call("luattn_spec_load", str(path).encode(), None, c.byref(spec))
    library.lib.luattn_spec_get_info(spec, c.byref(facts))
    if facts.num_inputs > 0:
        return None
    q, k = (b, h, sq, d), (b, hkv, skv, d)
    tensors = {"q": tensor(*q, fill=True), "k": tensor(*k, fill=True), "v": tensor(*k, fill=True), "o": tensor(*q)}
    tensors |= {"dout": tensor(*q, fill=True), "dq": tensor(*q), "dk": tensor(*k), "dv": tensor(*k)}
    if facts.has_lse:
        tensors["lse"] = tensor(b, h, sq)
    if facts.num_saved > 0:
        tensors["saved"] = tensor(facts.num_saved, b, h, sq)
    if facts.num_scalars > 0:
        tensors["scalar_grads"] = tensor(facts.num_scalars)
    args = Args(struct_size=c.sizeof(Args))
    for name, t in tensors.items():
        setattr(args, name, c.addressof(t))

    def run(name, threads, keep=tensors):
        args.num_threads = threads
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        library.call(name, library.engine, spec, c.byref(args), None)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("specs", nargs="*", default=["full", "causal", "gemma2"])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--shapes", default=SHAPES, help="B,H,Hkv,Sq,Skv,D one after the other, with blanks between")
    options = parser.parse_intermixed_args()
    threads = [int(t) for t in options.threads.split(",")]
    library = Library(options.library)
    random.seed(1)
    print("load", *(f"{x:.2f}" for x in os.getloadavg()), "on", len(os.sched_getaffinity(0)), "processors")
    print(f"{'spec':10}{'B,H,Hkv,Sq,Skv,D':24}{'pass':10}threads: wall ms (processors), times as fast as the first")
    for name in options.specs:
        path = ROOT / "examples" / f"{name}.lua" if not name.endswith(".lua") else name
        for shape in options.shapes.split():
            run = bind(library, path, [int(size) for size in shape.split(",")])
            if run is None:
                raise SystemExit(f"{name}: has inputs; give a spec without")
            for pass_ in ("forward", "backward"):
                best = {t: (float("inf"), 0) for t in threads}
                for _ in range(options.repeat):
                    for t in threads:
                        best[t] = min(best[t], run("luattn_" + pass_, t))
                first = best[threads[0]][0]
                cells = [f"{t}: {w * 1e3:8.1f} ({p / w:.2f}) {first / w:.2f}" for t, (w, p) in best.items()]
                print(f"{name:10}{shape:24}{pass_:10}" + "   ".join(cells), flush=True)


main()
