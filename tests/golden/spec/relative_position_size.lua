-- expect: relative_position_size.lua:4: relative_position: input 'near' has an axis of 16; 8 positions to both sides need 17
return attention {
  inputs = { near = { axes = {"h", 16}, grad = true } },
  score_mod = chain(relative_position("near", 8)),
}
