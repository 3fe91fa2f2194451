-- expect: large_integer.lua:4: comparison: integer 9223372036854775807 does not fit the 32 bits of index arithmetic; use a float such as math.huge
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return q_idx - kv_idx < math.maxinteger
  end,
}
