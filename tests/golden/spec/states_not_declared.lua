-- expect: states_not_declared.lua:2: online_fwd: the second result: unknown field 'l'; it has no fields
return attention { online_func = { online_fwd = function(s, r) return s, { l = reduce_sum(s) } end } }
