-- Two kept intervals per row and per column, with period 3, combined with a document mask. The intervals
-- apply only in tiles that the document condition keeps entirely.
return attention {
  name = "lines_of_documents",
  inputs = { doc_q = { axes = {"q"}, dtype = "i32" }, doc_kv = { axes = {"kv"}, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx)
    local near = abs(q_idx - kv_idx) <= 40 or kv_idx < 7 or q_idx < 7
    return eq(doc_q[q_idx], doc_kv[kv_idx]) and near and eq((kv_idx + q_idx) % 3, 1)
  end,
}
