/* cpu.h: the CPU path's view of one call: arguments converted to double, programs compiled, one lane environment.
 *
 * forward.c and backward.c walk 64 x 64 tiles as a kernel would: empty tiles are skipped, full ones run without the mask.
 * Nothing of size q_len x kv_len is built.
 */
#ifndef LUATTN_GEN_CPU_H
#define LUATTN_GEN_CPU_H

#include "common/fail.h"
#include "gen/analysis/analysis.h"
#include "gen/analysis/split.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

#define CPU_TILE IR_LANES

/* A DLTensor on the CPU, read and written as double. */
typedef struct cpu_view {
  char *data; /* NULL: absent */
  int code, bits; /* DLPack dtype */
  int ndim;
  int64_t shape[4], stride[4]; /* in elements */
} cpu_view;

double view_get(const cpu_view *v, const int64_t *index);
void view_set(const cpu_view *v, const int64_t *index, double x);
/* x rounded to nearest even in a type, n times. */
void round_all(luattn_dtype type, double *x, int n);
luattn_status view_open(const char *name, const DLTensor *t, int ndim, cpu_view *out, luattn_error *err);

typedef struct cpu_problem {
  arena *a;
  const luattn_spec *spec;
  ir *g; /* a clone: the spec's own is shared */
  int batch, heads, heads_kv, group, q_len, kv_len, dim, dim_v;
  luattn_dtype precision; /* what intermediates are rounded to; LUATTN_F64: nothing */
  double scale;
  double scalar[32];
  cpu_view input[12];
  cpu_view input_grad[12];
  mask_info mask;
  ir_bounds *bounds;        /* scratch of the tile classifier */
  double *q, *k, *v;        /* after the input mods, [batch][heads][len][dim] */
} cpu_problem;

/* Sizes, inputs, scalars and the mask; problem_convert adds q, k and v, which a mask does not need. */
luattn_status problem_convert(cpu_problem *p, const luattn_args *args, luattn_error *err);
luattn_status problem_open(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision, arena *a, cpu_problem *out,
                           luattn_error *err);

/* What the lanes of one run see. A NULL array means the scalar beside it holds for all lanes. */
typedef struct cpu_lanes {
  const cpu_problem *p;
  int b, h;
  double q_idx;
  const double *kv_idx, *pos, *d;
  const double *score, *dp, *x, *grad;
  const double *state, *final, *row, *red; /* per index, same for all lanes */
  double pos0, delta, dlse, out;
} cpu_lanes;


/* A compiled program with its scratch. */
typedef struct cpu_program {
  const ir_program *program; /* NULL: no roots */
  void *scratch;
} cpu_program;

luattn_status program_open(arena *a, const ir *g, const ir_ref *roots, int n, cpu_program *out, luattn_error *err);
void program_run(const cpu_program *p, cpu_lanes *lanes, int count, double *const *out);

/* Replaces REAL roots by their magnitudes (magnitude.c). */
luattn_status magnitude_of(arena *a, ir *g, ir_ref *roots, int n, luattn_error *err);

/* What rounding does to parameter gradients: writes sqrt(sum of squared magnitudes of the contributions) in place of each
 * gradient of an input or scalar; dq, dk and dv are left alone. Independent relative errors r of the contributions move a
 * gradient by about r times this, however much cancels in it. */
luattn_status cpu_gradient_noise(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* Class of the tile [q0, q0 + CPU_TILE) x [kv0, kv0 + CPU_TILE), cut at the lengths: 0 empty, 1 partial, 2 full. */
int problem_tile_class(cpu_problem *p, int b, int h, int q0, int q1, int kv0, int kv1);

/* Index of element (b, h, i, 0) of a contiguous [batch][heads][len][dim] array. */
static inline size_t cpu_at(int heads, int len, int dim, int b, int h, int i) {
  return (((size_t)b * (size_t)heads + (size_t)h) * (size_t)len + (size_t)i) * (size_t)dim;
}

#endif
