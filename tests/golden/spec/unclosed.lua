-- expect-parts: unclosed.lua:4: | near <eof>
return attention {
  name = "x",
