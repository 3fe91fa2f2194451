-- expect: neighborhood_stride.lua:2: neighborhood: stride is 1; it must be a table such as {2, 2}
return attention { block_mask = neighborhood { size = {64}, kernel = {7}, stride = 1 } }
