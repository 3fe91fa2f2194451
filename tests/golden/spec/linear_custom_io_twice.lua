-- expect: linear_custom_io_twice.lua:4: linear_attention: both q_mod and query_mod are given; they are two names of one field, so keep one
return linear_attention {
  name      = "engine",
  q_mod     = function(q, custom_io) return q end,
  query_mod = function(q) return q end,
}
