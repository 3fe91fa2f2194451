-- Hashes, whose sums and products leave 32 bits, and numbers in [0, 2^32): shifted, divided, compared, and made floats.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = (q_idx * 2654435761 + kv_idx * 2246822519 + h * 374761393) & 0xFFFFFFFF
    x = x ~ (x >> 15) x = (x * 0x85ebca6b) & 0xFFFFFFFF x = x ~ (x >> 13)
    return score + x / 4294967296.0 + (x // 1000 % 7) * 0.25
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local x = (q_idx * 2654435761 ~ kv_idx * 40503) & 0xFFFFFFFF
    local y = (kv_idx * 2246822519 ~ 0x80000000) & 0xFFFFFFFF
    return x < y or x > 0xE0000000 or eq(x % 3, 1) or max(x, y) // 3 % 5 < 1
  end,
}
