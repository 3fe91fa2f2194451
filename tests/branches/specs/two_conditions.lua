-- A guard, and an unrelated condition.
return attention {
  name = "two_conditions",
  score_mod = function(score, b, h, q_idx, kv_idx)
    local r = 0
    if score > 0 then r = sqrt(score) end
    if kv_idx > 2 then r = r + 1 end
    return r
  end,
}
