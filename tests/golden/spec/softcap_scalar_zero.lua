-- expect: softcap_scalar_zero.lua:2: softcap: c is the scalar 'cap', whose default is 0; give a finite number above 0
return attention { scalars = { cap = 0 }, score_mod = softcap("cap") }
