"""swin.py: Swin's windows with a learned bias, for grids.py: luattn beside FlexAttention, and beside what models do, which is to partition the grid into
windows, call scaled_dot_product_attention with the bias (and the mask of shifted windows), and reverse the partition.

Contenders take slices of one packed [batch, y, x, 3, heads, dim], and give [batch, y, x, heads, dim]. Backward gives the gradients of both that and the
bias. FlexAttention and "partition, compiled" are compiled by torch.compile before anything is timed."""

import re
import statistics
import time

import torch
import torch.nn.functional as F

BATCH, HEADS, DIM, EXTENT, WINDOW, SHIFTS = 64, 3, 32, 56, 7, (3, 0)
FLOORS = {"flex": (4, 6), "partition": (1.0, 1.5)}  # of forward: floor, aim
TOLERANCE = 2**-6  # the largest difference of o, which is of the order of 1


def text(shift):
    sizes, reach = f"{2 * WINDOW - 1}, {2 * WINDOW - 1}", WINDOW - 1
    return f"""return attention {{
  name = "swin_{shift}", grid = {{"y", "x"}},
  inputs = {{ bias = {{ axes = {{"h", {sizes}}}, dtype = "any", grad = true }} }},
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[{{h, kv_idx.y - q_idx.y + {reach}, kv_idx.x - q_idx.x + {reach}}}]
  end,
  block_mask = swin({{{WINDOW}, {WINDOW}}}, {{{shift}, {shift}}}),
}}
"""


class Problem:
    def __init__(self):
        self.qkv = torch.randn(BATCH, EXTENT, EXTENT, 3, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        self.bias = torch.randn(HEADS, 2 * WINDOW - 1, 2 * WINDOW - 1, device="cuda").bfloat16()
        self.dout = torch.randn(BATCH, EXTENT, EXTENT, HEADS, DIM, device="cuda", dtype=torch.bfloat16)


def heads_first(x):
    """[batch, heads, y, x, dim] of [batch, y, x, heads, dim]."""
    return x.movedim(-2, 1)


def luattn(library, p, shift):
    spec = library.spec(f"swin_{shift}", text(shift))
    tensors = dict(zip("qkv", (heads_first(x) for x in p.qkv.unbind(3))))
    o, dqkv, dbias = torch.full_like(p.dout, torch.nan), torch.full_like(p.qkv, torch.nan), torch.full(p.bias.shape, torch.nan, device="cuda")
    out = dict(o=heads_first(o), lse=torch.empty(BATCH, HEADS, EXTENT, EXTENT, device="cuda"))
    forward = library.bind(spec, inputs={"bias": (p.bias, None)}, **tensors, **out)
    grads = dict(zip(("dq", "dk", "dv"), (heads_first(x) for x in dqkv.unbind(3))))
    forward()
    backward = library.bind(spec, backward=True, inputs={"bias": (p.bias, dbias)}, dout=heads_first(p.dout), **tensors, **out, **grads)

    def fwd():
        forward()
        return [o]

    def bwd():
        backward()
        return [dqkv, dbias]

    return fwd, bwd


def by_autograd(call, p):
    qkv, bias = p.qkv.detach().requires_grad_(), p.bias.detach().requires_grad_()
    out = call(qkv, bias)

    def fwd():
        with torch.no_grad():
            return [call(p.qkv, p.bias)]

    return fwd, lambda: list(torch.autograd.grad(out, (qkv, bias), p.dout, retain_graph=True))


def flex(p, shift):
    import torch._functorch.config as functorch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    functorch.donated_buffer = False  # a donated buffer lets backward run only once
    size, first = 2 * WINDOW - 1, (WINDOW - shift) % WINDOW

    def keep(b, h, q, k):
        qy, qx, ky, kx = (q // EXTENT + first) // WINDOW, (q % EXTENT + first) // WINDOW, (k // EXTENT + first) // WINDOW, (k % EXTENT + first) // WINDOW
        return (qy == ky) & (qx == kx)

    mask = create_block_mask(keep, None, None, EXTENT**2, EXTENT**2)
    compiled = torch.compile(flex_attention, dynamic=False)

    def call(qkv, bias):
        def score_mod(score, b, h, q, k):  # the remainder keeps what the mask drops inside the table
            y = (k // EXTENT - q // EXTENT + WINDOW - 1 + 8 * size) % size
            x = (k % EXTENT - q % EXTENT + WINDOW - 1 + 8 * size) % size
            return score + bias[h, y, x]

        q, k, v = (heads_first(x).flatten(2, 3) for x in qkv.unbind(3))
        return compiled(q, k, v, score_mod=score_mod, block_mask=mask).unflatten(2, (EXTENT, EXTENT)).movedim(1, -2)

    return by_autograd(call, p)


def partition(p, shift, compiles=False):
    n, places = EXTENT // WINDOW, torch.arange(WINDOW, device="cuda").repeat(2, 1)
    y, x = places[0].repeat_interleave(WINDOW), places[1].repeat(WINDOW)
    dy, dx = y - y[:, None] + WINDOW - 1, x - x[:, None] + WINDOW - 1
    at = torch.arange(EXTENT, device="cuda")
    part = (at >= EXTENT - WINDOW).int() + (at >= EXTENT - shift).int() if shift else torch.zeros_like(at)
    region = (part[:, None] * 3 + part).reshape(n, WINDOW, n, WINDOW).transpose(1, 2).reshape(n * n, WINDOW**2)
    apart = torch.where(region[:, :, None] == region[:, None], 0.0, -torch.inf).bfloat16()[:, None]  # [windows, 1, 49, 49]

    def call(qkv, bias):
        if shift:
            qkv = qkv.roll((-shift, -shift), (1, 2))
        parts = qkv.reshape(BATCH, n, WINDOW, n, WINDOW, 3, HEADS, DIM).permute(5, 0, 1, 3, 6, 2, 4, 7)
        added = bias[:, dy, dx][None]  # [1, heads, 49, 49]
        if shift:  # windows beside heads, so that batch entries share bias and mask
            q, k, v = parts.reshape(3, BATCH, n * n * HEADS, WINDOW**2, DIM)
            added = (added + apart).reshape(1, n * n * HEADS, WINDOW**2, WINDOW**2)
        else:
            q, k, v = parts.reshape(3, BATCH * n * n, HEADS, WINDOW**2, DIM)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        o = o.reshape(BATCH, n, n, HEADS, WINDOW, WINDOW, DIM).permute(0, 1, 4, 2, 5, 3, 6).reshape(BATCH, EXTENT, EXTENT, HEADS, DIM)
        return o.roll((shift, shift), (1, 2)) if shift else o

    return by_autograd(torch.compile(call, dynamic=False) if compiles else call, p)


def contenders(library, p, shift, without, budget):
    makers = {
        "luattn": lambda: luattn(library, p, shift),
        "partition": lambda: partition(p, shift),
        "flex": lambda: flex(p, shift),
        "partition, compiled": lambda: partition(p, shift, True),
    }
    made = {}
    for name, make in makers.items():
        begin = time.monotonic()
        if begin > budget or re.search(without, name):
            continue
        try:
            made[name] = make()
            for f in made[name]:
                f()
            torch.cuda.synchronize()
            print(f"swin {shift} {name}: ready in {time.monotonic() - begin:.1f} s", flush=True)
        except Exception as e:  # libraries raise different types for what they do not take
            made.pop(name, None)
            print(f"swin {shift} {name}: refused: {' '.join(str(e).split())[:300] or type(e).__name__}", flush=True)
    return made


def same(made, shift):
    """Whether results are those of the first, which are printed."""
    right, first = True, None
    for name, passes in made.items():
        results = [x.float() for f in passes for x in f()]
        if first is None:
            first = results
        off = [((x - y).norm() / y.norm()).item() for x, y in zip(results, first)]
        most = (results[0] - first[0]).abs().max().item()
        right &= most <= TOLERANCE and all(x <= 0.02 for x in off)
        print(f"swin {shift} {name}: o, dqkv, dbias off by {', '.join(f'{x:.1e}' for x in off)}, o at most {most:.1e}", flush=True)
    return right


def run(library, a):
    """Returns {name: microseconds of each round}, and whether all results agree. a: arguments of grids.py."""
    from run import measure

    rows, right, budget = {}, True, time.monotonic() + min(a.budget_seconds, 1e9)
    problem = Problem()
    made = {shift: contenders(library, problem, shift, a.without, budget) for shift in SHIFTS}
    with a.lock():
        for shift, of in made.items():
            right &= same(of, shift)
            for i in a.passes:
                times = measure({name: passes[i] for name, passes in of.items()}, a.rounds, a.round_ms / 4, f"{a.seed} {shift} {i}")
                rows |= {f"{name} {shift} {('forward', 'backward')[i]}": [1000 * ms for ms in rounds] for name, rounds in times.items()}
    print(f"\nSwin {WINDOW} x {WINDOW}, B{BATCH} H{HEADS} D{DIM}, {EXTENT} x {EXTENT}\n\n| | us | of luattn | floor | aim |\n|---|---|---|---|---|")
    for name, rounds in rows.items():
        contender, shift, pass_ = name.rsplit(" ", 2)
        ours = rows.get(f"luattn {shift} {pass_}", rounds)
        floor, aim = FLOORS.get(contender, ("", "")) if pass_ == "forward" else ("", "")
        ratio = statistics.median(x / y for x, y in zip(rounds, ours))
        print(f"| {pass_}, shift {shift}: {contender} | {statistics.median(rounds):.0f} | {ratio:.2f} | {floor} | {aim} |")
    return rows, right
