-- expect: returns_nothing.lua:2: the file returns nil instead of its attention { .. }; end it with: return attention { .. }
attention {}
