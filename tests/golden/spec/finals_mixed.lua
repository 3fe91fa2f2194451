-- expect: finals_mixed.lua:2: online_func: final_rowscales has the entry [r]; list the names, as in { "lse", "r" }, or write name = value for each
return attention { online_func = { online_rowscales = { l = 0 }, final_rowscales = { "lse", r = 1 }, online_fwd = function(s, r) return s, { l = r.l + reduce_sum(s) } end, online_fwd_epilogue = function(o, r) return o, { lse = r.l } end } }
