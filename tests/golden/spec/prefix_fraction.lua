-- expect: prefix_fraction.lua:2: prefix_lm: n is 1.5; give an integer, at least 0
return attention { block_mask = prefix_lm(1.5) }
