-- Sink keys and a window: two intervals per row, one per column.
return attention {
  name = "sinks_and_window",
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx + 3 and (kv_idx < 5 or q_idx - kv_idx < 70)
  end,
}
