-- Retention as RetNet's own code trains it: the row normaliser is a constant in backward.
--   s' = s * gamma^(q - kv),   gamma = 1 - 2^(-5 - h);   p = s' / stop_gradient(max(sum |s'|, 1));   causal
-- RetNet (Sun et al. 2023), torchscale's implementation. Written as in AttentionEngine: r is updated
-- along the row, and the sum so far is rescaled.
return attention {
  name = "retention_detached",
  score_mod = function(score, b, h, q_idx, kv_idx)
    local log2_gamma = log2(1 - exp2(-5 - h))
    return score * exp2(log2_gamma * (q_idx - kv_idx))
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
  online_func = {
    name = "retention_detached",
    online_rowscales = { c = 0, r = 1 },
    final_rowscales = { "r" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local c = rowscales.c + reduce_sum(abs(scores))
      local r = stop_gradient(max(c, 1))
      return scores / r, { c = c, r = r }, rowscales.r / r
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx) return o, { r = rowscales.r } end,
    forward = function(scores, final_rowscales, b, h, q_idx, kv_idx) return scores / final_rowscales.r end,
    backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx)
      return dp / final_rowscales.r
    end,
  },
}
