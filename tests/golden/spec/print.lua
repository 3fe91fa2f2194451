-- expect: print.lua:4: 'print' is not available in a spec: a spec has no output; look at its trace with `luattn emit --stage ir`
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    print(score)
    return score
  end,
}
