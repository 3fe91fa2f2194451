-- expect: error_table.lua:4: error() was called with a table; give it a string
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    error({})
  end,
}
