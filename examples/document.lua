-- Document masking: several documents packed into one sequence do not see each other; causal inside each.
--   keep  doc_q[q] = doc_kv[kv] and kv <= q
-- Krell et al. 2021, "Efficient sequence packing without cross-contamination". Self-attention passes one
-- array for both inputs.
return attention {
  name = "document",
  inputs = {
    doc_q  = { axes = {"q"}, dtype = "i32" },
    doc_kv = { axes = {"kv"}, dtype = "i32" },
  },
  block_mask = function(b, h, q_idx, kv_idx)
    return eq(doc_q[q_idx], doc_kv[kv_idx]) and kv_idx <= q_idx
  end,
}
