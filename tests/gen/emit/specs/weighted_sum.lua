-- A normaliser without an exponential: p = softplus(s) / (1 + sum softplus(s)). Each thread may keep a
-- partial sum.
return attention {
  name = "weighted_sum",
  scalars = { shift = 0.25 },
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx or kv_idx < 4 end,
  score_mod = function(score, b, h, q_idx, kv_idx) return score + shift end,
  online_func = {
    name = "weighted_sum",
    online_rowscales = { l = 0 },
    final_rowscales = { "norm" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = softplus(scores)
      return p, { l = rowscales.l + reduce_sum(p) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local norm = 1 + rowscales.l
      return o / norm, { norm = norm }
    end,
  },
}
