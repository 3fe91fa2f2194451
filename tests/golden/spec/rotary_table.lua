-- expect: rotary_table.lua:4: rotary: a table of angles is nil; give the name of an input
return attention {
  inputs = { cosine = { axes = {"position", "pair"} } },
  query_mod = rotary("cosine"),
}
