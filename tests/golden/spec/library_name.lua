-- expect: library_name.lua:2: undefined name 'prefx'; did you mean 'prefix'?
return attention { scalars = { prefix = 1 }, block_mask = prefix_lm("prefx") }
