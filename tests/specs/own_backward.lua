-- A softmax whose backward is written by hand, as in AttentionEngine.
return attention {
  name = "own_backward",
  inputs = { slopes = { axes = {"h"}, grad = true } },
  scalars = { cap = 20.0 },
  block_mask = causal(),
  score_mod = function(score, b, h, q_idx, kv_idx) return cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx) end,
  online_func = {
    name = "own_backward",
    online_rowscales = { m = -1e37, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales)
      local m = max(rowscales.m, reduce_max(scores))
      local p, shift = exp(scores - m), exp(rowscales.m - m)
      return p, { m = m, l = rowscales.l * shift + reduce_sum(p) }, shift
    end,
    online_fwd_epilogue = function(o, rowscales)
      local l = rowscales.l
      return o * where(eq(l, 0), 0, 1 / l), { lse = log(l) + rowscales.m }
    end,
    forward = function(scores, final_rowscales) return exp(scores - final_rowscales.lse) end,
    backward = function(dp, p, final_rowscales, doosum) return p * (dp - doosum) end,
  },
}
