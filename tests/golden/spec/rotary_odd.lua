-- expect: rotary_odd.lua:4: rotary: channels is 7, which is odd; channels are rotated in pairs
return attention {
  inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} } },
  query_mod = rotary("cosine", "sine", { channels = 7 }),
}
