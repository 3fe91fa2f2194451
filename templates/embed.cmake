# cmake -DOUT=embedded.c -P embed.cmake: writes the templates as strings, a line each, so that the library needs no files at run time.
cmake_policy(VERSION 3.22)
include(${CMAKE_CURRENT_LIST_DIR}/files.cmake)
set(arrays "")
set(rows "")
set(count 0)
foreach(name ${LUATTN_TEMPLATES} ${LUATTN_ABI_HEADERS})
  if(name IN_LIST LUATTN_ABI_HEADERS)
    file(READ ${CMAKE_CURRENT_LIST_DIR}/../${name} text)
  else()
    file(READ ${CMAKE_CURRENT_LIST_DIR}/${name} text)
  endif()
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "?" "\\?" text "${text}") # no trigraph
  string(REPLACE "\n" "\\n\"\n\"" text "${text}")
  string(APPEND arrays "static const char file_${count}[] =\n\"${text}\";\n")
  string(APPEND rows "  {\"${name}\", file_${count}, sizeof file_${count} - 1},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "/* Written by templates/embed.cmake. */\n#include \"gen/nvrtc/embedded.h\"\n\n"
  "#pragma GCC diagnostic ignored \"-Woverlength-strings\" /* of which compilers that luattn is built with know no limit */\n\n${arrays}\n"
  "const template_file luattn_embedded_templates[] = {\n${rows}};\n"
  "const int luattn_embedded_template_count = ${count};\n")
