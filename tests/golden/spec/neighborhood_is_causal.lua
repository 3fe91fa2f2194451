-- expect: neighborhood_is_causal.lua:2: neighborhood: unknown field 'is_causal'; did you mean 'causal'?
return attention { block_mask = neighborhood { size = {64}, kernel = {7}, is_causal = {true} } }
