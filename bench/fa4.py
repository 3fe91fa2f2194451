"""fa4.py: makes FlashAttention-4 a contender. Needs the package flash-attn-4 and the CuTe DSL that it
installs.

A variant becomes an argument of flash_attn_func if there is one for it, otherwise functions in the CuTe
DSL. Such a function takes vectors of scores and positions, or single elements if it reads a tensor.
FA4 passes some arguments by name, so the functions use FA4's parameter names."""

import cutlass
from cutlass import cute
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from flash_attn.cute.utils import scalar_to_ssa

import packed


def softcap_mods(cap):
    """Soft cap with a multiplication. flash_attn_func's own argument softcap divides each score and is
    slower."""
    inverse = 1.0 / cap

    @cute.jit
    def softcap(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        return cap * cute.math.tanh(score * inverse, fastmath=True)

    @cute.jit
    def softcap_backward(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        t = cute.math.tanh(score * inverse, fastmath=True)
        return grad - grad * t * t

    return dict(score_mod=softcap, score_mod_bwd=softcap_backward)


@cute.jit
def same_gradient(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Backward of a score_mod that adds a bias to the score."""
    return grad


def alibi_mods(heads):
    """ALiBi with slopes computed from the head as in examples/alibi.lua, instead of read from a tensor."""
    per_head = -8.0 / heads

    @cute.jit
    def alibi(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        slope = cute.math.exp2((h_idx.to(cutlass.Float32) + 1.0) * per_head, fastmath=True)
        return score + slope * (kv_idx - q_idx).to(cutlass.Float32)

    return dict(score_mod=alibi, score_mod_bwd=same_gradient)


def relative_bias_mods(bias, length):
    @cute.jit
    def relative_bias(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        table = aux_tensors[0]
        return score + scalar_to_ssa(table[h_idx[0], q_idx[0] - kv_idx[0] + length], cutlass.Float32)

    return dict(score_mod=relative_bias, score_mod_bwd=same_gradient, aux_tensors=[bias])


def blocks(block_mask, of):
    """Returns the part of a BlockMask that a pass reads: "kv" blocks in forward, "q" blocks in backward."""
    names = (f"{of}_num_blocks", f"{of}_indices", f"full_{of}_num_blocks", f"full_{of}_indices")
    lists = (getattr(block_mask, name) for name in names)
    return BlockSparseTensorsTorch(*lists, block_size=tuple(block_mask.BLOCK_SIZE))


def document_mods(documents, block_mask):
    @cute.jit
    def causal_in_document(b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        of = aux_tensors[0]
        of_q = scalar_to_ssa(of[q_idx[0]], cutlass.Int32)
        of_kv = scalar_to_ssa(of[kv_idx[0]], cutlass.Int32)
        return (of_q == of_kv) & (kv_idx <= q_idx)

    return dict(
        mask_mod=causal_in_document,
        aux_tensors=[documents],
        block_sparse_tensors=blocks(block_mask, "kv"),
        block_sparse_tensors_bwd=blocks(block_mask, "q"),
    )


def arguments_of(variation, p):
    """Returns flash_attn_func's keyword arguments for a variation."""
    name = variation.name
    if name == "full":
        return {}
    if name == "causal":
        return dict(causal=True)
    if name == "local1024":
        return dict(window_size=(1024, 0))
    if name == "softcap_causal":
        return dict(causal=True, **softcap_mods(50.0))
    if name == "alibi_causal":
        return dict(causal=True, **alibi_mods(p.heads))
    if name == "relbias_full":
        return relative_bias_mods(variation.inputs["bias"], p.length)
    if name == "doc_causal8":
        return document_mods(variation.inputs["doc_q"], variation.block_mask)
    raise NotImplementedError(f"bench/fa4.py has no form of {name}; add one to arguments_of")


def attention(variation, t):
    """Returns FA4 as an autograd function of (q, k, v), each [batch, heads, length, dim]."""
    options = dict(arguments_of(variation, t.problem), softmax_scale=t.problem.dim**-0.5)
    lengths = packed.varlen(t.problem)

    def call_packed(q, k, v):
        o, _ = flash_attn_varlen_func(*map(packed.rows, (q, k, v)), **lengths, **options)
        return packed.entries(o)

    def call(q, k, v):
        o, _ = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), **options)  # FA4 takes heads last
        return o.transpose(1, 2)

    return call_packed if lengths else call
