-- expect: axes_by_name.lua:2: input 'x': axes has the entry [q]; list the axes in order, as in axes = {"h", "q"}
return attention { inputs = { x = { axes = { q = 1 } } } }
