-- expect: softcap_function_zero.lua:2: softcap: c, which the function returned, is 0; give a finite number above 0
return attention { score_mod = softcap(function(b, h) return 0 end) }
