-- expect: linear_two_levels.lua:4: reduce_sum: what is summed has a sum over the row's channels in it, and one level is possible; give what the inner sum makes as an input of its own, or compute it before the call
return linear_attention {
  name      = "twice",
  query_mod = function(x)
    return l2norm(x - 0.1 * reduce_sum(x))
  end,
}
