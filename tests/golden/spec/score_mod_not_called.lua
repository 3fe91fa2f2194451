-- expect: score_mod_not_called.lua:2: score_mod: returned a function; return a number; call that function where the hook is declared, as in softcap(50)
local function shifted() return function(score) return score + 1 end end
return attention { score_mod = shifted }
