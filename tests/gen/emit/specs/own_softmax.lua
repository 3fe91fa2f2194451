-- A softmax with a temperature inside the online function, an initial state that depends on a parameter, and
-- a second output of the row.
return attention {
  name = "own_softmax",
  scalars = { beta = 0.8 },
  inputs = { start = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return 5 * tanh(score / 5) end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx < q_idx end,
  online_func = {
    name = "own_softmax",
    online_rowscales = { m = -math.huge, l = 0, n = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local t = scores * beta
      local m = max(rowscales.m, reduce_max(t))
      local alpha = exp(rowscales.m - m)
      local p = exp(t - m)
      return p, { m = m, l = rowscales.l * alpha + reduce_sum(p), n = rowscales.n + 1 }, alpha
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local l = rowscales.l + exp(start[h] - rowscales.m)
      return o / l, { lse = rowscales.m + log(l) }
    end,
  },
}
