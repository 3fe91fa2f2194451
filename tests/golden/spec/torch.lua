-- expect: torch.lua:5: undefined name 'torch'; functions stand alone: where, exp, tanh, min, max, ..
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return torch.where(q_idx >= kv_idx, score, 0)
  end,
}
