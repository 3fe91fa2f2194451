-- expect: where_nil.lua:5: comparison: nil stands where a number is needed
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local m = causal()
    return where(m(b, h, q_idx), 1, 0)
  end,
}
