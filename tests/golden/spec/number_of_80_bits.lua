-- expect: number_of_80_bits.lua:2: 0xFFFFFFFFFFFFFFFFFFFF has more than 64 bits, and Lua would keep the last 64; write fewer digits
return attention { block_mask = function(b, h, q_idx, kv_idx) return q_idx & 0xFFFFFFFFFFFFFFFFFFFF < 4 end }
