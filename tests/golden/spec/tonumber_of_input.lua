-- expect: tonumber_of_input.lua:5: tonumber: input 'slopes' is used without an index; its axes are (h), so write slopes[h]
return attention {
  inputs = { slopes = { axes = { "h" } } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * (tonumber(slopes) or 1)
  end,
}
