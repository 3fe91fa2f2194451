-- expect-parts: for_to_traced.lua:4: | 'for' limit | ; a loop cannot run to a traced value: loop to a constant and decide inside
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    for i = 1, kv_idx do score = score + 1 end
    return score
  end,
}
