-- expect: equality_names.lua:4: == is always false between a traced value and a number; write eq(a, b) for a == b
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return q_idx // 4 == kv_idx // 4
  end,
}
