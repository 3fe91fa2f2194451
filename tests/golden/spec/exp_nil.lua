-- expect: exp_nil.lua:5: exp: nil stands where a number is needed
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x
    return score + exp(x)
  end,
}
