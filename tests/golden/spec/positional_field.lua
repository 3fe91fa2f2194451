-- expect: positional_field.lua:2: attention: field [1] has no name; write name = value
return attention { function(score) return score end }
