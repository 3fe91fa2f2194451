-- expect: rotary_option.lua:4: rotary_interleaved: there is no option 'channel'; there are channels and positions
return attention {
  inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} } },
  query_mod = rotary_interleaved("cosine", "sine", { channel = 8 }),
}
