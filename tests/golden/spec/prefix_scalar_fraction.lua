-- expect: prefix_scalar_fraction.lua:2: prefix_lm: n is the scalar 'n', whose default is 2.5; give an integer, at least 0
return attention { scalars = { n = 2.5 }, block_mask = prefix_lm("n") }
