# cmake -DOUT=embedded.c -P embed.cmake: writes the templates as byte arrays, so that the library needs no files at run time.
include(${CMAKE_CURRENT_LIST_DIR}/files.cmake)
set(arrays "")
set(rows "")
set(count 0)
foreach(name ${LUATTN_TEMPLATES})
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${name} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "static const unsigned char file_${count}[] = {\n${hex}0};\n")
  string(APPEND rows "  {\"${name}\", (const char *)file_${count}, ${size}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "/* Written by templates/embed.cmake. */\n#include \"gen/nvrtc/embedded.h\"\n\n${arrays}\n"
  "const template_file luattn_embedded_templates[] = {\n${rows}};\n"
  "const int luattn_embedded_template_count = ${count};\n")
