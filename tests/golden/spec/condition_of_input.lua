-- expect: condition_of_input.lua:3: a condition: input 'pad' is used without an index; its axes are (kv), so write pad[kv_idx]
return attention { inputs = { pad = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q_idx, kv_idx)
  return pad and kv_idx <= q_idx
end }
