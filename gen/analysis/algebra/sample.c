#include "gen/analysis/algebra/sample.h"

#include <math.h>
#include <string.h>

#include "common/call/input_dtype.h"

/* Row lengths in one block of lanes. */
static const int row_length[SAMPLE_BLOCK_ROWS] = {1, 1, 2, 3, 5, 8, 12, 16, 16};

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* A uniform number in [0, 1) from a key of two numbers; the same key gives the same value. */
static double uniform(uint64_t a, uint64_t b) { return (double)(mix(mix(a) ^ b) >> 11) * 0x1p-53; }

static double gaussian(uint64_t a, uint64_t b) {
  const double u = uniform(a, 2 * b) + 0x1p-54;
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * uniform(a, 2 * b + 1));
}

/* Scores from tiny to beyond exp's range, and rows of one sign, so that every arm of a piecewise function is
 * reached. Beyond exp's range rounding may make a correct claim look wrong, so few rows lie there. */
double sample_draw_score(int row, int lane) {
  static const double size[9] = {1, 0.3, 3, 1, 1e-3, 2, 0.5, 30, 1};
  static const double offset[7] = {0, 0, 0, 900, 0, -900, 0};
  const double x = size[(row * 5 + row / 9) % 9] * gaussian(1, (uint64_t)lane);
  switch (row % 4) {
    case 0:
      return fabs(x);
    case 1:
      return row < SAMPLE_FIRST_ROWS ? x + offset[(row / 4) % 7] : x;
    case 2:
      return row % 8 == 2 ? -fabs(x) : x;
    default:
      return x;
  }
}

sample_lanes sample_buffer(sample *s) { return arena_array(s->a, (size_t)s->lanes, sizeof(double)); }

enum { LONGEST = 4096, EXTREMES = 30 };
#define MOVE 0x1p-40
#define MOST_SLACK 1e-9

/* How often each score of a near row occurs: a few rows are long. */
static double repetitions(const sample *s, int row, int scores) {
  const int place = row % SAMPLE_BLOCK_ROWS;
  if (row >= s->near_rows || (place != 3 && place != 5 && place != 8)) return 1;
  const double most = (double)LONGEST / scores;
  return row == SAMPLE_BLOCK_ROWS - 1 ? most : fmax(1, floor(pow(most, uniform(99, (uint64_t)row))));
}

/* Rows with other scalars than those near their defaults. */
static bool has_other_scalars(const sample *s, int row) { return row < s->near_rows && row % 7 >= 5; }
static bool has_extreme_scalars(const sample *s, int row) { return has_other_scalars(s, row) && row % 14 == 6; }

static double other_scalar(const sample *s, uint64_t key, int row) {
  const double u = uniform(key, (uint64_t)row), sign = uniform(key, (uint64_t)row + 1000) < 0.3 ? -1 : 1;
  if (has_extreme_scalars(s, row)) return sign * pow(10, EXTREMES * (2 * u - 1));
  return row % 14 == 5 ? 1 : 3 * gaussian(key, (uint64_t)row);
}

/* Makes buffers for so many blocks, and says which lanes are a row. */
static bool lay_out(sample *s, int blocks) {
  s->blocks = blocks;
  s->rows = blocks * SAMPLE_BLOCK_ROWS;
  s->lanes = blocks * IR_LANES;
  if ((s->score = sample_buffer(s)) == NULL || (s->zeros = sample_buffer(s)) == NULL) return false;
  for (int k = 0; k < SPEC_MAX_RED; k++) s->red[k] = s->zeros;
  for (int i = 0; i < SPEC_MAX_STATE; i++) s->state[i] = s->zeros;
  for (int i = 0; i < SPEC_MAX_FINAL; i++) s->final[i] = s->zeros;
  int lane = 0;
  for (int r = 0; r < s->rows; r++) {
    s->first[r] = lane;
    s->valid[r] = true;
    s->extreme[r] = false;
    const int scores = row_length[r % SAMPLE_BLOCK_ROWS];
    const double count = repetitions(s, r, scores);
    for (int j = 0; j < scores; j++, lane++) {
      s->row_of[lane] = r;
      s->count[lane] = count;
    }
  }
  s->first[s->rows] = lane;
  return true;
}

static bool draw(sample *s, int blocks) {
  s->near_rows = blocks * SAMPLE_BLOCK_ROWS;
  if (!lay_out(s, blocks)) return false;
  for (int lane = 0; lane < s->lanes; lane++) s->score[lane] = sample_draw_score(s->row_of[lane], lane);
  return true;
}

bool sample_extend(sample *s, int blocks) {
  const double *score = s->score;
  const int lanes = s->lanes;
  if (!lay_out(s, blocks)) return false;
  for (int lane = 0; lane < lanes; lane++) s->score[lane] = score[lane];
  return true;
}

bool sample_init(sample *s, arena *a, const traced_spec *t) {
  *s = (sample){.a = a, .t = t};
  return draw(s, SAMPLE_FEW_BLOCKS);
}

bool sample_grow(sample *s) { return draw(s, SAMPLE_BLOCKS); }

uint64_t sample_hash(uint64_t a, uint64_t b) { return mix(mix(a) ^ b); }

/* Returns x, but if there are conditions, of six rows two get a number near one that they compare with, and
 * one gets a number several times larger than usual. The edges take turns, and so do their two sides: an arm
 * that few rows reach bears out no claim. */
static double near_edge(const sample *s, uint64_t key, int row, double x) {
  if (s->num_edges == 0) return x;
  const uint64_t six = (uint64_t)row / 6, edges = (uint64_t)s->num_edges;
  const uint64_t place = ((uint64_t)row + sample_hash(key, six)) % 6;
  const double u = uniform(key, sample_hash(key, (uint64_t)row));
  if (place == 2) return x * (1 + 15 * u * u);
  if (place > 2) return x;
  const uint64_t turn = six * 2 + place + sample_hash(key, 0) % (2 * edges);
  const double edge = s->edge[turn % edges], side = turn / edges % 2 == 0 ? 0.5 : -0.5;
  return edge + side * u * fmax(2, fabs(edge));
}

static double near_edge_int(const sample *s, uint64_t key, int row, double x) {
  const double y = near_edge(s, key, row, x);
  return y == x ? x : fmin(fmax(floor(y), 0), 1e6);
}

static double row_value(const sample *s, ir_var v, uint32_t index, int row) {
  const uint64_t key = ((uint64_t)v << 32) + index, r = (uint64_t)row;
  switch (v) {
    case VAR_B:
      return near_edge_int(s, key, row, row % 3);
    case VAR_H:
      return near_edge_int(s, key, row, row % 5);
    case VAR_Q:
      return near_edge_int(s, key, row, (row * 7 + 13 * (int)index) % 64);
    case VAR_Q_LEN:
      return 100 + row % 2;
    case VAR_KV_LEN:
      return 120 + row % 3;
    case VAR_HEADS:
      return 8;
    case VAR_HEADS_KV:
      return 4;
    case VAR_HEAD_DIM:
    case VAR_HEAD_DIM_V:
      return 64;
    case VAR_SCALE:
      return 0.1 + uniform(key, r);
    case VAR_SCALAR: {
      /* The default itself and values near it are likely to be in the function's domain; none is a special
       * value. */
      const double x = s->t->scalar_default[index], u = uniform(key, r);
      if (row >= s->near_rows && row % 3 == 2 && fabs(x) > SAMPLE_LARGE) return copysign(0.5 + u, x);
      if (has_other_scalars(s, row)) return near_edge(s, key, row, other_scalar(s, key, row));
      const double width = row % 5 == 0 ? 0 : row % 5 < 3 ? 1e-4 : 0.8;
      return near_edge(s, key, row, x == 0 ? width * (u - 0.5) : x * (1 + width * (u - 0.5)));
    }
    default:
      return gaussian(key, r);
  }
}

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const sample *s = user;
  const int base = s->block * IR_LANES;
  for (int i = 0; i < lanes; i++) {
    const int lane = base + i;
    switch (v) {
      case VAR_SCORE:
        out[i] = s->moved ? s->score[lane] * (1 + MOVE * (sample_hash(9, (uint64_t)lane) % 2 == 0 ? 1 : -1))
                          : s->score[lane];
        break;
      case VAR_RED:
        out[i] = s->red[index][lane];
        break;
      case VAR_STATE:
        out[i] = s->state[index][lane];
        break;
      case VAR_FINAL:
        out[i] = s->final[index][lane];
        break;
      case VAR_OTHER:
        out[i] = s->other[index][lane];
        break;
      case VAR_KV:
        out[i] = (lane + 17 * (int)index) % 61;
        break;
      case VAR_DP:
      case VAR_DOT:
      case VAR_X:
      case VAR_GRAD:
        out[i] = gaussian((uint64_t)v, (uint64_t)lane);
        break;
      default:
        if (i > 0 && s->row_of[lane] == s->row_of[lane - 1]) {
          out[i] = out[i - 1];
          break;
        }
        out[i] = row_value(s, v, index, s->row_of[lane]);
        if (v == VAR_SCALAR && s->moved) out[i] *= 1 + MOVE * (index % 2 == 0 ? 1 : -1);
        break;
    }
  }
}

/* Inputs: in each row a random function of the indices, mostly positive, so that logs and square roots of
 * them occur too. Each row has its own inputs: many values of `w[h]` reach more arms than one for each h. */
static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  const sample *s = user;
  const uint32_t dtype = s->t->input[input].dtype;
  for (int i = 0; i < lanes; i++) {
    const int *row_of = &s->row_of[s->block * IR_LANES], row = row_of[i];
    uint64_t key = ((uint64_t)row << 32) + input;
    bool again = i > 0 && row == row_of[i - 1];
    for (int k = 0; k < n_index && again; k++) again = index[k][i] == index[k][i - 1];
    if (again) {
      out[i] = out[i - 1];
      continue;
    }
    for (int k = 0; k < n_index; k++) key = mix(key ^ (uint64_t)(int64_t)index[k][i]);
    const double x = 0.2 + uniform(key, 7);
    if (input_is_integer(dtype))
      out[i] = near_edge_int(s, key, row, floor(8 * x));
    else if (dtype == LUATTN_INPUT_BOOL)
      out[i] = x < 0.7;
    else
      out[i] = near_edge(s, key, row, uniform(key, 8) < 0.25 ? -x : x);
  }
}

static bool compile(const sample *s, arena *a, const ir_ref *roots, int n, sample_program *out) {
  ir_program *program = ir_program_new(a, s->t->g, roots, n);
  void *scratch = program == NULL ? NULL : arena_new(a, ir_program_scratch(program));
  double **to = arena_array(a, (size_t)n, sizeof *to);
  *out = (sample_program){program, scratch, to, n};
  return scratch != NULL && to != NULL;
}

static void run(sample *s, const sample_program *p, int blocks, const sample_lanes *out) {
  const ir_env env = {.user = s, .variable = variable, .load = load};
  for (s->block = 0; s->block < blocks; s->block++) {
    for (int i = 0; i < p->count; i++) p->to[i] = out[i] + s->block * IR_LANES;
    ir_program_run(p->program, &env, IR_LANES, p->scratch, p->to);
  }
}

bool sample_compile(sample *s, const ir_ref *roots, int n, sample_program *out) {
  return compile(s, s->a, roots, n, out);
}

void sample_run(sample *s, const sample_program *p, const sample_lanes *out) { run(s, p, s->blocks, out); }

static bool eval_with(sample *s, arena *scratch, arena *a, int blocks, const ir_ref *roots, int n, sample_lanes *out) {
  ir_ref *used = arena_array(scratch, (size_t)n + 1, sizeof *used);
  sample_lanes *to = arena_array(scratch, (size_t)n + 1, sizeof *to);
  if (used == NULL || to == NULL) return false;
  int count = 0;
  for (int i = 0; i < n; i++) {
    out[i] = roots[i] == IR_NONE ? s->zeros : arena_raw(a, (size_t)blocks * IR_LANES, sizeof(double));
    if (out[i] == NULL) return false;
    if (roots[i] == IR_NONE) continue;
    to[count] = out[i];
    used[count++] = roots[i];
  }
  if (count == 0) return true;
  sample_program program;
  if (!compile(s, scratch, used, count, &program)) return false;
  run(s, &program, blocks, to);
  return true;
}

bool sample_eval_first(sample *s, arena *a, int blocks, const ir_ref *roots, int n, sample_lanes *out) {
  arena *scratch = arena_borrow(a);
  const bool ok = scratch != NULL && eval_with(s, scratch, a, blocks, roots, n, out);
  arena_close(scratch);
  return ok;
}

bool sample_eval(sample *s, const ir_ref *roots, int n, sample_lanes *out) {
  return sample_eval_first(s, s->a, s->blocks, roots, n, out);
}

bool sample_reduce(sample *s, const ir_op *kind, const ir_ref *term, int n, const uint8_t *part, int which) {
  for (int k = 0; k < n; k++) {
    sample_lanes x, red = sample_buffer(s);
    if (red == NULL || !sample_eval(s, &term[k], 1, &x)) return false;
    for (int r = 0; r < s->rows; r++) {
      const bool is_max = kind[k] == IR_REDUCE_MAX;
      double sum = is_max ? -INFINITY : 0;
      s->argmax[k][r] = s->first[r];
      for (int i = s->first[r]; i < s->first[r + 1]; i++) {
        const double y = x[i];
        if (part != NULL && part[i] != which) continue;
        if (is_max && y > sum) s->argmax[k][r] = i;
        if (isnan(y))
          sum = y;
        else if (!is_max)
          sum += s->count[i] * y;
        else if (y > sum)
          sum = y;
      }
      for (int i = s->first[r]; i < s->first[r + 1]; i++) red[i] = sum;
    }
    s->red[k] = red;
  }
  return true;
}

void sample_require_finite(sample *s, const double *x) {
  for (int i = 0; i < s->lanes; i++) {
    if (!isfinite(x[i])) s->valid[s->row_of[i]] = false;
  }
}

int sample_count_valid(const sample *s) {
  int count = 0;
  for (int r = 0; r < s->near_rows; r++) count += s->valid[r];
  return count;
}

double sample_row_length(const sample *s, int row) {
  double length = 0;
  for (int i = s->first[row]; i < s->first[row + 1]; i++) length += s->count[i];
  return length;
}

bool sample_reads_scalars(const sample *s, const ir_ref *roots, int n) {
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE && ir_uses(s->t->g, roots[i], VAR_SCALAR)) return true;
  return false;
}

void sample_find_slack(sample *s, const double *x, const double *moved, bool all) {
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    s->extreme[r] |= has_extreme_scalars(s, r);
    if (!all && !s->extreme[r]) continue;
    const double slack =
        x[lane] == moved[lane] ? 0 : fabs(moved[lane] - x[lane]) / fabs(x[lane]) * (64 * 0x1p-53 / MOVE);
    s->slack[r] = fmax(s->slack[r], slack);
    if (!(slack <= MOST_SLACK)) s->valid[r] = false;
  }
}
