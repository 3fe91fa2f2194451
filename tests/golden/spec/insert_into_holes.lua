-- expect-parts: insert_into_holes.lua:6: table.insert: the table has  |  entries; the limit is 1048576; keep its entries 1, 2, 3, .. without holes
local t = {}
for i = 0, 62 do
  t[1 << i], t[(1 << i) + 1] = 1, 1
end
table.insert(t, 1, 1)
return attention {}
