-- expect: constructor_by_traced.lua:4: a table constructor has a traced number as a key, whose value is not known yet; choose with where() or if
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    local t = { 5, [q_idx] = 1, [kv_idx] = 2 }
    return t[1] < 2
  end,
}
