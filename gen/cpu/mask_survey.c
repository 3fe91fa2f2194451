/* mask_survey.c: classifies tiles as kernels do, from large boxes of tiles down to single ones. What bounds leave open
 * is evaluated: all of it, or a sample where there is too much. */
#include "gen/cpu/mask_survey.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "common/call/need_attention.h"
#include "common/call/batch.h"
#include "common/call/choices.h"
#include "gen/cpu/number_pyramid.h"

enum { EMPTY, PARTIAL, FULL };

/* Evaluations of a node of the mask, over all batch entries and heads: about a second. */
static const double most_work = 3e8;
/* Tiles that are classified, likewise. Of more batch entries and heads than that allows, some are taken. */
static const double most_tiles = 1 << 22;
static const int fewest_sets = 2;
/* Inputs with more numbers are read again for each tile. */
static const int64_t most_numbers = INT64_C(1) << 26;

/* An expression, and the nodes under it. */
typedef struct expression {
  ir_ref root;
  int count;
  ir_ref *nodes;
} expression;

typedef struct tile_place {
  int row, column;
} tile_place;

typedef struct survey {
  cpu_problem p;
  const mask_survey_call *given;
  arena *a;
  bool evaluates;
  bool knows_less;       /* kernels know less of the numbers that a tile reads than their minima and maxima */
  int64_t rows, columns; /* tiles */
  uint8_t *level;
  bool reads_along[12];         /* the input's numbers differ along positions, or are read at other places that do */
  expression keep, by_position; /* by_position: what of it does not read data; or none */
  number_pyramid pyramid[12];   /* axes 0: none */
  cpu_program program;
  int *first, *end;    /* of the kv tiles of each q tile, by ranges */
  unsigned char *cell; /* 1 + class, or 0, of each cell of 64 x 64, where tiles are not made of cells; else NULL */
  int64_t cell_columns;
  tile_place *open; /* tiles that have to be evaluated */
  size_t num_open, most_open;
  /* of the batch entry and head at work */
  int b, h;
  double of_set; /* what a tile of it counts in `chunks` */
  double full, partial, needed, kept;
  double partial_variance, full_variance, needed_variance, kept_variance;
} survey;

/* What a box is classified by: all that its numbers' minima and maxima say, or what kernels have of them. */
typedef struct survey_box {
  tile_box tile; /* first, for tile_box_variable */
  survey *s;
  bool by_kernel;
} survey_box;

static int64_t inside(int64_t x, int64_t size) { return x < 0 ? 0 : x >= size ? size - 1 : x; }

static ir_bounds of_type(ir_type type, low_high x) {
  if (type == IR_INT) return int_bounds(x.low, x.high);
  if (type == IR_BOOL) return (ir_bounds){.boolean = {x.low == 0, x.high != 0}};
  return x.low <= x.high ? (ir_bounds){.real = iv_make(x.low, x.high, x.nan)}
                         : (ir_bounds){.real = iv_make(-INFINITY, INFINITY, true)};
}

static ir_bounds anything(ir_type type) {
  if (type == IR_INT) return (ir_bounds){.integer = ivi_all()};
  if (type == IR_BOOL) return (ir_bounds){.boolean = tri_all()};
  return (ir_bounds){.real = iv_make(-INFINITY, INFINITY, true)};
}

/* Whether kernels have minima and maxima of this input, along q (1), along kv (2) or along both (3). */
static int stat_axes(const mask_info *m, uint32_t input, int n_index) {
  int axes = 0;
  for (int i = 0; i < m->num_stats; i++)
    if (m->stat[i].input == (int)input && m->stat[i].axis == n_index - 1) axes |= m->stat[i].along_q ? 1 : 2;
  return axes;
}

static low_high of_box(const survey *s, uint32_t input, int n_index, const int64_t lo[4], const int64_t hi[4]) {
  low_high all = {INFINITY, -INFINITY, false};
  int64_t at[4];
  const int last = n_index - 1;
  for (at[0] = lo[0]; at[0] <= (last > 0 ? hi[0] : lo[0]); at[0]++)
    for (at[1] = lo[1]; at[1] <= (last > 1 ? hi[1] : lo[1]); at[1]++)
      for (at[2] = lo[2]; at[2] <= (last > 2 ? hi[2] : lo[2]); at[2]++) {
        at[3] = 0;
        all = low_high_join(all, pyramid_bounds(&s->pyramid[input], at, lo[last], hi[last]));
      }
  return all;
}

static ir_bounds survey_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  const survey_box *box = user;
  const survey *s = box->s;
  const cpu_view *view = &s->p.input[input];
  int64_t lo[4] = {0}, hi[4] = {0};
  bool is_point = true;
  for (int i = 0; i < n_index; i++) {
    const int64_t offset = problem_offset(&s->p, s->p.spec->traced.input[input].axis[i], box->tile.b, 0);
    lo[i] = inside(index[i].lo - offset, view->shape[i]);
    hi[i] = inside(index[i].hi - offset, view->shape[i]);
    if (i < n_index - 1) is_point &= lo[i] == hi[i];
  }
  if (box->by_kernel && s->reads_along[input]) { /* the blocks of a tile; all else is unknown */
    const int last = n_index - 1, axes = stat_axes(&s->p.mask, input, n_index);
    if (type == IR_REAL || axes == 0 || !is_point) return anything(type);
    const int64_t block = axes == 1 ? s->given->tile_m : axes == 2 ? s->given->tile_n : 1;
    lo[last] = lo[last] / block * block;
    hi[last] = inside(hi[last] / block * block + block - 1, view->shape[last]);
  }
  const ir_bounds all = s->pyramid[input].axes == 0 ? tile_box_load(user, input, type, n_index, index)
                                                    : of_type(type, of_box(s, input, n_index, lo, hi));
  /* Minima and maxima of kernels have 32 bits. */
  return box->by_kernel && s->reads_along[input] && type == IR_INT ? (ir_bounds){.integer = ivi_of_32_bits(all.integer)}
                                                                   : all;
}

/* By the sets that kernels have of their blocks, or of the numbers alone. */
static void survey_refine(void *user, ir_ref r, const ir_bounds *bounds, ir_bounds *out) {
  const survey_box *box = user;
  const mask_survey_call *given = box->s->given;
  tile_box_refine_by(&box->tile, box->by_kernel ? given->tile_m : 1, box->by_kernel ? given->tile_n : 1, r, bounds,
                     out);
}

static int class_of(survey *s, const expression *e, bool by_kernel, int q0, int q1, int kv0, int kv1) {
  survey_box box = {{&s->p, s->b, s->h, q0, q1, kv0, kv1}, s, by_kernel};
  const ir_bounds_env env = {.user = &box, .variable = tile_box_variable, .load = survey_load, .refine = survey_refine};
  ir_bounds *bounds = s->p.worker[0].bounds;
  if (e->root == IR_NONE) return FULL;
  ir_interval_over(s->p.g, e->nodes, e->count, &env, bounds);
  const tri keep = bounds[e->root].boolean;
  return !keep.can_be_true ? EMPTY : keep.can_be_false ? PARTIAL : FULL;
}

/* ---- ranges in closed form ---- */

static ir_bounds range_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const tile_box *t = user;
  const int at[4] = {t->q0, t->q1, t->kv0, t->kv1};
  if (v != VAR_TILE) return tile_box_variable(user, v, index, type);
  const int64_t x = at[index] + problem_offset(t->p, index < 2 ? LUATTN_AXIS_Q : LUATTN_AXIS_KV, t->b, 0);
  return (ir_bounds){.integer = {x, x}};
}

/* A real number in it is known but for its rounding. */
static long long range_end(survey *s, ir_ref end, bool is_upper, int q0, int q1) {
  tile_box box = {&s->p, s->b, s->h, q0, q1, 0, 0};
  const ir_bounds_env env = {.user = &box, .variable = range_variable, .load = tile_box_load};
  ir_bounds x;
  ir_interval(s->p.g, &end, 1, &env, s->p.worker[0].bounds, &x);
  return (is_upper ? x.integer.hi : x.integer.lo) - problem_offset(&s->p, LUATTN_AXIS_KV, s->b, 0);
}

static void find_ranges(survey *s) {
  const int tile_m = s->given->tile_m, tile_n = s->given->tile_n, kv_len = s->p.kv_len;
  const mask_info *m = &s->p.mask;
  for (int64_t r = 0; r < s->rows; r++) {
    const int q0 = (int)(r * tile_m), q1 = (int)inside(r * tile_m + tile_m - 1, s->p.q_len);
    long long lo = 0, hi = kv_len;
    if (m->kv_lo != IR_NONE) lo = range_end(s, m->kv_lo, false, q0, q1);
    if (m->kv_hi != IR_NONE) hi = range_end(s, m->kv_hi, true, q0, q1);
    lo = lo < 0 ? 0 : lo;
    hi = hi > kv_len ? kv_len : hi;
    s->first[r] = lo < hi ? (int)(lo / tile_n) : 0;
    s->end[r] = lo < hi ? (int)((hi + tile_n - 1) / tile_n) : 0;
  }
}

/* ---- evaluation ---- */

typedef struct scores {
  int64_t kept;
  bool some, dropped;
} scores;

/* The scores of a box. Where the data's part of the mask is constant on blocks, and the other keeps all of the box, one
 * score stands for each block. `counts`: all of them; else until some is kept and another is not. */
static scores evaluate(survey *s, bool counts, int q0, int q1, int kv0, int kv1) {
  const mask_evaluated *e = &s->p.mask.evaluated;
  const bool by_blocks = e->is && s->p.part == NULL && e->rows * e->columns > 1 &&
                         class_of(s, &s->by_position, true, q0, q1, kv0, kv1) == FULL;
  const int down = by_blocks ? e->rows : 1, across = by_blocks ? e->columns : 1;
  double kv_idx[IR_LANES], kept[IR_LANES];
  int weight[IR_LANES];
  scores x = {0};
  for (int q = q0, next_q; q <= q1; q = next_q) {
    next_q = q / down * down + down;
    const int64_t height = (next_q <= q1 ? next_q : q1 + 1) - q;
    for (int kv = kv0; kv <= kv1;) {
      int lanes = 0;
      for (int next; lanes < IR_LANES && kv <= kv1; kv = next, lanes++) {
        next = kv / across * across + across;
        kv_idx[lanes] = kv, weight[lanes] = (next <= kv1 ? next : kv1 + 1) - kv;
      }
      cpu_lanes env = {.p = &s->p, .w = &s->p.worker[0], .b = s->b, .h = s->h, .q_idx = q, .kv_idx = kv_idx};
      program_run(&s->program, &env, lanes, (double *const[]){kept});
      for (int i = 0; i < lanes; i++) {
        if (kept[i] != 0)
          x.some = true, x.kept += height * weight[i];
        else
          x.dropped = true;
      }
      if (!counts && x.some && x.dropped) return x;
    }
  }
  return x;
}

static int class_of_scores(scores x) { return !x.some ? EMPTY : x.dropped ? PARTIAL : FULL; }

static int cell_class(survey *s, int64_t row, int64_t column) {
  unsigned char *cell = &s->cell[row * s->cell_columns + column];
  if (*cell != 0) return *cell - 1;
  const int q0 = (int)row * MASK_CELL, q1 = (int)inside(q0 + MASK_CELL - 1, s->p.q_len), kv0 = (int)column * MASK_CELL,
            kv1 = (int)inside(kv0 + MASK_CELL - 1, s->p.kv_len);
  int c = class_of(s, &s->keep, false, q0, q1, kv0, kv1);
  if (c == PARTIAL) c = class_of_scores(evaluate(s, false, q0, q1, kv0, kv1));
  *cell = (unsigned char)(1 + c);
  return c;
}

/* The class of a tile by the cells that it touches. */
static int class_by_cells(survey *s, int q0, int q1, int kv0, int kv1) {
  bool some = false, all = true;
  for (int row = q0 / MASK_CELL; row <= q1 / MASK_CELL; row++)
    for (int column = kv0 / MASK_CELL; column <= kv1 / MASK_CELL; column++) {
      const int c = cell_class(s, row, column);
      some |= c != EMPTY, all &= c == FULL;
    }
  return !some ? EMPTY : all ? FULL : PARTIAL;
}

/* ---- boxes of tiles ---- */

typedef struct tiles {
  int64_t r0, r1, c0, c1; /* tiles, ends exclusive */
  int q0, q1, kv0, kv1;   /* positions, inclusive */
} tiles;

static tiles tiles_at(const survey *s, int64_t row, int64_t column, int64_t size) {
  const int64_t tile_m = s->given->tile_m, tile_n = s->given->tile_n;
  tiles t = {row,
             row + size < s->rows ? row + size : s->rows,
             column,
             column + size < s->columns ? column + size : s->columns,
             (int)(row * tile_m),
             0,
             (int)(column * tile_n),
             0};
  t.q1 = (int)inside(t.r1 * tile_m - 1, s->p.q_len);
  t.kv1 = (int)inside(t.c1 * tile_n - 1, s->p.kv_len);
  return t;
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* Enters `weight` for each of these tiles. */
static void enter_chunks(const survey *s, const tiles *t, double weight) {
  const int64_t n = s->given->chunk_tiles, columns = (s->columns + n - 1) / n;
  for (int64_t r = t->r0, end; r < t->r1; r = end) {
    end = least(r / n * n + n, t->r1);
    for (int64_t c = t->c0, next; c < t->c1; c = next) {
      next = least(c / n * n + n, t->c1);
      s->given->chunks[r / n * columns + c / n] += weight * (double)(end - r) * (double)(next - c);
    }
  }
}

/* Enters tiles of one class in kernels (PARTIAL of single tiles only), of which the mask keeps nothing, all, or not. */
static void settle(survey *s, const tiles *t, int class, int kept) {
  const double count = (double)(t->r1 - t->r0) * (double)(t->c1 - t->c0);
  unsigned char *out = s->given->classes;
  if (class == FULL) s->full += count;
  if (class == PARTIAL) s->partial += count;
  if (class != EMPTY && s->given->chunks != NULL) enter_chunks(s, t, s->of_set);
  if (kept == FULL) s->needed += count, s->kept += (double)(t->q1 - t->q0 + 1) * (t->kv1 - t->kv0 + 1);
  for (int64_t r = t->r0; out != NULL && r < t->r1; r++)
    memset(out + r * s->columns + t->c0, class, (size_t)(t->c1 - t->c0));
}

static bool leave_open(survey *s, const tiles *t) {
  if (s->num_open == s->most_open) {
    const size_t more = s->most_open > 0 ? 2 * s->most_open : 4096;
    tile_place *larger = arena_raw(s->a, more, sizeof *larger);
    if (larger == NULL) return false;
    if (s->num_open > 0) memcpy(larger, s->open, s->num_open * sizeof *larger);
    s->open = larger, s->most_open = more;
  }
  s->open[s->num_open++] = (tile_place){(int)t->r0, (int)t->c0};
  return true;
}

static bool one_tile(survey *s, const tiles *t, int class, int kept) {
  if (t->c0 < s->first[t->r0] || t->c0 >= s->end[t->r0]) class = kept = EMPTY;
  const bool counts = s->given->counts != NULL;
  if (class == PARTIAL && (kept == PARTIAL || s->cell != NULL) && (s->evaluates || counts)) {
    if (!s->evaluates) settle(s, t, class, EMPTY); /* what is kept of it is to be found */
    return leave_open(s, t);
  }
  settle(s, t, class, kept);
  return true;
}

/* The class of the cells that these tiles touch, by all of their numbers. */
static int class_of_cells(survey *s, const tiles *t) {
  const int last = MASK_CELL - 1;
  return class_of(s, &s->keep, false, t->q0 & ~last, (int)inside(t->q1 | last, s->p.q_len), t->kv0 & ~last,
                  (int)inside(t->kv1 | last, s->p.kv_len));
}

/* `kept`: the class of the tiles by all of their numbers, as far as it is known of a larger box. */
static bool visit(survey *s, int64_t row, int64_t column, int64_t size, int kept) {
  const tiles t = tiles_at(s, row, column, size);
  if (t.r0 >= t.r1 || t.c0 >= t.c1) return true;
  int class = s->cell != NULL ? class_of_cells(s, &t) : class_of(s, &s->keep, s->knows_less, t.q0, t.q1, t.kv0, t.kv1);
  if (class != PARTIAL || (!s->knows_less && s->cell == NULL))
    kept = class;
  else if (kept == PARTIAL)
    kept = class_of(s, &s->keep, false, t.q0, t.q1, t.kv0, t.kv1);
  if (s->evaluates && s->cell == NULL && kept != PARTIAL) class = kept;
  if (class != PARTIAL) {
    settle(s, &t, class, kept);
    return true;
  }
  if (size == 1) return one_tile(s, &t, class, kept);
  for (int i = 0; i < 4; i++)
    if (!visit(s, row + i / 2 * (size / 2), column + i % 2 * (size / 2), size / 2, kept)) return false;
  return true;
}

/* ---- open tiles ---- */

/* Sums of a sample's numbers, and of their squares. */
typedef struct sample_sum {
  double x, square;
} sample_sum;
static void add(sample_sum *s, double x) { s->x += x, s->square += x * x; }

/* Adds the total of `all` of which `count` were taken, and its variance. */
static void extend(const sample_sum *s, double count, double all, double *total, double *variance) {
  const double mean = s->x / count;
  *total += count < all ? mean * all : s->x;
  if (count < 2 || count >= all) return;
  const double spread = (s->square - s->x * mean) / (count - 1);
  *variance += all * all * (spread > 0 ? spread : 0) / count * (1 - count / all);
}

/* Of a chunk's tiles that a sample left out, what one counts where the one that was evaluated keeps nothing: next to
 * nothing, but more than 0, which says that keys are not needed. */
static const double unseen = 1e-3;

/* Enters `count` open tiles from the given one on, of which tile `at` was evaluated, as if they were all like it. */
static void enter_sampled(const survey *s, size_t at, size_t first, size_t count, int class) {
  for (size_t i = first; i < first + count; i++) {
    const tiles t = tiles_at(s, s->open[i].row, s->open[i].column, 1);
    if (class != EMPTY || i != at) enter_chunks(s, &t, class != EMPTY ? s->of_set : unseen * s->of_set);
  }
}

/* One of each `step` open tiles, drawn anew in each. */
static void evaluate_open(survey *s, double work) {
  const double all = (double)s->num_open, each = (double)s->given->tile_m * s->given->tile_n * s->keep.count;
  const size_t step = each * all > work ? (size_t)(each * all / work) + 1 : 1;
  const bool by_cells = s->evaluates && s->cell != NULL;
  sample_sum kept = {0}, needed = {0}, full = {0}, partial = {0};
  uint64_t random = 1;
  double count = 0;
  for (size_t i = 0; i < s->num_open; i += step) {
    random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const size_t left = s->num_open - i, at = i + (size_t)((random >> 33) % (left < step ? left : step));
    const tiles t = tiles_at(s, s->open[at].row, s->open[at].column, 1);
    const bool counts = s->given->counts != NULL;
    int class = PARTIAL;
    scores x = {0};
    if (counts || !by_cells) x = evaluate(s, counts, t.q0, t.q1, t.kv0, t.kv1);
    if (s->evaluates) class = by_cells ? class_by_cells(s, t.q0, t.q1, t.kv0, t.kv1) : class_of_scores(x);
    add(&kept, (double)x.kept), add(&needed, x.some), add(&full, class == FULL), add(&partial, class == PARTIAL);
    if (s->given->chunks != NULL) enter_sampled(s, at, i, left < step ? left : step, class);
    if (s->given->classes != NULL) s->given->classes[t.r0 * s->columns + t.c0] = (unsigned char)class;
    count++;
  }
  if (count == 0) return;
  extend(&kept, count, all, &s->kept, &s->kept_variance);
  extend(&needed, count, all, &s->needed, &s->needed_variance);
  if (!s->evaluates) return;
  extend(&full, count, all, &s->full, &s->full_variance);
  extend(&partial, count, all, &s->partial, &s->partial_variance);
}

static bool survey_head(survey *s, int b, int h, double work) {
  int64_t size = 1;
  s->b = b, s->h = h, s->num_open = 0;
  if (s->p.mask.keep == IR_NONE) {
    const tiles all = tiles_at(s, 0, 0, s->rows > s->columns ? s->rows : s->columns);
    settle(s, &all, FULL, FULL);
    return true;
  }
  if (s->cell != NULL) memset(s->cell, 0, (size_t)(s->cell_columns * ((s->p.q_len + MASK_CELL - 1) / MASK_CELL)));
  while (size < s->rows || size < s->columns) size *= 2;
  find_ranges(s);
  if (s->rows > 0 && s->columns > 0 && !visit(s, 0, 0, size, PARTIAL)) return false;
  evaluate_open(s, s->given->classes != NULL ? INFINITY : work);
  return true;
}

/* ---- all batch entries and heads ---- */

static void enter_counts(const survey *s, double of_sets, double sets, const sample_sum taken[4],
                         luattn_mask_counts *out) {
  const double every = (double)s->p.batch * s->p.heads / sets; /* entries and heads that a set stands for */
  double total[4] = {0}, variance[4] = {s->kept_variance, s->needed_variance, s->full_variance, s->partial_variance};
  for (int i = 0; i < 4; i++) {
    variance[i] *= sets / of_sets * (sets / of_sets);
    extend(&taken[i], of_sets, sets, &total[i], &variance[i]);
    total[i] *= every, variance[i] *= every * every;
  }
  out->scores = (double)s->p.batch * s->p.heads * s->p.q_len * s->p.kv_len;
  out->tiles = (double)s->p.batch * s->p.heads * (double)s->rows * (double)s->columns;
  out->kept = total[0], out->kept_error = 2 * sqrt(variance[0]);
  out->needed = total[1], out->needed_error = 2 * sqrt(variance[1]);
  out->full = total[2], out->partial = total[3];
  out->computed_error = 2 * sqrt(variance[2] + variance[3]);
}

static luattn_status survey_all(survey *s, luattn_mask_counts *out, luattn_error *err) {
  const ir_ref keep = s->p.mask.keep;
  const bool by_batch = keep != IR_NONE && ir_uses(s->p.g, keep, VAR_B),
             by_head = keep != IR_NONE && ir_uses(s->p.g, keep, VAR_H);
  const int heads = by_head ? s->p.heads : 1;
  const double tiles_of_set = (double)s->rows * (double)s->columns;
  int64_t sets = (int64_t)(by_batch ? s->p.batch : 1) * heads, of_sets = sets;
  sample_sum taken[4] = {{0}};
  if (s->p.batch == 0 || s->p.heads == 0 || sets == 0) return LUATTN_OK;
  /* Counts by chunk say which keys are needed: of each entry and head. */
  if (s->given->chunks == NULL && tiles_of_set > 0 && (double)sets > most_tiles / tiles_of_set)
    of_sets = (int64_t)(most_tiles / tiles_of_set);
  if (of_sets < sets && of_sets < fewest_sets) of_sets = fewest_sets < sets ? fewest_sets : sets;
  for (int64_t i = 0; i < of_sets; i++) {
    const int64_t set = i * sets / of_sets + (of_sets < sets ? sets / of_sets / 2 : 0);
    s->full = s->partial = s->needed = s->kept = 0;
    s->of_set = 1.0 / (double)of_sets;
    if (!survey_head(s, (int)(set / heads), (int)(set % heads), most_work / (double)of_sets))
      return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
    add(&taken[0], s->kept), add(&taken[1], s->needed), add(&taken[2], s->full), add(&taken[3], s->partial);
  }
  enter_counts(s, (double)of_sets, (double)sets, taken, out);
  return LUATTN_OK;
}

static bool expression_open(survey *s, ir_ref root, expression *e) {
  e->root = root;
  if (root == IR_NONE) return true;
  e->nodes = arena_raw(s->a, ir_count(s->p.g), sizeof *e->nodes);
  if (e->nodes == NULL) return false;
  e->count = ir_interval_nodes(s->p.g, &root, 1, s->p.worker[0].bounds, e->nodes);
  return true;
}

/* Reads the inputs whose numbers differ along positions. */
static bool open_inputs(survey *s) {
  const ir *g = s->p.g;
  for (int i = 0; i < s->keep.count; i++) {
    const ir_node *n = ir_get(g, s->keep.nodes[i]);
    const uint32_t input = n->op == IR_LOAD ? ir_index_of(n) : 0;
    if (n->op != IR_LOAD || n->nargs == 0) continue;
    s->reads_along[input] |= s->level[s->keep.nodes[i]] != LEVEL_HEAD;
    if (s->pyramid[input].axes > 0) continue;
    int64_t numbers = 1;
    for (int k = 0; k < n->nargs; k++) numbers *= s->p.input[input].shape[k];
    if (numbers > most_numbers || numbers == 0) continue;
    if (!pyramid_open(s->a, &s->p.input[input], n->nargs, &s->pyramid[input])) return false;
  }
  return true;
}

/* Kernels know as much as the numbers' minima and maxima say if they have these for all numbers along positions. */
static bool kernels_know_less(const survey *s) {
  const ir *g = s->p.g;
  if (s->p.part != NULL) return true; /* blocks may lie across tiles */
  for (int i = 0; i < s->keep.count; i++) {
    const ir_node *n = ir_get(g, s->keep.nodes[i]);
    if (n->op != IR_LOAD || s->level[s->keep.nodes[i]] == LEVEL_HEAD) continue;
    const ir_ref last = n->arg[n->nargs - 1];
    if (n->type == IR_REAL || stat_axes(&s->p.mask, ir_index_of(n), n->nargs) == 0) return true;
    if (!ir_is_var(g, last, VAR_Q) && !ir_is_var(g, last, VAR_KV)) return true;
    for (int k = 0; k < n->nargs - 1; k++)
      if (s->level[n->arg[k]] != LEVEL_HEAD) return true;
  }
  return false;
}

static bool survey_open(survey *s) {
  const mask_info *m = &s->p.mask;
  const int tile_m = s->given->tile_m, tile_n = s->given->tile_n;
  s->rows = s->p.q_len / tile_m + (s->p.q_len % tile_m != 0);
  s->columns = s->p.kv_len / tile_n + (s->p.kv_len % tile_n != 0);
  s->evaluates = m->evaluated.is && s->given->evaluates && s->p.part == NULL; /* kernels of offsets have no bits */
  if (m->keep == IR_NONE) return true;
  s->level = arena_array(s->a, ir_count(s->p.g), 1);
  s->first = arena_array(s->a, (size_t)s->rows, sizeof *s->first);
  s->end = arena_array(s->a, (size_t)s->rows, sizeof *s->end);
  if (s->level == NULL || s->first == NULL || s->end == NULL) return false;
  analyse_levels(s->p.g, s->level);
  if (s->evaluates && (tile_m % MASK_CELL != 0 || tile_n % MASK_CELL != 0)) {
    s->cell_columns = (s->p.kv_len + MASK_CELL - 1) / MASK_CELL;
    s->cell = arena_raw(s->a, (size_t)((s->p.q_len + MASK_CELL - 1) / MASK_CELL), (size_t)s->cell_columns);
    if (s->cell == NULL) return false;
  }
  if (!expression_open(s, m->keep, &s->keep) ||
      !expression_open(s, m->rest != IR_NONE ? m->bounds : IR_NONE, &s->by_position))
    return false;
  s->knows_less = kernels_know_less(s);
  return open_inputs(s);
}

static luattn_mask_means means_of(const survey *s) {
  const mask_info *m = &s->p.mask;
  if (m->keep == IR_NONE) return LUATTN_MASK_NONE;
  return s->evaluates ? LUATTN_MASK_CELLS : m->num_stats > 0 ? LUATTN_MASK_MINIMA : LUATTN_MASK_RANGES;
}

luattn_status mask_survey_run(void *call, luattn_error *err) {
  mask_survey_call *given = call;
  arena *a = arena_open(arena_allocator(given->spec->a));
  survey *s = a != NULL ? arena_new(a, sizeof *s) : NULL;
  luattn_status status = LUATTN_OK;
  if (s == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  }
  s->a = a, s->given = given;
  const bool all = given->counts != NULL || given->chunks != NULL, only_asks = given->classes == NULL && !all;
  if (!only_asks && (given->tile_m < 1 || given->tile_n < 1))
    status = luattn_fail(err, LUATTN_INVALID, "mask: tile: is %dx%d, expected sizes of at least 1", given->tile_m,
                         given->tile_n);
  if (status == LUATTN_OK && batch_has_chunks(given->args->batch))
    status = luattn_fail(err, LUATTN_UNSUPPORTED,
                         "mask: batch: has q_chunks or kv_chunks, and tiles are counted of one range of positions; ask "
                         "for the whole, or for chunks by luattn_mask_chunks");
  if (status == LUATTN_OK) status = problem_open_mask(given->spec, given->args, a, &s->p, err);
  if (status == LUATTN_OK) given->may_evaluate = s->p.mask.evaluated.is && s->p.part == NULL;
  if (status != LUATTN_OK || only_asks) {
    arena_close(a);
    return status;
  }
  if (s->p.mask.keep != IR_NONE) status = program_open(&s->p, &s->p.mask.keep, 1, &s->program, err);
  if (status == LUATTN_OK) status = problem_start(&s->p, 1, err);
  if (status == LUATTN_OK && given->classes != NULL &&
      (given->b < 0 || given->b >= s->p.batch || given->h < 0 || given->h >= s->p.heads))
    status = luattn_fail(err, LUATTN_INVALID, "mask: batch %d, head %d: does not exist; there are %d and %d", given->b,
                         given->h, s->p.batch, s->p.heads);
  if (status == LUATTN_OK && (!survey_open(s) || (given->classes != NULL && !survey_head(s, given->b, given->h, 0))))
    status = luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  luattn_mask_counts unused;
  if (status == LUATTN_OK && all) status = survey_all(s, given->counts != NULL ? given->counts : &unused, err);
  if (status == LUATTN_OK && given->counts != NULL) {
    given->counts->means = means_of(s);
    given->counts->may_evaluate = given->may_evaluate;
  }
  arena_close(a);
  return status;
}

luattn_status luattn_mask_tiles(const luattn_spec *spec, const luattn_args *args, int b, int h, int tile_m, int tile_n,
                                unsigned char *out, luattn_error *err) {
  luattn_args used;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(out);
  TRY(choices_take_dense(args, "mask", &used, err));
  return host_run(mask_survey_run,
                  &(mask_survey_call){.spec = spec,
                                      .args = &used,
                                      .evaluates = used.skip != LUATTN_SKIP_NEVER,
                                      .tile_m = tile_m,
                                      .tile_n = tile_n,
                                      .classes = out,
                                      .b = b,
                                      .h = h},
                  err);
}
