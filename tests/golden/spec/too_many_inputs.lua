-- expect: too_many_inputs.lua:4: inputs: more than 12 entries; the limit is 12
local x = {}
for i = 1, 13 do x["x" .. i] = { axes = {"h"} } end
return attention { inputs = x }
