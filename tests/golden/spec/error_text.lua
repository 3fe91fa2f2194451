-- expect: error_text.lua:4: no such head
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    error("no such head")
  end,
}
