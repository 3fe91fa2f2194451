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
