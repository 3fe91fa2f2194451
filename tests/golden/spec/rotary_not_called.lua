-- expect: rotary_not_called.lua:2: query_mod is a function of the standard library that makes one; call it, as in query_mod = rotary("cosine", "sine")
return attention { query_mod = rotary }
