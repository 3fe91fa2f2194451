-- Cells of 24 queries and of 40 keys, each with a number: the mask is the same for runs of queries and of keys.
return attention {
  name = "runs",
  inputs = { of_q = { axes = {"qcells"}, dtype = "i32" }, of_kv = { axes = {"kvcells"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local q, kv = q_idx // 24, kv_idx // 40
    return ne((of_q[q] % 4 + q % 3) * (of_kv[kv] % 5 + kv % 7 + 1) % 3, 0)
  end,
}
