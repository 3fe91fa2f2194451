-- expect-parts: axes_called.lua:3: undefined name '__axes'
return attention { score_mod = function(score, b, h, q_idx, kv_idx)
  return score + __axes(5)
end }
