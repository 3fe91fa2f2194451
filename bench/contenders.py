"""contenders.py: builds functions that launch the passes of a cell's entry, and computes the float64
reference.

Every library works on the same tensors. A contender is a dict from pass to a function that launches the
pass on torch's current stream and returns its results: o for fwd, dq dk dv for bwd, all four for
fwdbwd. Forward alone runs without autograd."""

import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import math
import os
import re
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import packed
from cells import VARIANTS, kept_of, spec_text
from installed import NotInstalled
from masks import MASKS, kept

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


class Tensors:
    """q, k, v and dout of one problem, [batch, heads, length, dim] in logical order."""

    def __init__(self, p):
        self.problem = p
        self.q, self.k = self.make(torch.randn, p.heads, p.dim), self.make(torch.randn, p.heads_kv, p.dim)
        self.v, self.dout = self.make(torch.randn, p.heads_kv, p.dim_v), self.make(
            torch.randn, p.heads, p.dim_v
        )

    def make(self, fill, heads, dim):
        p = self.problem
        shape = (p.batch, p.length, heads, dim) if p.heads_last else (p.batch, heads, p.length, dim)
        t = fill(shape, device="cuda", dtype=DTYPES[p.dtype])
        return t.transpose(1, 2) if p.heads_last else t

    def unset(self, heads, dim):
        return self.make(lambda shape, **kw: torch.full(shape, math.nan, **kw), heads, dim)


def t5_bucket(relative):
    """Computes the bucket as examples/t5_relative_bias.lua does."""
    n = relative.abs()
    far = torch.log(n.clamp(min=1) / 8) / math.log(16) * 8
    large = (8 + torch.floor(far + 0.001).int()).clamp(max=15)
    return torch.where(n < 8, n, large) + torch.where(relative > 0, 16, 0)


class Variation:
    """A variant for one problem: its extra inputs by luattn's names, and its mods as FlexAttention
    functions."""

    def __init__(self, variant, p):
        self.name, self.inputs, self.score_mod, self.mask_mod, self.reads = variant, {}, None, None, ""
        self.problem = p
        s, h = p.length, p.heads
        position = torch.arange(s, device="cuda")
        if variant == "doc_causal8":
            docs = (position // (s // 8)).int()
            self.inputs = {"doc_q": docs, "doc_kv": docs}
            self.mask_mod = lambda b, h, q, k: (q >= k) & (docs[q] == docs[k])
        elif variant == "local1024":
            self.mask_mod = lambda b, h, q, k: (q >= k) & (q - k <= 1024)
        elif variant == "natten2d_k13":
            side, size = math.isqrt(s), 13

            def neighborhood(b, h, q, k):
                row = (q // side - size // 2).clamp(0, side - size)
                column = (q % side - size // 2).clamp(0, side - size)
                return (
                    (k // side >= row)
                    & (k // side < row + size)
                    & (k % side >= column)
                    & (k % side < column + size)
                )

            self.mask_mod = neighborhood
        elif variant in MASKS:
            self.inputs, self.mask_mod, self.reads = MASKS[variant](p)
        elif variant.endswith("causal"):
            self.mask_mod = lambda b, h, q, k: q >= k
        if variant == "alibi_causal":
            slopes = torch.exp2(-8 * torch.arange(1, h + 1, device="cuda") / h)
            self.score_mod = lambda score, b, h, q, k: score + slopes[h] * (k - q)
        elif variant == "softcap_causal":
            self.score_mod = lambda score, b, h, q, k: 50 * torch.tanh(score / 50)
        elif variant == "relbias_full":
            bias = torch.randn(h, 2 * s, device="cuda")
            self.inputs = {"bias": bias}
            self.score_mod = lambda score, b, h, q, k: score + bias[h, q - k + s]
        elif variant == "slopes_causal":
            slopes = torch.exp2(-8 * torch.arange(1, h + 1, device="cuda") / h)
            self.inputs = {"slopes": slopes}
            self.score_mod = lambda score, b, h, q, k: score + slopes[h] * (k - q)
        elif variant == "t5_full":
            bias = torch.randn(h, 32, device="cuda")
            self.inputs = {"bias": bias}
            self.score_mod = lambda score, b, h, q, k: score + bias[h, t5_bucket(k - q)]
        elif variant in ("biasq_full", "biaskv_full", "bias2d_full"):
            sizes = (h, s) if variant != "bias2d_full" else (h, s, s)
            bias = torch.randn(sizes, device="cuda")
            at = {"biasq_full": lambda q, k: (q,), "biaskv_full": lambda q, k: (k,), "bias2d_full": lambda q, k: (q, k)}
            self.inputs = {"bias": bias}
            self.score_mod = lambda score, b, h, q, k: score + bias[(h, *at[variant](q, k))]
        elif variant == "sigmoid_causal":
            bias = torch.full((h,), -math.log(s), device="cuda")
            self.inputs = {"bias": bias}
            self.score_mod = lambda score, b, h, q, k: score + bias[h]

    def block_mask_by(self, create_block_mask):
        p = self.problem
        sizes = (n if axis in self.reads else None for axis, n in (("b", p.batch), ("h", p.heads)))
        return self.mask_mod and create_block_mask(self.mask_mod, *sizes, p.length, p.length, device="cuda")

    @functools.cached_property
    def block_mask(self):
        """Returns the mask as FlexAttention's BlockMask, or None without a mask."""
        from torch.nn.attention.flex_attention import create_block_mask

        return self.block_mask_by(create_block_mask)

    @functools.cached_property
    def kept(self):
        """The fraction of scores that the mask keeps."""
        of_lengths = kept_of(self.name, self.problem)
        return of_lengths or kept(self.mask_mod, self.reads, self.problem)


def reference(variation, t, backward):
    """Returns [o, dq, dk, dv] in float64, for the last batch entry's last kv head and its q heads. Without
    backward, dq, dk and dv are None."""
    if not t.problem.lengths:
        return entry_reference(variation, t, t.problem, backward)
    parts, first = [], 0
    for n in t.problem.lengths:
        sequence, part = copy.copy(t), slice(first, first + n)
        sequence.q, sequence.k, sequence.v, sequence.dout = (x[:, :, part] for x in (t.q, t.k, t.v, t.dout))
        parts.append(entry_reference(variation, sequence, dataclasses.replace(t.problem, length=n), backward))
        first += n
    return [torch.cat(x, -2) if x[0] is not None else None for x in zip(*parts)]


def entry_reference(variation, t, p, backward):
    """reference() for tensors of lengths that `p` has."""
    group = p.heads // p.heads_kv
    q_idx, kv_idx = (
        torch.arange(p.length, device="cuda")[:, None],
        torch.arange(p.length, device="cuda")[None],
    )
    batch = torch.tensor(p.batch - 1, device="cuda")
    k, v = (x[-1, -1].double().requires_grad_(backward) for x in (t.k, t.v))
    o, dq = [], []
    with torch.set_grad_enabled(backward):
        for h in range(p.heads - group, p.heads):
            q, head = t.q[-1, h].double().requires_grad_(backward), torch.tensor(h, device="cuda")
            score = q @ k.T * p.dim**-0.5
            if variation.score_mod:
                score = variation.score_mod(score, batch, head, q_idx, kv_idx)
            keep = (
                variation.mask_mod(batch, head, q_idx, kv_idx)
                if variation.mask_mod
                else torch.tensor(True, device="cuda")
            )
            if variation.name == "sigmoid_causal":
                weight = torch.sigmoid(score).masked_fill(~keep, 0)
            else:
                # A row without a key has P = 0: of equal finite scores, softmax is no NaN, and keep takes it away.
                weight = torch.softmax(score.masked_fill(~keep, -1e300), -1) * keep
            out = weight @ v
            o.append(out.detach())
            if backward:
                out.backward(t.dout[-1, h].double())
                dq.append(q.grad)
    return [torch.stack(o), torch.stack(dq) if dq else None, k.grad, v.grad]


def of_reference(results, p):
    """Selects from [o, dq, dk, dv] (None if the pass has none) the heads that reference() computes."""
    group = p.heads // p.heads_kv
    parts = (lambda x: x[-1, -group:],) * 2 + (lambda x: x[-1, -1],) * 2
    return [None if r is None else part(r) for part, r in zip(parts, results)]


def luattn(library, variation, t, gradients=False, every_tile=False, deterministic=False):
    """Returns the passes, and under `plan` the family and tiles, e.g. ("sm90", 128, 128). gradients: computes
    gradients of the extra inputs too. every_tile: does not skip tiles with negligible P. deterministic:
    backward gives the same bits in every run."""
    if deterministic:
        library = library.deterministic()
    p = t.problem
    spec = library.spec(VARIANTS[variation.name].lua, spec_text(ROOT, variation.name, p.length))
    if p.lengths:
        return packed.luattn(library, spec, t)
    qkv = dict(q=t.q, k=t.k, v=t.v)
    out = dict(o=t.unset(p.heads, p.dim_v))
    if spec.has_lse:
        out["lse"] = torch.full((p.batch, p.heads, p.length), math.nan, device="cuda")
    if library.large_scores and library.num_saved(spec) > 0:
        rows = (library.num_saved(spec), p.batch, p.heads, p.length)
        out["saved"] = torch.full(rows, math.nan, device="cuda")
    grads = dict(dq=t.unset(p.heads, p.dim), dk=t.unset(p.heads_kv, p.dim), dv=t.unset(p.heads_kv, p.dim_v))
    inputs = {
        name: (x, torch.empty_like(x) if gradients and x.is_floating_point() else None)
        for name, x in variation.inputs.items()
    }
    forward = library.bind(spec, inputs=inputs, every_tile=every_tile, **qkv, **out)
    backward = None

    def fwd():
        forward()
        return [out["o"]]

    def bwd():
        nonlocal backward
        if backward is None:
            forward()
            backward = library.bind(
                spec, backward=True, inputs=inputs, every_tile=every_tile, dout=t.dout, **qkv, **out, **grads
            )
        backward()
        return list(grads.values())

    def plan(is_backward):
        text = (backward if is_backward else forward).plan()
        family, tile_m, tile_n = re.search(r"family (\w+).*?\btiles (\d+) x (\d+)", text, re.DOTALL).groups()
        return family, int(tile_m), int(tile_n)

    return dict(fwd=fwd, bwd=bwd, fwdbwd=lambda: fwd() + bwd(), plan=plan)


def by_autograd(call, t):
    leaves = [x.detach().requires_grad_() for x in (t.q, t.k, t.v)]
    out = None

    def fwd():
        with torch.no_grad():
            return [call(t.q, t.k, t.v)]

    def bwd():
        nonlocal out
        if out is None:
            out = call(*leaves)
        return list(torch.autograd.grad(out, leaves, t.dout, retain_graph=True))

    def fwdbwd():
        o = call(*leaves)
        return [o.detach(), *torch.autograd.grad(o, leaves, t.dout)]

    return dict(fwd=fwd, bwd=bwd, fwdbwd=fwdbwd)


def sdpa(backend, variation, t):
    if t.problem.lengths:  # scaled_dot_product_attention has no packed sequences, the libraries themselves do
        return packed.Cudnn(t).passes() if backend == SDPA["cudnn"] else by_autograd(packed.fa2(t), t)
    causal, grouped = variation.name == "causal", t.problem.heads != t.problem.heads_kv

    def call(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return by_autograd(call, t)


def flex(variation, t, backend=None):
    """backend: one of FlexAttention's, e.g. "FLASH"; None: torch's default, Triton."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._functorch.config.donated_buffer = False  # a donated buffer lets backward run only once
    compiled = torch.compile(flex_attention, dynamic=False)
    options = dict(
        score_mod=variation.score_mod,
        block_mask=variation.block_mask,
        enable_gqa=t.problem.heads != t.problem.heads_kv,
        kernel_options=backend and {"BACKEND": backend},
    )
    return by_autograd(lambda q, k, v: compiled(q, k, v, **options), t)


def open_luattn_flex(path):
    """Returns luattn.flex of the library at this path: the mods and the calls that FlexAttention gets, with another import,
    and no torch.compile."""
    os.environ["LUATTN_LIBRARY"] = os.path.abspath(path)
    sys.path.append(f"{ROOT}/python")
    module = importlib.import_module("luattn.flex")

    def make(variation, t):
        options = dict(
            score_mod=variation.score_mod,
            block_mask=variation.block_mask_by(module.create_block_mask),
            enable_gqa=t.problem.heads != t.problem.heads_kv,
        )
        return by_autograd(lambda q, k, v: module.flex_attention(q, k, v, **options), t)

    return make


def forget_compiled():
    """Drops torch.compile's code, because torch.compile gives up after a number of versions of a function."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64


@functools.cache
def load_fa4():
    """Imports bench/fa4.py. Raises NotInstalled with the reason if the import fails."""
    try:
        return importlib.import_module("fa4")
    except Exception as e:  # the CuTe DSL raises errors of many types where a library is missing
        why = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
        how = "pip install --pre 'flash-attn-4[cu13]'"
        raise NotInstalled(f"flash_attn.cute does not import ({why}); {how}") from e


def open_flex_flash():
    """Returns FlexAttention with its FLASH backend, which calls FA4."""
    flash = os.path.join(os.path.dirname(torch.__file__), "_inductor/kernel/flex/flex_flash_attention.py")
    if not os.path.exists(flash):
        raise NotInstalled(f"torch {torch.__version__} has no FLASH backend of FlexAttention; torch 2.11 has")
    load_fa4()
    return functools.partial(flex, backend="FLASH")


def open_fa4():
    attention = load_fa4().attention
    return lambda variation, t: by_autograd(attention(variation, t), t)


def replayed(launch):
    """Captures a launch into a CUDA graph. Returns a function that replays it and returns its results.

    Each replay overwrites the results. The default stream cannot be captured, so another stream must be
    current. The launch must have run on that stream before, because autograd runs a backward on the stream of
    its forward.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.disable()  # freeing a tensor or a module during the capture would break the capture
    try:
        graph.capture_begin(capture_error_mode="relaxed")  # autograd launches a backward from another thread
        try:
            results = launch()
        except Exception:
            with contextlib.suppress(Exception):  # ending a broken capture fails; the first error says more
                graph.capture_end()
            raise
        graph.capture_end()
    except Exception as e:
        raise RuntimeError(f"no CUDA graph: {e or type(e).__name__}") from e
    finally:
        gc.enable()

    def replay(kept=launch):
        """Replays the graph. The closure keeps `launch` alive, because the graph reads its tensors, such as
        the O and LSE that a forward saved for its backward."""
        graph.replay()
        return results

    for result in results:
        result.fill_(math.nan)  # elements that the graph does not write stay NaN and fail the check
    replay()  # other passes may read these results
    return replay


def load_fa3(path):
    """path: the extension's .so, or the folder of flash_attn_interface.py. Both register the same ops, the package
    fa3-fwd under its own name, without a backward."""
    if path.endswith(".so"):
        torch.ops.load_library(path)
    else:
        sys.path.insert(0, path)
        __import__("flash_attn_interface")
    return torch.ops.fa3_fwd if hasattr(torch.ops.fa3_fwd, "fwd") else torch.ops.flash_attn_3


def fa3(ops, variation, t):
    p = t.problem
    left, right = VARIANTS[variation.name].window(p.length)
    causal, everything = (left, right) == (p.length, 0), left == right == p.length
    mask = dict(
        is_causal=causal,
        window_size_left=-1 if causal or everything else left,
        window_size_right=-1 if causal or everything else right,
    )
    lengths = packed.varlen(p)
    to, back = (packed.rows, packed.entries) if lengths else (lambda x: x.transpose(1, 2),) * 2
    q, k, v, dout = (to(x) for x in (t.q, t.k, t.v, t.dout))  # FA3 takes heads last
    scale = p.dim**-0.5
    grads = [torch.empty_like(x) for x in (q, k, v)]
    saved = None

    def forward():
        return ops.fwd(q, k, v, softmax_scale=scale, num_splits=1, **lengths, **mask)[:2]

    def backward(o, lse):
        ops.bwd(dout, q, k, v, o, lse, *grads, softmax_scale=scale, **lengths, **mask)
        return [back(g) for g in grads]

    def bwd():
        nonlocal saved
        if saved is None:
            saved = forward()
        return backward(*saved)

    def fwdbwd():
        o, lse = forward()
        return [back(o), *backward(o, lse)]

    return dict(fwd=lambda: [back(forward()[0])], bwd=bwd, fwdbwd=fwdbwd)


SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
