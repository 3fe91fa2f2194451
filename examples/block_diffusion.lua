-- Block diffusion: the sequence is n noised tokens, then the same n tokens without noise, in blocks of B.
--   a noised token sees the noised tokens of its own block and the clean tokens of the blocks before it;
--   a clean token sees the clean tokens up to its own block
-- Arriola et al. 2025, "Block diffusion", training mask.
local B = 16
return attention {
  name = "block_diffusion",
  block_mask = function(b, h, q_idx, kv_idx)
    local n = q_len // 2
    local q_noised, kv_noised = q_idx < n, kv_idx < n
    local q_block = where(q_noised, q_idx, q_idx - n) // B
    local kv_block = where(kv_noised, kv_idx, kv_idx - n) // B
    if kv_noised then return q_noised and eq(q_block, kv_block) end
    if q_noised then return kv_block < q_block end
    return kv_block <= q_block
  end,
}
