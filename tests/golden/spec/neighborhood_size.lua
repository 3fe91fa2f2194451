-- expect: neighborhood_size.lua:2: neighborhood: size is nil; give the extent of each of the 2 axes
return attention { block_mask = neighborhood { kernel = {7, 7} } }
