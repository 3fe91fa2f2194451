# check_readme.cmake: checks README's spec as `luattn check` does, and that what README says to type is what the program takes.
# cmake -DROOT=<tree> -DLUATTN=<program> -DOUT=<folder> -P tests/check_readme.cmake
cmake_policy(VERSION 3.22)

file(READ ${ROOT}/README.md readme)
if(NOT readme MATCHES "\n```lua\n(return attention {[^`]*)```\n")
  message(FATAL_ERROR "README.md: has no spec in Lua")
endif()
file(WRITE ${OUT}/readme.lua "${CMAKE_MATCH_1}")
execute_process(COMMAND ${LUATTN} check --device cpu ${OUT}/readme.lua RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "README.md: its spec fails: ${said}")
endif()

# The largest head dim is a macro; what people read says its number.
file(STRINGS ${ROOT}/abi/host_device.h line REGEX "#define LUATTN_MAX_HEAD_DIM")
string(REGEX REPLACE "^#define LUATTN_MAX_HEAD_DIM ([0-9]+).*" "\\1" most "${line}")
foreach(place IN ITEMS "README.md:Head dims up to ${most}[.]" "docs/limits.md:Head dims 1 to ${most}[.]"
  "docs/from_flash_attn.md:head dims up to ${most}," "include/luattn/compiler.h:head_dim_v[^\n]*1 [.][.] ${most}[^0-9]")
  string(REGEX REPLACE ":.*" "" path "${place}")
  string(REGEX REPLACE "^[^:]*:" "" sentence "${place}")
  file(READ ${ROOT}/${path} text)
  if(NOT text MATCHES "${sentence}")
    message(FATAL_ERROR "${path}: does not say '${sentence}', which LUATTN_MAX_HEAD_DIM of abi/host_device.h is")
  endif()
endforeach()
