-- A mask that is always true, though not visibly.
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx >= 0 and kv_idx < kv_len
  end,
}
