-- prelude.lua: the standard library of specs: online functions, masks, score mods, and functions that combine
-- them. All of it is plain Lua over the functions that every spec has. In formulas s is a score, q is q_idx
-- and kv is kv_idx; positions count from 0.

local num_axes, axis_size, shown, check_fields, check_entries, check_function, check_result, makes, made, covers, takes, uncalled, grid_names, needs_extent, looked_up, field_line, other_names = ... -- gen/lua/library.c

local function whole(what, x, least)
  local integer = math.type(x) and math.tointeger(x)
  if not integer or integer < least or integer > 2147483647 then
    local large = type(x) == "number" and x > 2147483647
    error(what .. " is " .. shown(x) .. "; give an integer, at " .. (large and "most 2147483647" or "least " .. least))
  end
  return integer
end

local function finite(what, x)
  if not (x > -math.huge and x < math.huge) then error(what .. " is " .. shown(x) .. "; give a finite number") end
  return x
end

-- f, whose result is checked: "boolean" or "number". Lua would take any number and any function for true.
local function checked(what, f, result)
  return function(...) return check_result(what, f, result, f(...)) end
end

-- What parameters are: of scalars a range, which each call is checked for; of numbers also a check of their own.
local any = { number = finite }
local width = { least = 0, most = math.huge, whole = true, number = function(what, x)
  if x == math.huge then return x end
  local n = math.tointeger(x)
  if not n or n < 0 then error(what .. " is " .. shown(x) .. "; give an integer, at least 0, or nil or -1 for no bound") end
  return n
end }
local count = { least = 0, whole = true, number = function(what, x) return whole(what, x, 0) end }
local positive = { least = 0, above = true, number = function(what, x)
  if not (x > 0 and x < math.huge) then error(what .. " is " .. shown(x) .. "; give a finite number above 0") end
  return x
end }

-- A parameter is of such a kind: a number, the name of a scalar or input, or a function(b, h).
-- An input named this way is read at [h] or [{b, h}].
local function parameter(what, x, kind)
  kind = kind or any
  if type(x) == "number" then
    x = kind.number(what, x)
    return function() return x end
  end
  if type(x) == "function" then
    check_function(what, x, "head")
    local f = checked(what, x, "number")
    return function(b, h)
      local value = f(b, h)
      if takes(what, value, kind) then return kind.number(what .. ", which the function returned,", value) end
      return value
    end
  end
  if type(x) ~= "string" or tonumber(x) then
    error(what .. " is " .. shown(x) .. "; give a number, a name of a scalar or input, or a function(b, h)")
  end
  return function(b, h)
    local value = _ENV[x]
    if type(value) == "number" then
      if takes(what, value, kind) then return kind.number(what .. ", the global '" .. x .. "',", value) end
      return value
    end
    if type(value) ~= "userdata" then error(what .. ": '" .. x .. "' is " .. shown(value) .. "; name a scalar or an input") end
    if num_axes(value) == 2 then return value[{b, h}] end
    return value[h]
  end
end

local function input_name(what, name)
  if type(name) ~= "string" then error(what .. " is " .. shown(name) .. "; give the name of an input") end
  return name
end

-- The input of that name: a spec declares it after it has named it here.
local function named(what, name)
  local input = _ENV[name]
  if type(input) ~= "userdata" then
    local is = type(input) == "number" and "one number" or shown(input)
    error(what .. ": '" .. name .. "' is " .. is .. "; name an input with an axis for the position")
  end
  return input
end

-- Returns a function that reads the input `name`, whose axes are {position} or {b, position}.
local function at_position(what, name)
  input_name(what, name)
  return function(b, position)
    local input = named(what, name)
    if num_axes(input) == 2 then return input[{b, position}] end
    return input[position]
  end
end

---- Online functions

-- Low enough for every score, and finite, so that a row of scores of -inf has exp(-inf), not exp(-inf + inf).
local lowest = -1e37

-- One step of every softmax: m is the running maximum and l the sum of exp(s - m).
local function softmax_step(scores, rowscales)
  local m = max(rowscales.m, reduce_max(scores))
  local o_scale = exp(rowscales.m - m)
  local p = exp(scores - m)
  return p, { m = m, l = rowscales.l * o_scale + reduce_sum(p) }, o_scale
end

-- Recomputes p in backward, from what forward saves.
local function softmax_again(scores, final_rowscales, b, h, q_idx, kv_idx)
  return exp(scores - final_rowscales.lse)
end

-- p = exp(s) / sum exp(s); lse = log sum exp(s).
-- Milakov and Gimelshein 2018; FlashAttention (Dao et al. 2022)
online_softmax = {
  name = "online_softmax",
  online_rowscales = { m = lowest, l = 0 },
  final_rowscales = { "lse" },
  online_fwd = function(scores, rowscales, b, h, q_idx) return softmax_step(scores, rowscales) end,
  online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
    local l = rowscales.l
    return o * where(eq(l, 0), 0, 1 / l), { lse = log(l) + rowscales.m }  -- a NaN stays one
  end,
  forward = softmax_again,
}

-- p = exp(s) / (exp(sink) + sum exp(s)); lse = log of that denominator. The sink is a logit that takes part
-- in the row but has no value; gpt-oss (OpenAI 2025) learns one for each head. A row that keeps nothing has
-- an lse of -inf and gives the sink no gradient, whatever the sink is.
-- attention_sink("sinks") with inputs = { sinks = { axes = {"h"}, grad = true } }
function attention_sink(logit)
  local sink = parameter("attention_sink: logit", logit)
  return {
    name = "attention_sink",
    online_rowscales = { m = function(b, h) return sink(b, h) end, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx) return softmax_step(scores, rowscales) end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local l = rowscales.l + exp(sink(b, h) - rowscales.m)
      return o / l, { lse = log(l) + rowscales.m }
    end,
    forward = softmax_again,
  }
end

-- p = exp(s) / (1 + sum exp(s)): a sink at zero.   Miller, "Attention is off by one" (2023)
softmax_one = attention_sink(0.0)
softmax_one.name = "softmax_one"

-- p = s / max(sum |s|, 1).   RetNet's parallel form (Sun et al. 2023); the decay goes into score_mod
local function retention(name, normaliser)
  return {
    name = name,
    online_rowscales = { c = 0 },
    final_rowscales = { "r" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return scores, { c = rowscales.c + reduce_sum(abs(scores)) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local r = normaliser(rowscales.c)
      return o / r, { r = r }
    end,
  }
end
online_retention = retention("online_retention", function(c) return max(c, 1) end)

-- The same with the normaliser constant in backward, as RetNet's own code has it.
online_retention_detached = retention("online_retention_detached", function(c)
  return stop_gradient(max(c, 1))
end)

local function elementwise(name, f)
  return { name = name, online_fwd = function(scores, rowscales, b, h, q_idx) return f(scores) end }
end

-- p = sigmoid(s); the bias goes into score_mod.   Ramapuram et al. 2024
sigmoid_attention = elementwise("sigmoid_attention", sigmoid)

-- p = max(s, 0).   Wortsman et al. 2023, who divide s by the length: do that in score_mod
relu_attention = elementwise("relu_attention", relu)

-- p = max(s, 0)^2.   FLASH (Hua et al. 2022)
square_relu = elementwise("square_relu", function(s) return relu(s) * relu(s) end)

-- p = s: attention without a normaliser
identity = elementwise("identity", function(s) return s end)

-- Drops each weight of `online` with probability p and divides those that stay by 1 - p. Row sums and lse are those of
-- all weights. online is any online function, online_softmax if left out. p counts in steps of 1/256, and the factor is
-- that of the rounded p; dropout(0) is `online` itself.   Srivastava et al. 2014, as in FlashAttention
-- dropout(0.1), dropout(0.1, attention_sink("sinks"))
function dropout(p, online)
  if type(p) ~= "number" or not (p >= 0 and p < 1) then
    error("dropout: p is " .. shown(p) .. "; give a number, at least 0 and below 1")
  end
  if type(online) == "nil" then online = online_softmax end
  if type(online) ~= "table" then
    error("dropout: the online function is " .. shown(online) .. "; give a table with online_fwd, or leave it out")
  end
  if online.keep then error("dropout: weights of this online function are already dropped; give one p for both") end
  if not (p > 0) then return online end
  local keep = math.floor((1 - p) * 256 + 0.5)
  if keep > 255 or keep < 1 then
    error("dropout: p is " .. tostring(p) .. ", which rounds to " .. (keep < 1 and "1" or "0") ..
          " in steps of 1/256; give 0, or 1/512 to 511/512")
  end
  local dropped = {}
  for field, value in pairs(online) do dropped[field] = value end
  dropped.name, dropped.keep = "dropout(" .. (256 - keep) .. "/256, " .. (online.name or "online_func") .. ")", keep
  return dropped
end

---- Masks

-- kv <= q: the first query sees the first key.
function causal()
  return function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end
end

-- kv <= q + kv_len - q_len: the last query sees the last key, as in FlashAttention.
function causal_bottom_right()
  return function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + kv_len - q_len end
end

local function window(what, left, right, offset)
  local function side(name, x)
    if type(x) == "nil" or (type(x) == "number" and (x == -1 or x == math.huge)) then return nil end
    return parameter(what .. ": " .. name, x, width)
  end
  left, right = side("left", left), side("right", right)
  return function(b, h, q_idx, kv_idx)
    local middle = q_idx + offset()
    return (not left or middle - left(b, h) <= kv_idx) and (not right or kv_idx <= middle + right(b, h))
  end
end

-- q - left <= kv <= q + right, both ends kept; nil or -1 is no bound.
-- Mistral's window of w keys is sliding_window(w - 1, 0).
function sliding_window(left, right)
  return window("sliding_window", left, right, function() return 0 end)
end

-- The same around q + kv_len - q_len: FlashAttention's window_size.
function sliding_window_bottom_right(left, right)
  return window("sliding_window_bottom_right", left, right, function() return kv_len - q_len end)
end

-- kv < n or kv <= q: the first n keys are seen by all.   T5 (Raffel et al. 2020), UniLM
function prefix_lm(n)
  local prefix = parameter("prefix_lm: n", n, count)
  return function(b, h, q_idx, kv_idx) return kv_idx < prefix(b, h) or kv_idx <= q_idx end
end

-- ids_q[q] = ids_kv[kv]: packed sequences do not see each other. Names of i32 inputs with axes {"q"} or
-- {"b", "q"}, and {"kv"} or {"b", "kv"}; one name with a free axis serves both sides.
function document(ids_q, ids_kv)
  if type(ids_kv) == "nil" then ids_kv = ids_q end
  local of_q = at_position("document: ids_q", ids_q)
  local of_kv = at_position("document: ids_kv", ids_kv)
  return function(b, h, q_idx, kv_idx) return eq(of_q(b, q_idx), of_kv(b, kv_idx)) end
end

-- |q - kv| <= w and (q - kv) mod d = 0.   Longformer (Beltagy et al. 2020)
function dilated_window(w, d)
  w, d = whole("dilated_window: w", w, 0), whole("dilated_window: d", d, 1)
  return function(b, h, q_idx, kv_idx) return abs(q_idx - kv_idx) <= w and eq((q_idx - kv_idx) % d, 0) end
end

-- |q - kv| <= w, or one of the two is global: below n, or true in the bool input of that name.   Longformer
function global_sliding(w, n)
  w = whole("global_sliding: w", w, 0)
  local is_global
  if type(n) == "string" then
    local flag = at_position("global_sliding: n", n)
    is_global = checked("global_sliding: input '" .. n .. "' with dtype = \"bool\"", flag, "boolean")
  else
    n = whole("global_sliding: n", n, 0)
    is_global = function(b, position) return position < n end
  end
  return function(b, h, q_idx, kv_idx)
    return abs(q_idx - kv_idx) <= w or is_global(b, q_idx) or is_global(b, kv_idx)
  end
end

-- The sequence is n noised tokens, then the same n clean: a noised block sees itself and the clean blocks
-- before it, a clean block the clean blocks up to itself. n is half of q_len if left out.   Arriola et al.
-- 2025
function block_diffusion(block, n)
  block = whole("block_diffusion: block", block, 1)
  if type(n) ~= "nil" then n = whole("block_diffusion: n", n, 1) end
  local what = "block_diffusion of n = " .. (n or 0)
  return function(b, h, q_idx, kv_idx)
    if n then covers(what, q_idx, kv_idx, 2 * n) end
    local length = n or q_len // 2
    local q_noised, kv_noised = q_idx < length, kv_idx < length
    local q_block = where(q_noised, q_idx, q_idx - length) // block
    local kv_block = where(kv_noised, kv_idx, kv_idx - length) // block
    if kv_noised then return q_noised and eq(q_block, kv_block) end
    if q_noised then return kv_block < q_block end
    return kv_block <= q_block
  end
end

-- One axis of a neighbourhood: i sees j of L positions.
local function near(i, j, L, kernel, stride, dilation, causal)
  local group, p, n, same = 0, i, L, true
  if dilation > 1 then
    group, p = i % dilation, i // dilation
    n = (L - group + dilation - 1) // dilation
    same = eq(j % dilation, group)
    j = j // dilation
  end
  if causal then
    local leader = stride > 1 and min(stride * (p // stride) + stride - 1, n - 1) or p
    return same and max(leader - kernel + 1, 0) <= j and j <= p
  end
  local leader = stride > 1 and min(stride * (p // stride) + stride // 2, n - 1) or p
  local first = clamp(leader - kernel // 2, 0, n - kernel)
  return same and first <= j and j < first + kernel
end

-- The entries of a field of neighborhood {..}, `read` one by one, or n times `default` if it is left out. `beside` has
-- n of them.
local function each_axis(what, list, n, default, read, beside)
  local result = {}
  local count = type(list) == "nil" and n or check_entries(what, list, "list one entry for each axis, as in {7, 7}")
  if count ~= n then error(what .. " has " .. count .. " entries, and " .. (beside or "kernel") .. " " .. n .. "; give one for each axis") end
  for d = 1, n do
    if type(list) == "nil" then result[d] = default else result[d] = read(what, list[d]) end
  end
  return result
end

local function at_least(least) return function(what, x) return whole(what, x, least) end end

local function boolean(what, x)
  if type(x) ~= "boolean" then error(what .. " has the entry " .. shown(x) .. "; give true or false") end
  return x
end

---- Masks over a grid: attention { grid = {"t", "y", "x"}, block_mask = .. }

-- The names of the grid's axes, of which there are as many as `list` has entries.
local function names_for(what, list)
  local names = grid_names()
  if not names then error(what .. ": the spec has no grid; declare it, as in grid = {\"y\", \"x\"}") end
  if #names ~= #list then
    error(what .. " has " .. #list .. " entries, and the grid has the axes " .. table.concat(names, ", ") .. "; give one for each")
  end
  return names
end

-- A mask that keeps what `keeps(d, i, j, L)` does along every axis d, at i of q and j of kv, which has L places.
local function mask_of_axes(what, list, keeps)
  return function(b, h, q_idx, kv_idx)
    local names, keep = names_for(what, list), true
    for d = 1, #names do
      local axis = names[d]
      keep = keep and keeps(d, q_idx[axis], kv_idx[axis], kv_len[axis])
    end
    return keep
  end
end

-- Of each query the kernel_size places nearest along every axis, shifted where they would reach past an end:
-- neighborhood { kernel_size = {7, 7}, stride = {1, 1}, dilation = {1, 1}, is_causal = {false, true} }
-- stride queries in a row share the window of one of them, dilation leaves gaps, and all but kernel_size may be left out.
-- NATTEN (Hassani et al. 2023); strides: generalised neighbourhood attention (2025)
local function neighborhood_of_grid(t)
  check_fields("neighborhood", t, {
    {"kernel_size", "table", "a table such as {7, 7}"},
    {"stride", "table", "a table such as {2, 2}"},
    {"dilation", "table", "a table such as {2, 2}"},
    {"is_causal", "table", "a table such as {true, false}"},
  })
  local what, n = "neighborhood: kernel_size", #t.kernel_size
  local function read(field, default, reader)
    return each_axis("neighborhood: " .. field, t[field], n, default, reader, "kernel_size")
  end
  local kernel, stride = read("kernel_size", nil, at_least(2)), read("stride", 1, at_least(1))
  local dilation, is_causal = read("dilation", 1, at_least(1)), read("is_causal", false, boolean)
  for d = 1, n do
    if stride[d] > kernel[d] then
      error("neighborhood: stride " .. stride[d] .. " is larger than kernel_size " .. kernel[d] .. "; give at most that")
    end
  end
  return mask_of_axes(what, kernel, function(d, i, j, L)
    needs_extent(what .. " " .. kernel[d] .. (dilation[d] > 1 and " times dilation " .. dilation[d] or ""), d, kernel[d] * dilation[d])
    return near(i, j, L, kernel[d], stride[d], dilation[d], is_causal[d])
  end)
end

-- Tiles of queries that see whole tiles of keys, window / tile of them along every axis, an odd number:
-- sliding_tile { tile = {6, 8, 8}, window = {18, 24, 24} }.   Sliding tile attention (Zhang et al. 2025)
function sliding_tile(t)
  if type(t) ~= "table" or type(t.tile) == "nil" or type(t.window) == "nil" then
    error("sliding_tile: takes { tile = {..}, window = {..} }")
  end
  check_fields("sliding_tile", t, {
    {"tile", "table", "a table such as {6, 8, 8}"},
    {"window", "table", "a table such as {18, 24, 24}"},
  })
  local n = #t.tile
  local tile = each_axis("sliding_tile: tile", t.tile, n, nil, at_least(1), "tile")
  local window = each_axis("sliding_tile: window", t.window, n, nil, at_least(1), "tile")
  for d = 1, n do
    if window[d] % tile[d] ~= 0 or window[d] // tile[d] % 2 == 0 then
      error("sliding_tile: window " .. window[d] .. " is no odd multiple of tile " .. tile[d] .. "; give " .. tile[d] .. ", " .. 3 * tile[d] .. ", ..")
    end
  end
  return mask_of_axes("sliding_tile: tile", tile, function(d, i, j, L)
    local tiles, across = (L + tile[d] - 1) // tile[d], window[d] // tile[d]
    local first = max(min(i // tile[d] - across // 2, tiles - across), 0)
    return first <= j // tile[d] and j // tile[d] < first + across
  end)
end

-- Windows that do not see each other, moved by `shift` places along every axis; what is cut off at the ends is a window
-- of its own: swin({7, 7}, {3, 3}).   Swin transformers (Liu et al. 2021)
function swin(window, shift)
  if type(window) ~= "table" then error("swin: takes swin({7, 7}, {3, 3}); the shift may be left out") end
  local n = #window
  window = each_axis("swin: window", window, n, nil, at_least(1), "window")
  if type(shift) ~= "nil" and type(shift) ~= "table" then error("swin: shift is " .. shown(shift) .. "; give a table such as {3, 3}") end
  shift = each_axis("swin: shift", shift, n, 0, at_least(0), "window")
  for d = 1, n do
    if shift[d] >= window[d] then
      error("swin: shift " .. shift[d] .. " is no smaller than window " .. window[d] .. "; give at most " .. window[d] - 1)
    end
  end
  return mask_of_axes("swin: window", window, function(d, i, j, L)
    local first = (window[d] - shift[d]) % window[d]
    return eq((i + first) // window[d], (j + first) // window[d])
  end)
end

-- Calls f(name, whether it is among those of `list`) for each axis of the grid; those of `list` have to be.
local function for_each_axis(what, list, f)
  local names, known = grid_names(), {}
  if not names then error(what .. ": the spec has no grid; declare it, as in grid = {\"y\", \"x\"}") end
  for i = 1, #names do known[names[i]] = 1 end
  for i = 1, #list do
    if type(known[list[i]]) == "nil" then
      error(what .. ": the grid has no axis " .. shown(list[i]) .. "; it has " .. table.concat(names, ", "))
    end
    known[list[i]] = 2
  end
  for i = 1, #names do
    if not f(names[i], known[names[i]] == 2) then return false end
  end
  return true
end

local function axis_names(what, example, ...)
  local list = {...}
  if #list == 0 then error(what .. ": names no axis; write " .. example) end
  for i = 1, #list do
    if type(list[i]) ~= "string" then error(what .. ": argument " .. i .. " is " .. shown(list[i]) .. "; give the name of an axis") end
  end
  return list
end

-- All keys along these axes, of those that lie where the query does along all others: axial("x").   Ho et al. 2019
function axial(...)
  local list = axis_names("axial", "axial(\"x\")", ...)
  return function(b, h, q_idx, kv_idx)
    return for_each_axis("axial", list, function(axis, is_named) return is_named or eq(q_idx[axis], kv_idx[axis]) end)
  end
end

-- kv <= q along these axes, as time: causal_along("t").
function causal_along(...)
  local list = axis_names("causal_along", "causal_along(\"t\")", ...)
  return function(b, h, q_idx, kv_idx)
    return for_each_axis("causal_along", list, function(axis, is_named) return not is_named or kv_idx[axis] <= q_idx[axis] end)
  end
end

-- Without a grid: the kernel nearest tokens along every axis of one of 1 to 3 dimensions, its tokens in row-major order:
-- neighborhood { size = {H, W}, kernel = {7, 7}, stride = {1, 1}, dilation = {1, 1}, causal = {false, true} }
-- All but size and kernel may be left out, and in one dimension size too, which then is the longer length. Calls with more tokens than the grid has are refused.
-- NATTEN (Hassani et al. 2023); strides: generalised neighbourhood attention (2025)
function neighborhood(t)
  if type(t) == "table" and type(t.kernel_size) ~= "nil" then return neighborhood_of_grid(t) end
  if type(t) ~= "table" or type(t.kernel) == "nil" then
    error("neighborhood: takes { kernel_size = {..} } over a grid, or { size = {..}, kernel = {..} }")
  end
  check_fields("neighborhood", t, {
    {"size", "table", "a table such as {64, 64}"},
    {"kernel", "table", "a table such as {7, 7}"},
    {"stride", "table", "a table such as {2, 2}"},
    {"dilation", "table", "a table such as {2, 2}"},
    {"causal", "table", "a table such as {true, false}"},
  })
  local n = #t.kernel
  if n < 1 or n > 3 then error("neighborhood: kernel has " .. n .. " dimensions; 1 to 3 are possible") end
  if n > 1 and type(t.size) == "nil" then error("neighborhood: size is nil; give the extent of each of the " .. n .. " axes") end
  local kernel = each_axis("neighborhood: kernel", t.kernel, n, nil, at_least(2))
  local size = each_axis("neighborhood: size", t.size, n, nil, at_least(1))
  local stride = each_axis("neighborhood: stride", t.stride, n, 1, at_least(1))
  local dilation = each_axis("neighborhood: dilation", t.dilation, n, 1, at_least(1))
  local is_causal = each_axis("neighborhood: causal", t.causal, n, false, boolean)
  local tokens = 1
  for d = 1, n do
    if stride[d] > kernel[d] then
      error("neighborhood: stride " .. stride[d] .. " is larger than kernel " .. kernel[d])
    end
    if size[d] and size[d] < kernel[d] * dilation[d] then
      error("neighborhood: kernel " .. kernel[d] .. " times dilation " .. dilation[d] ..
            " is larger than size " .. size[d])
    end
    if size[d] then tokens = tokens * size[d] end
  end
  local what = "neighborhood of size {" .. table.concat(size, ", ") .. "}"
  return function(b, h, q_idx, kv_idx)
    local keep, i, j = true, q_idx, kv_idx
    if size[1] then covers(what, q_idx, kv_idx, tokens) end
    for d = n, 1, -1 do -- the last axis varies fastest
      local L = size[d] or max(q_len, kv_len)
      local qi, kj = i, j
      if d > 1 then
        qi, kj = i % L, j % L
        i, j = i // L, j // L
      end
      keep = keep and near(qi, kj, L, kernel[d], stride[d], dilation[d], is_causal[d])
    end
    return keep
  end
end

---- Score mods

-- s - slope * |q + kv_len - q_len - kv|, slope = 2^(-8 (h + 1) / heads) or the input of that name.
-- Press et al. 2022, in FlashAttention's form: lse includes the whole bias
function alibi(slopes)
  local slope = function(b, h) return exp2(-8 * (h + 1) / heads) end
  if type(slopes) ~= "nil" then slope = parameter("alibi: slopes", slopes) end
  return function(score, b, h, q_idx, kv_idx)
    return score - slope(b, h) * abs(q_idx + kv_len - q_len - kv_idx)
  end
end

-- c * tanh(s / c).   Gemma 2 (2024), Grok-1
function softcap(c)
  local cap = parameter("softcap: c", c, positive)
  return function(score, b, h, q_idx, kv_idx) return cap(b, h) * tanh(score / cap(b, h)) end
end

-- s + table[h, clamp(kv - q, -n, n) + n]; the table is an input with axes {"h", 2 * n + 1}.
-- Shaw et al. 2018, with one number for each distance
function relative_position(table_name, n)
  n = whole("relative_position: n", n, 0)
  input_name("relative_position: table", table_name)
  return function(score, b, h, q_idx, kv_idx)
    local distances = named("relative_position: table", table_name)
    local size = axis_size(distances, 2)
    if size > 0 and size ~= 2 * n + 1 then -- 0: of any size
      error("relative_position: input '" .. table_name .. "' has an axis of " .. size .. "; " .. n .. " positions to both sides need " ..
            2 * n + 1)
    end
    return score + distances[{h, clamp(kv_idx - q_idx, -n, n) + n}]
  end
end

---- Input mods

-- What both layouts of a rotary embedding have: `partner` gives the channel that d is rotated with, its pair and
-- whether it is the first of it, of n channels.
local function rotation(what, cos, sin, options, partner)
  if type(options) == "nil" then options = {} end
  if type(options) ~= "table" then
    error(what .. ": the third argument is " .. shown(options) .. "; give { channels = n, positions = \"ids\" }")
  end
  check_fields(what, options, {
    {"channels", "integer", "an even integer"},
    {"positions", "string", "the name of an input"},
  })
  local channels, position = options.channels, function(b, pos) return pos end
  if channels and whole(what .. ": channels", channels, 2) % 2 == 1 then
    error(what .. ": channels is " .. channels .. ", which is odd; channels are rotated in pairs")
  end
  if options.positions then position = at_position(what .. ": positions", options.positions) end
  local function table_of(name)
    input_name(what .. ": a table of angles", name)
    return function(b, at, pair)
      local input = named(what, name)
      if num_axes(input) == 3 then return input[{b, at, pair}] end
      return input[{at, pair}]
    end
  end
  local cos_at, sin_at = table_of(cos), table_of(sin)
  return function(x, b, h, pos, d)
    local n = channels or head_dim
    if channels and d >= n then return x end
    local other, pair, is_first = partner(d, n)
    local at = position(b, pos)
    local c, s = cos_at(b, at, pair), sin_at(b, at, pair)
    if is_first then return x * c - x[other] * s end
    return x * c + x[other] * s
  end
end

-- Rotary embedding, channels d and d + n / 2 being a pair, as in GPT-NeoX, Llama and Hugging Face's rotate_half:
--   x'[d] = x[d] cos - x[d + n / 2] sin,   x'[d + n / 2] = x[d + n / 2] cos + x[d] sin
-- cos and sin name inputs with axes {position, n / 2} or {b, position, n / 2}; n = head_dim, or `channels`, and those
-- from there on stay as they are. The row of a table is pos, or what the input `positions` has there, which has the
-- axes {position} or {b, position}.   RoFormer (Su et al. 2021)
function rotary(cos, sin, options)
  return rotation("rotary", cos, sin, options, function(d, n)
    local half = n // 2 -- where n is odd, two channels would have one partner, and the spec is refused
    return (d + (n + 1) // 2) % (2 * half), d % half, d < half
  end)
end

-- The same with channels 2 i and 2 i + 1 being a pair, as in GPT-J and RoFormer.
function rotary_interleaved(cos, sin, options)
  return rotation("rotary_interleaved", cos, sin, options, function(d, n)
    return d ~ 1, d // 2, eq(d % 2, 0)
  end)
end

---- Linear attention

-- x / |x|, over all channels of the row.
function l2norm(x) return x * rsqrt(reduce_sum(x * x) + 1e-6) end

function log_sigmoid(x) return -softplus(-x) end

-- The update by which what k reads of the state becomes f v: S <- S + k f (v - S' k)'. f is a function(b, h, t), 1 if left
-- out.   DeltaNet (Yang et al. 2024)
function delta_rule(f)
  if type(f) == "nil" then
    f = function(b, h, t) return 1 end
  elseif type(f) == "number" then
    local strength = finite("delta_rule: the strength", f)
    f = function(b, h, t) return strength end
  end
  check_function("delta_rule: the strength", f, "write")
  local strength = checked("delta_rule: the strength", f, "number")
  return {
    write = made(function(b, h, t) return strength(b, h, t) end),
    read = made(function(k, b, h, t, d) return strength(b, h, t) * k end),
  }
end

-- AttentionEngine's names: its mods are called (x, custom_io), custom_io.A being the value where they run, and its decay is
-- a tensor of the call, here the input of that name.
local engine_mods = { q_mod = "query_mod", k_mod = "key_mod", v_mod = "value_mod", decay_mod = "decay" }
local engine_axes = { batch = "b", heads = "hv", seq_len = "t" }

-- The inputs of custom_io, and a function that makes the table of their values at (b, h, t).
local function engine_inputs(custom_io)
  local inputs, axes_of = {}, {}
  for name, axes in pairs(custom_io) do
    local what = "custom_io: " .. shown(name)
    if type(name) == "string" then field_line(name) end
    if type(axes) ~= "table" then error(what .. " is " .. shown(axes) .. "; list its axes, as in {\"batch\", \"heads\", \"seq_len\"}") end
    local own = {}
    for i = 1, check_entries(what, axes, "list its axes, as in {\"batch\", \"heads\", \"seq_len\"}") do
      own[i] = engine_axes[axes[i]] or (math.type(axes[i]) and axes[i])
      if type(own[i]) == "nil" then error(what .. ": axis " .. shown(axes[i]) .. " is none of \"batch\", \"heads\", \"seq_len\" and sizes") end
    end
    inputs[name], axes_of[name] = { axes = own, grad = true }, own
  end
  field_line(nil)
  return inputs, function(b, h, t)
    local here = { b = b, hv = h, t = t }
    return looked_up(function(name)
      local axes = axes_of[name]
      if type(axes) == "nil" then error("custom_io has no " .. shown(name) .. "; declare it, as in custom_io = { " .. tostring(name) .. " = {\"batch\", \"heads\", \"seq_len\"} }") end
      local at = {}
      for i = 1, #axes do at[i] = here[axes[i]] or 0 end
      if #at == 0 then return _ENV[name] end
      return _ENV[name][at]
    end)
  end
end

local function of_attention_engine(t)
  local spec, custom_io = {}, t.custom_io
  field_line("custom_io")
  if type(custom_io) == "nil" then custom_io = {} end
  if type(custom_io) ~= "table" then error("linear_attention: custom_io is " .. shown(custom_io) .. "; it must be a table of axes") end
  if type(t.inputs) ~= "nil" then error("linear_attention: both custom_io and inputs are given; declare all of them in inputs, and name the mods query_mod and so on") end
  local inputs, values = engine_inputs(custom_io)
  for field, value in pairs(t) do
    local hook = engine_mods[field]
    if hook then
      field_line(field)
      if type(t[hook]) ~= "nil" then error("linear_attention: both " .. field .. " and " .. hook .. " are given; they are two names of one field, so keep one") end
      if type(value) ~= "function" then error("linear_attention: " .. field .. " is " .. shown(value) .. "; it must be a function(x, custom_io)") end
      if field == "decay_mod" then
        inputs.decay = { axes = {"b", "hv", "t"}, grad = true }
        spec.decay = made(function(b, h, t) return value(decay[{b, h, t}], values(b, h, t)) end)
      else
        spec[hook] = made(function(x, b, h, t) return value(x, values(b, h, t)) end)
      end
    elseif field ~= "custom_io" then
      spec[field] = value
    end
  end
  field_line(nil)
  spec.inputs = inputs
  return spec
end

other_names(function(t)
  local is_engine = type(t.custom_io) ~= "nil"
  for field in pairs(engine_mods) do is_engine = is_engine or type(t[field]) ~= "nil" end
  return is_engine and of_attention_engine(t) or t
end)

---- Combining

-- The functions of a list, each checked, and its results.
local function functions(what, name, hook, result, list, count)
  if count == 0 then error(what .. ": has no arguments; give at least one function") end
  local all = {}
  for i = 1, count do
    check_function(what .. ": argument " .. i, list[i], hook)
    all[i] = checked(what .. ": " .. name .. " " .. i, list[i], result)
  end
  return all
end

-- Kept where all of the masks keep; where one of them does; where the mask does not.
function mask_and(...)
  local masks = functions("mask_and", "mask", "mask", "boolean", {...}, select("#", ...))
  return function(...)
    for i = 1, #masks do
      if not masks[i](...) then return false end
    end
    return true
  end
end

function mask_or(...)
  local masks = functions("mask_or", "mask", "mask", "boolean", {...}, select("#", ...))
  return function(...)
    for i = 1, #masks do
      if masks[i](...) then return true end
    end
    return false
  end
end

function mask_not(mask)
  local keeps = functions("mask_not", "mask", "mask", "boolean", {mask}, 1)[1]
  return function(...) return not keeps(...) end
end

-- Score mods, or input mods, one after the other: chain(f, g)(s, ..) = g(f(s, ..), ..)
function chain(...)
  local mods = functions("chain", "function", "mod", "number", {...}, select("#", ...))
  return function(x, ...)
    for i = 1, #mods do x = mods[i](x, ...) end
    return x
  end
end

---- Calls

for name, online in pairs {
  online_softmax = online_softmax, softmax_one = softmax_one, online_retention = online_retention,
  online_retention_detached = online_retention_detached, sigmoid_attention = sigmoid_attention,
  relu_attention = relu_attention, square_relu = square_relu, identity = identity,
} do uncalled(online, name) end

-- Of each function above: how a call of it is written, for messages, how many arguments it takes, and whether it returns a mask of its own.
local calls = {
  attention_sink = {"attention_sink(\"logits\")", 1}, dropout = {"dropout(0.1)", 2},
  causal = {"causal()", 0, is_mask = true},
  causal_bottom_right = {"causal_bottom_right()", 0, is_mask = true},
  sliding_window = {"sliding_window(255, 0)", 2, is_mask = true},
  sliding_window_bottom_right = {"sliding_window_bottom_right(255, 0)", 2, is_mask = true},
  prefix_lm = {"prefix_lm(64)", 1, is_mask = true},
  document = {"document(\"ids\")", 2, is_mask = true},
  dilated_window = {"dilated_window(64, 2)", 2, is_mask = true},
  global_sliding = {"global_sliding(64, 1)", 2, is_mask = true},
  block_diffusion = {"block_diffusion(32)", 2, is_mask = true},
  neighborhood = {"neighborhood { kernel_size = {7, 7} }", 1, is_mask = true},
  sliding_tile = {"sliding_tile { tile = {6, 8, 8}, window = {18, 24, 24} }", 1, is_mask = true},
  swin = {"swin({7, 7}, {3, 3})", 2, is_mask = true},
  axial = {"axial(\"x\")", is_mask = true},
  causal_along = {"causal_along(\"t\")", is_mask = true},
  alibi = {"alibi()", 1}, softcap = {"softcap(50)", 1}, relative_position = {"relative_position(\"table\", 16)", 2},
  rotary = {"rotary(\"cosine\", \"sine\")", 3}, rotary_interleaved = {"rotary_interleaved(\"cosine\", \"sine\")", 3},
  mask_and = {"mask_and(causal(), document(\"ids\"))"}, mask_or = {"mask_or(causal(), prefix_lm(64))"},
  mask_not = {"mask_not(causal())", 1}, chain = {"chain(softcap(50), alibi())"},
}
for name, call in pairs(calls) do
  local f, most = _ENV[name], call[2]
  local function counted(...)
    local n = select("#", ...)
    if most and n > most then
      error(name .. ": got " .. n .. (n == 1 and " argument" or " arguments") .. ", and takes " .. (most == 0 and "none" or most > 1 and "up to " .. most or "one") ..
            "; write " .. call[1])
    end
    local g = f(...)
    if not call.is_mask then return made(g) end
    return made(function(...)
      local n = select("#", ...)
      if n < 4 then error("a mask of " .. name .. " is called with (b, h, q_idx, kv_idx), and got " .. n .. (n == 1 and " argument" or " arguments")) end
      return g(...)
    end)
  end
  _ENV[name] = counted
  makes(counted, call[1])
end
