-- expect: block_fraction.lua:2: block_diffusion: n is 2.5; give an integer, at least 1
return attention { block_mask = block_diffusion(4, 2.5) }
