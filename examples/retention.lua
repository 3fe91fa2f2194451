-- Retention in parallel form: exponential decay, and a row normaliser that takes part in the gradient.
--   s' = s * gamma^(q - kv),   gamma = 1 - 2^(-5 - h);   p = s' / max(sum |s'|, 1);   causal
-- RetNet (Sun et al. 2023).
return attention {
  name = "retention",
  score_mod = function(score, b, h, q_idx, kv_idx)
    local log2_gamma = log2(1 - exp2(-5 - h))
    return score * exp2(log2_gamma * (q_idx - kv_idx))
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
  online_func = {
    name = "retention",
    online_rowscales = { c = 0 },
    final_rowscales = { "r" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return scores, { c = rowscales.c + reduce_sum(abs(scores)) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local r = max(rowscales.c, 1)
      return o / r, { r = r }
    end,
  },
}
