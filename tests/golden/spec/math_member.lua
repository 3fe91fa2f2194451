-- expect: math_member.lua:4: math has no 'tahn'; did you mean 'tan'?
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return math.tahn(score)
  end,
}
