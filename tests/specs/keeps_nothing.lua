-- A mask that drops everything, so every row is empty.
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx < 0
  end,
}
