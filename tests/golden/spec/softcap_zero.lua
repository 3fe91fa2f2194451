-- expect: softcap_zero.lua:2: softcap: c is 0; give a finite number above 0
return attention { score_mod = softcap(0) }
