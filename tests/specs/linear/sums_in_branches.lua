-- Sums over the row that only some rows ask for, and values that are the same for all channels.
return linear_attention { query_mod = function(x) return reduce_sum(x) end, key_mod = function(x) local n = reduce_sum(x * x) if n > 0.5 then return x / reduce_sum(abs(x)) end return x end,
  update = { read = function(k, b, h, t, d) return where(d < 2, k, 0) end, erase = function(k) return 0.5 * l2norm(k) end } }
