# luattn_add_library(NAME PARTS object libraries.. BUNDLED luattn_lua luattn_zstd): a library in three forms.
#   NAME          an archive for this tree's own programs and tests, which look into it
#   NAME_shared   libNAME.so, which exports luattn_* alone
#   NAME_static   libNAME.a, one relocatable object that defines luattn_* alone. All else is local to it, Lua and zstd too, as in a
#                 shared library, so that a program may have a Lua or a zstd of its own.
find_package(Threads REQUIRED)

function(luattn_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PARTS;BUNDLED")
  add_library(${name} STATIC)
  target_link_libraries(${name} PUBLIC ${arg_PARTS})
  target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${name}_internal LINKER_LANGUAGE C)

  # Where a process has two copies of luattn, each calls its own functions: -Bsymbolic. Options are those that zig's linker knows too.
  add_library(${name}_shared SHARED)
  target_link_libraries(${name}_shared PRIVATE ${arg_PARTS})
  set(exports ${PROJECT_SOURCE_DIR}/packaging/exports.map)
  target_link_options(${name}_shared PRIVATE -Wl,--version-script=${exports} -Wl,-Bsymbolic -Wl,--gc-sections)
  target_include_directories(${name}_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  set_target_properties(${name}_shared PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports})

  set(members ${arg_PARTS})
  set(needs Threads::Threads ${CMAKE_DL_LIBS} m)
  if(LUATTN_SYSTEM_LUA)
    list(TRANSFORM arg_BUNDLED REPLACE "luattn_lua" "lua5.4")
    list(TRANSFORM arg_BUNDLED REPLACE "luattn_zstd" "zstd")
    list(PREPEND needs ${arg_BUNDLED})
  else()
    list(APPEND members ${arg_BUNDLED})
  endif()
  luattn_link_object(${CMAKE_CURRENT_BINARY_DIR}/${name}.o ${members})
  add_library(${name}_static STATIC ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  add_dependencies(${name}_static ${members}) # a Makefile knows no rule for the objects of another folder: they are there before
  target_link_libraries(${name}_static INTERFACE ${needs})
  target_include_directories(${name}_static INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
endfunction()

# Links the objects of targets into one, in which hidden symbols are local.
function(luattn_link_object object)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_C_FLAGS}")
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags -flinker-output=nolto-rel) # machine code, also where -flto is among the flags
  endif()
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_C_COMPILER} ${flags} -r -nostdlib -o ${object} ${objects}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${object}
    DEPENDS ${objects} COMMENT "Linking ${object}" COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
endfunction()
