/* mask_trial.c: tries a mask of arithmetic on positions, as a hash of block numbers, on some tiles: whether ranges and
 * bounds, by which kernels classify tiles, leave many to be computed of which the mask keeps nothing.
 *
 * A trial decides only by what means tiles are classified, never a class: every outcome is right. */
#include <math.h>

#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"

enum {
  TRIAL_LEN = 4096,
  TRIAL_TILE = 128, /* the larger ones of kernels */
  TRIAL_HEADS = 8,
  TRIAL_TILES = 96,
  TRIAL_SCANS = 24, /* tiles of which every score is looked at */
  LEAST_TILES = 16,
  WASTE = 4 /* one of so many tiles that are computed is empty: worth a kernel more */
};

typedef struct trial {
  const traced_spec *t;
  const mask_info *m;
  int len, down, across; /* the mask is constant on blocks of so many queries by keys */
  int fill;              /* of what a mask reads besides: 0 or 1 */
  uint64_t random;
  ir_ref *nodes;
  int num_nodes;
  ir_bounds *bounds;
  const ir_program *program;
  void *scratch;
  int b, h, q0, kv0; /* the tile */
  ir_lane_block q, kv;
} trial;

static int below(trial *t, int n) {
  t->random = t->random * 6364136223846793005u + 1442695040888963407u;
  return (int)((t->random >> 33) % (uint64_t)n);
}

/* The value of a variable that all scores of a tile share. */
static double of_tile(const trial *t, ir_var v, uint32_t index) {
  switch (v) {
    case VAR_B:
      return t->b;
    case VAR_H:
      return t->h;
    case VAR_Q_LEN:
    case VAR_KV_LEN:
      return t->len;
    case VAR_HEADS:
    case VAR_HEADS_KV:
      return TRIAL_HEADS;
    case VAR_SCALAR:
      return t->t->scalar_default[index];
    case VAR_TILE:
      return index == VAR_Q0    ? t->q0
             : index == VAR_Q1  ? t->q0 + TRIAL_TILE - 1
             : index == VAR_KV0 ? t->kv0
                                : t->kv0 + TRIAL_TILE - 1;
    default:
      return 0;
  }
}

static ir_bounds point(ir_type type, double x) {
  if (type == IR_REAL) return (ir_bounds){.real = iv_point(x)};
  if (type == IR_INT) return (ir_bounds){.integer = ivi_point((ivi_end)x)};
  return (ir_bounds){.boolean = tri_point(x != 0)};
}

static ir_bounds bounds_of_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const trial *t = user;
  const int first = v == VAR_Q ? t->q0 : t->kv0;
  if (v == VAR_Q || v == VAR_KV) return (ir_bounds){.integer = ivi_make(first, first + TRIAL_TILE - 1)};
  return point(type, of_tile(t, v, index));
}

static ir_bounds bounds_of_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)input, (void)n_index, (void)index;
  return point(type, ((const trial *)user)->fill);
}

static ir_bounds_env bounds_env(trial *t) {
  return (ir_bounds_env){.user = t, .variable = bounds_of_variable, .load = bounds_of_load};
}

static void lanes_of_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const trial *t = user;
  for (int i = 0; i < lanes; i++) out[i] = v == VAR_Q ? t->q[i] : v == VAR_KV ? t->kv[i] : of_tile(t, v, index);
}

static void lanes_of_load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  (void)input, (void)n_index, (void)index;
  for (int i = 0; i < lanes; i++) out[i] = ((const trial *)user)->fill;
}

static bool some_kept(trial *t, int lanes) {
  const ir_env env = {.user = t, .variable = lanes_of_variable, .load = lanes_of_load};
  ir_lane_block kept;
  ir_program_run(t->program, &env, lanes, t->scratch, (double *const[]){kept});
  for (int i = 0; i < lanes; i++)
    if (kept[i] != 0) return true;
  return false;
}

/* Whether the mask keeps nothing of the tile: of some scores first, then of one in each block. */
static bool is_empty(trial *t) {
  int lanes = 0;
  for (int i = 0; i < IR_LANES; i++) t->q[i] = t->q0 + below(t, TRIAL_TILE), t->kv[i] = t->kv0 + below(t, TRIAL_TILE);
  if (some_kept(t, IR_LANES)) return false;
  for (int q = t->q0; q < t->q0 + TRIAL_TILE; q += t->down)
    for (int kv = t->kv0; kv < t->kv0 + TRIAL_TILE; kv += t->across) {
      t->q[lanes] = q, t->kv[lanes] = kv;
      if (++lanes < IR_LANES) continue;
      if (some_kept(t, lanes)) return false;
      lanes = 0;
    }
  return lanes == 0 || !some_kept(t, lanes);
}

/* The tiles that ranges leave to a row of tiles: [*first, *end). */
static void find_range(trial *t, int *first, int *end) {
  const ir *g = t->t->g;
  const ir_bounds_env env = bounds_env(t);
  ir_bounds x;
  *first = 0, *end = t->len / TRIAL_TILE;
  if (t->m->kv_lo != IR_NONE) {
    ir_interval(g, &t->m->kv_lo, 1, &env, t->bounds, &x);
    if (x.integer.lo > 0) *first = (int)(x.integer.lo < t->len ? x.integer.lo / TRIAL_TILE : *end);
  }
  if (t->m->kv_hi != IR_NONE) {
    ir_interval(g, &t->m->kv_hi, 1, &env, t->bounds, &x);
    if (x.integer.hi < t->len) *end = (int)(x.integer.hi > 0 ? (x.integer.hi + TRIAL_TILE - 1) / TRIAL_TILE : 0);
  }
}

static bool wastes(trial *t) {
  const ir_bounds_env env = bounds_env(t);
  int computed = 0, empty = 0, scans = 0;
  for (int i = 0; i < TRIAL_TILES && scans < TRIAL_SCANS; i++) {
    int first, end;
    t->b = below(t, 4), t->h = below(t, TRIAL_HEADS);
    t->q0 = below(t, t->len / TRIAL_TILE) * TRIAL_TILE, t->kv0 = 0;
    find_range(t, &first, &end);
    if (first >= end) continue;
    t->kv0 = (first + below(t, end - first)) * TRIAL_TILE;
    ir_interval_over(t->t->g, t->nodes, t->num_nodes, &env, t->bounds);
    const tri keep = t->bounds[t->m->keep].boolean;
    if (!keep.can_be_true) continue;
    computed++;
    if (keep.can_be_false && is_empty(t)) empty++, scans++;
  }
  return computed >= LEAST_TILES && empty * WASTE >= computed;
}

bool mask_trial(arena *a, const traced_spec *t, const mask_info *m, int rows, int columns, bool *wasteful) {
  const ir *g = t->g;
  trial x = {.t = t, .m = m, .len = TRIAL_LEN, .down = rows, .across = columns, .random = 1};
  *wasteful = false;
  if (m->max_len < x.len) x.len = (int)(m->max_len / TRIAL_TILE * TRIAL_TILE);
  if (x.len < 4 * TRIAL_TILE) return m->max_len >= 0;
  x.nodes = arena_array(a, ir_count(g), sizeof *x.nodes);
  x.bounds = arena_array(a, ir_count(g), sizeof *x.bounds);
  x.program = ir_program_new(a, g, &m->keep, 1);
  if (x.nodes == NULL || x.bounds == NULL || x.program == NULL) return false;
  x.scratch = arena_raw(a, ir_program_scratch(x.program), 1);
  if (x.scratch == NULL) return false;
  x.num_nodes = ir_interval_nodes(g, &m->keep, 1, x.bounds, x.nodes);
  for (x.fill = 0; x.fill < 2 && !*wasteful; x.fill++) {
    *wasteful = wastes(&x);
    if (!ir_uses_op(g, m->keep, IR_LOAD)) break;
  }
  return true;
}
