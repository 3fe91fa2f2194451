-- An online function that saves two row scalars besides lse.
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0, a = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local m = max(rowscales.m, reduce_max(scores))
      local c = exp(rowscales.m - m)
      local p = exp(scores - m)
      return p, { m = m, l = rowscales.l * c + reduce_sum(p), a = rowscales.a + reduce_sum(abs(scores)) }, c
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local norm = 1 + rowscales.a
      local lse = rowscales.m + log(rowscales.l)
      return o / rowscales.l / norm, { lse = lse, norm = norm, extra = 2 * rowscales.a }
    end,
    final_rowscales = { "lse", "norm", "extra" },
  },
}
