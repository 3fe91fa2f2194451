-- expect: number_as_condition.lua:5: input 'padding': is read, but nothing is made of its numbers, and as a condition each is true in Lua; write ne(padding[..], 0), declare it with dtype = "bool", or leave the read out
return attention {
  inputs = { padding = { axes = {"b", "kv"}, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return padding[{b, kv_idx}] and kv_idx <= q_idx
  end,
}
