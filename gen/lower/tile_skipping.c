/* tile_skipping.c: finds scores that fall with positions, so that P vanishes in whole tiles. Such a score is
 * also emitted as an interval (Spec::score_bounds), and the kernels of the sm90 family skip tiles in which it
 * proves that P vanishes (templates/around/before/tile_skipping.cuh). */
#include <math.h>

#include "gen/ir/interval.h"
#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

/* A long example problem: a few queries in its middle, and several values of per-head loads. */
enum { LENGTH = 32768, FIRST = LENGTH / 2, ROWS = 32, COLUMNS = 128, PLACES = 8, HEADS = 16 };
typedef struct trial {
  const lowered *f;
  double loaded; /* value of inputs that are constant per head */
  int head, kv0, kv1;
} trial;

static ir_bounds integer_bounds(ivi x) { return (ir_bounds){.real = iv_all(), .integer = x, .boolean = tri_all()}; }
static ir_bounds real_bounds(iv x) { return (ir_bounds){.real = x, .integer = ivi_all(), .boolean = tri_all()}; }

static ir_bounds variable_bounds(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)type;
  const trial *t = user;
  switch (v) {
    case VAR_SCORE:
      return real_bounds(iv_make(-8, 8, false));
    case VAR_SCALAR:
      return real_bounds(iv_point(t->f->spec->traced.scalar_default[index]));
    case VAR_SCALE:
      return real_bounds(iv_point(0.125));
    case VAR_Q:
      return integer_bounds(ivi_make(FIRST, FIRST + ROWS - 1));
    case VAR_KV:
      return integer_bounds(ivi_make(t->kv0, t->kv1));
    case VAR_Q_LEN:
    case VAR_KV_LEN:
      return integer_bounds(ivi_point(LENGTH));
    case VAR_HEADS:
    case VAR_HEADS_KV:
      return integer_bounds(ivi_point(HEADS));
    case VAR_B:
      return integer_bounds(ivi_point(0));
    case VAR_H:
      return integer_bounds(ivi_point(t->head));
    default:
      return integer_bounds(ivi_all());
  }
}

/* Values read at positions are unbounded. */
static ir_bounds load_bounds(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)input;
  const trial *t = user;
  for (int i = 0; i < n_index; i++)
    if (index[i].lo != index[i].hi) return integer_bounds(ivi_all());
  return type == IR_REAL ? real_bounds(iv_point(t->loaded)) : integer_bounds(ivi_point(LENGTH));
}

/* Whether a kernel would skip the tile if scores before score_mod lie within 8 of 0. */
static bool leaves_out(trial *t, ir_bounds *scratch) {
  const double margin = 40;
  const ir_bounds_env env = {.user = t, .variable = variable_bounds, .load = load_bounds};
  double best = -INFINITY, least = INFINITY;
  ir_bounds x;
  for (int i = 0; i <= 2 * PLACES; i++) {
    t->kv0 = t->kv1 = i == 2 * PLACES ? LENGTH - 1 : i * (LENGTH / (2 * PLACES));
    ir_interval(t->f->g, &t->f->score_bounds, 1, &env, scratch, &x);
    if (!x.real.nan && x.real.lo > best) best = x.real.lo;
    t->kv0 = i == 2 * PLACES ? LENGTH - COLUMNS : t->kv0;
    t->kv1 = t->kv0 + COLUMNS - 1;
    ir_interval(t->f->g, &t->f->score_bounds, 1, &env, scratch, &x);
    if (!x.real.nan && x.real.hi < least) least = x.real.hi;
  }
  return least < best - margin;
}

static bool falls(lowered *f) {
  static const double loaded[] = {1, -1, 0.1, -0.1};
  ir_bounds *scratch = arena_array(f->a, ir_count(f->g), sizeof *scratch);
  if (scratch == NULL) return false; /* harmless: every tile is computed */
  for (size_t i = 0; i < 2 * sizeof loaded / sizeof *loaded; i++) {
    trial t = {.f = f, .loaded = loaded[i / 2], .head = i % 2 == 0 ? 0 : HEADS - 1};
    if (leaves_out(&t, scratch)) return true;
  }
  return false;
}

/* Whether bounding the score takes so many operations that compiling them costs more than skipping saves. */
static bool is_long(const lowered *f) {
  const uint32_t count = ir_count(f->g);
  bool *need = arena_array(f->a, count, sizeof *need);
  int operations = 0;
  if (need == NULL) return true;
  need[f->score_bounds] = true;
  for (ir_ref r = f->score_bounds; r >= 1; r--) {
    const ir_node *n = ir_get(f->g, r);
    for (int i = 0; need[r] && i < n->nargs; i++) need[n->arg[i]] = true;
    operations += need[r] && n->nargs > 0;
  }
  return operations > POLICY_SKIP_BOUNDS_MAX;
}

luattn_status tile_skipping_choose(lowered *f, luattn_error *err) {
  ir_ref score = f->spec->traced.score_mod;
  bool hold = false;
  f->score_bounds = IR_NONE;
  if (!f->plan->family->skips_tiles || f->plan->packed || f->plan->pages || f->plan->offsets == LUATTN_OFFSET_CHUNKS ||
      score == IR_NONE)
    return LUATTN_OK;
  if (f->plan->large_scores) return LUATTN_OK; /* bounds near 1e9 are rounded by more than their margin */
  if (!ir_is_line(f->g)) return LUATTN_OK;
  if (!ir_uses(f->g, score, VAR_Q) && !ir_uses(f->g, score, VAR_KV)) return LUATTN_OK;
  ir_simplify(f->g, &score, 1);
  f->score_bounds = score;
  if (falls(f)) TRY(probe_softmax(f, &hold, err));
  f->bounds_are_long = hold && is_long(f);
  if (!hold || f->bounds_are_long) f->score_bounds = IR_NONE;
  return LUATTN_OK;
}
