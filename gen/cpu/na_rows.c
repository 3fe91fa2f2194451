#include "gen/cpu/na_rows.h"

#include <math.h>

#include "abi/kernel_facts.h"
#include "gen/cpu/cpu.h"

enum { CHANNELS = 64 }; /* summed at once */

typedef struct job {
  const LuattnNaParams *p;
  DLDataType type;
} job;

static cpu_view element(const void *data, DLDataType type, int64_t at) {
  return (cpu_view){
      .data = (char *)(uintptr_t)data + at * (type.bits / 8), .code = type.code, .bits = type.bits, .kind = VIEW_REAL};
}

static double get(const job *j, const LuattnNaTensor *t, int64_t at) {
  const cpu_view v = element(t->data, j->type, at);
  return view_get(&v, NULL);
}

static void set(DLDataType type, const LuattnNaTensor *t, int64_t at, double x) {
  const cpu_view v = element(t->data, type, at);
  view_set(&v, NULL, x);
}

/* A row of queries, or of keys. */
typedef struct na_row {
  int b, h;
  LuattnNaPlace place;
} na_row;

static na_row row_at(const LuattnNaParams *p, int64_t row, int heads) {
  const int places = na_places(p);
  const int64_t head = row / places;
  return (na_row){(int)(head / heads), (int)(head % heads), na_place(p, (int)(row % places))};
}

static void scores(const job *j, int64_t row) {
  const LuattnNaParams *p = j->p;
  const na_row r = row_at(p, row, p->heads);
  const int64_t q = na_offset(&p->q, r.b, r.h, r.place), to = na_offset(&p->taps, r.b, r.h, r.place);
  for (int t = 0; t < na_taps(p); t++) {
    const LuattnNaTap tap = na_tap(p, r.place, t);
    const int64_t k = na_offset(&p->k, r.b, r.h / p->group, tap.key);
    double sum = p->hides ? -INFINITY : 0;
    if (tap.exists) {
      sum = 0;
      for (int d = 0; d < p->dim; d++) sum += get(j, &p->q, q + d) * get(j, &p->k, k + d);
      if (p->bias.data != NULL) sum += get(j, &p->bias, r.h * p->bias.head + tap.bias);
    }
    set(j->type, &p->taps, to + t, sum);
  }
}

/* Adds weight times a row of `from` to the sums of some channels. */
static void add_row(const job *j, const LuattnNaTensor *from, int64_t at, int count, double weight, double *sum) {
  for (int d = 0; d < count; d++) sum[d] += weight * get(j, from, at + d);
}

static void queries(const job *j, int64_t row) {
  const LuattnNaParams *p = j->p;
  const na_row r = row_at(p, row, p->heads);
  const int64_t to = na_offset(&p->q, r.b, r.h, r.place), weights = na_offset(&p->taps, r.b, r.h, r.place);
  for (int first = 0; first < p->dim; first += CHANNELS) {
    const int count = na_min(CHANNELS, p->dim - first);
    double sum[CHANNELS] = {0};
    for (int t = 0; t < na_taps(p); t++) {
      const LuattnNaTap tap = na_tap(p, r.place, t);
      if (tap.exists)
        add_row(j, &p->k, na_offset(&p->k, r.b, r.h / p->group, tap.key) + first, count, get(j, &p->taps, weights + t),
                sum);
    }
    for (int d = 0; d < count; d++) set(j->type, &p->q, to + first + d, sum[d]);
  }
}

/* Adds what the queries of one head have of a key. */
static void add_queries(const job *j, const na_row *key, int h, int first, int count, double *sum) {
  const LuattnNaParams *p = j->p;
  LuattnNaRun run[LUATTN_NA_AXES];
  int number = 1;
  for (int a = 0; a < LUATTN_NA_AXES; a++) run[a] = na_queries_of(p->axis[a], key->place.at[a]), number *= run[a].count;
  for (int n = 0; n < number; n++) {
    LuattnNaPlace query;
    int rest = n, tap = 0, step = 1;
    for (int a = LUATTN_NA_AXES; a-- > 0; rest /= run[a].count) {
      query.at[a] = run[a].first + rest % run[a].count * p->axis[a].dilation;
      tap += na_tap_of(p->axis[a], query.at[a], key->place.at[a]) * step;
      step *= p->axis[a].kernel;
    }
    add_row(j, &p->q, na_offset(&p->q, key->b, h, query) + first, count,
            get(j, &p->taps, na_offset(&p->taps, key->b, h, query) + tap), sum);
  }
}

static void keys(const job *j, int64_t row) {
  const LuattnNaParams *p = j->p;
  const na_row r = row_at(p, row, p->heads / p->group);
  const int64_t to = na_offset(&p->k, r.b, r.h, r.place);
  for (int first = 0; first < p->dim; first += CHANNELS) {
    const int count = na_min(CHANNELS, p->dim - first);
    double sum[CHANNELS] = {0};
    for (int h = r.h * p->group; h < (r.h + 1) * p->group; h++) add_queries(j, &r, h, first, count, sum);
    for (int d = 0; d < count; d++) set(j->type, &p->k, to + first + d, sum[d]);
  }
}

/* The tap of a query whose key lies `shift` away along every axis; -1: it has none. */
static int tap_at(const LuattnNaParams *p, LuattnNaPlace query, const int *shift) {
  int tap = 0;
  for (int a = 0; a < LUATTN_NA_AXES; a++) {
    const LuattnNaRun run = na_keys_of(p->axis[a], query.at[a]);
    const int behind = query.at[a] + shift[a] - run.first, n = behind / p->axis[a].dilation;
    if (behind < 0 || n >= run.count) return -1;
    tap = tap * p->axis[a].kernel + n;
  }
  return tap;
}

static void bias(const job *j, DLDataType real, int64_t row) {
  const LuattnNaParams *p = j->p;
  int shift[LUATTN_NA_AXES];
  int64_t rest = row, to = 0;
  for (int a = LUATTN_NA_AXES; a-- > 0;) {
    const int size = 2 * p->axis[a].kernel - 1, n = (int)(rest % size);
    shift[a] = (n - p->axis[a].kernel + 1) * p->axis[a].dilation;
    to += n * p->bias.axis[a];
    rest /= size;
  }
  const int h = (int)rest;
  double sum = 0;
  for (int b = 0; b < p->batch; b++)
    for (int i = 0; i < na_places(p); i++) {
      const LuattnNaPlace query = na_place(p, i);
      const int tap = tap_at(p, query, shift);
      if (tap >= 0) sum += get(j, &p->taps, na_offset(&p->taps, b, h, query) + tap);
    }
  set(real, &p->bias, h * p->bias.head + to, sum);
}

void na_taps_rows(const LuattnNaParams *p, luattn_dtype type, luattn_dtype real, int64_t first, int64_t end) {
  const job j = {p, kernel_dtype(type)->dl};
  for (int64_t row = first; row < end; row++) switch (p->op) {
      case LUATTN_NA_SCORES:
        scores(&j, row);
        break;
      case LUATTN_NA_QUERIES:
        queries(&j, row);
        break;
      case LUATTN_NA_KEYS:
        keys(&j, row);
        break;
      default:
        bias(&j, kernel_dtype(real)->dl, row);
    }
}
