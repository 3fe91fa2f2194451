-- expect: rotary_option.lua:4: rotary_interleaved: unknown field 'channel'; did you mean 'channels'?
return attention {
  inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} } },
  query_mod = rotary_interleaved("cosine", "sine", { channel = 8 }),
}
