/* memo_test.c: tests which sources and which PTX texts have equal normal forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/templates/memo.h"

static void assert_becomes(char *(*change)(const char *), const char *from, const char *to) {
  char *text = change(from);
  assert_non_null(text);
  assert_string_equal(text, to);
  free(text);
}

static void comments_and_indentation_go(void **state) {
  (void)state;
  assert_becomes(memo_strip, "// first\n\n  int a;  // then\nint /* between */ b; /* over\nlines */ int c;\n",
                 "int a;\nint b; int c;\n");
  assert_becomes(memo_strip, "a/**/b", "a b");
  assert_becomes(memo_strip, "#define X 1\n\t#define Y 2", "#define X 1\n#define Y 2");
  assert_becomes(memo_strip, "/* no end", "");
}

static void literals_stay(void **state) {
  (void)state;
  static const char *const same[] = {"asm(\"a  // b\");", "char c = '\"'; int d;", "f(\"\\\"  /*\");", "int n = 1'000;",
                                     "char c = '\\'';"};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) assert_becomes(memo_strip, same[i], same[i]);
  assert_becomes(memo_strip, "int n = 1'000; // it's\nint  m;", "int n = 1'000;\nint m;");
}

static void cpp_names_of_ptx_are_numbered(void **state) {
  (void)state;
  assert_becomes(memo_rename, ".func _ZN4weighEv(.param .b32 _ZN4weighEv_param_0)\n// comment\ncall _ZN4weighEv;\n",
                 ".func _Z0(.param .b32 _Z1)\ncall _Z0;\n");
  assert_becomes(memo_rename, ".entry luattn_fwd(x_Z1) %r1 $L__BB0_1 _Z", ".entry luattn_fwd(x_Z1) %r1 $L__BB_1 _Z0");
}

static bool same_ptx(const char *a, const char *b) {
  char *x = memo_rename(a), *y = memo_rename(b);
  assert_non_null(x);
  assert_non_null(y);
  const bool same = strcmp(x, y) == 0;
  free(x), free(y);
  return same;
}

static void unused_variables_go(void **state) {
  (void)state;
  assert_becomes(memo_rename,
                 ".global .align 4 .f32 log2_e = 0f3FB8AA3B;\n.global .align 1 .u8 _ZN4RowsE;\n.version 9\n",
                 ".version 9\n");
  static const char used[] = ".global .align 4 .b8 table[8] = {1, 2};\nmov.u64 %r1, table;\n";
  assert_becomes(memo_rename, used, used);
  assert_becomes(memo_rename, ".global .f32 log;\nadd log2, a.log, log_, $log;", "add log2, a.log, log_, $log;");
  assert_becomes(memo_rename, ".global .f32 e;\nld %f1, [e]", ".global .f32 e;\nld %f1, [e]");
}

static void order_of_kernels_does_not_count(void **state) {
  (void)state;
  static const char a[] =
      ".visible .entry luattn_a(\n)\n{\n{ call _ZB; }\n$L__BB%d_7:\n.local .b8 __local_depot%d[8];\n}\n";
  static const char b[] = ".entry luattn_b(\n)\n{\nbra $L__BB%d_7;\ncall _ZA;\n}\n",
                    head[] = ".version 9\n.func _ZA { }\n.func _ZB { }\n";
  char first[512], then[512];
  const size_t used = (size_t)snprintf(first, sizeof first, "%s", head);
  memcpy(then, first, sizeof first);
  int n = snprintf(first + used, sizeof first - used, a, 0, 0);
  snprintf(first + used + n, sizeof first - used - (size_t)n, b, 1);
  n = snprintf(then + used, sizeof then - used, b, 0);
  snprintf(then + used + n, sizeof then - used - (size_t)n, a, 1, 1);
  assert_true(same_ptx(first, then));
  strstr(then, "call _ZA")[6] = 'B';
  assert_false(same_ptx(first, then));
  assert_false(same_ptx("bra $L__BB0_7;", "bra $L__BB0_8;"));
  assert_true(same_ptx(".entry luattn_a { no end", ".entry luattn_a { no end"));
}

static void other_code_stays_other(void **state) {
  (void)state;
  assert_true(same_ptx("call _ZA; call _ZB; call _ZA;", "call _ZC; call _ZD; call _ZC;"));
  assert_false(same_ptx("call _ZA; call _ZB; call _ZA;", "call _ZC; call _ZD; call _ZD;"));
  assert_false(same_ptx("add.f32 %f1, %f2, %f3;", "add.f32 %f1, %f2, %f4;"));
  assert_false(same_ptx(".entry luattn_fwd", ".entry luattn_dq"));
}

static hash128 hash_of(const char *source, const char *a, const char *b, const char *c) {
  const memo_file files[] = {{"a.cuh", a}, {"folder/b.cuh", b}, {"c.cuh", c}};
  hash128 out;
  assert_true(memo_hash_source(source, files, 3, &out));
  return out;
}
static bool same_hash(hash128 a, hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

static void only_what_is_included_counts(void **state) {
  (void)state;
  static const char source[] = "#include \"a.cuh\"\nint x;", a[] = "#pragma once\n# include \"folder/b.cuh\"\n";
  const hash128 first = hash_of(source, a, "int b;", "int c;");
  assert_true(same_hash(first, hash_of(source, a, "int b;", "int other;")));
  assert_true(same_hash(first, hash_of(source, a, "// of b\nint  b;", "int c;")));
  assert_false(same_hash(first, hash_of(source, a, "int other;", "int c;")));
  assert_false(same_hash(first, hash_of(source, "#pragma once\n", "int b;", "int c;")));
  assert_false(same_hash(first, hash_of("#include \"a.cuh\"\nint y;", a, "int b;", "int c;")));
}

static void unknown_includes_bring_in_all(void **state) {
  (void)state;
  static const char *const sources[] = {"#include FILE\n", "#include \"b.cuh\"\n", "#include <c.cuh>\n"};
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
    assert_false(same_hash(hash_of(sources[i], "int a;", "int b;", "int c;"),
                           hash_of(sources[i], "int a;", "int b;", "int other;")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(comments_and_indentation_go),   cmocka_unit_test(literals_stay),
      cmocka_unit_test(cpp_names_of_ptx_are_numbered), cmocka_unit_test(other_code_stays_other),
      cmocka_unit_test(unused_variables_go),           cmocka_unit_test(order_of_kernels_does_not_count),
      cmocka_unit_test(only_what_is_included_counts),  cmocka_unit_test(unknown_includes_bring_in_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
