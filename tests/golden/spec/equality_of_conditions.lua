-- expect: equality_of_conditions.lua:4: == cannot be traced (beside a number it is always false); write eq(a, b) for a == b
return attention { name = "equality_of_conditions",
  block_mask = function(b, h, q_idx, kv_idx)
    return (q_idx > 3) == (kv_idx > 3)
  end }
