/* grid_jvp_test.c: forward and backward with tangents over grids of several axes, by kernels that the PTX machine executes,
 * against the CPU in double: masks and scores by displacement, dilated boxes, mods, three axes, rows given and computed.
 *
 * grid_jvp_test DTYPE [CELL]: f64, f32, f16, bf16
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, DIM = 24, DIM_V = 16, MOST_AXES = 3 };

/* along: q, k, v, o for dout, l for dlse, t for the input `offsets_of`, c for `cap`. */
typedef struct cell {
  const char *fields;
  int axes;
  int64_t q[MOST_AXES], kv[MOST_AXES];
  int64_t table; /* numbers of the input of that name, which learns; 0: there is none */
  const char *along;
} cell;
static const cell cells[] = {
    {"grid = {'y', 'x'}, inputs = { offsets_of = { axes = {117}, grad = true } }, score_mod = function(s, b, h, q, k) "
     "return s + offsets_of[(k.y - q.y + 4) * 13 + k.x - q.x + 6] end, block_mask = function(b, h, q, k) return "
     "abs(k.y - "
     "q.y) <= 4 and abs(k.x - q.x) <= 6 end",
     2,
     {7, 11},
     {7, 11},
     117,
     "qkvolt"},
    {"grid = {'y', 'x'}, scalars = { cap = 3 }, score_mod = softcap('cap'), query_mod = function(x, b, h, pos, d) "
     "local "
     "a = 0.2 * pos.y + 0.05 * cap * pos.x return x * cos(a) + where(eq(d % 2, 0), -1, 1) * x[d ~ 1] * sin(a) end, "
     "value_mod = function(x) return x * sigmoid(x) end, block_mask = function(b, h, q, k) return k.y <= q.y and "
     "k.x < kv_len.x - h end",
     2,
     {5, 9},
     {6, 13},
     0,
     "qkvoc"},
    {"grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {3, 3}, dilation = {1, 2} }",
     2,
     {6, 10},
     {6, 10},
     0,
     "kv"},
    {"grid = {'t', 'y', 'x'}, online_func = sigmoid_attention, block_mask = neighborhood { kernel_size = {2, 3, 5}, "
     "is_causal = {true, false, false} }",
     3,
     {3, 5, 7},
     {3, 5, 7},
     0,
     "qo"}};
enum { CELLS = sizeof cells / sizeof *cells };

/* What backward is along, then their tangents, then what is written. */
enum { Q, K, V, DO, DLSE, TABLE, TANGENT, O = 2 * TANGENT, LSE, O_T, LSE_T, DQ, DK, DV, TABLE_GRAD, SCALARS, ARRAYS };
static const char *const name_of[ARRAYS] = {
    [O] = "o",   [LSE] = "lse", [O_T] = "tangent of o",      [LSE_T] = "tangent of lse", [DQ] = "dq",
    [DK] = "dk", [DV] = "dv",   [TABLE_GRAD] = "offsets_of", [SCALARS] = "scalars"};

typedef struct call {
  const cell *x;
  array of[ARRAYS];
  int64_t shape[ARRAYS][MOST_AXES + 3];
  int ndim[ARRAYS]; /* 0: as in `of` */
} call;

static bool has(const cell *x, char what) { return strchr(x->along, what) != NULL; }

static int64_t places(const cell *x, bool of_keys) {
  int64_t n = 1;
  for (int a = 0; a < x->axes; ++a) n *= of_keys ? x->kv[a] : x->q[a];
  return n;
}

/* Rows of all places, or where dim is 0 a number for each; their axes are those of the grid. */
static void open_rows(call *c, int at, kind k, bool of_keys, int dim, double size) {
  const cell *x = c->x;
  array *a = &c->of[at];
  int64_t *shape = c->shape[at];
  int n = 2;
  make(a, k, 4, (int64_t[]){BATCH, of_keys ? HEADS_KV : HEADS, places(x, of_keys), dim > 0 ? dim : 1});
  shape[0] = BATCH, shape[1] = of_keys ? HEADS_KV : HEADS;
  for (int axis = 0; axis < x->axes; ++axis) shape[n++] = of_keys ? x->kv[axis] : x->q[axis];
  if (dim > 0) shape[n++] = dim;
  c->ndim[at] = n;
  for (size_t i = 0; i < a->count && size > 0; ++i) put(k, a->host, i, size * drawn());
  if (size > 0)
    send(a);
  else
    fill(a, NAN);
}

static void open_line(call *c, int at, kind k, int64_t count, double size) {
  array *a = &c->of[at];
  make(a, k, 1, &count);
  for (size_t i = 0; i < a->count; ++i) put(k, a->host, i, size * drawn());
  send(a);
}

static void call_open(call *c, kind k, const cell *x) {
  const kind real = k == F64 ? F64 : F32;
  memset(c, 0, sizeof *c);
  c->x = x;
  for (int i = 0; i < 2; ++i) {
    open_rows(c, i * TANGENT + Q, k, false, DIM, i == 0 ? 2 : 1), open_rows(c, i * TANGENT + K, k, true, DIM, 1);
    open_rows(c, i * TANGENT + V, k, true, DIM_V, 1), open_rows(c, i * TANGENT + DO, k, false, DIM_V, 1);
    open_rows(c, i * TANGENT + DLSE, real, false, 0, 1);
    open_line(c, i * TANGENT + TABLE, F32, x->table + 1, 1);
    c->of[i * TANGENT + TABLE].shape[0] = x->table;
    open_rows(c, O + 2 * i, k, false, DIM_V, 0), open_rows(c, LSE + 2 * i, real, false, 0, 0);
  }
  open_rows(c, DQ, k, false, DIM, 0), open_rows(c, DK, k, true, DIM, 0), open_rows(c, DV, k, true, DIM_V, 0);
  open_line(c, TABLE_GRAD, real, x->table + 1, 0), open_line(c, SCALARS, real, 1, 0);
  c->of[TABLE_GRAD].shape[0] = x->table;
}

/* On the device, or all of it in float64 on the host. */
typedef struct run {
  DLTensor of[ARRAYS];
  double *copy[ARRAYS];
  luattn_input input, along;
  luattn_scalar cap;
  luattn_tangents tangents;
  luattn_args args;
} run;

static void run_open(run *r, const call *c, bool on_host) {
  memset(r, 0, sizeof *r);
  for (int i = 0; i < ARRAYS; ++i) {
    const array *a = &c->of[i];
    r->of[i] = a->t;
    if (c->ndim[i] > 0) r->of[i].ndim = c->ndim[i], r->of[i].shape = (int64_t *)(uintptr_t)c->shape[i];
    if (!on_host) continue;
    r->of[i].device = (DLDevice){kDLCPU, 0};
    r->of[i].data = a->host;
    if (i < O && i % TANGENT == TABLE) continue; /* of the type that the spec says */
    r->copy[i] = calloc(a->count + 1, sizeof *r->copy[i]);
    for (size_t at = 0; at < a->count && i < O; ++at) r->copy[i][at] = get(a->k, a->host, at);
    r->of[i].data = r->copy[i], r->of[i].dtype = (DLDataType){kDLFloat, 64, 1};
  }
}

/* Forward: o, lse and their tangents. Backward: tangents of gradients; with rows, o and lse and theirs are given. */
static void take_args(run *r, const call *c, const luattn_spec *spec, luattn_pass pass, bool rows) {
  const cell *x = c->x;
  const bool backward = pass == LUATTN_BACKWARD, table = x->table > 0;
  DLTensor *t = r->of, *d = r->of + TANGENT;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  const bool given = !backward || rows, lse = info.has_lse;
  r->input = (luattn_input){"offsets_of", &t[TABLE], NULL};
  r->along = (luattn_input){"offsets_of", has(x, 't') ? &d[TABLE] : NULL, backward ? &t[TABLE_GRAD] : NULL};
  r->cap = (luattn_scalar){"cap", 0.7};
  r->tangents = (luattn_tangents){.struct_size = sizeof r->tangents,
                                  .q = has(x, 'q') ? &d[Q] : NULL,
                                  .k = has(x, 'k') ? &d[K] : NULL,
                                  .v = has(x, 'v') ? &d[V] : NULL,
                                  .o = given ? &t[O_T] : NULL,
                                  .lse = given && lse ? &t[LSE_T] : NULL,
                                  .inputs = &r->along,
                                  .num_inputs = table && (backward || has(x, 't')),
                                  .scalars = &r->cap,
                                  .num_scalars = has(x, 'c')};
  r->args = (luattn_args){.struct_size = sizeof r->args,
                          .q = &t[Q],
                          .k = &t[K],
                          .v = &t[V],
                          .o = given ? &t[O] : NULL,
                          .lse = given && lse ? &t[LSE] : NULL,
                          .inputs = &r->input,
                          .num_inputs = table,
                          .tangents = &r->tangents};
  if (!backward) return;
  r->args.dout = &t[DO], r->args.dlse = lse ? &t[DLSE] : NULL;
  r->tangents.dout = has(x, 'o') ? &d[DO] : NULL;
  r->tangents.dlse = has(x, 'l') ? &d[DLSE] : NULL;
  r->tangents.dq = &t[DQ], r->tangents.dk = &t[DK], r->tangents.dv = &t[DV];
  if (has(x, 'c')) r->tangents.scalar_grads = &t[SCALARS];
}

static void run_on_device(luattn_engine *engine, const luattn_spec *spec, call *c, run *r, luattn_pass pass) {
  const bool forward = pass == LUATTN_FORWARD;
  array workspace;
  size_t size;
  need((forward ? luattn_forward_jvp_workspace_size : luattn_backward_jvp_workspace_size)(engine, spec, &r->args, &size,
                                                                                          &err) == LUATTN_OK,
       "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  r->args.workspace = size > 0 ? workspace.device : NULL, r->args.workspace_size = size;
  need((forward ? luattn_forward_jvp : luattn_backward_jvp)(engine, spec, &r->args, NULL, &err) == LUATTN_OK,
       forward ? "forward_jvp" : "backward_jvp");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  for (int i = O; i < ARRAYS; ++i) fetch(&c->of[i]);
}

static bool compare(const call *c, kind k, const run *host, int first, int last, const char *what) {
  bool ok = true;
  for (int i = first; i <= last; ++i) {
    const array *a = &c->of[i];
    if ((i == LSE || i == LSE_T) && host->args.lse == NULL) continue;
    if ((i == TABLE_GRAD && c->x->table == 0) || (i == SCALARS && !has(c->x, 'c'))) continue;
    double worst = 0, most = 1;
    for (size_t at = 0; at < a->count; ++at)
      if (isfinite(host->copy[i][at])) most = fmax(most, fabs(host->copy[i][at]));
    for (size_t at = 0; at < a->count; ++at) {
      const double got = get(a->k, a->host, at), want = host->copy[i][at], off = got == want ? 0 : fabs(got - want);
      worst = worse(worst, off);
    }
    const double allowed = k == F64 ? 1e-12 : k == F32 ? 2e-5 : 4 * kind_unit[k];
    if (worst <= allowed * most) continue;
    fprintf(stderr, "FAILED: %s, %s, along %s: %s is off by %g of %g, allowed %g of it\n", what, c->x->fields,
            c->x->along, name_of[i], worst, most, allowed);
    ok = false;
  }
  return ok;
}

static bool check(luattn_engine *engine, luattn_engine *cpu, kind k, const cell *x) {
  char text[900];
  luattn_spec *spec;
  call c;
  run device, host;
  snprintf(text, sizeof text, "return attention { %s }", x->fields);
  need(luattn_spec_load_text("jvp", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  call_open(&c, k, x);
  run_open(&host, &c, true), run_open(&device, &c, false);
  take_args(&host, &c, spec, LUATTN_FORWARD, false), take_args(&device, &c, spec, LUATTN_FORWARD, false);
  need(luattn_forward_jvp(cpu, spec, &host.args, NULL, &err) == LUATTN_OK, "forward on the CPU");
  run_on_device(engine, spec, &c, &device, LUATTN_FORWARD);
  bool ok = compare(&c, k, &host, O, LSE_T, "forward");
  const bool has_lse = host.args.lse != NULL;
  take_args(&host, &c, spec, LUATTN_BACKWARD, false);
  need(luattn_cpu_backward_jvp(spec, &host.args, &err) == LUATTN_OK, "backward on the CPU");
  for (int rows = 0; rows < 1 + has_lse; ++rows) {
    take_args(&device, &c, spec, LUATTN_BACKWARD, rows);
    run_on_device(engine, spec, &c, &device, LUATTN_BACKWARD);
    ok &= compare(&c, k, &host, DQ, SCALARS, rows ? "backward, rows given" : "backward");
  }
  for (int i = 0; i < ARRAYS; ++i) free(host.copy[i]), drop(&c.of[i]);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  need(luattn_engine_forget(cpu, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

int main(int argc, char **argv) {
  int k = 0;
  while (k < 4 && (argc < 2 || strcmp(argv[1], kind_name[k]) != 0)) ++k;
  if (k == 4) return 2;
  const luattn_engine_options of_cpu = {.struct_size = sizeof of_cpu, .device = LUATTN_CPU};
  luattn_engine *engine, *cpu;
  need(luattn_engine_open(NULL, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_open(&of_cpu, &cpu, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  bool ok = true;
  for (int i = 0; i < CELLS; ++i)
    if (argc < 3 || atoi(argv[2]) == i) ok &= check(engine, cpu, (kind)k, &cells[i]);
  luattn_engine_close(engine), luattn_engine_close(cpu);
  return !ok;
}
