# build_id_test.cmake: checks that the build id is the same for a copy of the sources, and differs for each
# file that is edited or new.
#   cmake -DROOT=<tree> -DBUILT=<build_id.c of the library> -DWORK=<folder> -P tests/gen/compile/build_id_test.cmake
cmake_policy(VERSION 3.22)
file(REMOVE_RECURSE ${WORK})
foreach(folder abi common gen include)
  file(COPY ${ROOT}/${folder} DESTINATION ${WORK}/tree)
endforeach()

function(id_of_copy out)
  execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${WORK}/tree -DOUT=${WORK}/id.c -P ${ROOT}/gen/compile/build_id.cmake
    COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${WORK}/id.c line REGEX "gen_build_id")
  string(REGEX MATCH "[0-9a-f]+\";$" id "${line}")
  set(${out} ${id} PARENT_SCOPE)
endfunction()

id_of_copy(copied)
file(STRINGS ${BUILT} built REGEX "gen_build_id")
string(FIND "${built}" "\"${copied}" at)
if(at EQUAL -1 OR copied STREQUAL "")
  message(FATAL_ERROR "a copy has the id ${copied}, and the library was built with ${built}")
endif()

set(seen ${copied})
foreach(file gen/emit/write.c gen/lower/lower.c gen/plan/policy.c gen/ir/ops.def gen/lua/prelude.lua gen/compile/pipeline.c abi/manifest.h
    common/real.c gen/emit/a_new_file.c)
  file(APPEND ${WORK}/tree/${file} "\n")
  id_of_copy(id)
  if(id IN_LIST seen)
    message(FATAL_ERROR "${file}: a byte more does not change the build id")
  endif()
  list(APPEND seen ${id})
endforeach()
message(STATUS "${copied}")
