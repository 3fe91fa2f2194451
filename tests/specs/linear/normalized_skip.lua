-- Weights that sum to 1, beside a part of v that skips them: the sum divides what the state gives alone.
local function map(x) return where(x > 0, x + 1, exp(x)) end
return linear_attention {
  name      = "normalized_skip",
  inputs    = { D = { axes = {"hv", "dv"}, grad = true } },
  query_mod = map,
  key_mod   = map,
  skip      = function(x, b, h, t, d) return D[{h, d}] * x end,
  normalize = true,
}
