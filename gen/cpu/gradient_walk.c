/* gradient_walk.c: computes gradients row by row from the derived expressions, in double; then, column by
 * column, adds the rows' contributions to dk, dv and the gradients of parameters. */
#include <math.h>
#include <string.h>

#include "gen/cpu/backward.h"

/* ---- the stage ---- */

/* Approximate bytes of a stage, and tiles of a run: neither may depend on the number of threads. */
enum { STAGE_BYTES = 16 << 20, MOST_TILES = 64 };

static size_t bytes_of_tile(const backward *w) {
  const size_t lanes = (size_t)CPU_TILE * CPU_TILE * (size_t)w->element_terms.num_wanted;
  return sizeof(tile_stage) + lanes * (sizeof(double) + sizeof(size_t));
}

/* The wanted terms, without repetitions. */
static void list_sums(gradient_stage *s, const term_program *t) {
  for (int i = 0; i < t->num_wanted; i++) {
    int at = 0;
    while (at < s->num_sums && s->sum[at] != t->wanted[i].sum) at++;
    if (at == s->num_sums) s->sum[s->num_sums++] = t->wanted[i].sum;
  }
}

luattn_status stage_open(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  gradient_stage *s = &w->stage;
  terms_want(w, &w->row_terms);
  terms_want(w, &w->element_terms);
  list_sums(s, &w->row_terms);
  list_sums(s, &w->element_terms);
  const int64_t tiles = (int64_t)(STAGE_BYTES / bytes_of_tile(w)) + 1, kv_tiles = (p->kv_len + CPU_TILE - 1) / CPU_TILE;
  const int64_t most = tiles < MOST_TILES ? tiles : MOST_TILES;
  s->most_tiles = (int)(kv_tiles < most ? kv_tiles : most);
  TRY(blocks_open(p, tiles / (s->most_tiles > 0 ? s->most_tiles : 1), &s->blocks, err));
  const size_t blocks = (size_t)s->blocks.most, rows = blocks * CPU_TILE, all = blocks * (size_t)s->most_tiles;
  const size_t lanes = (size_t)CPU_TILE * CPU_TILE * (size_t)w->element_terms.num_wanted;
  const size_t row_terms = (size_t)w->row_terms.num_wanted;
  s->row = arena_array(p->a, rows, sizeof *s->row);
  s->tile = arena_raw(p->a, all, sizeof *s->tile);
  s->value = arena_raw(p->a, all, lanes * sizeof *s->value);
  s->offset = arena_raw(p->a, all, lanes * sizeof *s->offset);
  s->row_value = arena_array(p->a, rows, row_terms * sizeof *s->row_value);
  s->row_offset = arena_array(p->a, rows, row_terms * sizeof *s->row_offset);
  const bool ok = s->row != NULL && s->tile != NULL && s->value != NULL && s->offset != NULL && s->row_value != NULL &&
                  s->row_offset != NULL;
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

/* The index of tile `t` of the current run, of block `i`, in the arrays. */
static size_t tile_at(const gradient_stage *s, int i, int t) { return (size_t)i * (size_t)s->most_tiles + (size_t)t; }

static unsigned char class_at(const gradient_stage *s, int i, int t) {
  return s->blocks.classes[(size_t)i * (size_t)s->blocks.kv_tiles + (size_t)(s->first_tile + t)];
}

/* The start of the values of a tile's row, in `value` and `offset`. */
static size_t lanes_at(const backward *w, size_t tile, int row) {
  return (tile * CPU_TILE + (size_t)row) * (size_t)w->element_terms.num_wanted * CPU_TILE;
}

/* ---- rows ---- */

static bool any_tile(const unsigned char *classes, int count) {
  for (int t = 0; t < count; t++)
    if (classes[t] != 0) return true;
  return false;
}

/* Row numbers from what forward saved. A row with an lse of -inf keeps nothing, or its scores are all -inf, or its lse
 * is of something else than its weights: it gets the numbers of an lse of +inf, as in kernels (prepare.cuh). `n` is its
 * number in the stage; classes: of the tiles of its block. */
static void open_row(const backward *w, cpu_lanes *lanes, int q, size_t n, const unsigned char *classes) {
  const cpu_problem *p = &w->p;
  const derived_spec *derived = &p->spec->derived;
  const gradient_stage *s = &w->stage;
  row_state *row = &s->row[n];
  double final[1 + DERIVED_MAX_ROWS], *out[DERIVED_MAX_ROWS], pass[PASSES_MAX], delta = 0;
  const int64_t at[] = {lanes->b, lanes->h, q};
  const double *dout = w->dout_rows + cpu_at(p->heads, p->q_len, p->dim_v, lanes->b, lanes->h, q);
  int num_final = 0;
  bool no_lse = false;
  *row = (row_state){.is_live = false};
  if (p->spec->traced.online.lse >= 0) {
    final[num_final++] = view_get(&w->lse, at);
    no_lse = final[0] == -INFINITY;
    if (no_lse && !any_tile(classes, s->blocks.kv_tiles)) return;
    if (no_lse) final[0] = INFINITY;
  }
  for (int i = 0; i < derived->num_saved; i++)
    final[num_final++] = view_get(&w->saved, (int64_t[]){i, at[0], at[1], at[2]});
  for (int d = 0; d < p->dim_v; d++) {
    const double part = dout[d] * view_get(&w->o, (int64_t[]){at[0], at[1], at[2], d});
    delta += is_noise(w) ? part * part : part;
  }
  if (is_noise(w)) delta = sqrt(delta); /* the roundings of o in the products are independent */
  lanes->final = final;
  lanes->delta = row->delta = delta;
  lanes->dlse = row->dlse = w->dlse.data != NULL && !no_lse ? view_get(&w->dlse, at) : 0;
  passes_run(w, lanes, classes, pass);
  lanes->pass = pass;
  for (int i = 0; i < derived->num_rows; i++) out[i] = &row->number[i];
  program_run(&w->rows, lanes, 1, out);
  for (int i = 0; i < derived->num_rows && no_lse; i++)
    if (isnan(row->number[i])) row->number[i] = 0;
  row->size = w->magnifies && p->spec->traced.online.lse >= 0 && !no_lse ? fabs(final[0]) : 0;
  const size_t first = n * (size_t)w->row_terms.num_wanted;
  terms_run(w, &w->row_terms, lanes, 1, w->purpose == SCORE_NOISE ? &row->size : NULL, 1, s->row_value + first,
            s->row_offset + first);
  for (int i = 0; i < w->row_terms.num_wanted && no_lse; i++) s->row_value[first + (size_t)i] = 0;
  row->is_live = true;
}

/* Returns the spread of three values of a function if it amplifies the relative error `unit` of a score a
 * hundredfold: at a jump, or on a steep slope, such as a square root's near 0. Smaller effects are within the
 * general tolerance. */
static double jump(double low, double middle, double high, double unit) {
  const double least = fmin(fmin(low, middle), high), most = fmax(fmax(low, middle), high);
  return most - least > 100 * unit * (fabs(least) + fabs(most)) ? most - least : 0;
}

/* Replaces the kept elements' values by how far they jump when their score moves by its rounding error:
 * w->unit of the products that it is a sum of. */
static void run_kinks(const backward *w, cpu_lanes *lanes, int count, const double *score, double *prob, double *ds) {
  const cpu_problem *p = &w->p;
  const double *q = p->q + cpu_at(p->heads, p->q_len, p->dim, lanes->b, lanes->h, (int)lanes->q_idx);
  double low[IR_LANES], high[IR_LANES], p_low[IR_LANES], ds_low[IR_LANES], p_high[IR_LANES], ds_high[IR_LANES];
  for (int i = 0; i < count; i++) {
    const double *k =
        p->k + cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    double sum = 0;
    for (int d = 0; d < p->dim; d++) sum += fabs(q[d] * k[d]);
    const double error = w->unit * p->scale * sum;
    low[i] = score[i] - error, high[i] = score[i] + error;
  }
  lanes->score = low;
  program_run(&w->element, lanes, count, (double *const[]){p_low, ds_low});
  lanes->score = high;
  program_run(&w->element, lanes, count, (double *const[]){p_high, ds_high});
  lanes->score = score;
  program_run(&w->element, lanes, count, (double *const[]){prob, ds});
  for (int i = 0; i < count; i++) {
    prob[i] = jump(p_low[i], prob[i], p_high[i], w->unit);
    ds[i] = jump(ds_low[i], ds[i], ds_high[i], w->unit);
  }
}

/* Multiplies the elements' values by sqrt(s^2 + lse^2), s being the argument of the online function. */
static void run_score_noise(const backward *w, cpu_lanes *lanes, int count, double row_size, double *size, double *prob,
                            double *ds) {
  const double *score = lanes->score;
  program_run(&w->element, lanes, count, (double *const[]){prob, ds});
  memcpy(size, score, (size_t)count * sizeof *size);
  scores_mod(&w->scores, lanes, count, size);
  lanes->score = score;
  for (int i = 0; i < count; i++) {
    size[i] = w->magnifies && isfinite(size[i]) ? hypot(size[i], row_size) : 0;
    prob[i] *= size[i], ds[i] *= size[i];
  }
}

/* The element's contribution to a gradient: a product; with KINKS its largest magnitude; or its square. */
static double product(const backward *w, double a, double b) {
  const double x = a * b;
  return w->purpose == KINKS ? fabs(x) : squares_tensors(w) ? x * x : x;
}

/* Computes P and dS of the kept columns of a row in a tile, into the stage, and dq. */
static void row_of_tile(const backward *w, cpu_lanes *lanes, size_t n, size_t tile, int r, int count, double *score,
                        double *dq) {
  const cpu_problem *p = &w->p;
  const gradient_stage *s = &w->stage;
  const double *dout = w->dout_rows + cpu_at(p->heads, p->q_len, p->dim_v, lanes->b, lanes->h, (int)lanes->q_idx);
  double dp[IR_LANES], size[IR_LANES], *prob = s->tile[tile].prob[r], *ds = s->tile[tile].ds[r];
  for (int i = 0; i < count; i++) {
    const double *v =
        p->v + cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    dp[i] = 0;
    for (int d = 0; d < p->dim_v; d++) dp[i] += dout[d] * v[d];
    s->tile[tile].column[r][i] = (unsigned char)((int)lanes->kv_idx[i] % CPU_TILE);
  }
  problem_round(p, dp, count);
  dropout_apply(lanes, count, dp);
  lanes->score = score;
  lanes->dp = dp;
  if (w->purpose == KINKS)
    run_kinks(w, lanes, count, score, prob, ds);
  else if (w->purpose == SCORE_NOISE)
    run_score_noise(w, lanes, count, s->row[n].size, size, prob, ds);
  else
    program_run(&w->element, lanes, count, (double *const[]){prob, ds});
  dropout_apply(lanes, count, prob);
  problem_round(p, prob, count);
  problem_round(p, ds, count);
  const size_t first = lanes_at(w, tile, r);
  terms_run(w, &w->element_terms, lanes, count, w->purpose == SCORE_NOISE ? size : NULL, CPU_TILE, s->value + first,
            s->offset + first);
  for (int i = 0; i < count; i++) {
    const double *k =
        p->k + cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    const double g = p->scale * ds[i];
    for (int d = 0; d < p->dim; d++) dq[d] += product(w, g, k[d]);
  }
}

/* Row `r` of block `i`, in the tiles of the current run. */
static void backward_row(const backward *w, cpu_worker *worker, const block_place *at, int i, int r) {
  const cpu_problem *p = &w->p;
  const gradient_stage *s = &w->stage;
  const int q = at->q0 + r;
  const size_t n = (size_t)i * CPU_TILE + (size_t)r;
  double score[IR_LANES], *dq = w->dq + cpu_at(p->heads, p->q_len, p->dim, at->b, at->h, q);
  cpu_lanes lanes = {.p = p, .w = worker, .b = at->b, .h = at->h, .q_idx = q};
  if (s->first_tile == 0) open_row(w, &lanes, q, n, s->blocks.classes + (size_t)i * (size_t)s->blocks.kv_tiles);
  lanes.final = lanes.pass = NULL; /* only rows see them */
  lanes.row = s->row[n].number, lanes.delta = s->row[n].delta, lanes.dlse = s->row[n].dlse;
  for (int t = 0; t < s->num_tiles; t++) {
    const unsigned char class = class_at(s, i, t);
    const size_t tile = tile_at(s, i, t);
    if (class == 0) continue;
    s->tile[tile].count[r] = 0;
    if (!s->row[n].is_live) continue;
    const int count = scores_kept(&w->scores, &lanes, (s->first_tile + t) * CPU_TILE, class == 1, score);
    s->tile[tile].count[r] = (unsigned char)count;
    if (count > 0) row_of_tile(w, &lanes, n, tile, r, count, score, dq);
  }
}

static void backward_rows(void *of_backward, int worker, int64_t unit) {
  const backward *w = of_backward;
  int from, to;
  const block_place at = blocks_rows(&w->stage.blocks, unit, &from, &to);
  for (int r = from; r < to; r++) backward_row(w, &w->p.worker[worker], &at, (int)(unit / UNITS_OF_BLOCK), r);
}

/* ---- columns ---- */

/* Adds the contributions of block `i`'s rows to dk and dv of a tile of the current run. */
static void add_block(const backward *w, int i, int t) {
  const cpu_problem *p = &w->p;
  const gradient_stage *s = &w->stage;
  const tile_stage *tile = &s->tile[tile_at(s, i, t)];
  const block_place at = blocks_place(&s->blocks, i);
  const size_t columns = cpu_at(p->heads_kv, p->kv_len, 1, at.b, at.h / p->group, (s->first_tile + t) * CPU_TILE);
  for (int r = 0; r < at.rows; r++) {
    const double *q = p->q + cpu_at(p->heads, p->q_len, p->dim, at.b, at.h, at.q0 + r);
    const double *dout = w->dout_rows + cpu_at(p->heads, p->q_len, p->dim_v, at.b, at.h, at.q0 + r);
    for (int j = 0; j < tile->count[r]; j++) {
      const size_t column = columns + tile->column[r][j];
      const double prob = tile->prob[r][j], g = p->scale * tile->ds[r][j];
      double *dk = w->dk + column * (size_t)p->dim, *dv = w->dv + column * (size_t)p->dim_v;
      for (int d = 0; d < p->dim; d++) dk[d] += product(w, g, q[d]);
      for (int d = 0; d < p->dim_v; d++) dv[d] += product(w, prob, dout[d]);
    }
  }
}

/* Heads of k that the current blocks attend to: [first, end), numbered over all batches. */
static int64_t first_head(const backward *w) {
  return w->stage.blocks.first / ((int64_t)w->stage.blocks.per_head * w->p.group);
}
static int64_t end_head(const backward *w) {
  const row_blocks *b = &w->stage.blocks;
  return (b->first + b->count - 1) / ((int64_t)b->per_head * w->p.group) + 1;
}

/* A tile of columns of a head, in the current run. */
static void add_columns(const backward *w, int64_t unit) {
  const gradient_stage *s = &w->stage;
  const int64_t of_head = (int64_t)s->blocks.per_head * w->p.group;
  const int64_t from = (first_head(w) + unit / s->num_tiles) * of_head - s->blocks.first, to = from + of_head;
  const int t = (int)(unit % s->num_tiles);
  for (int64_t i = from > 0 ? from : 0; i < to && i < s->blocks.count; i++)
    if (class_at(s, (int)i, t) != 0) add_block(w, (int)i, t);
}

/* Adds a row's contributions to one sum, from the tiles of the current run. */
static void add_row(const backward *w, int i, int r, double *sum) {
  const gradient_stage *s = &w->stage;
  const size_t n = (size_t)i * CPU_TILE + (size_t)r;
  for (int j = 0; s->first_tile == 0 && j < w->row_terms.num_wanted; j++) {
    const size_t at = n * (size_t)w->row_terms.num_wanted + (size_t)j;
    if (w->row_terms.wanted[j].sum == sum)
      terms_add_lanes(&w->row_terms.wanted[j], s->row_value + at, s->row_offset + at, 1);
  }
  for (int t = 0; t < s->num_tiles; t++) {
    const size_t tile = tile_at(s, i, t);
    const int count = class_at(s, i, t) != 0 ? s->tile[tile].count[r] : 0;
    for (int j = 0; j < w->element_terms.num_wanted; j++) {
      const size_t first = lanes_at(w, tile, r) + (size_t)j * CPU_TILE;
      if (w->element_terms.wanted[j].sum != sum) continue;
      terms_add_lanes(&w->element_terms.wanted[j], s->value + first, s->offset + first, count);
    }
  }
}

static void add_parameter(const backward *w, double *sum) {
  const gradient_stage *s = &w->stage;
  for (int i = 0; i < s->blocks.count; i++)
    for (int r = 0, rows = blocks_place(&s->blocks, i).rows; r < rows; r++)
      if (s->row[(size_t)i * CPU_TILE + (size_t)r].is_live) add_row(w, i, r, sum);
}

/* Sums of parameters come first, as they take longest. */
static void add_unit(void *of_backward, int worker, int64_t unit) {
  const backward *w = of_backward;
  (void)worker;
  if (unit < w->stage.num_sums)
    add_parameter(w, w->stage.sum[unit]);
  else
    add_columns(w, unit - w->stage.num_sums);
}

static int64_t num_elements(const cpu_view *t) {
  int64_t count = 1;
  for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
  return count;
}

static void zero_sums(const backward *w) {
  const cpu_problem *p = &w->p;
  problem_zero(p, w->dq, num_elements(&p->q_given));
  problem_zero(p, w->dk, num_elements(&p->k_given));
  problem_zero(p, w->dv, num_elements(&p->v_given));
  for (int i = 0; i < p->spec->traced.num_inputs; i++)
    if (w->input_grad[i] != NULL) problem_zero(p, w->input_grad[i], num_elements(&p->input[i]));
}

void gradient_walk(backward *w) {
  gradient_stage *s = &w->stage;
  problem_convert(&w->p);
  zero_sums(w);
  problem_convert_one(&w->p, &w->dout, NULL, w->dout_rows);
  while (blocks_next(&s->blocks)) {
    for (s->first_tile = 0; s->first_tile < s->blocks.kv_tiles; s->first_tile += s->most_tiles) {
      const int left = s->blocks.kv_tiles - s->first_tile;
      s->num_tiles = left < s->most_tiles ? left : s->most_tiles;
      problem_run(&w->p, backward_rows, w, (int64_t)s->blocks.count * UNITS_OF_BLOCK);
      problem_run(&w->p, add_unit, w, s->num_sums + (end_head(w) - first_head(w)) * s->num_tiles);
    }
  }
}
