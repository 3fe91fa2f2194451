-- Softmax with 1 added to the denominator, so that a head may attend to nothing.
--   p = exp(s) / (1 + sum exp(s))
-- Miller 2023, "Attention is off by one". The 1 is exp(0), an extra score of zero without a value.
return attention {
  name = "softmax_one",
  online_func = {
    name = "softmax_one",
    online_rowscales = { m = 0, l = 0 }, -- m starts at the extra score, 0
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local m = max(rowscales.m, reduce_max(scores))
      local o_scale = exp(rowscales.m - m)
      local p = exp(scores - m)
      return p, { m = m, l = rowscales.l * o_scale + reduce_sum(p) }, o_scale
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local l = rowscales.l + exp(-rowscales.m)
      return o / l, { lse = log(l) + rowscales.m }
    end,
  },
}
