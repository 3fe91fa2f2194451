-- A mask that is always true, which the compiler cannot see.
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx >= 0 and kv_idx < kv_len
  end,
}
