-- Integers of 64 bits beyond 2^32 and beyond 2^53, made of small ones: compared, subtracted, divided and used as bits and
-- indices, all exactly. An i32 beyond 2^24 whose difference enters the score.
return attention {
  inputs = {
    id = { axes = {"b", "n"}, dtype = "i64" },
    time = { axes = {"b", "n"}, dtype = "i32" },
    size = { axes = {"m"} },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local far = function(i) return (id[{b, i}] % 7) * 9007199254740991 + id[{b, i}] end
    local near = (far(q_idx) - far(kv_idx)) // 9007199254740992
    local stamp = function(i) return time[{b, i}] % 4 * 400000000 + time[{b, i}] % 8 end
    local apart = stamp(q_idx) - stamp(kv_idx)
    return score + near / 8 + size[max(far(kv_idx), 0)] / 4 + where(abs(apart) < 100, apart, 0) / 8 + (far(kv_idx) >> 60 & 3) / 4
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local key = function(i) return id[{b, i}] % 5 * 1099511627776 end
    return eq(key(q_idx), key(kv_idx)) or key(kv_idx) - key(q_idx) < -2199023255553 or key(kv_idx) >= 4398046511104
  end,
}
