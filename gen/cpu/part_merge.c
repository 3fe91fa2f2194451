#include "gen/cpu/part_merge.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "gen/cpu/cpu.h"
#include "gen/ir/passes.h"

enum { AXIS_BATCH, AXIS_HEAD, AXIS_SEQ, AXIS_DIM };

static cpu_view view_of(const LuattnTensor *t, luattn_dtype type) {
  const DLDataType dl = kernel_dtype(type)->dl;
  return (cpu_view){.data = t->data,
                    .code = dl.code,
                    .bits = dl.bits,
                    .kind = VIEW_REAL,
                    .ndim = 4,
                    .stride = {t->batch, t->head, t->seq, 1}};
}

/* One row: where it is, and the parts' weights. */
typedef struct merge_row {
  const LuattnMergeParams *p;
  const part_merge_types *types;
  int64_t at[4];
  double weight[LUATTN_MOST_PARTS], lse;
} merge_row;

static double get(merge_row *r, const LuattnTensor *t, luattn_dtype type, int d) {
  const cpu_view v = view_of(t, type);
  r->at[AXIS_DIM] = d;
  return view_get(&v, r->at);
}

static void set(merge_row *r, const LuattnTensor *t, luattn_dtype type, int d, double x) {
  const cpu_view v = view_of(t, type);
  r->at[AXIS_DIM] = d;
  view_set(&v, r->at, x);
}

/* The weights sum to 1, or are all 0. */
static void find_weights(merge_row *r) {
  const int n = r->p->count;
  double largest = -INFINITY, sum = 0;
  for (int i = 0; i < n; i++) {
    r->weight[i] = get(r, &r->p->part[i].lse, r->types->real, 0);
    if (r->weight[i] == INFINITY) r->weight[i] = -INFINITY; /* of a row without keys, as flash-attn says it */
    largest = fmax(largest, r->weight[i]);
  }
  for (int i = 0; i < n; i++) {
    r->weight[i] = r->weight[i] == -INFINITY ? 0 : exp(r->weight[i] - largest);
    sum += r->weight[i];
  }
  r->lse = sum == 0 ? -INFINITY : largest + log(sum);
  for (int i = 0; i < n; i++) r->weight[i] = r->weight[i] == 0 ? 0 : r->weight[i] / sum;
}

static void merge_forward(merge_row *r) {
  const LuattnMergeParams *p = r->p;
  for (int d = 0; d < p->dim; d++) {
    double sum = 0;
    for (int i = 0; i < p->count; i++)
      if (r->weight[i] != 0) sum += r->weight[i] * get(r, &p->part[i].o, r->types->part, d);
    set(r, &p->o, r->types->elem, d, sum);
  }
  if (p->lse.data != NULL) set(r, &p->lse, r->types->real, 0, r->lse);
}

static void merge_backward(merge_row *r) {
  const LuattnMergeParams *p = r->p;
  double dot[LUATTN_MOST_PARTS] = {0}, mean = 0;
  for (int d = 0; d < p->dim; d++) {
    const double g = p->dout.data != NULL ? get(r, &p->dout, r->types->elem, d) : 0;
    for (int i = 0; i < p->count; i++) {
      const bool counts = r->weight[i] != 0;
      if (counts) dot[i] += g * get(r, &p->part[i].o, r->types->part, d);
      if (p->part[i].d_o.data != NULL) set(r, &p->part[i].d_o, r->types->part, d, counts ? r->weight[i] * g : 0);
    }
  }
  for (int i = 0; i < p->count; i++)
    if (r->weight[i] != 0) mean += r->weight[i] * dot[i];
  const double dlse = p->dlse.data != NULL ? get(r, &p->dlse, r->types->real, 0) : 0;
  for (int i = 0; i < p->count; i++)
    if (p->part[i].d_lse.data != NULL)
      set(r, &p->part[i].d_lse, r->types->real, 0, r->weight[i] == 0 ? 0 : r->weight[i] * (dot[i] - mean + dlse));
}

static merge_row row_number(const LuattnMergeParams *p, const part_merge_types *types, int64_t i) {
  return (merge_row){
      .p = p, .types = types, .at = {i / p->q_len.d / p->heads.d, i / p->q_len.d % p->heads.d, i % p->q_len.d, 0}};
}

void part_merge_rows(const LuattnMergeParams *p, const part_merge_types *types, bool backward, int64_t first,
                     int64_t end) {
  for (int64_t i = first; i < end; i++) {
    merge_row r = row_number(p, types, i);
    find_weights(&r);
    if (backward)
      merge_backward(&r);
    else
      merge_forward(&r);
  }
}

/* ---- by state ---- */

enum { MAX_OUT = SPEC_MAX_STATE + 2 };

struct state_merge {
  arena *a;
  const part_rule *rule;
  const ir_program *both, *scale, *last; /* state, factor, other_factor; scale; lse and saved */
};

luattn_status state_merge_open(const luattn_spec *spec, state_merge **out, luattn_error *err) {
  const part_rule *rule = spec->parts;
  const ir *g = spec->traced.g;
  arena *a = arena_open(arena_allocator(spec->a));
  state_merge *m = a == NULL ? NULL : arena_new(a, sizeof *m);
  if (m != NULL) {
    ir_ref both[MAX_OUT], last[1 + DERIVED_MAX_ROWS];
    int n = 0;
    memcpy(both, rule->state, sizeof rule->state);
    both[rule->num_state] = rule->factor, both[rule->num_state + 1] = rule->other_factor;
    if (rule->lse != IR_NONE) last[n++] = rule->lse;
    for (int i = 0; i < rule->num_saved; i++) last[n++] = rule->saved[i];
    *m = (state_merge){.a = a,
                       .rule = rule,
                       .both = ir_program_new(a, g, both, rule->num_state + 2),
                       .scale = ir_program_new(a, g, &rule->scale, 1),
                       .last = ir_program_new(a, g, last, n)};
  }
  if (m == NULL || m->both == NULL || m->scale == NULL || m->last == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_merge: out of memory");
  }
  *out = m;
  return LUATTN_OK;
}

void state_merge_close(state_merge *m) {
  if (m != NULL) arena_close(m->a);
}

typedef double lanes[IR_LANES]; /* a number of each of some rows */

/* Rows that are merged at once. */
typedef struct row_block {
  const state_merge *m;
  const LuattnMergeParams *p;
  const part_merge_types *types;
  int count;
  merge_row row[IR_LANES];
  bool any[IR_LANES], kept[IR_LANES];                    /* in the parts so far; in the one that is merged */
  lanes all[DERIVED_MAX_ROWS], theirs[DERIVED_MAX_ROWS]; /* their states */
  lanes x[1 + DERIVED_MAX_ROWS];
  void *scratch;
} row_block;

static void variable(void *user, ir_var v, uint32_t index, int count, double *out) {
  const row_block *b = user;
  memcpy(out, v == VAR_OTHER ? b->theirs[index] : b->all[index], (size_t)count * sizeof *out);
}

static void run(row_block *b, const ir_program *program, int num_out) {
  const ir_env env = {.user = b, .variable = variable};
  double *out[1 + DERIVED_MAX_ROWS];
  for (int i = 0; i < num_out; i++) out[i] = b->x[i];
  ir_program_run(program, &env, b->count, b->scratch, out);
}

static double get_number(merge_row *r, const LuattnRowNumbers *n, luattn_dtype type, int i) {
  cpu_view v = view_of(&n->first, type);
  v.data = (char *)v.data + i * n->plane * (v.bits / 8);
  r->at[AXIS_DIM] = 0;
  return view_get(&v, r->at);
}

static void set_number(merge_row *r, const LuattnRowNumbers *n, luattn_dtype type, int i, double x) {
  cpu_view v = view_of(&n->first, type);
  v.data = (char *)v.data + i * n->plane * (v.bits / 8);
  r->at[AXIS_DIM] = 0;
  view_set(&v, r->at, x);
}

static void load_part(row_block *b, int i) {
  for (int lane = 0; lane < b->count; lane++) {
    merge_row *r = &b->row[lane];
    b->kept[lane] = get(r, &b->p->part[i].lse, b->types->real, 0) != -INFINITY;
    for (int k = 0; k < b->m->rule->num_rows; k++)
      b->theirs[k][lane] = get_number(r, &b->p->part[i].state, b->types->real, k);
  }
}

/* Exchanges `all` and `theirs`. */
static void exchange(row_block *b) {
  for (int k = 0; k < b->m->rule->num_rows; k++)
    for (int lane = 0; lane < b->count; lane++) {
      const double x = b->all[k][lane];
      b->all[k][lane] = b->theirs[k][lane];
      b->theirs[k][lane] = x;
    }
}

/* Merges part i, whose state is in `theirs`. */
static void merge_state(row_block *b, int i) {
  const part_rule *rule = b->m->rule;
  const int n = rule->num_state;
  double scale[IR_LANES];
  exchange(b);
  run(b, b->m->scale, 1); /* an expression of `all` */
  memcpy(scale, b->x[0], sizeof scale);
  exchange(b);
  run(b, b->m->both, n + 2);
  for (int lane = 0; lane < b->count; lane++) {
    double *weight = b->row[lane].weight;
    if (!b->kept[lane]) continue;
    const bool both = b->any[lane];
    for (int j = 0; j < i && both; j++) weight[j] = weight[j] == 0 ? 0 : weight[j] * b->x[n][lane];
    weight[i] = scale[lane] == 0 ? 0 : (both ? b->x[n + 1][lane] : 1) / scale[lane];
    for (int k = 0; k < rule->num_rows; k++)
      if (!both || k < n) b->all[k][lane] = both ? b->x[k][lane] : b->theirs[k][lane];
    b->any[lane] = true;
  }
}

static void finish_rows(row_block *b) {
  const part_rule *rule = b->m->rule;
  const LuattnMergeParams *p = b->p;
  const int has_lse = rule->lse != IR_NONE;
  double scale[IR_LANES];
  run(b, b->m->scale, 1);
  memcpy(scale, b->x[0], sizeof scale);
  run(b, b->m->last, has_lse + rule->num_saved);
  for (int lane = 0; lane < b->count; lane++) {
    merge_row *r = &b->row[lane];
    for (int i = 0; i < p->count; i++) r->weight[i] = r->weight[i] == 0 ? 0 : r->weight[i] * scale[lane];
    r->lse = !b->any[lane] ? -INFINITY : has_lse ? b->x[0][lane] : 0;
    merge_forward(r);
    for (int k = 0; k < rule->num_rows && p->state.first.data != NULL; k++)
      set_number(r, &p->state, b->types->real, k, b->all[k][lane]);
    for (int k = 0; k < rule->num_saved && p->saved.first.data != NULL; k++)
      set_number(r, &p->saved, b->types->real, k, b->x[has_lse + k][lane]);
  }
}

static size_t largest(size_t x, size_t y) { return x > y ? x : y; }

luattn_status state_merge_rows(const state_merge *m, const LuattnMergeParams *p, const part_merge_types *types,
                               int64_t first, int64_t end, luattn_error *err) {
  arena *a = arena_open(arena_allocator(m->a));
  row_block *b = a == NULL ? NULL : arena_new(a, sizeof *b);
  const size_t scratch =
      largest(ir_program_scratch(m->both), largest(ir_program_scratch(m->scale), ir_program_scratch(m->last)));
  if (b != NULL) b->scratch = arena_raw(a, 1, scratch + 1);
  if (b == NULL || b->scratch == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_merge: out of memory");
  }
  b->m = m, b->p = p, b->types = types;
  for (int64_t at = first; at < end; at += IR_LANES) {
    b->count = end - at < IR_LANES ? (int)(end - at) : IR_LANES;
    for (int lane = 0; lane < b->count; lane++) b->row[lane] = row_number(p, types, at + lane), b->any[lane] = false;
    for (int i = 0; i < p->count; i++) {
      load_part(b, i);
      if (i == 0) memcpy(b->all, b->theirs, sizeof b->all); /* with which a row stays that keeps nothing */
      merge_state(b, i);
    }
    finish_rows(b);
  }
  arena_close(a);
  return LUATTN_OK;
}
