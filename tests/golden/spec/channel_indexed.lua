-- expect: channel_indexed.lua:3: a traced number is indexed; only inputs and tables have elements, and a mod sees one channel of its row; do what mixes channels, such as a rotation, before the call (see examples/xpos.lua)
return attention {
  key_mod = function(x, b, h, pos, d) return x[d + 1] end,
}
