-- expect: reduce_in_score_mod.lua:4: reduce_max: reductions over the row exist only inside online_fwd
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score - reduce_max(score)
  end,
}
