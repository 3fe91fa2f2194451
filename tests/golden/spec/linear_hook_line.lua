-- expect: linear_hook_line.lua:5: input 'of_head': index 1 is the head of q, but its axes are (hv); write of_head[h * (heads_v // heads)]
return linear_attention {
  inputs  = { of_head = { axes = {"hv"} } },
  key_mod = function(x, b, h)
    return x * of_head[h]
  end,
}
