-- expect-parts: comment_of_python.lua:5: | ; a comment starts with --
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    # a comment
  end,
}
