-- An arm that overflows for scores that do not take the arm.
return attention {
  name = "steep_arm",
  score_mod = function(score, b, h, q_idx, kv_idx)
    local r = score
    if score < 1 then r = exp(900 * (score - 1)) end
    if kv_idx > 2 then r = r + 1 end
    return r
  end,
}
