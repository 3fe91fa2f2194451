"""Specs of linear attention, each in Lua and again in NumPy: those of tests/specs/linear, and random ones made of parts."""

import os

import numpy as np
from linear_reference import l2norm, sigmoid, silu, softplus

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "specs", "linear")


def feature(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _delta(beta, k):
    return beta[:, None] * k


# Of each file: the arrays of head() for a value head, and of what else call() takes. i: inputs by name.
def linear(i, b, h, q, k, v):
    return {"q": feature(q), "k": feature(k), "b": v, "normalize": True}


def normalized_skip(i, b, h, q, k, v):
    return {**linear(i, b, h, q, k, v), "skip": i["D"][h] * v}


def retention(i, b, h, q, k, v):
    return {"q": q, "k": k, "b": v, "g": np.full(len(q), np.log(1 - 2.0 ** (-5 - h)))}


def retention_ae(i, b, h, q, k, v):
    return {"q": q / np.sqrt(q.shape[1]), "k": k, "b": v, "g": np.log(i["decay"][b, h])}


def simple_gla(i, b, h, q, k, v):
    return {"q": q, "k": k, "b": v, "g": i["g"][b, :, h]}


def mamba2(i, b, h, q, k, v):
    step = softplus(i["dt"][b, :, h] + i["dt_bias"][h])
    return {"q": q, "k": k, "b": step[:, None] * v, "g": -np.exp(i["A_log"][h]) * step, "skip": i["D"][h] * v}


def mamba2_ae(i, b, h, q, k, v):
    return {"q": q, "k": k, "b": i["dt"][b, h][:, None] * v, "g": i["decay"][b, h] * i["A"][0, h]}


def gla(i, b, h, q, k, v):
    return {"q": q, "k": k, "b": v, "g": -softplus(-i["gk"][b, :, h]) / 16}


def delta(i, b, h, q, k, v):
    beta, k = sigmoid(i["beta"][b, :, h]), l2norm(silu(k))
    return {"q": l2norm(silu(q)), "k": k, "b": beta[:, None] * v, "r": _delta(beta, k)}


def gated_delta(i, b, h, q, k, v):
    beta, k = sigmoid(i["beta"][b, :, h]), l2norm(k)
    g = -np.exp(i["A_log"][h]) * softplus(i["a"][b, :, h] + i["dt_bias"][h])
    return {"q": l2norm(q), "k": k, "b": beta[:, None] * v, "r": _delta(beta, k), "g": g}


def comba(i, b, h, q, k, v):
    beta = sigmoid(i["beta"][b, :, h])
    r = _delta(beta, l2norm(i["p"][b, :, h]))
    return {"q": q, "k": l2norm(k), "b": beta[:, None] * v, "r": r, "g": i["g"][b, :, h], "before": True}


def kda(i, b, h, q, k, v):
    beta, k = sigmoid(i["beta"][b, :, h]), l2norm(k)
    g = i["bound"] * sigmoid(np.exp(i["A_log"][h]) * (i["a"][b, :, h] + i["dt_bias"][h]))
    return {"q": l2norm(q), "k": k, "b": beta[:, None] * v, "r": _delta(beta, k), "g": g}


def rwkv7(i, b, h, q, k, v):
    kappa = l2norm(i["kk"][b, :, h])
    return {"q": q, "k": k, "b": v, "r": kappa, "e": kappa * sigmoid(i["a"][b, :, h]), "g": -np.exp(-0.5) * sigmoid(i["w"][b, :, h]), "before": True}


FILES = [linear, normalized_skip, retention, retention_ae, simple_gla, mamba2, mamba2_ae, gla, delta, gated_delta, comba, kda, rwkv7]
SCALES = {"mamba2": 1.0, "mamba2_ae": 1.0, "retention_ae": 1.0, "rwkv7": 1.0}

# Of each hook: in Lua, then in NumPy at (i, b, h, x), then axes of the inputs that it has. i["c"] is the scalar c.
QUERY = [
    ("nil", lambda i, b, h, x: x, {}),
    ("function(x) return l2norm(x) end", lambda i, b, h, x: l2norm(x), {}),
    ("function(x, b, h) return silu(x) * of_head[h] end", lambda i, b, h, x: silu(x) * i["of_head"][h // 2], {"of_head": "h"}),
    ("function(x, b, h, t, d) return x + row[{t, d}] end", lambda i, b, h, x: x + i["row"], {"row": "t,d"}),
]
KEY = [
    ("nil", lambda i, b, h, x: x * 1.0, {}),
    ("function(x) return l2norm(silu(x)) end", lambda i, b, h, x: l2norm(silu(x)), {}),
    ("function(x) local n = reduce_sum(abs(x)) return where(n > 3, x / n, x * n) end",
     lambda i, b, h, x: np.where(np.abs(x).sum(-1, keepdims=True) > 3, x / np.abs(x).sum(-1, keepdims=True), x * np.abs(x).sum(-1, keepdims=True)), {}),
]  # fmt: skip
VALUE = [
    ("nil", lambda i, b, h, x: x, {}),
    ("function(x, b, h, t, d) return x * sigmoid(gate[{b, t, h, d}]) end", lambda i, b, h, x: x * sigmoid(i["gate"][b, :, h]), {"gate": "b,t,hv,dv"}),
    ("function(x) return c * x - reduce_sum(x) / head_dim_v end", lambda i, b, h, x: i["c"] * x - x.mean(-1, keepdims=True), {}),
]
DECAY = [
    ("nil", lambda i, b, h, n: None, {}),
    ("function(b, h) return -0.1 * (h + 1) end", lambda i, b, h, n: np.full(n, -0.1 * (h + 1)), {}),
    ("function(b, h, t) return -softplus(a[{b, t, h}]) * c end", lambda i, b, h, n: -softplus(i["a"][b, :, h]) * i["c"], {"a": "b,t,hv"}),
    ("function(b, h, t, d) return log_sigmoid(gk[{b, t, h, d}]) / 4 end", lambda i, b, h, n: -softplus(-i["gk"][b, :, h]) / 4, {"gk": "b,t,hv,d"}),
    ("function(b, h, t, d) return -exp(A[{h, d}]) end", lambda i, b, h, n: np.broadcast_to(-np.exp(i["A"][h]), (n, i["A"].shape[1])), {"A": "hv,d"}),
    ("function(b, h, t) return -0.1 * reduce_sum(gk[{b, t, h, d0}] * 0 + 1) * sigmoid(a[{b, t, h}]) end".replace("gk[{b, t, h, d0}] * 0 + 1", "w1[{b, h}] ^ 2"),
     lambda i, b, h, n: -0.1 * i["dim"] * i["w1"][b, h] ** 2 * sigmoid(i["a"][b, :, h]), {"w1": "b,hv", "a": "b,t,hv"}),
]  # fmt: skip
UPDATE = [
    ("nil", lambda i, b, h, k: {}, {}),
    ("{ write = function(b, h, t) return sigmoid(beta[{b, t, h}]) end }", lambda i, b, h, k: {"w": sigmoid(i["beta"][b, :, h])[:, None]}, {"beta": "b,t,hv"}),
    ("{ write = function(b, h, t, d) return of_v[{h, d}] end }", lambda i, b, h, k: {"w": i["of_v"][h]}, {"of_v": "hv,dv"}),
    ("delta_rule(function(b, h, t) return 0.3 * sigmoid(beta[{b, t, h}]) end)",
     lambda i, b, h, k: {"w": 0.3 * sigmoid(i["beta"][b, :, h])[:, None], "r": 0.3 * sigmoid(i["beta"][b, :, h])[:, None] * k}, {"beta": "b,t,hv"}),
    ("{ read = function(k, b, h, t, d) return 0.2 * p[{b, t, h, d}] end, before = true }", lambda i, b, h, k: {"r": 0.2 * i["p"][b, :, h], "before": True}, {"p": "b,t,hv,d"}),
    ("{ read = function(k, b, h, t, d) return 0.2 * l2norm(p[{b, t, h, d}]) end, erase = function(k) return c * k end }",
     lambda i, b, h, k: {"r": 0.2 * l2norm(i["p"][b, :, h]), "e": i["c"] * k}, {"p": "b,t,hv,d"}),
]  # fmt: skip
SKIP = [
    ("nil", lambda i, b, h, x: None, {}),
    ("function(x, b, h) return D[h] * x end", lambda i, b, h, x: i["D"][h] * x, {"D": "hv"}),
    ("function(x, b, h, t, d) return gate[{b, t, h, d}] * l2norm(x) end", lambda i, b, h, x: i["gate"][b, :, h] * l2norm(x), {"gate": "b,t,hv,dv"}),
]
PARTS = {"query_mod": QUERY, "key_mod": KEY, "value_mod": VALUE, "decay": DECAY, "update": UPDATE, "skip": SKIP}


def random_spec(rng):
    """A spec in Lua, what it computes in NumPy, its scale (None: the default)."""
    part = {name: rows[rng.integers(len(rows))] for name, rows in PARTS.items()}
    scale = [None, 1.0, -0.3][rng.integers(3)]
    inputs = {name: axes for row in part.values() for name, axes in row[2].items()}
    declared = ", ".join(f"{name} = {{ axes = {{{', '.join(repr(x) for x in axes.split(','))}}}, grad = true }}" for name, axes in inputs.items())
    fields = "".join(f"  {name} = {row[0]},\n" for name, row in part.items() if row[0] != "nil")
    lua = f"return linear_attention {{\n  name = 'random', scalars = {{ c = 0.7 }}, inputs = {{ {declared} }},\n{fields}"
    lua += (f"  scale = {scale},\n" if scale is not None else "") + "}\n"

    def hooks(i, b, h, q, k, v):
        run = {name: row[1] for name, row in part.items()}
        i = {**i, "dim": q.shape[1]}
        key, value = run["key_mod"](i, b, h, k), run["value_mod"](i, b, h, v)
        update = run["update"](i, b, h, key)
        written = update.pop("w", 1.0) * value
        return {"q": run["query_mod"](i, b, h, q), "k": key, "b": written, "g": run["decay"](i, b, h, len(q)), "skip": run["skip"](i, b, h, v), **update}

    return lua, hooks, scale
