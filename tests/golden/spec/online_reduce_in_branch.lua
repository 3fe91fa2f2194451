-- expect: online_reduce_in_branch.lua:8: online_fwd: a reduction is reached only by the elements that answer this comparison in one way; move reduce_sum and reduce_max out of the branch and reduce where(condition, x, 0)
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local l = rowscales.l
      if scores > 0 then l = l + reduce_sum(scores) end
      return exp(scores), { l = l }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
