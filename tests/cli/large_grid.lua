-- Long enough that its scores cannot all be counted.
return attention { name = "large_grid", mask_mod = neighborhood { size = {30, 48, 80}, kernel = {18, 24, 24} } }
