-- expect: chain_gets_function.lua:2: chain: function 1 returned a function; return a number; a function that makes one is called, as in softcap(50)
return attention { score_mod = chain(function(score) return softcap(3) end, alibi()) }
