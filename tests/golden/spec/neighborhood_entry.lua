-- expect: neighborhood_entry.lua:2: neighborhood: kernel has the entry [w]; list one entry for each axis, as in {7, 7}
return attention { block_mask = neighborhood { size = {64, 64}, kernel = {7, 7, w = 3} } }
