-- A clipped distance table: whole tiles add to one element, before and after a gap in the mask, and some to
-- none.
return attention {
  inputs = { t = { axes = {"h", 61}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + 0.5 * t[{h, max(min(q_idx - kv_idx, 30), -30) + 30}]
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local n = q_idx - kv_idx
    return n < 60 or n > 390
  end,
}
