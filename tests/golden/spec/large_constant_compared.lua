-- expect: large_constant_compared.lua:3: comparison: integer 4294967296 does not fit the 32 bits of index arithmetic; use a float such as math.huge
return attention {
  block_mask = function(b, h, q_idx, kv_idx) return q_idx - kv_idx < 1 << 32 end,
}
