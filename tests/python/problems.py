"""problems.py: specs and tensors for tests of the ops of torch, which import this first: it exits with 77 where torch is not installed."""

import os
import warnings

from with_torch import ROOT, torch  # exits without torch, so first

import luattn

warnings.filterwarnings("ignore", module="torch")
EXAMPLES = sorted(f[:-4] for f in os.listdir(f"{ROOT}/examples") if f.endswith(".lua"))
forward_op = torch.ops.luattn.forward.default
backward_op = torch.ops.luattn.backward.default


def example(name, double=False):
    """An example. double: inputs with gradients are float64, for finite differences."""
    path = f"{ROOT}/examples/{name}.lua"
    if not double:
        return luattn.attention(path)
    with open(path, encoding="utf-8") as file:
        return luattn.attention(file.read().replace("grad = true }", 'grad = true, dtype = "f64" }'))


def rand(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def inputs_of(attention, sizes):
    """Random inputs; axes that sizes does not name have their own size, or 64."""
    made = {}
    for name, info in attention.inputs.items():
        shape = [int(axis) if axis.isdigit() else sizes.get(axis, 64) for axis in info.axes]
        if info.dtype in ("int32", "int64"):
            made[name] = torch.randint(0, 3, shape, dtype=getattr(torch, info.dtype)).sort().values
        else:
            made[name] = torch.rand(shape, dtype=getattr(torch, info.dtype), requires_grad=info.grad)
    return made


def problem(attention, b=1, h=2, hkv=1, n=5, m=6, d=4, dtype=torch.float64):
    sizes = {"b": b, "h": h, "hkv": hkv, "q": n, "kv": m, "channel": d, "pair": d // 2}
    qkv = [rand(b, h, n, d, dtype=dtype), rand(b, hkv, m, d, dtype=dtype), rand(b, hkv, m, d, dtype=dtype)]
    return qkv, inputs_of(attention, sizes)


def grads(f, tensors):
    """Gradients of a sum of f's results, each with weights of its own."""
    total = 0
    for result in f():
        total = (
            total
            + (
                result * torch.linspace(0.3, 1.7, result.numel(), dtype=result.dtype).reshape(result.shape)
            ).sum()
        )
    return torch.autograd.grad(total, tensors)
