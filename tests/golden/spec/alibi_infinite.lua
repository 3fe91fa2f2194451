-- expect: alibi_infinite.lua:2: alibi: slopes is inf; give a finite number
return attention { score_mod = alibi(math.huge) }
