-- Sines of what keys read, beside a number for each score: sm90's forward does not stage such numbers of keys.
return attention {
  name = "sines_of_keys",
  inputs = {
    pair = { axes = {"h", "q", "kv"}, grad = true },
    a = { axes = {"kv"}, grad = true }, b = { axes = {"kv"}, grad = true }, c = { axes = {"kv"}, grad = true },
    d = { axes = {"kv"}, grad = true }, e = { axes = {"kv"}, grad = true },
  },
  score_mod = function(score, b_idx, h, q_idx, kv_idx)
    local x = score + sin(pair[{h, q_idx, kv_idx}])
    for i, input in ipairs({a, b, c, d, e}) do x = x + sin(input[clamp(kv_idx - i, 0, kv_len - 1)]) end
    return x
  end,
}
