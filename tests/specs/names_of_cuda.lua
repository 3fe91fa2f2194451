-- Inputs and scalars whose names are keywords of CUDA C++ or names of the templates.
return attention {
  name = "a-b.c_1",
  inputs = {
    int = { axes = {"h"}, grad = true },
    float = { axes = {"h"} },
    class = { axes = {"h"} },
    args = { axes = {"h"} },
    __x = { axes = {"h"} },
    score_ = { axes = {"h"} },
  },
  scalars = { template = 2, b_ = 1, m = 1, l = 2, row = 3 },
  score_mod = function(s, b, h, q_idx, kv_idx)
    return s * template + int[h] + float[h] * class[h] + __x[h] + score_[h] + b_ + args[h] * m + l * row
  end,
}
