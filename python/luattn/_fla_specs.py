"""Specs of the operators of luattn.fla, made of what they have: a decay, an update, norms of q and k."""

import functools

from .linear import LinearAttention, linear_attention

_Part = tuple[dict[str, tuple[str, ...]], str]  # axes of its inputs, and its hooks

DECAYS: dict[str, _Part] = {
    "none": ({}, ""),
    "head": ({"g": ("hv",)}, "decay = function(b, h) return g[h] end,"),
    "token": ({"g": ("b", "t", "hv")}, "decay = function(b, h, t) return g[{b, t, h}] end,"),
    "channel": ({"g": ("b", "t", "hv", "d")}, "decay = function(b, h, t, d) return g[{b, t, h, d}] end,"),
    "ssd": ({"dt": ("b", "t", "hv"), "A": ("hv",)}, "decay = function(b, h, t) return A[h] * dt[{b, t, h}] end,"),
}
_OWN = "{b, t, h // (heads_v // heads), d}"  # of a tensor with the heads of q
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
    "ssd": ({}, "value_mod = function(x, b, h, t) return dt[{b, t, h}] * x end,"),
    "ssd D": ({"D": ("hv",)}, "value_mod = function(x, b, h, t) return dt[{b, t, h}] * x end, skip = function(x, b, h) return D[h] * x end,"),
    "ssd Dp": (
        {"D": ("hv", "dv")},
        "value_mod = function(x, b, h, t) return dt[{b, t, h}] * x end, skip = function(x, b, h, t, d) return D[{h, d}] * x end,",
    ),
}


@functools.cache
def operator(name: str, decay: str, update: str, has_norm: bool) -> LinearAttention:
    """Messages of its calls begin with `name`."""
    axes, decays = DECAYS[decay]
    more, updates = UPDATES[update]
    inputs = ", ".join(f"{n} = {{ axes = {{{', '.join(map(repr, on))}}}, dtype = 'any', grad = true }}" for n, on in {**axes, **more}.items())
    norm = "query_mod = function(x) return l2norm(x) end, key_mod = function(x) return l2norm(x) end," if has_norm else ""
    updates = updates.replace("NORM", "l2norm" if has_norm else "")
    return linear_attention(f"return linear_attention {{ name = {name!r}, inputs = {{ {inputs} }}, {decays} {updates} {norm} }}")
