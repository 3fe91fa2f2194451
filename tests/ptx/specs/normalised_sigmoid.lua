-- Weights that are sigmoids over their sum, which forward saves: an error of 2^-13 that all of them share would be the sum's.
return attention {
  name = "normalised_sigmoid",
  online_func = {
    name = "normalised_sigmoid",
    online_rowscales = { c = 0 },
    final_rowscales = { "r" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = sigmoid(scores)
      return p, { c = rowscales.c + reduce_sum(p) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local r = max(rowscales.c, 1e-6)
      return o / r, { r = r }
    end,
  },
}
