-- Documents of different lengths, each causal in itself, as attention-gym writes them.
return attention {
  inputs = {
    document_id = { axes = {"q"}, dtype = "i32" },
    offsets = { axes = {"docs"}, dtype = "i32" },
  },
  mask_mod = function(b, h, q_idx, kv_idx)
    local same_doc = eq(document_id[q_idx], document_id[kv_idx])
    local q_logical = q_idx - offsets[document_id[q_idx]]
    local kv_logical = kv_idx - offsets[document_id[kv_idx]]
    return same_doc and q_logical >= kv_logical
  end,
}
