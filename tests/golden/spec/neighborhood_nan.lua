-- expect: neighborhood_nan.lua:2: neighborhood: kernel is nan; give an integer, at least 2
return attention { block_mask = neighborhood { size = {64}, kernel = {0/0} } }
