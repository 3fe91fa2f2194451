-- expect: grid_size_of_tokens.lua:4: neighborhood of size {64}: has a number of tokens, and the extents of the spec's grid come with each call; leave it out, and write positions along an axis
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return neighborhood { size = {64}, kernel = {7} }(b, h, q_idx.x, kv_idx.x)
  end,
}
