/* state_merge_test.c: luattn_spec_parts and merges by state: keys in one part to sixteen, each attended on its own by
 * the spec of parts, dense and packed, where a part's o and state are NaN in rows of which it keeps nothing; the merge,
 * and backward of each part with what it gives, against the whole in double on the CPU. Merges of merges. Then what is
 * refused.
 *
 * state_merge_test cuda|cpu TYPE [few]: few: a spec with a sink, one without a running maximum, one without an
 * lse */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/merge.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum {
  BATCH = 2,
  HEADS = 4,
  HEADS_KV = 2,
  QUERIES = 21,
  KEYS = 83,
  DIM = 16,
  ROWS = BATCH * HEADS * QUERIES,
  MOST_SAVED = 16
};

typedef struct cell {
  const char *name, *text;
  bool masks; /* some rows keep nothing of a part */
  bool has_sinks, draws;
} cell;
#define SINKS "inputs = { sinks = { axes = {'h'}, dtype = 'f32', grad = true } }, "
static const cell cells[] = {
    {"softmax", "return attention { name = 'softmax', block_mask = causal() }", true, false, false},
    {"sink",
     "return attention { name = 'sink', " SINKS
     "online_func = attention_sink('sinks'), block_mask = causal_bottom_right() }",
     true, true, false},
    {"one", "return attention { name = 'one', online_func = softmax_one, score_mod = softcap(8) }", false, false,
     false},
    {"by_entry",
     "return attention { name = 'by_entry', scalars = { shift = 0.5 }, online_func = attention_sink(function(b, h) "
     "return shift - 0.3 * h + b "
     "end), block_mask = sliding_window(30, 4) }",
     true, false, false},
    {"retention",
     "return attention { name = 'retention', online_func = online_retention, block_mask = causal(), score_mod = "
     "function(s, b, h, q, kv) return "
     "s * exp(-0.02 * (q - kv)) end }",
     true, false, false},
    {"sigmoid",
     "return attention { name = 'sigmoid', online_func = sigmoid_attention, block_mask = causal_bottom_right() }", true,
     false, false},
    {"dropped", "return attention { name = 'dropped', online_func = dropout(0.25, softmax_one) }", false, false, true},
    /* The epilogue asks something of the head, and has a factor of the row. */
    {"own",
     "return attention { name = 'own', online_func = { online_rowscales = { n = 0 }, final_rowscales = { 'n' },"
     " online_fwd = function(s, r) local e = exp(0.2 * s) return e, { n = r.n + reduce_sum(e * e) } end,"
     " online_fwd_epilogue = function(o, r, b, h, q) return where(h < 2, o / sqrt(r.n + 1 + q), 0.5 * o / sqrt(r.n)), "
     "{ n = r.n } end } }",
     false, false, false}};

static luattn_engine *engine, *reference; /* the latter: in double on the CPU */
static luattn_driver *device;
static kind type, real;
static int failures;
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 77, .offset = 3};

/* A call's tensors. Rows of a part are the first of `keys`, from `first` on. */
typedef struct call {
  array q, k, v, o, lse, saved, dout, dlse, dq, dk, dv, sinks, d_sinks, workspace;
  int first, keys;
} call;

/* Values of the whole, which every call takes its own of. */
static double *values[5]; /* q, k, v, dout, sinks */

static array *const *all_of(call *c, array *to[13]) {
  array *const all[13] = {&c->q,    &c->k,  &c->v,  &c->o,  &c->lse,   &c->saved,  &c->dout,
                          &c->dlse, &c->dq, &c->dk, &c->dv, &c->sinks, &c->d_sinks};
  memcpy(to, all, sizeof all);
  return to;
}

static void rounded(int which, size_t count) {
  values[which] = malloc(count * sizeof(double));
  array a;
  make(&a, type, 1, (int64_t[]){(int64_t)count});
  for (size_t i = 0; i < count; i++) put(type, a.host, i, drawn()), values[which][i] = get(type, a.host, i);
  drop(&a);
}

/* `k`: the storage type of the call. */
static void open_call(call *c, kind k, int num_saved, int first, int keys) {
  const kind r = k == F64 ? F64 : F32;
  *c = (call){.first = first, .keys = keys};
  const int64_t q[4] = {BATCH, HEADS, QUERIES, DIM}, kv[4] = {BATCH, HEADS_KV, keys, DIM},
                saved[4] = {num_saved, BATCH, HEADS, QUERIES};
  array *const of_q[] = {&c->q, &c->o, &c->dout, &c->dq}, *const of_k[] = {&c->k, &c->v, &c->dk, &c->dv};
  for (int i = 0; i < 4; i++) make(of_q[i], k, 4, q), make(of_k[i], k, 4, kv);
  make(&c->lse, r, 3, q), make(&c->dlse, r, 3, q), make(&c->saved, r, 4, saved);
  make(&c->sinks, F32, 1, (int64_t[]){HEADS}), make(&c->d_sinks, r, 1, (int64_t[]){HEADS});
  for (size_t i = 0; i < c->q.count; i++) put(k, c->q.host, i, values[0][i]), put(k, c->dout.host, i, values[3][i]);
  for (int64_t head = 0; head < BATCH * HEADS_KV; head++)
    for (int64_t i = 0; i < (int64_t)keys * DIM; i++) {
      const int64_t from = (head * KEYS + first) * DIM + i, to = head * keys * DIM + i;
      put(k, c->k.host, (size_t)to, 3 * values[1][from]), put(k, c->v.host, (size_t)to, values[2][from]);
    }
  for (int h = 0; h < HEADS; h++) put(F32, c->sinks.host, (size_t)h, values[4][h]);
  array *all[13];
  all_of(c, all);
  for (int i = 0; i < 13; i++) send(all[i]);
}

static void close_call(call *c) {
  array *all[13];
  all_of(c, all);
  for (int i = 0; i < 13; i++) drop(all[i]);
}

static void compute(luattn_engine *e, const luattn_spec *spec, const cell *x, luattn_pass pass, call *c, bool decode) {
  luattn_batch *batch = NULL;
  const luattn_batch_options options = {
      .struct_size = sizeof options, .kv_offset = c->first, .q_len = QUERIES, .kv_len = KEYS};
  const luattn_input input = {.name = "sinks", .tensor = &c->sinks.t, .grad = &c->d_sinks.t};
  luattn_args a = {.struct_size = sizeof a,
                   .q = &c->q.t,
                   .k = &c->k.t,
                   .v = &c->v.t,
                   .o = &c->o.t,
                   .lse = &c->lse.t,
                   .saved = &c->saved.t,
                   .dout = &c->dout.t,
                   .dq = &c->dq.t,
                   .dk = &c->dk.t,
                   .dv = &c->dv.t,
                   .inputs = &input,
                   .num_inputs = x->has_sinks,
                   .random = &numbers,
                   .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  if (!info.has_lse) a.lse = NULL;
  if (info.num_saved == 0) a.saved = NULL;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  if (c->keys < KEYS) a.batch = batch;
  size_t size;
  need(luattn_engine_workspace_size(e, spec, pass, &a, &size, &err) == LUATTN_OK, "workspace");
  make(&c->workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  a.workspace = size > 0 ? c->workspace.device : NULL, a.workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(e, spec, &a, NULL, &err) == LUATTN_OK, x->name);
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&c->workspace);
  luattn_batch_close(batch);
}

static double largest(const array *a) {
  double most = 0;
  for (size_t i = 0; i < a->count; i++) most = fmax(most, fabs(get(a->k, a->host, i)));
  return most;
}

static void near(const char *what, const cell *x, int parts, size_t at, double got, double want, double allowed) {
  if (got == want || fabs(got - want) <= allowed) return;
  if (failures++ < 12)
    fprintf(stderr, "FAILED: %s, %d parts: %s[%zu] is %.12g, expected %.12g, within %.3g\n", x->name, parts, what, at,
            got, want, allowed);
}

/* Of numbers up to `most`: a kernel in half precision rounds P, and o once for a part and once more for the whole. */
static double slack(double most) {
  return (type == F64 ? 2e-13 : type == F32 ? 1e-5 : 8 * kind_unit[type]) * fmax(most, 1);
}

static void compare(const char *what, const cell *x, int parts, const array *got, const array *want) {
  const double allowed = slack(largest(want));
  for (size_t i = 0; i < want->count; i++)
    near(what, x, parts, i, get(got->k, got->host, i), get(want->k, want->host, i), allowed);
}

static int end_of(int part, int parts) {
  return parts == 1 ? KEYS : part == parts - 1 ? KEYS : (part + 1) * (KEYS / parts);
}

/* NaN where a part keeps nothing of a row. */
static int poison(call *c) {
  int rows = 0;
  fetch(&c->o), fetch(&c->lse), fetch(&c->saved);
  for (size_t row = 0; row < ROWS; row++) {
    if (get(c->lse.k, c->lse.host, row) != -INFINITY) continue;
    rows++;
    for (size_t d = 0; d < DIM; d++) put(c->o.k, c->o.host, row * DIM + d, NAN);
    for (size_t i = 0; i < c->saved.count / ROWS; i++) put(c->saved.k, c->saved.host, i * ROWS + row, NAN);
  }
  send(&c->o), send(&c->saved);
  return rows;
}

typedef struct merged {
  array o, lse, state, saved;
} merged;

static void open_merged(merged *m, int num_rows, int num_saved) {
  const int64_t q[4] = {BATCH, HEADS, QUERIES, DIM};
  make(&m->o, type, 4, q), make(&m->lse, real, 3, q);
  make(&m->state, real, 4, (int64_t[]){num_rows, BATCH, HEADS, QUERIES}),
      make(&m->saved, real, 4, (int64_t[]){num_saved, BATCH, HEADS, QUERIES});
  fill(&m->o, NAN), fill(&m->lse, NAN), fill(&m->state, NAN), fill(&m->saved, NAN);
}
static void close_merged(merged *m) { drop(&m->o), drop(&m->lse), drop(&m->state), drop(&m->saved); }

/* Merges o, lse and state of `count` parts. */
static void merge(const luattn_spec *spec, luattn_part *parts, const DLTensor *const *states, int count, merged *out) {
  const luattn_merge_args a = {.struct_size = sizeof a,
                               .parts = parts,
                               .num_parts = (size_t)count,
                               .o = &out->o.t,
                               .lse = &out->lse.t,
                               .spec = spec,
                               .states = states,
                               .state = &out->state.t,
                               .saved = &out->saved.t};
  need(luattn_merge(engine, &a, NULL, &err) == LUATTN_OK, "merge");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&out->o), fetch(&out->lse), fetch(&out->state), fetch(&out->saved);
}

/* The first part, and then the merge of all others: as all at once. */
static void merge_in_turn(const luattn_spec *spec, const cell *x, luattn_part *parts, const DLTensor *const *states,
                          int count, int num_rows, int num_saved, const merged *want) {
  merged rest, all;
  if (type != F64 || count < 3) return; /* o is rounded twice, and exactly here */
  open_merged(&rest, num_rows, num_saved), open_merged(&all, num_rows, num_saved);
  merge(spec, parts + 1, states + 1, count - 1, &rest);
  luattn_part two[2] = {parts[0], {.o = &rest.o.t, .lse = &rest.lse.t}};
  merge(spec, two, (const DLTensor *[]){states[0], &rest.state.t}, 2, &all);
  compare("o in turn", x, count, &all.o, &want->o);
  close_merged(&rest), close_merged(&all);
}

/* What a gradient may be off: with that of a kernel that has all keys, which in half precision starts from a rounded
 * o. */
static double slack_of(const array *gradient, const array *want) {
  double most = 0;
  for (size_t i = 0; i < want->count; i++)
    most = worse(most, fabs(get(gradient->k, gradient->host, i) - get(want->k, want->host, i)));
  return slack(largest(want)) + 2 * most;
}

/* Backward of each part with o, lse and saved of the merge. at_once: of all keys, by the same engine. */
static void check_backward(const luattn_spec *spec, const cell *x, call *parts, int count, merged *m, call *whole,
                           call *at_once) {
  double *dq = calloc(ROWS * DIM, sizeof *dq);
  const double of_dq = slack_of(&at_once->dq, &whole->dq), of_dk = slack_of(&at_once->dk, &whole->dk),
               of_dv = slack_of(&at_once->dv, &whole->dv);
  for (int i = 0; i < count; i++) {
    call *c = &parts[i];
    const array o = c->o, lse = c->lse, saved = c->saved;
    c->o = m->o, c->lse = m->lse, c->saved = m->saved;
    compute(engine, spec, x, LUATTN_BACKWARD, c, false);
    c->o = o, c->lse = lse, c->saved = saved;
    fetch(&c->dq), fetch(&c->dk), fetch(&c->dv), fetch(&c->d_sinks);
    for (size_t j = 0; j < ROWS * DIM; j++) dq[j] += get(type, c->dq.host, j);
    for (size_t head = 0; head < BATCH * HEADS_KV; head++)
      for (size_t j = 0; j < (size_t)c->keys * DIM; j++) {
        const size_t here = head * (size_t)c->keys * DIM + j, there = (head * KEYS + (size_t)c->first) * DIM + j;
        near("dk", x, count, there, get(type, c->dk.host, here), get(F64, whole->dk.host, there), of_dk);
        near("dv", x, count, there, get(type, c->dv.host, here), get(F64, whole->dv.host, there), of_dv);
      }
    if (x->has_sinks)
      for (size_t h = 0; h < HEADS; h++)
        near("d_sinks", x, count, h, get(real, c->d_sinks.host, h), get(F64, whole->d_sinks.host, h),
             slack_of(&at_once->d_sinks, &whole->d_sinks));
  }
  for (size_t j = 0; j < ROWS * DIM; j++) near("dq", x, count, j, dq[j], get(F64, whole->dq.host, j), of_dq * count);
  free(dq);
}

/* Attends over `count` parts, and compares with the whole. Returns how many rows were empty in some part. */
static int check_parts(const luattn_spec *spec, const luattn_spec *of_parts, const cell *x, int count, bool decode,
                       call *whole, call *at_once) {
  static call parts[LUATTN_MERGE_MAX];
  luattn_part given[LUATTN_MERGE_MAX];
  const DLTensor *states[LUATTN_MERGE_MAX];
  luattn_spec_info info, own;
  merged m;
  int empty = 0;
  luattn_spec_get_info(of_parts, &info), luattn_spec_get_info(spec, &own);
  for (int i = 0, first = 0; i < count; first = end_of(i++, count)) {
    open_call(&parts[i], type, (int)info.num_saved, first, end_of(i, count) - first);
    compute(engine, of_parts, x, LUATTN_FORWARD, &parts[i], decode);
    empty += poison(&parts[i]);
    given[i] = (luattn_part){.o = &parts[i].o.t, .lse = &parts[i].lse.t};
    states[i] = &parts[i].saved.t;
  }
  open_merged(&m, (int)info.num_saved, (int)own.num_saved);
  merge(of_parts, given, states, count, &m);
  compare("o", x, count, &m.o, &whole->o);
  if (own.has_lse) compare("lse", x, count, &m.lse, &whole->lse);
  if (own.num_saved > 0 && !x->masks) compare("saved", x, count, &m.saved, &whole->saved);
  merge_in_turn(of_parts, x, given, states, count, (int)info.num_saved, (int)own.num_saved, &m);
  if (!decode) check_backward(spec, x, parts, count, &m, whole, at_once);
  for (int i = 0; i < count; i++) close_call(&parts[i]);
  close_merged(&m);
  return empty;
}

static luattn_spec *load(const char *text, luattn_spec **parts) {
  luattn_spec *spec;
  need(luattn_spec_load_text("test.lua", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "load");
  need(luattn_spec_parts(spec, parts, &err) == LUATTN_OK, "parts");
  return spec;
}

static void unload(luattn_spec *spec, luattn_spec *parts) {
  luattn_engine *const engines[] = {engine, reference};
  for (int i = 0; i < 2; i++)
    need(luattn_engine_forget(engines[i], parts, &err) == LUATTN_OK &&
             luattn_engine_forget(engines[i], spec, &err) == LUATTN_OK,
         "forget");
  luattn_spec_free(parts), luattn_spec_free(spec);
}

static void check(const cell *x, bool few) {
  static const int counts[] = {1, 3, LUATTN_MERGE_MAX};
  luattn_spec *parts, *spec = load(x->text, &parts);
  luattn_spec_info info;
  call whole, at_once;
  int empty = 0;
  luattn_spec_get_info(spec, &info);
  driver = NULL;
  open_call(&whole, F64, (int)info.num_saved, 0, KEYS);
  compute(reference, spec, x, LUATTN_FORWARD, &whole, false);
  compute(reference, spec, x, LUATTN_BACKWARD, &whole, false);
  driver = device;
  open_call(&at_once, type, (int)info.num_saved, 0, KEYS);
  compute(engine, spec, x, LUATTN_FORWARD, &at_once, false);
  compute(engine, spec, x, LUATTN_BACKWARD, &at_once, false);
  fetch(&at_once.dq), fetch(&at_once.dk), fetch(&at_once.dv), fetch(&at_once.d_sinks);
  for (size_t i = few ? 2 : 0; i < sizeof counts / sizeof *counts; i++)
    empty += check_parts(spec, parts, x, counts[i], false, &whole, &at_once);
  if (driver != NULL && (type == BF16 || type == F16)) check_parts(spec, parts, x, 3, true, &whole, &at_once);
  if (x->masks && empty == 0)
    failures++, fprintf(stderr, "FAILED: %s: every part keeps something of every row\n", x->name);
  close_call(&at_once);
  driver = NULL;
  close_call(&whole);
  driver = device;
  unload(spec, parts);
}

/* ---- packed ---- */

enum { ENTRIES = 3, TOTAL_Q = 17 };
static const int q_ends[ENTRIES + 1] = {0, 6, 6, TOTAL_Q}, keys_of[2][ENTRIES] = {{9, 4, 0}, {20, 0, 5}};

/* Two parts of the keys of packed sequences, and what their merge gives (2). */
typedef struct packed {
  array q, o[3], lse[3], state[3], k[2], v[2], cu[3];
} packed;

static void numbers_of(array *a, kind k, int ndim, const int64_t *shape, double scale) {
  make(a, k, ndim, shape);
  for (size_t i = 0; i < a->count; i++) put(k, a->host, i, scale * drawn());
  send(a);
}

static void ends_of(array *a, const int *ends) {
  make(a, I32, 1, (int64_t[]){ENTRIES + 1});
  memcpy(a->host, ends, (ENTRIES + 1) * sizeof *ends);
  send(a);
}

static void open_packed(packed *p, int num_rows) {
  const int64_t of_q[] = {TOTAL_Q, HEADS, DIM}, of_lse[] = {HEADS, TOTAL_Q}, of_state[] = {num_rows, HEADS, TOTAL_Q};
  numbers_of(&p->q, type, 3, of_q, 1);
  ends_of(&p->cu[2], q_ends);
  for (int i = 0; i < 3; i++) {
    make(&p->o[i], type, 3, of_q), make(&p->lse[i], real, 2, of_lse), make(&p->state[i], real, 3, of_state);
    fill(&p->o[i], NAN), fill(&p->lse[i], NAN), fill(&p->state[i], NAN);
  }
  for (int i = 0; i < 2; i++) {
    int ends[ENTRIES + 1] = {0};
    for (int b = 0; b < ENTRIES; b++) ends[b + 1] = ends[b] + keys_of[i][b];
    const int64_t of_k[] = {ends[ENTRIES], HEADS_KV, DIM};
    numbers_of(&p->k[i], type, 3, of_k, 3), numbers_of(&p->v[i], type, 3, of_k, 1);
    ends_of(&p->cu[i], ends);
  }
}

static void close_packed(packed *p) {
  for (int i = 0; i < 3; i++) drop(&p->o[i]), drop(&p->lse[i]), drop(&p->state[i]), drop(&p->cu[i]);
  for (int i = 0; i < 2; i++) drop(&p->k[i]), drop(&p->v[i]);
  drop(&p->q);
}

static void attend_packed(const luattn_spec *parts, packed *p, int i) {
  luattn_batch *batch;
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = &p->cu[2].t,
                                        .cu_seqlens_k = &p->cu[i].t,
                                        .max_seqlen_q = 11,
                                        .max_seqlen_k = 20};
  luattn_args a = {.struct_size = sizeof a,
                   .q = &p->q.t,
                   .k = &p->k[i].t,
                   .v = &p->v[i].t,
                   .o = &p->o[i].t,
                   .lse = &p->lse[i].t,
                   .saved = &p->state[i].t};
  array workspace;
  size_t size;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  a.batch = batch;
  need(luattn_engine_workspace_size(engine, parts, LUATTN_FORWARD, &a, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  a.workspace = size > 0 ? workspace.device : NULL, a.workspace_size = size;
  need(luattn_forward(engine, parts, &a, NULL, &err) == LUATTN_OK, "packed forward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  luattn_batch_close(batch);
}

/* A row of softmax with a sink of 0.25, over the keys of both parts. */
static void expect_packed(const packed *p, int b, int row, int h) {
  static const cell x = {.name = "packed"};
  double sum = exp(0.25), want[DIM] = {0};
  int n = 0;
  for (int i = 0; i < 2; i++)
    for (int j = 0, at = ((const int *)p->cu[i].host)[b]; j < keys_of[i][b]; j++, n++) {
      const size_t key = (size_t)(((at + j) * HEADS_KV + h / 2) * DIM), query = (size_t)((row * HEADS + h) * DIM);
      double s = 0;
      for (size_t d = 0; d < DIM; d++) s += get(type, p->q.host, query + d) * get(type, p->k[i].host, key + d);
      const double e = exp(s / sqrt(DIM));
      sum += e;
      for (size_t d = 0; d < DIM; d++) want[d] += e * get(type, p->v[i].host, key + d);
    }
  near("lse", &x, 2, (size_t)row, get(real, p->lse[2].host, (size_t)(h * TOTAL_Q + row)), n == 0 ? -INFINITY : log(sum),
       slack(8));
  for (int d = 0; d < DIM; d++)
    near("o", &x, 2, (size_t)row, get(type, p->o[2].host, (size_t)((row * HEADS + h) * DIM + d)),
         n == 0 ? 0 : want[d] / sum, slack(1));
}

static void check_packed(void) {
  luattn_spec *parts, *spec = load("return attention { name = 'packed', online_func = attention_sink(0.25) }", &parts);
  luattn_spec_info info;
  packed p;
  luattn_spec_get_info(parts, &info);
  open_packed(&p, (int)info.num_saved);
  luattn_part given[2];
  const DLTensor *states[] = {&p.state[0].t, &p.state[1].t};
  for (int i = 0; i < 2; i++) {
    attend_packed(parts, &p, i);
    given[i] = (luattn_part){.o = &p.o[i].t, .lse = &p.lse[i].t};
  }
  const luattn_merge_args m = {.struct_size = sizeof m,
                               .parts = given,
                               .num_parts = 2,
                               .o = &p.o[2].t,
                               .lse = &p.lse[2].t,
                               .spec = parts,
                               .states = states};
  need(luattn_merge(engine, &m, NULL, &err) == LUATTN_OK, "packed merge");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&p.o[2]), fetch(&p.lse[2]);
  for (int b = 0; b < ENTRIES; b++)
    for (int row = q_ends[b]; row < q_ends[b + 1]; row++)
      for (int h = 0; h < HEADS; h++) expect_packed(&p, b, row, h);
  close_packed(&p);
  unload(spec, parts);
}

/* ---- refusals ---- */

static void refused(luattn_status status, luattn_status want, const char *message) {
  if (status == want && strstr(err.message, message) != NULL) return;
  failures++;
  fprintf(stderr, "FAILED: status %d, '%s', expected '%s'\n", (int)status, err.message, message);
}

static void refuse_specs(void) {
  static const struct {
    const char *text, *message;
  } bad[] = {
      {"return attention { name = 'root', online_func = { online_rowscales = { n = 0 }, online_fwd = function(s, r) "
       "return s, { n = sqrt(r.n * r.n + "
       "reduce_sum(s * s)) } end, online_fwd_epilogue = function(o, r) return o / (1 + r.n), {} end } }",
       "online_func 'online_func': parts of a row cannot be merged: in a row of"},
      {"return attention { name = 'gate', online_func = { online_rowscales = { n = 0 }, online_fwd = function(s, r) "
       "return exp(s), { n = r.n + "
       "reduce_sum(exp(s)) } end, online_fwd_epilogue = function(o, r) return where(r.n > 2, o / r.n, 0), {} end } }",
       "finished parts of a row cannot be merged: online_fwd_epilogue gives 0 times the sum of a part"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    luattn_spec *spec, *parts;
    need(luattn_spec_load_text("bad.lua", bad[i].text, strlen(bad[i].text), NULL, &spec, &err) == LUATTN_OK, "load");
    refused(luattn_spec_parts(spec, &parts, &err), LUATTN_UNSUPPORTED, bad[i].message);
    luattn_spec_free(spec);
  }
}

static void refuse(void) {
  luattn_spec *parts, *spec = load("return attention { name = 'one', online_func = softmax_one }", &parts), *again;
  array o[2], lse, state;
  const int64_t q[4] = {BATCH, HEADS, QUERIES, DIM}, rows[4] = {2, BATCH, HEADS, QUERIES};
  refused(luattn_spec_parts(parts, &again, &err), LUATTN_INVALID,
          "luattn_spec_parts: one: is a spec of parts already; give the one that it was made of");
  for (int i = 0; i < 2; i++) make(&o[i], type, 4, q), send(&o[i]);
  make(&lse, real, 3, q), make(&state, real, 4, rows), send(&lse), send(&state);
  const luattn_part part = {.o = &o[0].t, .lse = &lse.t};
  const DLTensor *states[] = {&state.t}, *wrong[] = {&lse.t}, *none[] = {NULL};
  const luattn_merge_args good = {
      .struct_size = sizeof good, .parts = &part, .num_parts = 1, .o = &o[1].t, .spec = parts, .states = states};
  luattn_merge_args a = good;
  a.spec = spec;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID,
          "luattn_merge: spec: one is no spec of parts; make one of it with luattn_spec_parts");
  a = good, a.states = NULL;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID, "forward of 'merge': states: is missing");
  a = good, a.states = none;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID, "forward of 'merge': states[0]: is missing");
  a = good, a.states = wrong;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID,
          "forward of 'merge': states[0]: has 3 axes, expected 4: [rows of state, batch, heads, q_len]");
  a = good, a.state = &state.t;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID, "forward of 'merge': state: its memory, 0x");
  a = good, a.spec = NULL;
  refused(luattn_merge(engine, &a, NULL, &err), LUATTN_INVALID,
          "forward of 'merge': states: is given without a spec; give the one that luattn_spec_parts made");
  a = good, a.dout = &o[1].t;
  refused(luattn_merge_backward(engine, &a, NULL, &err), LUATTN_UNSUPPORTED,
          "luattn_merge_backward: spec: is one, and a merge by state has no gradient of its own");
  luattn_spec_info info;
  luattn_spec_get_info(parts, &info);
  if (info.has_backward ||
      strstr(info.why_no_backward, "test.lua: is a spec of parts, which has no backward: merge them") == NULL)
    failures++;
  for (int i = 0; i < 2; i++) drop(&o[i]);
  drop(&lse), drop(&state);
  unload(spec, parts);
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) return fprintf(stderr, "usage: state_merge_test cuda|cpu TYPE [few]\n"), 2;
  const bool on_cpu = strcmp(argv[1], "cpu") == 0;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0};
  for (type = F64; type <= F16 && strcmp(kind_name[type], argv[2]) != 0;) type++;
  if (type > F16) return fprintf(stderr, "%s is no type\n", argv[2]), 2;
  real = type == F64 ? F64 : F32;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_open(&(luattn_engine_options){.struct_size = sizeof options, .device = LUATTN_CPU}, &reference,
                          &err) == LUATTN_OK,
       "engine");
  driver = device = luattn_engine_driver(engine);
  rounded(0, ROWS * DIM), rounded(1, BATCH * HEADS_KV * KEYS * DIM), rounded(2, BATCH * HEADS_KV * KEYS * DIM),
      rounded(3, ROWS * DIM), rounded(4, HEADS);
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (argc == 3 || i == 1 || i == 2 || i == 4) check(&cells[i], argc == 4);
  check_packed();
  refuse(), refuse_specs();
  luattn_engine_close(engine), luattn_engine_close(reference);
  for (int i = 0; i < 5; i++) free(values[i]);
  printf("merges by state of %s: %d failures\n", argv[2], failures);
  return failures > 0;
}
