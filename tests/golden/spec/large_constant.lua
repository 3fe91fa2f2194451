-- expect: large_constant.lua:4: *: integer 2654435761 does not fit the 32 bits of index arithmetic; use a float such as math.huge
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    local x = q_idx * 2654435761 + kv_idx
    return x // 7 < 100
  end,
}
