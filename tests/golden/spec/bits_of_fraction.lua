-- expect: bits_of_fraction.lua:4: << takes integers, and 0.5 is none, or is too large for one
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + (q_idx << 0.5)
  end,
}
