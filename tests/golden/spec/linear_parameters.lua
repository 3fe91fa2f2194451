-- expect: linear_parameters.lua:4: decay: parameter 1 of the function is 'h', but the hook is called with (b, h, t, d); only parameters at the end may be left out
return linear_attention {
  name  = "parameters",
  decay = function(h, t) return -0.1 * t end,
}
