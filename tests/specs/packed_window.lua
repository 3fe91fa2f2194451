-- A mask that needs loads, combined with bounds of kv. In most tiles only the bounds matter.
return attention {
  name = "packed_window",
  inputs = { doc_q = { axes = {"q"}, dtype = "i32" }, doc_kv = { axes = {"kv"}, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return eq(doc_q[q_idx], doc_kv[kv_idx]) and kv_idx <= q_idx + 20 and q_idx - kv_idx < 90
  end,
}
