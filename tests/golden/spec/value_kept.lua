-- expect: value_kept.lua:5: a condition: a traced value was kept from an earlier call; a hook is called many times and must not store values outside itself
local memo
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    memo = memo or exp(score)
    if kv_idx < q_idx then return memo end
    return score + memo
  end,
}
