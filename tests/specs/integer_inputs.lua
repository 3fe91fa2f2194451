-- Integers of every width: in the mask, which uses their block bounds, in the score, and as indices.
return attention {
  inputs = {
    long = { axes = {"b", "kv"}, dtype = "i64" },
    short = { axes = {"q"}, dtype = "int16" },
    byte = { axes = {"kv"}, dtype = "uint8" },
    whole = { axes = {"b", "q"}, dtype = "i32" },
    prefix = { axes = {"b"}, dtype = "i64" },
    turn = { axes = {}, dtype = "u8" },
    bias = { axes = {8}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[byte[kv_idx] + turn] - 0.1 * (short[q_idx] - long[{b, kv_idx}])
  end,
  mask_mod = function(b, h, q_idx, kv_idx)
    return (whole[{b, q_idx}] >= long[{b, kv_idx}] and byte[kv_idx] <= short[q_idx] + 1) or kv_idx < prefix[b] >> 2 & 31
  end,
}
