-- expect: loop_in_hook.lua:4: instruction budget: the spec ran more than 20000000 Lua instructions; bound its loops
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    while true do end
  end,
}
