-- expect: library_neighborhood.lua:2: neighborhood: kernel 7 times dilation 2 is larger than size 8
return attention { block_mask = neighborhood { size = {8}, kernel = {7}, dilation = {2} } }
