-- expect: allowed_by_traced.lua:5: a Lua table is indexed by a traced number, whose value is not known yet; pass the table as an input and gather from it, or choose with where()
local allowed = { [0] = true }
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return allowed[h] or kv_idx <= q_idx
  end,
}
