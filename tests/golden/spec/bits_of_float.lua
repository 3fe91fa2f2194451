-- expect: bits_of_float.lua:4: & takes integers, and this is a float; write floor(x), which is an integer
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + (q_idx / 2 & 3)
  end,
}
