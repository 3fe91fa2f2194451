-- expect: nan_scalar.lua:2: scalars: the default of 'c' is NaN; it must be a finite number
return attention { scalars = { c = 0 / 0 } }
