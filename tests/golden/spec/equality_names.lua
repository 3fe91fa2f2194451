-- expect: equality_names.lua:4: == cannot be traced (beside a number it is always false); write eq(a, b) for a == b
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return q_idx // 4 == kv_idx // 4
  end,
}
