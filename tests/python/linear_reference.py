"""Linear attention in NumPy, all tokens of a sequence at once: what is read is the solution of one triangular system. Shares nothing with the
recurrence of the library."""

import numpy as np


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(x, 0)


def l2norm(x):
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + 1e-6)


def head(q, k, b, g=None, r=None, e=None, before=False, state=None, scale=1.0):
    """o [T, V] and the final state [K, V] of one value head. g: [T] or [T, K], None: no decay. b: what is written."""
    tokens, dim = q.shape
    g = np.zeros((tokens, 1)) if g is None else np.maximum(g.reshape(tokens, -1), -1000.0)
    g = np.broadcast_to(g, (tokens, dim))
    state = np.zeros((dim, b.shape[1])) if state is None else state
    total = np.cumsum(g, 0)
    kept = np.zeros((tokens, tokens, dim))  # [t, j]: of what token j has written, behind the decay of token t
    for t in range(tokens):
        for j in range(t + 1):
            kept[t, j] = np.exp(g[j + 1 : t + 1].sum(0))
    if r is None:
        y = np.zeros_like(b)
        e = np.zeros_like(k)
    else:
        e = k if e is None else e
        of_state = np.exp(total - g if before else total)
        shown = np.zeros_like(kept)  # the same where it is read
        for t in range(tokens):
            for j in range(t):
                shown[t, j] = kept[t - 1, j] if before else kept[t, j]
        by_k, by_e = (np.einsum("tc,tjc,jc->tj", r, shown, x) for x in (k, e))
        y = np.linalg.solve(np.eye(tokens) + by_e, (r * of_state) @ state + by_k @ b)
    o = (q * np.exp(total)) @ state
    o = o + np.einsum("tc,tjc,jc->tj", q, kept, k) @ b - np.einsum("tc,tjc,jc->tj", q, kept, e) @ y
    if tokens == 0:
        return scale * o, state
    final = np.exp(total[-1])[:, None] * state + (k * kept[-1]).T @ b - (e * kept[-1]).T @ y
    return scale * o, final


def call(hooks, q, k, v, state=None, scale=None):
    """o and the final states [B, HV, K, V'] of a batch. hooks(b, h, q, k, v): the canonical arrays of a value head, as head() takes them,
    and "normalize", "skip"."""
    batch, tokens, heads, dim = q.shape
    heads_v = v.shape[2]
    o, finals = np.zeros(v.shape), []
    for b in range(batch):
        for h in range(heads_v):
            of_q = h // (heads_v // heads)
            c = hooks(b, h, q[b, :, of_q], k[b, :, of_q], v[b, :, h])
            normalize, skip = c.pop("normalize", False), c.pop("skip", None)
            if normalize:
                c["b"] = np.concatenate([c["b"], c.pop("strength", np.ones((tokens, 1)))], 1)
            u, final = head(**c, state=None if state is None else state[b, h], scale=dim**-0.5 if scale is None else scale)
            u = u[:, :-1] / u[:, -1:] if normalize else u
            o[b, :, h] = u if skip is None else u + skip
            finals.append(final)
    shape = finals[0].shape if finals else (dim, v.shape[3])
    return o, np.array(finals).reshape(batch, heads_v, *shape)
