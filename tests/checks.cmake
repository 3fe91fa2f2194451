# checks.cmake: tests of the tree itself. Each check is also run on a bad tree, which it must refuse.
add_test(NAME check_includes COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_includes.cmake)
set(bad_tree ${CMAKE_CURRENT_BINARY_DIR}/bad_tree)
file(WRITE ${bad_tree}/runtime/bad.c "#include \"gen/ir/ir.h\"\n")
file(WRITE ${bad_tree}/include/luattn/bad.h "size_t needs_stddef(void);\n")
file(WRITE ${bad_tree}/common/good.h "int good(void);\n")
add_test(NAME check_includes_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_includes.cmake)
set_tests_properties(check_includes_refuses PROPERTIES PASS_REGULAR_EXPRESSION "runtime/ may not include \"gen/ir/ir.h\"")
# Inside gen/, against its direction: plan <- lower <- emit, and from lower only its data.
foreach(against "plan;lower/lowered.h" "plan;emit/emit.h" "lower;emit/emit.h" "compile;lower/lowering.h" "compile;emit/write.h" "emit;lower/lowering.h" "emit;nvrtc/nvrtc.h" "analysis;plan/plan.h")
  list(GET against 0 from)
  list(GET against 1 to)
  string(MAKE_C_IDENTIFIER ${from}_${to} name)
  file(WRITE ${bad_tree}/${name}/gen/${from}/bad.c "#include \"gen/${to}\"\n")
  add_test(NAME check_includes_refuses_${name}
    COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree}/${name} -P ${CMAKE_CURRENT_LIST_DIR}/check_includes.cmake)
  set_tests_properties(check_includes_refuses_${name} PROPERTIES
    PASS_REGULAR_EXPRESSION "gen/${from}/ may not include \"gen/${to}\"")
endforeach()

add_test(NAME check_kernels COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_kernels.cmake)
file(WRITE ${bad_tree}/kernels/templates/sm80/bad.cuh "  const int len = p.shape.q_len;\n")
file(WRITE ${bad_tree}/kernels/templates/simt/bad.cuh "  const Site site{b, int(blockIdx.y), 1, 1};\n")
add_test(NAME check_kernels_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree}/kernels -P ${CMAKE_CURRENT_LIST_DIR}/check_kernels.cmake)
set_tests_properties(check_kernels_refuses PROPERTIES PASS_REGULAR_EXPRESSION "simt/bad.cuh: ask work/.*sm80/bad.cuh: ask work/")
# Positions compared with a length, or with their end, where nothing asserts that they lie along a line.
set(lines_tree ${bad_tree}/lines/templates)
set(compares "  if (site.kv_end(p) <= at) return;\n")
file(WRITE ${lines_tree}/decode/bad.cuh "  if (kv < site.kv_len) put(kv);\n")
file(WRITE ${lines_tree}/score/bad.cuh "  const int last = min_of(q0 + rows, site.q_end(p)) - 1;\n")
file(WRITE ${lines_tree}/sink/bad.cuh "${compares}")
file(WRITE ${lines_tree}/sink/good.cuh "  static_assert(Sequence::is_line, \"rows end where positions do\");\n${compares}")
file(WRITE ${lines_tree}/work/bad.cuh "  const bool there = row < site.q_end(p);\n")
add_test(NAME check_kernels_refuses_lines COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree}/lines -P ${CMAKE_CURRENT_LIST_DIR}/check_kernels.cmake)
set_tests_properties(check_kernels_refuses_lines PROPERTIES FAIL_REGULAR_EXPRESSION "good.cuh"
  PASS_REGULAR_EXPRESSION "decode/bad.cuh: ask the Sequence.*score/bad.cuh: ask the.*sink/bad.cuh: ask the.*work/bad.cuh: ask the")

# Calls between all objects of the tree. A circle of three.
set(objects "")
foreach(target common abi runtime_objects gen_base gen_ir gen_lua gen_analysis gen_family gen_plan gen_lower gen_emit gen_nvrtc gen_cache gen_cpu
        gen_compile engine mask_means merge_parts cli_core -cli)
  string(REGEX REPLACE "^luattn_-" "luattn-" target luattn_${target})
  list(APPEND objects $<TARGET_OBJECTS:${target}>)
endforeach()
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/objects.txt CONTENT "$<JOIN:${objects},\n>\n")
set(check_circles ${CMAKE_COMMAND} -DNM=${CMAKE_NM})
add_test(NAME check_circles COMMAND ${check_circles} -DBINARY=${PROJECT_BINARY_DIR} -DOBJECTS=${CMAKE_CURRENT_BINARY_DIR}/objects.txt
  -P ${CMAKE_CURRENT_LIST_DIR}/check_circles.cmake)
set(circle ${bad_tree}/circle)
file(WRITE ${circle}/first.c "int second(void);\nint first(void);\nint first(void) { return second(); }\n")
file(WRITE ${circle}/second.c "int third(void);\nint second(void);\nint second(void) { return third(); }\n")
file(WRITE ${circle}/third.c "int first(void);\nint third(void);\nint third(void) { return first(); }\n")
add_library(luattn_bad_circle OBJECT ${circle}/first.c ${circle}/second.c ${circle}/third.c)
file(GENERATE OUTPUT ${circle}/objects.txt CONTENT "$<JOIN:$<TARGET_OBJECTS:luattn_bad_circle>,\n>\n")
add_test(NAME check_circles_refuses COMMAND ${check_circles} -DBINARY=${CMAKE_CURRENT_BINARY_DIR} -DOBJECTS=${circle}/objects.txt
  -P ${CMAKE_CURRENT_LIST_DIR}/check_circles.cmake)
set_tests_properties(check_circles_refuses PROPERTIES
  PASS_REGULAR_EXPRESSION "third: calls bad_tree/circle/first \\(first\\): in a circle")

# Of tests' times: what is registered twice the allowed time, and in no line.
add_test(NAME check_costs COMMAND ${CMAKE_CURRENT_LIST_DIR}/costs.sh registered ${PROJECT_BINARY_DIR})
file(WRITE ${bad_tree}/costs.txt "21 check_costs\n290 check_.*\n1 no_test\n")
add_test(NAME check_costs_refuses COMMAND ${CMAKE_CURRENT_LIST_DIR}/costs.sh registered ${PROJECT_BINARY_DIR} ${bad_tree}/costs.txt)
set_tests_properties(check_costs_refuses PROPERTIES PASS_REGULAR_EXPRESSION
  "cpu_args: is in no line of tests/costs.txt.*check_costs: takes 21 s.*tests that always run take 312 s")

add_test(NAME check_format COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_format.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(check_format PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME check_functions COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_functions.sh ${PROJECT_SOURCE_DIR})
file(WRITE ${bad_tree}/functions/gen/long.c "int f(\n    int x) {\n  const int t[] = {\n      1,\n  };\n  return x + t[0];\n}\nint g(void) {\n  f(1);\n  f(2);\n  return f(3);\n}\n")
add_test(NAME check_functions_refuses COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_functions.sh ${bad_tree}/functions 4)
set_tests_properties(check_functions_refuses PROPERTIES PASS_REGULAR_EXPRESSION "^gen/long.c:8: a function of 5 lines[^\n]*\n2 functions checked")
add_test(NAME check_names COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_names.cmake)
file(WRITE ${bad_tree}/names/gen/emit/tile.c "\n")
file(WRITE ${bad_tree}/names/gen/cpu/tile.c "\n")
add_test(NAME check_names_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree}/names -P ${CMAKE_CURRENT_LIST_DIR}/check_names.cmake)
set_tests_properties(check_names_refuses PROPERTIES PASS_REGULAR_EXPRESSION "gen/emit/tile.c: another folder has a tile.c, too")

add_test(NAME check_numbers COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_numbers.cmake)
file(WRITE ${bad_tree}/cli/bad.c "double x = strtod(text, &end);\n")
file(WRITE ${bad_tree}/gen/bad.c "snprintf(s, n, \"Real(%.17g)\", x);\n")
add_test(NAME check_numbers_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_numbers.cmake)
set_tests_properties(check_numbers_refuses PROPERTIES
  PASS_REGULAR_EXPRESSION "cli/bad.c: double x = strtod.*gen/bad.c: snprintf.*Real.%.17g")

add_test(NAME check_links COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_links.cmake)
file(WRITE ${bad_tree}/README.md "# One heading\n\n[good](#one-heading) [good](README.md) `[code](none)`\n[bad](docs/none.md)\n[bad](README.md#two)\n")
file(WRITE ${bad_tree}/CONTRIBUTING.md "| a row | `common/good.h`, `gen/none.c` |\n")
add_test(NAME check_links_refuses COMMAND ${CMAKE_COMMAND} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_links.cmake)
set_tests_properties(check_links_refuses PROPERTIES
  PASS_REGULAR_EXPRESSION "README.md: docs/none.md: there is no such file.*README.md: README.md#two: there is no such heading.*CONTRIBUTING.md: gen/none.c: there is no such file")

set(check_readme ${CMAKE_COMMAND} -DLUATTN=$<TARGET_FILE:luattn-cli>)
add_test(NAME check_readme COMMAND ${check_readme} -DROOT=${PROJECT_SOURCE_DIR} -DOUT=${CMAKE_CURRENT_BINARY_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_readme.cmake)
file(WRITE ${bad_tree}/readme/README.md "\n```lua\nreturn attention { score_mod = function(score) return scores end }\n```\n")
add_test(NAME check_readme_refuses COMMAND ${check_readme} -DROOT=${bad_tree}/readme -DOUT=${bad_tree}/readme -P ${CMAKE_CURRENT_LIST_DIR}/check_readme.cmake)
set_tests_properties(check_readme_refuses PROPERTIES PASS_REGULAR_EXPRESSION "README.md: its spec fails: .*readme.lua:1:.*'scores'")

find_program(LUATTN_CXX NAMES c++ g++ clang++)
set(includes $<JOIN:$<TARGET_PROPERTY:luattn_gen_lua,INCLUDE_DIRECTORIES>,$<COMMA>>)
set(check_headers ${CMAKE_COMMAND} -DCC=${CMAKE_C_COMPILER} -DCXX=${LUATTN_CXX})
add_test(NAME check_headers COMMAND ${check_headers} -DROOT=${PROJECT_SOURCE_DIR} -DINCLUDES=${includes} -DBUILT=${LUATTN_WERROR}
  -P ${CMAKE_CURRENT_LIST_DIR}/check_headers.cmake)
add_test(NAME check_headers_refuses COMMAND ${check_headers} -DROOT=${bad_tree} -P ${CMAKE_CURRENT_LIST_DIR}/check_headers.cmake)
set_tests_properties(check_headers_refuses PROPERTIES PASS_REGULAR_EXPRESSION "include/luattn/bad.h:")

set(libraries -DSHARED=$<TARGET_FILE:luattn_shared> -DRUNTIME_SHARED=$<TARGET_FILE:luattn_runtime_shared> -DSTATIC=$<TARGET_FILE:luattn_static>
  -DRUNTIME=$<TARGET_FILE:luattn_runtime_static> -DNCCL=$<TARGET_FILE:luattn_nccl> -DSYSTEM_LUA=${LUATTN_SYSTEM_LUA})
set(check_symbols ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DREADELF=${CMAKE_READELF} ${libraries})
add_test(NAME check_symbols COMMAND ${check_symbols} -P ${CMAKE_CURRENT_LIST_DIR}/check_symbols.cmake)
function(check_symbols_refuses name message)
  add_test(NAME check_symbols_refuses_${name} COMMAND ${check_symbols} ${ARGN} -P ${CMAKE_CURRENT_LIST_DIR}/check_symbols.cmake)
  set_tests_properties(check_symbols_refuses_${name} PROPERTIES PASS_REGULAR_EXPRESSION ${message})
endfunction()
check_symbols_refuses(compiler "has what it may not" -DRUNTIME=$<TARGET_FILE:luattn_static>)
check_symbols_refuses(visible "only luattn_. may be seen" -DSTATIC=$<TARGET_FILE:luattn>)
check_symbols_refuses(nccl "does not export[ \n]+luattn_nccl_open" -DNCCL=$<TARGET_FILE:luattn_shared>)
if(NOT LUATTN_SYSTEM_LUA)
  file(WRITE ${bad_tree}/open.c "int lua_close(void);\nint luattn_launch(void) { return lua_close(); }\n"
    "int luattn_pack_open(void) { return 0; }\nint luattn_compile(void) { return 0; }\nint luattn_prepare(void) { return 0; }\n")
  add_library(luattn_bad_open SHARED ${bad_tree}/open.c)
  set_target_properties(luattn_bad_open PROPERTIES C_VISIBILITY_PRESET default)
  check_symbols_refuses(open "takes ' U[ \n]+lua_close'" -DSHARED=$<TARGET_FILE:luattn_bad_open>)
endif()

add_test(NAME check_sources_refuses COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR} -B ${bad_tree}/build -DLUATTN_DEPS_DIR=${bad_tree}
  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER})
set_tests_properties(check_sources_refuses PROPERTIES PASS_REGULAR_EXPRESSION "bootstrap[^a-z]+sources.*LUATTN_SYSTEM_LUA=ON")
