-- expect: bits_of_input.lua:5: >>: input 'bits' is used without an index; its axes are (q), so write bits[q_idx]
return attention {
  inputs = { bits = { axes = {"q"}, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return ne(bits >> kv_idx & 1, 0)
  end,
}
