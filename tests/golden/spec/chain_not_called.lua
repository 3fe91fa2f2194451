-- expect: chain_not_called.lua:2: chain: argument 1 is a function of the standard library that makes one; call it, as in softcap(50)
return attention { score_mod = chain(softcap, alibi()) }
