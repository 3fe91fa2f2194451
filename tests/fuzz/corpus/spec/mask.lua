return attention { name = 's', inputs = { t = { axes = {'b', 'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q_idx, kv_idx) return eq(t[{b, kv_idx}], 3) or kv_idx // 2 <= q_idx % 7 end }
