-- expect: neighborhood_short.lua:2: neighborhood: stride has 1 entries, and kernel 2; give one for each axis
return attention { block_mask = neighborhood { size = {64, 64}, kernel = {7, 7}, stride = {2} } }
