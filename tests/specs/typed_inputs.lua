-- Inputs of every type.
return attention {
  inputs = {
    half = { axes = {"h"}, dtype = "f16", grad = true },
    brain = { axes = {"q", "kv"}, dtype = "bf16", grad = true },
    double = { axes = {4, "h"}, dtype = "f64", grad = true },
    single = { axes = {"b", "q"}, dtype = "f32", grad = true },
    whole = { axes = {"kv"}, dtype = "i32" },
    truth = { axes = {"b", "kv"}, dtype = "bool" },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = score * half[h] + brain[{q_idx, kv_idx}] + double[{kv_idx % 4, h}] * single[{b, q_idx}]
    if truth[{b, kv_idx}] then return x + 0.125 * whole[kv_idx] end
    return x
  end,
}
