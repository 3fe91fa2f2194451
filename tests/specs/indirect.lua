-- Gathers whose indices are gathered, computed, and out of range.
return attention {
  inputs = {
    idx = { axes = {"q"}, dtype = "i32" },
    pos = { axes = {"b", "kv"}, dtype = "i32" },
    tab = { axes = {"n", "m"}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + tab[{idx[q_idx], pos[{b, kv_idx}] - 3}]
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    return pos[{b, kv_idx}] <= pos[{b, q_idx}] or idx[kv_idx] >= 3
  end,
}
