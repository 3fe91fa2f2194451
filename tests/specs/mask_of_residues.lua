-- A mask that has no form as intervals.
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    local keep = false
    for i = 1, 3 do keep = keep or (q_idx * i - kv_idx * (4 - i)) % 13 < 2 end
    return keep
  end,
}
