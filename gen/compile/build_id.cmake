# build_id.cmake: writes the build id of the generator: a hash of every source that may change its output. The
# templates are not part of it: LUATTN_TEMPLATE_DIR may replace them, so their bytes go into a key by
# themselves.
#   cmake -DROOT=<tree> -DOUT=<file.c> -P gen/compile/build_id.cmake
cmake_policy(VERSION 3.22)
set(all "")
foreach(folder abi common gen include)
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/${folder}/*.c ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.def ${ROOT}/${folder}/*.lua)
  list(SORT files)
  foreach(file ${files})
    file(SHA256 ${ROOT}/${file} hash)
    string(APPEND all "${file} ${hash}\n")
  endforeach()
endforeach()
if(NOT all)
  message(FATAL_ERROR "${ROOT}: there are no sources; -DROOT must name the source tree")
endif()
string(SHA256 id "${all}")
file(WRITE ${OUT} "/* Written by gen/compile/build_id.cmake. */\n#include \"gen/compile/build_id.h\"\n\nconst char gen_build_id[] = \"${id}\";\n")
