-- expect: neighborhood_causal.lua:2: neighborhood: causal has the entry 1; give true or false
return attention { block_mask = neighborhood { size = {64}, kernel = {7}, causal = {1} } }
