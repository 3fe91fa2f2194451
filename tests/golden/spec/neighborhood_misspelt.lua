-- expect: neighborhood_misspelt.lua:2: neighborhood: unknown field 'dilatoin'; did you mean 'dilation'?
return attention { block_mask = neighborhood { size = {64}, kernel = {7}, dilatoin = {2} } }
