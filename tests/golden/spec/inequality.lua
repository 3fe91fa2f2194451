-- expect: inequality.lua:5: ~= is always true between a traced value and a number; write ne(d, 0)
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    local d = q_idx - kv_idx
    return d ~= 0
  end,
}
