-- expect: attention_in_hook.lua:4: attention is called inside a hook; call it once, in the file's return statement
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    attention {}
    return score
  end,
}
