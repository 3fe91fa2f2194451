-- expect: alibi_global_infinite.lua:3: alibi: slopes, the global 'slope', is inf; give a finite number
slope = math.huge
return attention { score_mod = alibi("slope") }
