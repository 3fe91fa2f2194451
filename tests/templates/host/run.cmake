# run.cmake: compiles SOURCE for one case and runs the program. Integers wrap, as on a GPU.
string(REPLACE "," ";-DEXAMPLE_" defines "-DEXAMPLE_${DEFINES}")
set(templates ${HERE}/../../../templates)
execute_process(COMMAND ${CXX} -std=c++20 -O1 -fwrapv -o ${PROGRAM} -I${HERE} -I${templates}
  -I${templates}/example -I${templates}/.. ${defines} ${HERE}/${SOURCE} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${SOURCE} does not compile")
endif()
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: ${status}")
endif()
