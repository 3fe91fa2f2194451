# checks.cmake: tests of the tree itself. Each check is also shown a bad tree, which it must refuse.
add_test(NAME check_includes COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_includes.cmake)
set(bad_tree ${CMAKE_CURRENT_BINARY_DIR}/bad_tree)
file(WRITE ${bad_tree}/runtime/bad.c "#include \"gen/ir/ir.h\"\n")
file(WRITE ${bad_tree}/include/luattn/bad.h "size_t needs_stddef(void);\n")
file(WRITE ${bad_tree}/common/good.h "int good(void);\n")
add_test(NAME check_includes_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_includes.cmake)
set_tests_properties(check_includes_refuses PROPERTIES PASS_REGULAR_EXPRESSION "runtime/ may not include \"gen/ir/ir.h\"")

add_test(NAME check_numbers COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_numbers.cmake)
file(WRITE ${bad_tree}/cli/bad.c "double x = strtod(text, &end);\n")
file(WRITE ${bad_tree}/gen/bad.c "snprintf(s, n, \"Real(%.17g)\", x);\n")
add_test(NAME check_numbers_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_numbers.cmake)
set_tests_properties(check_numbers_refuses PROPERTIES
  PASS_REGULAR_EXPRESSION "cli/bad.c: double x = strtod.*gen/bad.c: snprintf.*Real.%.17g")

add_test(NAME check_links COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_links.cmake)
file(WRITE ${bad_tree}/README.md "# One heading\n\n[good](#one-heading) [good](README.md) `[code](none)`\n[bad](docs/none.md)\n[bad](README.md#two)\n")
add_test(NAME check_links_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_links.cmake)
set_tests_properties(check_links_refuses PROPERTIES
  PASS_REGULAR_EXPRESSION "README.md: docs/none.md: there is no such file.*README.md: README.md#two: there is no such heading")

find_program(LUATTN_CXX NAMES c++ g++ clang++)
set(includes $<JOIN:$<TARGET_PROPERTY:luattn_gen_lua,INCLUDE_DIRECTORIES>,$<COMMA>>)
set(check_headers ${CMAKE_COMMAND} -DCC=${CMAKE_C_COMPILER} -DCXX=${LUATTN_CXX})
add_test(NAME check_headers COMMAND ${check_headers} -DROOT=${PROJECT_SOURCE_DIR} -DINCLUDES=${includes}
  -P ${CMAKE_CURRENT_LIST_DIR}/check_headers.cmake)
add_test(NAME check_headers_refuses COMMAND ${check_headers} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_headers.cmake)
set_tests_properties(check_headers_refuses PROPERTIES PASS_REGULAR_EXPRESSION "include/luattn/bad.h:")

add_test(NAME check_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DRUNTIME=$<TARGET_FILE:luattn_runtime>
  -DSHARED=$<TARGET_FILE:luattn_shared> -DRUNTIME_SHARED=$<TARGET_FILE:luattn_runtime_shared> -P ${CMAKE_CURRENT_LIST_DIR}/check_symbols.cmake)
add_test(NAME check_symbols_refuses COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DRUNTIME=$<TARGET_FILE:luattn>
  -DSHARED=$<TARGET_FILE:luattn_shared> -DRUNTIME_SHARED=$<TARGET_FILE:luattn_runtime_shared> -P ${CMAKE_CURRENT_LIST_DIR}/check_symbols.cmake)
set_tests_properties(check_symbols_refuses PROPERTIES PASS_REGULAR_EXPRESSION "needs what it may not")
