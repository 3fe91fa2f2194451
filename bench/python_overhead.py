"""Host time of an eager call of the package: medians of 2000 calls in one process, no synchronisation between them.

    PYTHONPATH=python python3 bench/python_overhead.py           on a GPU: beside SDPA, FlexAttention and, if installed, FA4
    PYTHONPATH=python python3 bench/python_overhead.py --calls   on a GPU: each kind of call, beside SDPA, an empty Function and, where it imports, FA3
    PYTHONPATH=python python3 bench/python_overhead.py --cpu     all but the C call, then with it

LUATTN_LIBRARY names the library, as ever."""

import os
import sys
import time
import warnings
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention

import luattn
from luattn import _capi as capi
from luattn import _tensors, _torch
from luattn._call import Frame, give_back, take_frame
from luattn.engine import engine_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def median_us(run, count=2000):
    times = []
    for i in range(count + count // 10):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
        if i % 100 == 0 and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the stream holds a thousand launches; then a call waits
    return sorted(times[count // 10 :])[count // 2] / 1000


def both_passes(attention, q, k, v):
    """Medians without gradients, of forward with them, and of forward and backward."""
    wants = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    dout = torch.ones_like(q)
    with torch.no_grad():
        without = median_us(lambda: attention(q, k, v))
    forward = median_us(lambda: attention(*wants))
    both = median_us(lambda: torch.autograd.grad(attention(*wants), wants, dout))
    return without, forward, both


class Nothing(torch.autograd.Function):
    """What PyTorch itself takes for a Function that allocates nothing."""

    @staticmethod
    def forward(ctx, q, k, v):
        return q.view_as(q)

    @staticmethod
    def backward(ctx, dout):
        return dout, dout, dout


class Copies(torch.autograd.Function):
    """What PyTorch itself takes for a Function of three tensors that computes nothing."""

    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, dout):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])


def contenders(length):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length)
    compiled = torch.compile(flex_attention)
    found = {
        "SDPA": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
        "FlexAttention, compiled": lambda q, k, v: compiled(q, k, v, block_mask=mask),
    }
    try:
        from flash_attn.cute import flash_attn_func

        def fa4(q, k, v):  # [batch, length, heads, dim]
            return flash_attn_func(q, k, v, causal=True)[0]

        found["FA4"] = fa4
    except Exception as e:  # the CuTe DSL raises errors of many types where a library is missing
        print(f"FA4 does not import: {type(e).__name__}: {e}")
    return found


def decode_calls(causal):
    """A step of decode over caches, dense and in pages of 64, in all the ways that there are."""
    from luattn.flash_attn import flash_attn_with_kvcache

    def rand(*shape):
        return torch.randn(*shape, 128, device="cuda", dtype=torch.bfloat16)

    q, new_k, new_v, caches = rand(8, 1, 8), rand(8, 1, 2), rand(8, 1, 2), (rand(8, 2048, 2), rand(8, 2048, 2))
    pages = tuple(t.reshape(256, 64, 2, 128) for t in caches)
    used = torch.full((8,), 1500, dtype=torch.int32, device="cuda")
    table = torch.randperm(256, device="cuda").to(torch.int32).reshape(8, 32)
    batch, heads_first = luattn.Batch(), [t.transpose(1, 2) for t in (q, *pages)]
    lengths = {"seqused_k": used, "block_table": table}
    batch.prepare(causal, *heads_first, **lengths)
    found = {
        "kvcache": lambda: flash_attn_with_kvcache(q, *caches, cache_seqlens=used, causal=True),
        "kvcache, pages": lambda: flash_attn_with_kvcache(q, *pages, cache_seqlens=used, block_table=table, causal=True),
        "kvcache, pages, new rows": lambda: flash_attn_with_kvcache(q, *pages, new_k, new_v, cache_seqlens=used, block_table=table, causal=True),
        "attention, pages": lambda: causal(*heads_first, **lengths),
        "attention, pages, a Batch": lambda: causal(*heads_first, **lengths, batch=batch),
        "Batch.prepare": lambda: batch.prepare(causal, *heads_first, **lengths),
    }
    try:
        import fa3_fwd_interface as fa3

        found |= {
            "FA3 kvcache": lambda: fa3.flash_attn_with_kvcache(q, *caches, cache_seqlens=used, causal=True),
            "FA3 kvcache, pages": lambda: fa3.flash_attn_with_kvcache(q, *pages, cache_seqlens=used, page_table=table, causal=True),
            "FA3 kvcache, new rows": lambda: fa3.flash_attn_with_kvcache(q, *caches, new_k, new_v, cache_seqlens=used, causal=True),
        }
    except Exception as e:  # not there, or for another PyTorch
        print(f"FA3 does not import: {type(e).__name__}: {e}")
    return found


def on_calls():
    """Prints a line for each kind of call: forward's, then those with gradients."""
    from luattn.flash_attn import flash_attn_func

    causal = luattn.attention(f"{ROOT}/examples/causal.lua")
    q, k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    bshd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    forward = {
        "SDPA": lambda *t: scaled_dot_product_attention(*t, is_causal=True),
        "attention": causal,
        "attention, bshd": lambda *t: causal(*t, layout="bshd"),
        "flash_attn_func": lambda *t: flash_attn_func(*t, causal=True),
        "a Function that allocates nothing": Nothing.apply,
        "a Function that computes nothing": Copies.apply,
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}; us: without gradients, forward with, and backward")
    for name, run in forward.items():
        tensors = bshd if run in (forward["attention, bshd"], forward["flash_attn_func"]) else (q, k, v)
        print(f"{name:>34} {{:9.1f}} {{:9.1f}} {{:9.1f}}".format(*both_passes(run, *tensors)), flush=True)
    with torch.autograd.set_multithreading_enabled(False):
        for name in ("SDPA", "attention", "a Function that allocates nothing"):
            print(f"{name + ', one thread':>34} {{:9.1f}} {{:9.1f}} {{:9.1f}}".format(*both_passes(forward[name], q, k, v)), flush=True)
    for name, run in decode_calls(causal).items():
        try:
            print(f"{name:>34} {median_us(run):9.1f}", flush=True)
        except Exception as e:  # a contender that refuses these shapes
            print(f"{name:>34} refused: {' '.join(str(e).split())[:200]}", flush=True)
    steps(causal, q, k, v)


def steps(attention, q, k, v):
    """Prints what the parts of a call take."""
    spec = attention._spec
    engine = engine_of(q.get_device() if q.is_cuda else capi.CPU)
    made = _tensors.results(spec, q, v)
    frame = take_frame(spec, False)
    frame.set(_tensors.fill, (q, k, v, *made))
    workspace = q.new_empty(1 << 20, dtype=torch.uint8)
    frame.set_workspace(workspace.data_ptr(), 1 << 20)
    stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else None
    parts = {
        "an empty function": lambda: None,
        "torch.empty_like": lambda: torch.empty_like(q),
        "results": lambda: _tensors.results(spec, q, v),
        "filling the frame": lambda: frame.set(_tensors.fill, (q, k, v, *made)),
        "size of the workspace": lambda: frame.workspace_size(engine),
        "the C call": lambda: frame.run(engine, stream),
    }
    print("  ".join(f"{name} {median_us(run):.2f}" for name, run in parts.items()))
    give_back(frame)


def split(name, attention, function, q, k, v, count=600):
    """Prints medians of an iteration's parts: forward, then autograd.grad up to the backward of `function`, in it, after it."""
    wants, dout, real = [t.detach().clone().requires_grad_() for t in (q, k, v)], torch.ones_like(q), function.backward
    times, now, inside = [], time.perf_counter_ns, [0, 0]

    def timed(ctx, *grads):
        inside[0] = now()
        made = real(ctx, *grads)
        inside[1] = now()
        return made

    with mock.patch.object(function, "backward", staticmethod(timed)):
        for i in range(count):
            start = now()
            o = attention(*wants)
            between = now()
            torch.autograd.grad(o, wants, dout)
            times.append((between - start, inside[0] - between, inside[1] - inside[0], now() - inside[1]))
            if i % 100 == 0 and q.is_cuda:
                torch.cuda.synchronize()
    parts = zip(("forward", "to backward", "in it", "after it"), zip(*times[count // 10 :]))
    print(f"{name}: " + ", ".join(f"{part} {sorted(x)[len(x) // 2] / 1000:.1f}" for part, x in parts), flush=True)


def splits(causal, q, k, v):
    """On a GPU a thread of PyTorch's runs backward, unless it is told not to."""
    for threads in (True, False) if q.is_cuda else (False,):
        where = "in PyTorch's thread" if threads else "in the calling thread"
        with torch.autograd.set_multithreading_enabled(threads):
            split(f"luattn, backward {where}", causal, _torch._Attention, q, k, v)
            split(f"a Function that computes nothing, {where}", Copies.apply, Copies, q, k, v)


def on_gpu():
    warnings.filterwarnings("ignore", module="torch")
    causal = luattn.attention(f"{ROOT}/examples/causal.lua")
    q, k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    print(f"us, median of 2000: {'no gradients':>24} {'forward with':>13} {'and backward':>13}")
    rows = {"luattn": causal, **contenders(128), "luattn again": causal, "a Function that computes nothing": Copies.apply}
    for name, run in rows.items():
        tensors = [t.transpose(1, 2).contiguous() for t in (q, k, v)] if name == "FA4" else (q, k, v)
        try:
            print(f"{name:>32} {{:11.1f}} {{:13.1f}} {{:13.1f}}".format(*both_passes(run, *tensors)), flush=True)
        except Exception as e:  # a contender that refuses this shape does not take the others' rows away
            if run is causal:
                raise
            print(f"{name:>32} refused: {' '.join(str(e).split())[:200]}", flush=True)
    splits(causal, q, k, v)
    steps(causal, q, k, v)


def on_cpu():
    os.environ["LUATTN_NUM_THREADS"] = "1"
    causal = luattn.attention(f"{ROOT}/examples/causal.lua")
    q, k, v = (torch.randn(1, 1, 1, 8) for _ in "qkv")
    text = "no gradients {:.1f} us, forward with {:.1f}, and backward {:.1f}"
    run, Frame.run = Frame.run, lambda *args: None
    print("without the C call: " + text.format(*both_passes(causal, q, k, v)))
    Frame.run = run
    print("with it: " + text.format(*both_passes(causal, q, k, v)))
    print("SDPA: " + text.format(*both_passes(lambda *t: scaled_dot_product_attention(*t), q, k, v)))
    print("a Function that computes nothing: " + text.format(*both_passes(Copies.apply, q, k, v)))
    splits(causal, q, k, v)
    steps(causal, q, k, v)


if __name__ == "__main__":
    on_cpu() if "--cpu" in sys.argv else on_calls() if "--calls" in sys.argv else on_gpu()
