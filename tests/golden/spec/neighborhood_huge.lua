-- expect: neighborhood_huge.lua:2: neighborhood: size is 1099511627776; give an integer, at most 2147483647
return attention { block_mask = neighborhood { size = {1099511627776}, kernel = {3} } }
