-- expect: where_nil.lua:5: a mask of causal is called with (b, h, q_idx, kv_idx), and got 3 arguments
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local m = causal()
    return where(m(b, h, q_idx), 1, 0)
  end,
}
