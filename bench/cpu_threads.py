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

import builds

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = "1,1,1,1024,1024,64 1,1,1,300,2000,64 2,8,2,256,256,64 16,8,8,64,64,64"


class Floats:
    """A float32 array: its shape and memory."""

    def __init__(self, *shape, fill=False):
        count = 1
        for size in shape:
            count *= size
        self.data = (c.c_float * max(count, 1))(*([random.gauss(0, 1) for _ in range(count)] if fill else []))
        self.shape = (c.c_int64 * len(shape))(*shape)


def bind(package, path, shape):
    """Returns a function (pass, threads) -> (wall, processor) seconds, or None if the spec has inputs."""
    b, h, hkv, sq, skv, d = shape
    capi, spec = package("_capi"), package("_spec").load(path)
    if spec.inputs:
        return None

    def fill(t, at):
        to = capi.DLTensor.from_address(at)
        to.data, to.device, to.ndim = c.addressof(t.data), capi.DLDevice(1, 0), len(t.shape)
        to.dtype, to.shape = capi.DLDataType(2, 32, 1), c.cast(t.shape, c.POINTER(c.c_int64))

    q, k = (b, h, sq, d), (b, hkv, skv, d)
    tensors = {"q": Floats(*q, fill=True), "k": Floats(*k, fill=True), "v": Floats(*k, fill=True), "o": Floats(*q)}
    tensors |= {"dout": Floats(*q, fill=True), "dq": Floats(*q), "dk": Floats(*k), "dv": Floats(*k)}
    if spec.has_lse:
        tensors["lse"] = Floats(b, h, sq)
    if spec.num_saved > 0:
        tensors["saved"] = Floats(spec.num_saved, b, h, sq)
    grads = Floats(len(spec.scalars)) if spec.scalars else None
    frames = {name: package("_call").Frame(spec, name == "backward") for name in ("forward", "backward")}
    for frame in frames.values():
        frame.set(fill, [tensors.get(name) for name in capi.TENSORS])
        frame.set_numbers(0.0, list(spec.scalars.values()))
        frame.set_scalar_grads(fill, grads)
    engine = package("engine").engine_of(capi.CPU)

    def run(name, threads, keep=(tensors, grads)):
        frames[name].set_options(num_threads=threads)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        frames[name].run(engine, None)
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
    package = builds.package_of(options.library)
    random.seed(1)
    print("load", *(f"{x:.2f}" for x in os.getloadavg()), "on", len(os.sched_getaffinity(0)), "processors")
    print(f"{'spec':10}{'B,H,Hkv,Sq,Skv,D':24}{'pass':10}threads: wall ms (processors), times as fast as the first")
    for name in options.specs:
        path = ROOT / "examples" / f"{name}.lua" if not name.endswith(".lua") else name
        for shape in options.shapes.split():
            run = bind(package, path, [int(size) for size in shape.split(",")])
            if run is None:
                raise SystemExit(f"{name}: has inputs; give a spec without")
            for pass_ in ("forward", "backward"):
                best = {t: (float("inf"), 0) for t in threads}
                for _ in range(options.repeat):
                    for t in threads:
                        best[t] = min(best[t], run(pass_, t))
                first = best[threads[0]][0]
                cells = [f"{t}: {w * 1e3:8.1f} ({p / w:.2f}) {first / w:.2f}" for t, (w, p) in best.items()]
                print(f"{name:10}{shape:24}{pass_:10}" + "   ".join(cells), flush=True)


main()
