-- expect: condition_uncalled.lua:3: a function stands where a condition is needed, and in Lua each function is true; it is called, as in causal()
return attention { block_mask = function(b, h, q_idx, kv_idx)
  return causal and q_idx - kv_idx < 5
end }
