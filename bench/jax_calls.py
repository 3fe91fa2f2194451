"""jax_calls.py: the time of a jitted call of luattn.jax beside jax.nn.dot_product_attention (XLA's and cuDNN's), forward and gradient, causal in bf16, on a GPU: a small call, where the host
decides, and a large one. Best mean of five rounds. Prints a table.

    PYTHONPATH=python python bench/jax_calls.py
"""

import time

import jax
import jax.numpy as jnp
import luattn.jax

CALLS = (((1, 128, 8, 64), 300), ((4, 4096, 16, 128), 10))  # batch, length, heads, head dim; how many a round


def luattn_of(q, k, v):
    return causal(q, k, v, layout="bshd")


def jax_of(implementation):
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)


def microseconds(f, args, count):
    jax.block_until_ready(f(*args))
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            result = f(*args)
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - begin) / count)
    return best * 1e6


def main():
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}\n\n| | us forward | us gradient, forward included |\n|---|---|---|")
    for shape, count in CALLS:
        args = [jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3)]
        for name, f in (("luattn", luattn_of), ("cuDNN", jax_of("cudnn")), ("XLA", jax_of("xla"))):
            gradient = jax.grad(lambda *x: f(*x).astype(jnp.float32).sum(), (0, 1, 2))  # noqa: B023
            times = [microseconds(jax.jit(g), args, count) for g in (f, gradient)]
            print(f"| {name}, {list(shape)} | {times[0]:.0f} | {times[1]:.0f} |")


if __name__ == "__main__":
    causal = luattn.jax.attention("causal")
    main()
