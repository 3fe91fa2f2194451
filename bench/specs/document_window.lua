-- Packed documents, causal in a window of positions of the document.
local WINDOW = 512
return attention {
  name = "document_window",
  inputs = { doc = { axes = {"n"}, dtype = "i32" }, start = { axes = {"docs"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local of_q, of_kv = doc[q_idx], doc[kv_idx]
    local distance = (q_idx - start[of_q]) - (kv_idx - start[of_kv])
    return eq(of_q, of_kv) and distance >= 0 and distance < WINDOW
  end,
}
