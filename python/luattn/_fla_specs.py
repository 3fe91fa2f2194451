"""Specs of the operators of luattn.fla, made of what they have: a decay, an update, norms of q and k."""

import functools

from .linear import LinearAttention, linear_attention

_Part = tuple[dict[str, tuple[str, ...]], str]  # axes of its inputs, and its hooks

# How Mamba-2's step is made of dt.
_BIAS: dict[str, tuple[str, ...]] = {"dt_bias": ("hv",)}
_STEPS: dict[str, dict[str, tuple[str, ...]]] = {"ssd": {}, "ssd bias": _BIAS, "ssd softplus": {}, "ssd softplus bias": _BIAS}

DECAYS: dict[str, _Part] = {
    "none": ({}, ""),
    "head": ({"g": ("hv",)}, "decay = function(b, h) return g[h] end,"),
    "token": ({"g": ("b", "t", "hv")}, "decay = function(b, h, t) return g[{b, t, h}] end,"),
    "channel": ({"g": ("b", "t", "hv", "d")}, "decay = function(b, h, t, d) return g[{b, t, h, d}] end,"),
    **{of: ({"dt": ("b", "t", "hv"), "A": ("hv",), **more}, "decay = function(b, h, t) return A[h] * step(b, h, t) end,") for of, more in _STEPS.items()},
}
_OWN = "{b, t, h // (heads_v // heads), d}"  # of a tensor with the heads of q
_STEPPED = "value_mod = function(x, b, h, t) return step(b, h, t) * x end,"
UPDATES: dict[str, _Part] = {
    "add": ({}, ""),
    "delta": ({"beta": ("b", "t", "hv")}, "update = delta_rule(function(b, h, t) return beta[{b, t, h}] end),"),
    "comba": (
        {"beta": ("b", "t", "hv"), "p": ("b", "t", "h", "d")},
        "update = { write = function(b, h, t) return beta[{b, t, h}] end, before = true, "
        f"read = function(k, b, h, t, d) return beta[{{b, t, h}}] * NORM(p[{_OWN}]) end }},",
    ),
    "dplr": (
        {"a": ("b", "t", "hv", "d"), "e": ("b", "t", "hv", "d")},
        "update = { read = function(k, b, h, t, d) return -a[{b, t, h, d}] end, before = true, erase = function(k, b, h, t, d) return e[{b, t, h, d}] end },",
    ),
    "ssd": ({}, _STEPPED),
    "ssd D": ({"D": ("hv",)}, f"{_STEPPED} skip = function(x, b, h) return D[h] * x end,"),
    "ssd Dp": ({"D": ("hv", "dv")}, f"{_STEPPED} skip = function(x, b, h, t, d) return D[{{h, d}}] * x end,"),
}


def _step(decay: str) -> str:
    """A function of the spec, where it is of Mamba-2."""
    if decay not in _STEPS:
        return ""
    dt = "dt[{b, t, h}]" + (" + dt_bias[h]" if "bias" in decay else "")
    return f"local function step(b, h, t) return {f'softplus({dt})' if 'softplus' in decay else dt} end "


@functools.cache
def operator(name: str, decay: str, update: str, has_norm: bool) -> LinearAttention:
    """Messages of its calls begin with `name`."""
    axes, decays = DECAYS[decay]
    more, updates = UPDATES[update]
    inputs = ", ".join(f"{n} = {{ axes = {{{', '.join(map(repr, on))}}}, dtype = 'any', grad = true }}" for n, on in {**axes, **more}.items())
    norm = "query_mod = function(x) return l2norm(x) end, key_mod = function(x) return l2norm(x) end," if has_norm else ""
    updates = updates.replace("NORM", "l2norm" if has_norm else "")
    return linear_attention(f"{_step(decay)}return linear_attention {{ name = {name!r}, inputs = {{ {inputs} }}, {decays} {updates} {norm} }}")
