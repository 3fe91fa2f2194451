-- expect: spec_name.lua:2: attention: name 'my spec' contains ' '; use letters, digits, _, - and .
return attention { name = "my spec" }
