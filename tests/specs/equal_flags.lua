-- Tokens see only tokens with an equal flag: bools can be compared like numbers.
return attention {
  inputs = { noised = { axes = {"n"}, dtype = "bool" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return eq(noised[q_idx], noised[kv_idx]) and ne(kv_idx > q_idx, noised[q_idx])
  end,
}
