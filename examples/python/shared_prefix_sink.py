"""The same as shared_prefix.py with a sink in each head, whose term of the denominator no part may count twice: parts are merged by the state of their
rows, and one function of autograd has the gradients of all parts. Prints how far results and gradients are apart, and on a GPU how long
both take.

    python3 examples/python/shared_prefix_sink.py        on a GPU, or small on the CPU"""

import time

import torch

import luattn

SINKS = "inputs = { sinks = { axes = {'h'}, dtype = 'f32', grad = true } }, online_func = attention_sink('sinks')"
causal = luattn.attention(f"return attention {{ {SINKS}, block_mask = causal() }}")
full = luattn.attention(f"return attention {{ {SINKS} }}")


def whole(q, prefix, own, sinks):
    """q: the last queries of each sequence. Each has a copy of the prefix."""
    k, v = (torch.cat((p.expand(len(q), *p.shape[1:]), t), 2) for p, t in zip(prefix, own))
    return causal(q, k, v, q_offset=k.shape[2] - q.shape[2], sinks=sinks)


def together(t, batch_axis=0):
    """The rows of all sequences as those of one."""
    t = t.transpose(batch_axis, batch_axis + 1)
    heads, batch, rows, *rest = t.shape[batch_axis:]
    return t.reshape(*t.shape[:batch_axis], 1, heads, batch * rows, *rest)


def apart(t, batch, batch_axis=0):
    """What together made of `batch` sequences."""
    _, heads, rows, *rest = t.shape[batch_axis:]
    return t.reshape(*t.shape[:batch_axis], heads, batch, rows // batch, *rest).transpose(batch_axis, batch_axis + 1)


class Cascade(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, prefix_k, prefix_v, own_k, own_v, sinks):
        batch, first = len(q), own_k.shape[2] - q.shape[2]
        o, lse, state = full(together(q), prefix_k, prefix_v, sinks=sinks, return_state=True)
        o, lse, state = apart(o, batch), apart(lse, batch), apart(state, batch, 1)
        own = causal(q, own_k, own_v, q_offset=first, sinks=sinks, return_state=True)
        o, lse, saved = causal.merge(*zip((o, lse, state), own), return_saved=True)
        ctx.save_for_backward(q, prefix_k, prefix_v, own_k, own_v, sinks, o, lse, saved)
        return o

    @staticmethod
    def backward(ctx, dout):
        q, prefix_k, prefix_v, own_k, own_v, sinks, o, lse, saved = ctx.saved_tensors
        all_rows = (together(o), together(lse), together(saved, 1))
        dq, dk, dv, _ = full.gradients(together(dout), together(q), prefix_k, prefix_v, *all_rows, sinks=sinks)
        own_q, own_dk, own_dv, once = causal.gradients(
            dout, q, own_k, own_v, o, lse, saved, q_offset=own_k.shape[2] - q.shape[2], sinks=sinks
        )
        return apart(dq, len(q)) + own_q, dk, dv, own_dk, own_dv, once["sinks"].to(sinks.dtype)  # the other part's are the same


def cascade(q, prefix, own, sinks):
    """All queries come after the prefix and see all of it: together they are one batch entry, which reads its keys once."""
    return Cascade.apply(q, *prefix, *own, sinks)


def compare(device, dtype, batch, heads, heads_kv, prefix_len, own_len, rows, dim, repeats=0):
    """The relative distances of results and of all gradients, and milliseconds of forward, whole and cascade."""
    torch.manual_seed(1)

    def rand(*shape, dtype=dtype):
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    q, sinks = rand(batch, heads, rows, dim), rand(heads, dtype=torch.float32)
    prefix, own = ([rand(b, heads_kv, n, dim) for _ in "kv"] for b, n in ((1, prefix_len), (batch, own_len)))
    weights = torch.randn_like(q)
    found, times = [], []
    for f in (whole, cascade):
        o = f(q, prefix, own, sinks)
        found.append((o, *torch.autograd.grad(o, (q, *prefix, *own, sinks), weights)))
        with torch.no_grad():
            start = time.perf_counter()
            for _ in range(repeats):
                f(q, prefix, own, sinks)
            if device == "cuda":
                torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / max(1, repeats))
    distances = [((a - b).double().norm() / b.double().norm()).item() for a, b in zip(found[1], found[0])]
    return distances[0], max(distances[1:]), times


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        o, grads, times = compare("cuda", torch.bfloat16, 32, 32, 8, 8192, 512, 16, 128, repeats=20)
    else:
        o, grads, times = compare("cpu", torch.float32, 3, 4, 2, 64, 24, 8, 32)
    print(f"cascade beside whole sequences: o is {o:.1e} apart, gradients up to {grads:.1e}")
    if on_gpu:
        print(f"forward: whole {times[0]:.2f} ms, of it copies of the prefix; cascade {times[1]:.2f} ms")
