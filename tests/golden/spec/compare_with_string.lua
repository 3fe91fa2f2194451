-- expect: compare_with_string.lua:4: comparison: a string stands where a number is needed
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx < "q"
  end,
}
