-- Two maxima that do not cancel, of different terms, each with an element that takes its derivative. One starts at a learned number, which takes the
-- derivative of rows that do not reach it; eps moves with the head.
return attention {
  name = "row_maxima",
  inputs = { eps = { axes = { "h" }, grad = true }, least = { axes = { "h" }, grad = true } },
  mask_mod = causal(),
  online_func = {
    online_rowscales = { m = function(b, h) return least[h] - 0.5 end, x = 1, l = 0 },
    final_rowscales = { "m", "x", "l" },
    online_fwd = function(scores, r)
      local m = max(r.m, reduce_max(scores))
      local shift, p = exp(r.m - m), exp(scores - m)
      return p, { m = m, x = max(r.x, reduce_max(abs(scores - 0.5))), l = r.l * shift + reduce_sum(p) }, shift
    end,
    online_fwd_epilogue = function(o, r, b, h) return o * r.x / (r.l + 1 + abs(eps[h])), { m = r.m, x = r.x, l = r.l } end,
  },
}
