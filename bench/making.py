#!/usr/bin/env python3
"""making.py: times how long masks from data take to evaluate, beside FlexAttention's create_block_mask.

    python3 bench/making.py --library /path/to/libluattn.so
    python3 bench/making.py --only blocks --no-flex

The masks of run.py's suite `masks`, and two of which every score has to be looked at: flags of each score (elements), and
arithmetic that no bounds decide (hashed). luattn makes its tile bits and orders of tiles in a luattn_batch, FlexAttention
its BlockMask by create_block_mask, compiled and warm (above 4096 positions without persistent reductions, so that PyTorch
sorts). Microseconds: of kernels on the device, and of a call, which may be that of the host. `of a forward`: the kernels' share of one forward of 16 heads with the mask. `reads`: bytes of flags over
the time of luattn_tile_bits, and over the rate at which the device copies (bytes read and written). `issue`: that
time over the time in which all multiprocessors issue the instructions that the plan counts, for each score.
"""

import argparse
import math
import re
import statistics
import subprocess

import contenders
import torch
from builds import Luattn
from cells import OF_DATA, Problem, spec_text
from masks import MASKS, SEED

SORTED_IN_KERNELS = 4096  # longest sequence for which Inductor may sort in its kernels, in create_block_mask
COUNTED = re.compile(r"(\d+) instructions for each (\d+) x (\d+)")


def elements(p):
    """Flags of each score: cells of 64 x 64 that are kept or dropped as a whole, which only all their flags tell."""
    n = math.ceil(p.length / 64)
    cells = torch.rand(p.heads, n, n, generator=torch.Generator().manual_seed(SEED)) < 0.13
    on = cells.cuda().repeat_interleave(64, 1).repeat_interleave(64, 2).contiguous()
    return {"on": on}, lambda b, h, q, k: on[h, q, k], "h"


def hashed(p):
    """Even numbers, for which the remainder is never odd: every score is kept."""
    number = torch.randint(0, 2**20, (p.length,), generator=torch.Generator().manual_seed(SEED)).int().cuda() * 2
    return {"number": number}, lambda b, h, q, k: (number[q] * 43 + number[k] * 29) % 64 < 63, ""


OF_MAKING = {"elements": elements, "hashed": hashed}


def problem_of(name):
    batch, length = (4, 4096) if name == "padding" else (1, 4096) if name == "elements" else (1, 16384)
    return Problem(batch, 16, 16, length, 128, 128, heads_last=False)


def text_of(name, p):
    if name in OF_DATA:
        return spec_text(contenders.ROOT, name, p.length)
    with open(f"{contenders.ROOT}/bench/specs/{name}.lua") as f:
        return f.read()


def call_us(f, n=20):
    """The median time of a call, of n that the host enqueues one after another."""
    times = []
    for _ in range(5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(n):
            f()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / n * 1e3)
    return statistics.median(times)


def kernels_us(f, n=10):
    """Microseconds of all kernels of a call, by name."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as kept:
        for _ in range(n):
            f()
        torch.cuda.synchronize()
    times = {}
    for event in kept.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0) + event.device_time_total / n
    return times


def copy_rate():
    """Bytes a second that a copy reads and writes."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / call_us(lambda: y.copy_(x), 5) * 1e6


def issue_rate():
    """Instructions of single threads a second: a warp's in each of four schedulers of a multiprocessor, at the highest clock."""
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    clock = float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * 1e6
    return torch.cuda.get_device_properties(0).multi_processor_count * 4 * 32 * clock


def flex_maker(mask_mod, reads, p):
    from torch.nn.attention.flex_attention import create_block_mask

    contenders.forget_compiled()
    # Inductor sorts a row of blocks inside of a kernel; with 128 blocks Triton compiles that for longer than 200 s.
    options = {"triton.persistent_reductions": False} if p.length > SORTED_IN_KERNELS else None
    compiled = torch.compile(create_block_mask, options=options)
    sizes = [n if axis in reads else None for axis, n in (("b", p.batch), ("h", p.heads))]
    return lambda: compiled(mask_mod, *sizes, p.length, p.length, device="cuda")


def row_of(name, library, rates, with_flex):
    """Returns the row of one mask as numbers and texts."""
    p = problem_of(name)
    inputs, mask_mod, reads = (MASKS | OF_MAKING)[name](p)
    t = contenders.Tensors(p)
    spec = library.spec(f"{name}.lua", text_of(name, p))
    forward = library.bind(
        spec, inputs={n: (x, None) for n, x in inputs.items()}, q=t.q, k=t.k, v=t.v, o=t.unset(p.heads, p.dim_v),
        lse=torch.empty(p.batch, p.heads, p.length, device="cuda"),
    )  # fmt: skip
    forward()
    ours, kernels = call_us(forward.evaluate), kernels_us(forward.evaluate)
    made, bits = sum(kernels.values()), sum(us for n, us in kernels.items() if "tile_bits" in n)
    sets = (p.batch if "b" in reads else 1) * (p.heads if "h" in reads else 1)
    count, rows, columns = map(int, COUNTED.search(forward.plan()).groups())
    issued = count * sets * p.length**2 / (rows * columns) / rates["issue"] * 1e6
    row = {"mask": f"{name} B{p.batch} S{p.length}", "luattn": f"{made:.1f}"}
    row["its kernels"] = ", ".join(f"{n.replace('luattn_', '')} {us:.1f}" for n, us in kernels.items())
    row["create_block_mask"] = row["times"] = row["a call of it"] = "-"
    if with_flex:
        maker = flex_maker(mask_mod, reads, p)
        maker()
        theirs = sum(kernels_us(maker).values())
        row["create_block_mask"], row["times"] = f"{theirs:.0f}", f"{theirs / made:.1f}"
        row["a call of it"] = f"{call_us(maker, 5):.0f}"
    row["a call of luattn"] = f"{ours:.0f}"
    row["of a forward"] = f"{made / call_us(forward) * 100:.1f} %"
    row["reads"] = "-"
    if name == "elements":
        rate = sets * p.length**2 / bits * 1e6
        row["reads"] = f"{rate / 1e12:.2f} TB/s, {rate / rates['copy'] * 100:.0f} %"
    row["issue"] = f"{bits / issued:.2f}"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=f"{contenders.ROOT}/build/release/engine/libluattn.so", help="libluattn.so")
    parser.add_argument("--only", default="", metavar="REGEX", help="masks whose name matches")
    parser.add_argument("--no-flex", action="store_true", help="luattn alone")
    a = parser.parse_args()
    library = Luattn(a.library, bits=True)
    rates = {"copy": copy_rate(), "issue": issue_rate()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copies {rates['copy'] / 1e12:.2f} TB/s", flush=True)
    head = None
    for name in [*OF_DATA, *OF_MAKING]:
        if not re.search(a.only, name):
            continue
        row = row_of(name, library, rates, not a.no_flex)
        if head is None:
            head = list(row)
            print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
