/* workers.c: starts the threads of a call, and runs the tensor conversions that every pass begins with. */
#include <string.h>

#include "common/threads.h"
#include "gen/cpu/row_blocks.h"

/* Additions that take about a quarter of a millisecond: starting a thread takes a fifth of that. */
enum { LEAST_FOR_A_THREAD = 1 << 18 };

luattn_status cpu_threads(const luattn_args *args, int *count, luattn_error *err) {
  char wrong[200];
  if (threads_count(args->num_threads, 1, count, wrong, sizeof wrong)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
}

/* More threads than units would idle. Results do not depend on the number of threads. */
static int useful_threads(const cpu_problem *p, int threads) {
  const double rows = (double)p->batch * p->heads * p->q_len;
  const double most = rows * p->kv_len * (p->dim + p->dim_v) / LEAST_FOR_A_THREAD;
  const double useful = most < rows / ROWS_OF_UNIT ? most : rows / ROWS_OF_UNIT;
  return useful < 1 ? 1 : useful < (double)threads ? (int)useful : threads;
}

static bool make_worker(const cpu_problem *p, cpu_worker *w) {
  w->scratch = arena_new(p->a, p->scratch_bytes);
  w->bounds = arena_array(p->a, ir_count(p->g), sizeof *w->bounds);
  w->values = arena_array(p->a, (size_t)p->most_values, sizeof *w->values);
  w->row = arena_array(p->a, DERIVED_MAX_PASSES * (size_t)p->dim_v, sizeof *w->row);
  w->given = arena_array(p->a, (size_t)(p->dim > p->dim_v ? p->dim : p->dim_v), sizeof *w->given);
  return w->scratch != NULL && w->bounds != NULL && w->values != NULL && w->row != NULL && w->given != NULL;
}

luattn_status problem_start(cpu_problem *p, int threads, luattn_error *err) {
  p->num_workers = useful_threads(p, threads);
  p->worker = arena_array(p->a, (size_t)p->num_workers, sizeof *p->worker);
  bool ok = p->worker != NULL;
  for (int i = 0; ok && i < p->num_workers; i++) ok = make_worker(p, &p->worker[i]);
  if (!ok) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  p->crew = crew_open(p->num_workers);
  return LUATTN_OK;
}

void problem_stop(cpu_problem *p) {
  crew_close(p->crew);
  p->crew = NULL;
}

void problem_run(const cpu_problem *p, crew_job *job, void *user, int64_t count) {
  crew_run(p->crew, job, user, count);
}

/* ---- zeros ---- */

enum { ZEROS = 1 << 14 }; /* of a unit */

typedef struct zeros {
  double *x;
  int64_t count;
} zeros;

static void write_zeros(void *of_zeros, int worker, int64_t unit) {
  const zeros *z = of_zeros;
  const int64_t first = unit * ZEROS, left = z->count - first;
  (void)worker;
  memset(z->x + first, 0, (size_t)(left < ZEROS ? left : ZEROS) * sizeof *z->x);
}

void problem_zero(const cpu_problem *p, double *x, int64_t count) {
  zeros z = {x, count};
  problem_run(p, write_zeros, &z, (count + ZEROS - 1) / ZEROS);
}

/* ---- tensors to doubles ---- */

enum { ROWS_OF_CHUNK = 64 }; /* of a unit */

typedef struct conversion {
  const cpu_problem *p;
  const cpu_view *from;
  const cpu_program *mod;
  bool of_keys;
  double *to;
} conversion;

void problem_modify_row(const cpu_problem *p, cpu_worker *w, const cpu_program *mod, int dim, bool of_keys, int b,
                        int h, int i, double *row) {
  memcpy(w->given, row, (size_t)dim * sizeof *row);
  for (int d0 = 0; d0 < dim; d0 += IR_LANES) {
    const int count = dim - d0 < IR_LANES ? dim - d0 : IR_LANES;
    double channel[IR_LANES], y[IR_LANES];
    for (int d = 0; d < count; d++) channel[d] = d0 + d;
    cpu_lanes lanes = {.p = p,
                       .w = w,
                       .b = b,
                       .h = h,
                       .pos0 = i,
                       .d = channel,
                       .x = w->given + d0,
                       .of_keys = of_keys,
                       .row_of = {mod->rows, d0, w->given, NULL}};
    program_run(mod, &lanes, count, (double *const[]){y});
    problem_round(p, y, count); /* q', k' and v' are stored tensors as well */
    memcpy(row + d0, y, (size_t)count * sizeof *y);
  }
}

static int64_t rows_of(const cpu_view *t) { return t->shape[0] * t->shape[1] * t->shape[2]; }

static void convert_chunk(void *of_conversion, int worker, int64_t chunk) {
  const conversion *c = of_conversion;
  const int64_t heads = c->from->shape[1], len = c->from->shape[2], dim = c->from->shape[3], all = rows_of(c->from);
  const int64_t first = chunk * ROWS_OF_CHUNK, end = all - first < ROWS_OF_CHUNK ? all : first + ROWS_OF_CHUNK;
  for (int64_t n = first; n < end; n++) {
    const int b = (int)(n / len / heads), h = (int)(n / len % heads), i = (int)(n % len);
    double *row = c->to + n * dim;
    for (int d = 0; d < dim; d++) row[d] = view_get(c->from, (int64_t[]){b, h, i, d});
    if (c->mod != NULL && c->mod->program != NULL)
      problem_modify_row(c->p, &c->p->worker[worker], c->mod, (int)dim, c->of_keys, b, h, i, row);
  }
}

void problem_convert_one(cpu_problem *p, const cpu_view *from, const cpu_program *mod, double *to) {
  conversion c = {p, from, mod, from != &p->q_given, to};
  problem_run(p, convert_chunk, &c, (rows_of(from) + ROWS_OF_CHUNK - 1) / ROWS_OF_CHUNK);
}

void problem_convert(cpu_problem *p) {
  problem_convert_one(p, &p->q_given, &p->query_mod, p->q);
  problem_convert_one(p, &p->k_given, &p->key_mod, p->k);
  problem_convert_one(p, &p->v_given, &p->value_mod, p->v);
}
