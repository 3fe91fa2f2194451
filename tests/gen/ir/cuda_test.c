/* cuda_test.c: compiles templates/ops/math.cuh and templates/ops/interval.cuh with nvcc, in a kernel that
 * spells every op of the table for every type and calls every interval function. A tree draws whether that is with
 * fast_math. Skipped (77) without nvcc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/ir/graph.h"
#include "tests/gen/ir/expr.h"
#include "tests/support/drawn.h"

static const char *const cuda_type[] = {[IR_BOOL] = "bool", [IR_INT] = "int", [IR_REAL] = "Real"};
static const char *const bounds_type[] = {[IR_BOOL] = "tri", [IR_INT] = "ivi", [IR_REAL] = "iv"};

static ir_type argument_type(ir_op op, ir_type type, int k) {
  return ir_op_rule(op) == SELECTS && k == 0 ? IR_BOOL : type;
}

static ir_type result_type(ir_op op, ir_type type) {
  switch (ir_op_rule(op)) {
    case COMPARES:
      return IR_BOOL;
    case INT_TO_REAL:
      return IR_REAL;
    case REAL_TO_INT:
      return IR_INT;
    default:
      return type;
  }
}

static void write_op(FILE *f, ir_op op, ir_type type) {
  fprintf(f, "    { const %s r = ", cuda_type[result_type(op, type)]);
  for (const char *s = ir_op_cuda(op); *s != 0; ++s) {
    if (*s != '%') {
      fputc(*s, f);
      continue;
    }
    if (*++s == 't') { /* %t: the index of a thread's element */
      fprintf(f, "int_0");
      continue;
    }
    const int k = *s - '0';
    fprintf(f, "%s_%d", cuda_type[argument_type(op, type, k)], k);
  }
  fprintf(f, "; sum += Real(r); }\n");
}

static void write_bounds(FILE *f, ir_op op, ir_type type) {
  fprintf(f, "    { const %s r = %s%s(", bounds_type[result_type(op, type)], ir_interval_prefix(type),
          ir_op_interval(op));
  for (int k = 0; k < ir_op_arity(op); ++k)
    fprintf(f, "%s%s_%d", k > 0 ? ", " : "", bounds_type[argument_type(op, type, k)], k);
  fprintf(f, "); sum += double(reinterpret_cast<const char &>(r)); }\n");
}

static void write_kernel(FILE *f) {
  fprintf(f,
          "struct Config { static constexpr bool fast_math = FAST_MATH; };\n"
          "#include \"ops/math.cuh\"\n#include \"ops/interval.cuh\"\n#include \"ops/bits.cuh\"\n"
          "template <class Real> static __device__ void ops(Real *x, int *n) {\n"
          "  Real sum = 0;\n"
          "  const Real Real_0 = x[0], Real_1 = x[1], Real_2 = x[2];\n"
          "  const int int_0 = n[0], int_1 = n[1], int_2 = n[2];\n"
          "  const bool bool_0 = int_0 > 0, bool_1 = int_1 > 0, bool_2 = int_2 > 0;\n");
  for (ir_op op = 0; op < IR_OP_COUNT; ++op)
    for (ir_type type = IR_BOOL; type <= IR_REAL; ++type)
      if (ir_op_cuda(op) != NULL && op_accepts(op, type)) write_op(f, op, type);
  fprintf(f,
          "  x[3] = sum;\n}\n"
          "extern \"C\" __global__ void of_float(float *x, int *n) { ops<float>(x, n); }\n"
          "extern \"C\" __global__ void of_double(double *x, int *n) { ops<double>(x, n); }\n"
          "extern \"C\" __global__ void of_bounds(double *x, int *n) {\n"
          "  double sum = 0;\n"
          "  const iv iv_0 = iv_point(x[0]), iv_1 = iv_make(x[1], x[2], false), iv_2 = iv_all();\n"
          "  const ivi ivi_0 = ivi_point(n[0]), ivi_1 = ivi_make(n[1], n[2]), ivi_2 = ivi_all();\n"
          "  const tri tri_0 = tri_point(n[0] > 0), tri_1 = tri_make(n[1] > 0, n[2] > 0), tri_2 = tri_all();\n");
  for (ir_op op = 0; op < IR_OP_COUNT; ++op)
    for (ir_type type = IR_BOOL; type <= IR_REAL; ++type)
      if (ir_op_cuda(op) != NULL && op_accepts(op, type)) write_bounds(f, op, type);
  fprintf(f, "  x[3] = sum;\n}\n");
}

int main(void) {
  if (system("nvcc --version > /dev/null 2>&1") != 0) {
    puts("skipped: there is no nvcc");
    return 77;
  }
  FILE *f = fopen("test_ir_cuda.cu", "w");
  if (f == NULL) return 1;
  write_kernel(f);
  if (fclose(f) != 0) return 1;
  static const char *const fast[] = {"false", "true"};
  for (int i = 0; i < 2; ++i) {
    if (!drawn("ir_cuda", i, 2)) continue;
    char command[1024];
    snprintf(command, sizeof command,
             "nvcc -std=c++20 -arch=sm_80 -cubin -Werror all-warnings -diag-suppress 177,550 -DFAST_MATH=%s -I %s -I "
             "%s/templates "
             "-o test_ir_cuda.cubin test_ir_cuda.cu",
             fast[i], SOURCE_DIR, SOURCE_DIR);
    if (system(command) != 0) return 1;
  }
  return 0;
}
