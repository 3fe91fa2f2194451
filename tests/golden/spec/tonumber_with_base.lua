-- expect: tonumber_with_base.lua:4: bad argument #1 to 'tonumber' (string expected, got traced number)
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * (tonumber(q_idx, 10) or 1)
  end,
}
