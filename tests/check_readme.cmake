# check_readme.cmake: checks that the spec in README equals examples/gemma2.lua. cmake -DROOT=<tree> -P
# tests/check_readme.cmake
cmake_policy(VERSION 3.22)

file(READ ${ROOT}/README.md readme)
file(READ ${ROOT}/examples/gemma2.lua spec)
string(FIND "${readme}" "\n```lua\n${spec}```\n" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md: its spec differs from examples/gemma2.lua; copy the file into README")
endif()
