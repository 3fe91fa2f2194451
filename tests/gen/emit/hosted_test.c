/* hosted_test.c: compiles the emitted text of every example with the host's C++ compiler, runs it in double,
 * and compares with the CPU path. Needs no GPU and no NVRTC: tests only folding, hoisting, printing, tile
 * classes, row updates and gradients.
 *
 *   hosted_test CXX TESTS_DIR TEMPLATES_DIR EXAMPLES_DIR [EXAMPLE]
 */
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/params.h"
#include "luattn/compiler.h"
#include "tests/support/drawn.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, DIM = 6, DIM_V = 10, TILE = 16, FREE = 64 };

typedef struct shape {
  int q_len, kv_len;
} shape;

/* All arrays of one call. Gradients have two arrays: one for the CPU path, one for the hosted spec. */
typedef struct problem {
  int q_len, kv_len;
  const luattn_spec_info *info;
  double *q, *k, *v, *dout, *dlse;
  double *o[2], *lse[2], *saved[2], *dq[2], *dk[2], *dv[2], *dinput[2][12], *dscalar[2];
  void *input[12];
  int64_t size[12][4];
  size_t count[12];
} problem;

static uint64_t seed = 88172645463325252u;
static double uniform(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (double)(seed >> 11) / 9007199254740992.0;
}

static double *reals(size_t n, bool random) {
  double *x = calloc(n + 1, sizeof *x);
  for (size_t i = 0; random && i < n; i++) x[i] = 2 * uniform() - 1;
  return x;
}

/* Makes integers that increase along the last axis, like document ids, or reals near 0.5. */
static void *input_data(const luattn_input_info *in, size_t n, int64_t last) {
  if (in->dtype == LUATTN_INPUT_I32) {
    int *x = calloc(n + 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (int)((int64_t)i % last * 5 / last) + (uniform() < 0.02);
    return x;
  }
  if (in->dtype == LUATTN_INPUT_BOOL) {
    unsigned char *x = calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) x[i] = uniform() < 0.7;
    return x;
  }
  if (in->dtype == LUATTN_INPUT_F64) {
    double *x = calloc(n + 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = 0.5 + 0.4 * (2 * uniform() - 1);
    return x;
  }
  float *x = calloc(n + 1, sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = (float)(0.5 + 0.4 * (2 * uniform() - 1));
  return x;
}

static int64_t axis_size(int32_t axis, const problem *p) {
  switch (axis) {
    case LUATTN_AXIS_B:
      return BATCH;
    case LUATTN_AXIS_H:
      return HEADS;
    case LUATTN_AXIS_HKV:
      return HEADS_KV;
    case LUATTN_AXIS_Q:
      return p->q_len;
    case LUATTN_AXIS_KV:
      return p->kv_len;
    default:
      return axis > 0 ? axis : FREE;
  }
}

static void open_problem(problem *p, const luattn_spec_info *info, shape s) {
  const size_t nq = (size_t)(BATCH * HEADS * s.q_len), nk = (size_t)(BATCH * HEADS_KV * s.kv_len);
  *p = (problem){.q_len = s.q_len, .kv_len = s.kv_len, .info = info};
  p->q = reals(nq * DIM, true), p->k = reals(nk * DIM, true), p->v = reals(nk * DIM_V, true);
  p->dout = reals(nq * DIM_V, true), p->dlse = reals(nq, true);
  for (int w = 0; w < 2; w++) {
    p->o[w] = reals(nq * DIM_V, false), p->lse[w] = reals(nq, false), p->saved[w] = reals(nq * info->num_saved, false);
    p->dq[w] = reals(nq * DIM, false), p->dk[w] = reals(nk * DIM, false), p->dv[w] = reals(nk * DIM_V, false);
    p->dscalar[w] = reals(32, false);
  }
  for (size_t i = 0; i < info->num_inputs; i++) {
    const luattn_input_info *in = &info->inputs[i];
    p->count[i] = 1;
    for (uint32_t a = 0; a < in->num_axes; a++) p->count[i] *= (size_t)(p->size[i][a] = axis_size(in->axis[a], p));
    p->input[i] = input_data(in, p->count[i], in->num_axes > 0 ? p->size[i][in->num_axes - 1] : 1);
    for (int w = 0; w < 2; w++) p->dinput[w][i] = reals(p->count[i], false);
  }
}

static void close_problem(problem *p) {
  void *const own[] = {p->q, p->k, p->v, p->dout, p->dlse};
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) free(own[i]);
  for (int w = 0; w < 2; w++) {
    void *const pair[] = {p->o[w], p->lse[w], p->saved[w], p->dq[w], p->dk[w], p->dv[w], p->dscalar[w]};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) free(pair[i]);
    for (size_t i = 0; i < p->info->num_inputs; i++) free(p->dinput[w][i]);
  }
  for (size_t i = 0; i < p->info->num_inputs; i++) free(p->input[i]);
}

/* ---- the CPU path ---- */

typedef struct view {
  DLTensor t;
  int64_t shape[4];
} view;

static DLTensor *tensor(view *v, void *data, DLDataType type, int ndim, const int64_t *shape_of) {
  memset(v, 0, sizeof *v);
  memcpy(v->shape, shape_of, (size_t)ndim * sizeof v->shape[0]);
  v->t = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = type, .shape = v->shape};
  return &v->t;
}

static luattn_status run_cpu(const luattn_spec *spec, problem *p, luattn_error *err) {
  static const DLDataType types[] = {{kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLBfloat, 16, 1},
                                     {kDLFloat, 16, 1}, {kDLInt, 32, 1},   {kDLUInt, 8, 1}};
  const DLDataType f64 = types[0];
  const int64_t sq[] = {BATCH, HEADS, p->q_len, DIM}, sk[] = {BATCH, HEADS_KV, p->kv_len, DIM};
  const int64_t sv[] = {BATCH, HEADS_KV, p->kv_len, DIM_V}, so[] = {BATCH, HEADS, p->q_len, DIM_V};
  const int64_t saved[] = {(int64_t)p->info->num_saved, BATCH, HEADS, p->q_len},
                scalars[] = {(int64_t)p->info->num_scalars};
  view v[16], in[12], grad[12];
  luattn_input inputs[12];
  for (size_t i = 0; i < p->info->num_inputs; i++) {
    const luattn_input_info *info = &p->info->inputs[i];
    const DLDataType type = types[info->dtype];
    inputs[i] = (luattn_input){
        .name = info->name,
        .tensor = tensor(&in[i], p->input[i], type, (int)info->num_axes, p->size[i]),
        .grad = info->grad ? tensor(&grad[i], p->dinput[0][i], f64, (int)info->num_axes, p->size[i]) : NULL};
  }
  luattn_args a = {.struct_size = sizeof a,
                   .q = tensor(&v[0], p->q, f64, 4, sq),
                   .k = tensor(&v[1], p->k, f64, 4, sk),
                   .v = tensor(&v[2], p->v, f64, 4, sv),
                   .o = tensor(&v[3], p->o[0], f64, 4, so),
                   .lse = p->info->has_lse ? tensor(&v[4], p->lse[0], f64, 3, sq) : NULL,
                   .saved = p->info->num_saved > 0 ? tensor(&v[5], p->saved[0], f64, 4, saved) : NULL,
                   .inputs = inputs,
                   .num_inputs = p->info->num_inputs};
  luattn_status status = luattn_cpu_forward(spec, &a, err);
  if (status != LUATTN_OK) return status;
  a.dout = tensor(&v[6], p->dout, f64, 4, so);
  a.dlse = p->info->has_lse ? tensor(&v[7], p->dlse, f64, 3, sq) : NULL;
  a.dq = tensor(&v[8], p->dq[0], f64, 4, sq);
  a.dk = tensor(&v[9], p->dk[0], f64, 4, sk);
  a.dv = tensor(&v[10], p->dv[0], f64, 4, sv);
  a.scalar_grads = p->info->num_scalars > 0 ? tensor(&v[11], p->dscalar[0], f64, 1, scalars) : NULL;
  return luattn_cpu_backward(spec, &a, err);
}

/* ---- the hosted spec ---- */

static LuattnTensor strided(double *data, int heads, int len, int dim) {
  return (LuattnTensor){.data = data, .batch = (long long)heads * len * dim, .head = (long long)len * dim, .seq = dim};
}

static void fill(LuattnParams *out, problem *p) {
  *out = (LuattnParams){.shape.batch = BATCH,
                        .shape.heads = HEADS,
                        .shape.heads_kv = HEADS_KV,
                        .shape.group = HEADS / HEADS_KV,
                        .shape.q_len = p->q_len,
                        .shape.kv_len = p->kv_len,
                        .scale = 1 / sqrt(DIM)};
  out->tensors.q = out->tensors.src_q = strided(p->q, HEADS, p->q_len, DIM);
  out->tensors.k = out->tensors.src_k = strided(p->k, HEADS_KV, p->kv_len, DIM);
  out->tensors.v = out->tensors.src_v = strided(p->v, HEADS_KV, p->kv_len, DIM_V);
  out->tensors.o = strided(p->o[1], HEADS, p->q_len, DIM_V);
  out->tensors.lse = strided(p->lse[1], HEADS, p->q_len, 1);
  out->tensors.saved = p->saved[1];
  out->tensors.dout = strided(p->dout, HEADS, p->q_len, DIM_V);
  out->tensors.dlse = strided(p->dlse, HEADS, p->q_len, 1);
  out->tensors.dq = strided(p->dq[1], HEADS, p->q_len, DIM);
  out->tensors.dk = strided(p->dk[1], HEADS_KV, p->kv_len, DIM);
  out->tensors.dv = strided(p->dv[1], HEADS_KV, p->kv_len, DIM_V);
  out->scratch.dq_acc = reals((size_t)(BATCH * HEADS * p->q_len * DIM), false);
  out->scratch.dk_acc = reals((size_t)(BATCH * HEADS_KV * p->kv_len * DIM), false);
  out->scratch.dv_acc = reals((size_t)(BATCH * HEADS_KV * p->kv_len * DIM_V), false);
  for (size_t i = 0; i < p->info->num_inputs; i++) {
    LuattnInput *in = &out->inputs.input[i];
    long long stride = 1;
    in->data = p->input[i];
    in->grad = p->info->inputs[i].grad ? p->dinput[1][i] : NULL;
    for (uint32_t a = p->info->inputs[i].num_axes; a-- > 0;) {
      in->size[a] = (int)p->size[i][a];
      in->stride[a] = stride;
      stride *= in->size[a];
    }
  }
  for (size_t i = 0; i < p->info->num_scalars; i++) out->inputs.scalar[i] = p->info->scalar_defaults[i];
  out->inputs.scalar_grad = p->dscalar[1];
}

/* Forward's spec has the hooks that merge parts of a row. */
static bool write_stage(const luattn_spec *spec, luattn_pass pass, const char *stage, const char *path) {
  if (pass == LUATTN_FORWARD && strcmp(stage, "spec") == 0) stage = "merge_spec";
  const luattn_target t = {.struct_size = sizeof t,
                           .pass = pass,
                           .dtype = LUATTN_F64,
                           .head_dim = DIM,
                           .head_dim_v = DIM_V,
                           .arch = 80,
                           .tile_m = TILE,
                           .tile_n = TILE};
  char *text;
  luattn_error err;
  if (luattn_emit(spec, &t, stage, &text, &err) != LUATTN_OK) return printf("%s\n", err.message), false;
  FILE *f = fopen(path, "w");
  const bool ok = f != NULL && fputs(text, f) >= 0;
  if (f != NULL) fclose(f);
  luattn_text_free(text);
  return ok;
}

/* Emits the spec for both passes and compiles each into a shared object in `dir`. */
static bool host(const luattn_spec *spec, const char *dir, char **argv, void *library[2]) {
  static const char *const name[2] = {"forward", "backward"};
  char path[512], command[4096];
  size_t length = 0;
  for (int pass = 0; pass < 2; pass++) {
    snprintf(path, sizeof path, "%s/%s", dir, name[pass]);
    if (mkdir(path, 0700) != 0) return false;
    for (int i = 0; i < 2; i++) {
      const char *stage = i == 0 ? "spec" : "config";
      snprintf(path, sizeof path, "%s/%s/%s.cuh", dir, name[pass], stage);
      if (!write_stage(spec, pass == 0 ? LUATTN_FORWARD : LUATTN_BACKWARD, stage, path)) return false;
    }
    length += (size_t)snprintf(command + length, sizeof command - length,
                               "%s%s -std=c++20 -O1 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off "
                               "%s -I%s/%s -I%s -I%s/.. -o %s/%s.so %s/hosted.cpp",
                               pass == 0 ? "" : " && ", argv[1], pass == 0 ? "-DHOSTED_FORWARD" : "", dir, name[pass],
                               argv[3], argv[3], dir, name[pass], argv[2]);
  }
  if (system(command) != 0) return false;
  for (int pass = 0; pass < 2; pass++) {
    snprintf(path, sizeof path, "%s/%s.so", dir, name[pass]);
    library[pass] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library[pass] == NULL) return printf("  %s\n", dlerror()), false;
  }
  return true;
}

/* Returns the largest difference relative to the largest value. Infinities and NaNs must agree exactly. */
static double difference(const double *x, const double *y, size_t n) {
  double most = 1e-3, error = 0;
  for (size_t i = 0; i < n; i++)
    if (fabs(x[i]) < HUGE_VAL && fabs(x[i]) > most) most = fabs(x[i]);
  for (size_t i = 0; i < n; i++) {
    if (x[i] == y[i]) continue;
    const double d = fabs(x[i] - y[i]);
    if (!(d < HUGE_VAL)) return HUGE_VAL;
    if (d > error) error = d;
  }
  return error / most;
}

static bool compare(problem *p) {
  const size_t nq = (size_t)(BATCH * HEADS * p->q_len), nk = (size_t)(BATCH * HEADS_KV * p->kv_len);
  struct {
    const char *name;
    double *const *x;
    size_t n;
  } arrays[20] = {{"o", p->o, nq * DIM_V},
                  {"lse", p->lse, p->info->has_lse ? nq : 0},
                  {"saved", p->saved, nq * p->info->num_saved},
                  {"dq", p->dq, nq * DIM},
                  {"dk", p->dk, nk * DIM},
                  {"dv", p->dv, nk * DIM_V},
                  {"d_scalars", p->dscalar, p->info->num_scalars}};
  bool ok = true;
  for (int i = 0; i < 7; i++) {
    const double e = difference(arrays[i].x[0], arrays[i].x[1], arrays[i].n);
    if (!(e < 1e-10)) ok = (printf("  %s: differs by %.3g\n", arrays[i].name, e), false);
  }
  for (size_t i = 0; i < p->info->num_inputs; i++) {
    const double e = difference(p->dinput[0][i], p->dinput[1][i], p->count[i]);
    if (p->info->inputs[i].grad && !(e < 1e-10))
      ok = (printf("  d_%s: differs by %.3g\n", p->info->inputs[i].name, e), false);
  }
  return ok;
}

static void *function(void *library, const char *name) {
  void *f = dlsym(library, name);
  if (f == NULL) printf("  no function %s\n", name);
  return f;
}

/* Runs one pass. Returns false if a tile has the wrong class. */
static bool run_pass(void *library, LuattnParams *params) {
  int (*run)(const LuattnParams *);
  void (*stats)(LuattnParams *);
  void *symbols[] = {function(library, "hosted_run"), function(library, "hosted_stats")};
  if (symbols[0] == NULL || symbols[1] == NULL) return false;
  memcpy(&run, &symbols[0], sizeof run);
  memcpy(&stats, &symbols[1], sizeof stats);
  stats(params);
  const int wrong = run(params);
  if (wrong > 0) printf("  %d elements lie in tiles of the wrong class\n", wrong);
  for (int i = 0; i < LUATTN_MAX_STATS; i++) {
    free(params->scratch.stats[i]);
    params->scratch.stats[i] = NULL;
  }
  return wrong == 0;
}

static bool run_shape(const luattn_spec *spec, const luattn_spec_info *info, void *const library[2], shape s) {
  problem p;
  LuattnCallParams params = {.bits.rows = NULL}; /* masks are not evaluated ahead */
  luattn_error err;
  open_problem(&p, info, s);
  fill(&params.dense, &p);
  bool ok = run_cpu(spec, &p, &err) == LUATTN_OK;
  if (!ok) printf("  cpu: %s\n", err.message);
  for (int pass = 0; pass < 2; pass++) ok = run_pass(library[pass], &params.dense) && ok;
  ok = compare(&p) && ok;
  free(params.dense.scratch.dq_acc), free(params.dense.scratch.dk_acc), free(params.dense.scratch.dv_acc);
  close_problem(&p);
  return ok;
}

static bool run_example(const char *path, char **argv) {
  static const shape shapes[] = {{45, 45}, {37, 70}, {50, 21}, {1, 5}};
  char dir[] = "/tmp/luattn_hosted_XXXXXX", command[128];
  luattn_spec *spec;
  luattn_spec_info info;
  luattn_error err;
  if (luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK)
    return printf("FAILED %s\n  %s\n", path, err.message), false;
  luattn_spec_get_info(spec, &info);
  void *library[2] = {NULL, NULL};
  bool ok = mkdtemp(dir) != NULL && host(spec, dir, argv, library);
  for (size_t i = 0; ok && i < sizeof shapes / sizeof shapes[0]; i++) {
    ok = run_shape(spec, &info, library, shapes[i]);
    if (!ok) printf("  at q_len %d, kv_len %d\n", shapes[i].q_len, shapes[i].kv_len);
  }
  printf("%s %s\n", ok ? "ok" : "FAILED", path);
  for (int pass = 0; pass < 2; pass++)
    if (library[pass] != NULL) dlclose(library[pass]);
  snprintf(command, sizeof command, "rm -r %s", dir);
  if (system(command) != 0) printf("  could not remove %s\n", dir);
  luattn_spec_free(spec);
  return ok;
}

int main(int argc, char **argv) {
  int num = 0, run = 0, failed = 0;
  if (argc < 5) return fprintf(stderr, "usage: hosted_test CXX TESTS_DIR TEMPLATES_DIR EXAMPLES_DIR [EXAMPLE]\n"), 2;
  DIR *d = opendir(argv[4]);
  if (d == NULL) return fprintf(stderr, "no folder %s\n", argv[4]), 1;
  for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    char path[1024];
    const size_t n = strlen(e->d_name);
    if (n < 5 || strcmp(e->d_name + n - 4, ".lua") != 0 || (argc > 5 && strcmp(argv[5], e->d_name) != 0)) continue;
    snprintf(path, sizeof path, "%s/%s", argv[4], e->d_name);
    num++;
    if (argc == 5 && !drawn(e->d_name, 0, 5)) continue;
    failed += !run_example(path, argv);
    run++;
    fflush(stdout);
  }
  closedir(d);
  printf("%d of %d examples, %d failed\n", run, num, failed);
  return failed == 0 && num > 0 ? 0 : 1;
}
