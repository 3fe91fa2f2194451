# Every file that is embedded into the library and passed to NVRTC: all but those of example/, which stand in for a spec's own.
set(again CONFIGURE_DEPENDS)
if(CMAKE_SCRIPT_MODE_FILE)
  set(again)
endif()
file(GLOB_RECURSE LUATTN_TEMPLATES ${again} RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/*.cu ${CMAKE_CURRENT_LIST_DIR}/*.cuh)
list(FILTER LUATTN_TEMPLATES EXCLUDE REGEX "^example/")
# Headers that the host compiles as well, by their names from the root of the tree.
set(LUATTN_ABI_HEADERS
  abi/exact_divisor.h
  abi/grid_params.h
  abi/host_device.h
  abi/linear_params.h
  abi/merge_params.h
  abi/na_params.h
  abi/page_params.h
  abi/params.h
  abi/philox.h
  abi/shared_memory.h
  abi/workspace.h
)
