/* mask_tiles.c: classifies tiles on the CPU, for the CPU path and for pictures of a mask. */
#include <float.h>
#include <math.h>

#include "common/call/need_attention.h"
#include "common/call/choices.h"
#include "gen/cpu/mask_survey.h"
#include "gen/ir/scalar.h"

static ir_bounds exactly_int(long long x) { return (ir_bounds){.integer = {x, x}}; }

/* A double is within 2^10 of an integer of 64 bits, and is one of 53. */
ir_bounds int_bounds(double low, double high) {
  const double exact = 0x1p53, most = 0x1p62;
  low = fabs(low) <= exact ? low : low - 1024, high = fabs(high) <= exact ? high : high + 1024;
  return (ir_bounds){.integer = ivi_wide(ivi_make(low < -most ? -IVI_INF : (long long)fmin(low, most),
                                                  high > most ? IVI_INF : (long long)fmax(high, -most)),
                                         true)};
}

static ir_bounds real_bounds(double low, double high, bool nan) {
  if (isnan(low) || isnan(high)) low = -INFINITY, high = INFINITY;
  return (ir_bounds){.real = iv_make(low, high, nan)};
}

/* Of a number that scores compare as it is, or as the float32 nearest to it (gen/ir/decide.c). */
static ir_bounds scalar_bounds(double x) {
  const double rounded = scalar_round_float(x);
  return real_bounds(fmin(x, rounded), fmax(x, rounded), isnan(x));
}

static ir_bounds moved(int lo, int hi, int64_t offset) { return (ir_bounds){.integer = {lo + offset, hi + offset}}; }

/* The coordinates of the places [first, last] along an axis. */
static ir_bounds coordinates(const cpu_side *s, int first, int last, int axis) {
  const int64_t lo = side_coordinate(s, first, axis), hi = side_coordinate(s, last, axis);
  for (int a = 0; a < axis; a++)
    if (side_coordinate(s, first, a) != side_coordinate(s, last, a)) return moved(0, (int)s->extent[axis] - 1, 0);
  return moved((int)lo, (int)hi, 0);
}

/* Of a coordinate or an extent of a grid. */
static ir_bounds place_bounds(const tile_box *t, ir_var v, int axis) {
  const cpu_problem *p = t->p;
  return v == VAR_Q       ? coordinates(&p->q_side, t->q0, t->q1, axis)
         : v == VAR_KV    ? coordinates(&p->kv_side, t->kv0, t->kv1, axis)
         : v == VAR_Q_LEN ? exactly_int(p->q_side.extent[axis])
                          : exactly_int(p->kv_side.extent[axis]);
}

ir_bounds tile_box_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const tile_box *t = user;
  const cpu_problem *p = t->p;
  if (p->q_side.axes > 1 && (v == VAR_Q || v == VAR_KV || v == VAR_Q_LEN || v == VAR_KV_LEN))
    return place_bounds(t, v, (int)index);
  switch (v) {
    case VAR_B:
      return exactly_int(t->b + p->first_entry);
    case VAR_H:
      return exactly_int(t->h + problem_offset(p, LUATTN_AXIS_H, t->b, 0));
    case VAR_Q:
      return moved(t->q0, t->q1, problem_offset(p, LUATTN_AXIS_Q, t->b, t->q0));
    case VAR_KV:
      return moved(t->kv0, t->kv1, problem_offset(p, LUATTN_AXIS_KV, t->b, t->kv0));
    case VAR_Q_LEN:
      return exactly_int(problem_length(p, LUATTN_AXIS_Q, t->b));
    case VAR_KV_LEN:
      return exactly_int(problem_length(p, LUATTN_AXIS_KV, t->b));
    case VAR_HEADS:
      return exactly_int(p->whole_heads);
    case VAR_HEADS_KV:
      return exactly_int(p->whole_heads_kv);
    case VAR_SCALAR:
      return scalar_bounds(p->scalar[index]);
    default:
      break;
  }
  if (type == IR_REAL) return real_bounds(-INFINITY, INFINITY, true);
  if (type == IR_INT) return (ir_bounds){.integer = ivi_all()};
  return (ir_bounds){.boolean = tri_all()};
}

/* Of an input's axis, in the chunk of the box. */
static int64_t box_offset(const tile_box *t, uint32_t input, int axis) {
  const int32_t of = t->p->spec->traced.input[input].axis[axis];
  return problem_offset(t->p, of, t->b, of == LUATTN_AXIS_Q ? t->q0 : t->kv0);
}

static long long clamp_to(long long x, long long size) { return x < 0 ? 0 : x >= size ? size - 1 : x; }

/* Scans the part of an input that the index box covers: a kernel would read block minima, but the CPU can
 * afford this. */
ir_bounds tile_box_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  const tile_box *t = user;
  const cpu_view *view = &t->p->input[input];
  int64_t lo[4] = {0}, hi[4] = {0}, at[4];
  double low = INFINITY, high = -INFINITY;
  bool nan = false;
  for (int i = 0; i < n_index; i++) {
    const int64_t offset = box_offset(t, input, i);
    lo[i] = clamp_to(index[i].lo - offset, view->shape[i]);
    hi[i] = clamp_to(index[i].hi - offset, view->shape[i]);
  }
  for (at[0] = lo[0]; at[0] <= hi[0]; at[0]++) {
    for (at[1] = lo[1]; at[1] <= hi[1]; at[1]++) {
      for (at[2] = lo[2]; at[2] <= hi[2]; at[2]++) {
        for (at[3] = lo[3]; at[3] <= hi[3]; at[3]++) {
          const double x = view_get(view, at);
          low = fmin(low, x); /* fmin and fmax ignore NaN */
          high = fmax(high, x);
          nan |= isnan(x) != 0;
        }
      }
    }
  }
  if (type == IR_INT) return int_bounds(low, high);
  if (type == IR_BOOL) return (ir_bounds){.boolean = {low == 0, high != 0}};
  return low <= high ? real_bounds(low, high, nan) : real_bounds(-INFINITY, INFINITY, true);
}

/* The set of the numbers that load r reads in a box, in whole blocks of `block` positions; false: of which kernels have
 * none, or more than a set is read for. */
static bool set_of(const tile_box *t, ir_ref r, const int64_t block[2], const ir_bounds *bounds, uint64_t *set) {
  enum { MOST = 1 << 12 };
  const cpu_problem *p = t->p;
  const ir_node *n = ir_get(p->g, r);
  if (n->op != IR_LOAD || n->type != IR_INT) return false;
  const uint32_t input = ir_index_of(n);
  const cpu_view *view = &p->input[input];
  const int last = n->nargs - 1, along_q = ir_is_var(p->g, n->arg[last], VAR_Q);
  if (mask_find_stat(&p->mask, (mask_stat){(int)input, last, along_q != 0, true}) < 0) return false;
  int64_t at[4] = {0}, end = 0;
  for (int i = 0; i < n->nargs; i++) {
    const int64_t offset = box_offset(t, input, i);
    at[i] = clamp_to(bounds[n->arg[i]].integer.lo - offset, view->shape[i]);
    end = clamp_to(bounds[n->arg[i]].integer.hi - offset, view->shape[i]);
    if (i < last && at[i] != end) return false;
  }
  const int64_t size = block[!along_q];
  at[last] = at[last] / size * size;
  end = clamp_to(end / size * size + size - 1, view->shape[last]);
  if (end - at[last] >= MOST) return false;
  for (*set = 0; at[last] <= end; at[last]++) *set |= UINT64_C(1) << ((int64_t)view_get(view, at) & 63);
  return true;
}

void tile_box_refine_by(const tile_box *t, int64_t queries, int64_t keys, ir_ref r, const ir_bounds *bounds,
                        ir_bounds *out) {
  const ir_node *n = ir_get(t->p->g, r);
  const int64_t block[2] = {queries, keys};
  uint64_t x, y;
  if (n->op != IR_EQ || !out->boolean.can_be_true) return;
  if (set_of(t, n->arg[0], block, bounds, &x) && set_of(t, n->arg[1], block, bounds, &y) && (x & y) == 0)
    out->boolean.can_be_true = false;
}

void tile_box_refine(void *user, ir_ref r, const ir_bounds *bounds, ir_bounds *out) {
  tile_box_refine_by(user, 1, 1, r, bounds, out);
}

int problem_tile_class(const cpu_problem *p, const cpu_worker *w, int b, int h, int q0, int q1, int kv0, int kv1) {
  if (p->mask.keep == IR_NONE) return 2;
  tile_box box = {p, b, h, q0, q1, kv0, kv1};
  const ir_bounds_env env = {
      .user = &box, .variable = tile_box_variable, .load = tile_box_load, .refine = tile_box_refine};
  return mask_tile_class(p->g, &p->mask, &env, w->bounds);
}

/* Counts the elements that a partial tile keeps, by the predicate. */
static int64_t count_partial(const cpu_problem *p, const cpu_program *keep, int b, int h, int q0, int q1, int kv0,
                             int kv1) {
  double kv_idx[IR_LANES], kept[IR_LANES];
  const int columns = kv1 - kv0 + 1;
  int64_t count = 0;
  for (int i = 0; i < columns; i++) kv_idx[i] = kv0 + i;
  for (int q = q0; q <= q1; q++) {
    cpu_lanes lanes = {.p = p, .w = &p->worker[0], .b = b, .h = h, .q_idx = q, .kv_idx = kv_idx};
    program_run(keep, &lanes, columns, (double *const[]){kept});
    for (int i = 0; i < columns; i++) count += kept[i] != 0;
  }
  return count;
}

static int64_t count_head(cpu_problem *p, const cpu_program *keep, int b, int h) {
  int64_t count = 0;
  for (int q0 = 0; q0 < p->q_len; q0 += CPU_TILE) {
    const int q1 = p->q_len - q0 > CPU_TILE ? q0 + CPU_TILE - 1 : p->q_len - 1;
    for (int kv0 = 0; kv0 < p->kv_len; kv0 += CPU_TILE) {
      const int kv1 = p->kv_len - kv0 > CPU_TILE ? kv0 + CPU_TILE - 1 : p->kv_len - 1;
      const int class = problem_tile_class(p, &p->worker[0], b, h, q0, q1, kv0, kv1);
      if (class == 2)
        count += (int64_t)(q1 - q0 + 1) * (kv1 - kv0 + 1);
      else if (class == 1)
        count += count_partial(p, keep, b, h, q0, q1, kv0, kv1);
    }
  }
  return count;
}

typedef struct count_call {
  const luattn_spec *spec;
  const luattn_args *args;
  int64_t *kept;
} count_call;

static luattn_status count_within(void *arguments, luattn_error *err) {
  const count_call *given = arguments;
  const luattn_spec *spec = given->spec;
  arena *a = arena_open(arena_allocator(spec->a));
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  cpu_problem p;
  cpu_program keep;
  luattn_status status = problem_open_mask(spec, given->args, a, &p, err);
  const ir_ref mask = status == LUATTN_OK ? p.spec->traced.block_mask : IR_NONE;
  if (status == LUATTN_OK) status = program_open(&p, &mask, mask != IR_NONE, &keep, err);
  if (status == LUATTN_OK) status = problem_start(&p, 1, err);
  if (status == LUATTN_OK) {
    /* If the mask does not read the head's number, one head's count holds for all. */
    const bool by_batch = mask != IR_NONE && ir_uses(p.g, mask, VAR_B),
               by_head = mask != IR_NONE && ir_uses(p.g, mask, VAR_H);
    int64_t all, count = 0;
    if (__builtin_mul_overflow((int64_t)p.q_len * p.kv_len, (int64_t)p.batch * p.heads, &all)) {
      arena_close(a);
      return luattn_fail(err, LUATTN_INVALID,
                         "mask: has %d x %d x %d x %d scores, more than 64 bits count; give fewer batches or heads",
                         p.batch, p.heads, p.q_len, p.kv_len);
    }
    for (int b = 0; b < (by_batch ? p.batch : p.batch > 0); b++) {
      for (int h = 0; h < (by_head ? p.heads : 1); h++) count += count_head(&p, &keep, b, h);
    }
    *given->kept = count * (by_batch ? 1 : p.batch) * (by_head ? 1 : p.heads);
  }
  arena_close(a);
  return status;
}

luattn_status luattn_mask_count(const luattn_spec *spec, const luattn_args *args, int64_t *kept, luattn_error *err) {
  luattn_args used;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(kept);
  TRY(choices_take_dense(args, "mask", &used, err));
  return host_run(count_within, &(count_call){spec, &used, kept}, err);
}
