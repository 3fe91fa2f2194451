# cmake -DIN=prelude.lua -DOUT=prelude.c -P embed.cmake: writes the prelude as a byte array, so that the library needs no files.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "/* Written by gen/lua/embed.cmake. */\n#include \"gen/lua/prelude.h\"\n\n"
  "const unsigned char front_prelude[] = {\n${hex}0};\nconst size_t front_prelude_size = ${size};\n")
