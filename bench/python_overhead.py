"""Host time of an eager call of the package on the CPU: all but the C call, then with it, and the C call alone, of a small
problem; medians in one process.

    LUATTN_LIBRARY=build/release/engine/libluattn.so PYTHONPATH=python python3 bench/python_overhead.py
"""

import os
import time

import torch

import luattn
from luattn import _capi as capi
from luattn._call import Frame, give_back, take_frame
from luattn._torch import fill
from luattn.engine import engine_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def median_us(run, count=2000):
    for _ in range(count // 10):
        run()
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[count // 2] / 1000


def main():
    os.environ["LUATTN_NUM_THREADS"] = "1"  # threads are made and joined in each call
    attention = luattn.attention(f"{ROOT}/examples/gemma2.lua")
    q, k, v = (torch.randn(1, 1, 1, 8) for _ in "qkv")
    o, lse = torch.empty_like(q), torch.empty(1, 1, 1)
    spec, engine = attention._spec, engine_of(capi.CPU)
    frame = take_frame(spec)
    frame.set(fill, (("q", q), ("k", k), ("v", v), ("o", o), ("lse", lse)))
    frame.set_numbers(0.0, [50.0])
    in_c = median_us(lambda: frame.run(engine, False, None))
    give_back(frame)
    p = q.clone().requires_grad_()

    def measure():
        with torch.no_grad():
            without = median_us(lambda: attention(q, k, v))
        return (
            without,
            median_us(lambda: attention(p, k, v)),
            median_us(lambda: attention(p, k, v).backward(o)),
        )

    run, Frame.run = Frame.run, lambda *args: None
    print(
        "without the C call:     no gradients {:.1f} us, with {:.1f}, and backward {:.1f}".format(*measure())
    )
    Frame.run = run
    print(
        "with it ({:.1f} us alone): no gradients {:.1f} us, with {:.1f}, and backward {:.1f}".format(
            in_c, *measure()
        )
    )
    with torch.no_grad():
        print(f"SDPA: {median_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)):.1f} us")


if __name__ == "__main__":
    main()
