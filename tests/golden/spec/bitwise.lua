-- expect: bitwise.lua:4: & is not possible on a traced number; join conditions with `and`, take x & 7 as x % 8
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return (q_idx & 3) < 1
  end,
}
