/* linear_naive.c: linear attention by its definition: hooks called in plain Lua with numbers, and what tokens have written
 * carried to later ones pair by pair. There is no state but the first, and nothing is traced. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/linear_tensors.h"
#include "gen/lua/front.h"
#include "gen/spec.h"

#define MAX_SPEC ((size_t)4 << 20) /* as luattn_spec_load */
enum { MOST_SUMS = 32 };

typedef struct plain {
  linear_tensors *t;
  front_oracle *oracle;
  int first; /* row of the entry's first token, in inputs with all rows */
  /* One value head of an entry: [tokens][dim] each; g [tokens][dim], 0 where nothing decays. */
  double *q, *k, *v, *b, *g, *r, *e, *y, *skip, *raw;
} plain;

static double load_input(void *user, const char *name, int n_index, const long long *index) {
  const plain *p = user;
  const linear_tensors *t = p->t;
  for (size_t i = 0; i < t->info.num_inputs; i++) {
    const luattn_input_info *info = &t->info.inputs[i];
    const array *a = &t->input[i];
    int64_t flat = 0;
    if (strcmp(info->name, name) != 0) continue;
    for (int j = 0; j < n_index; j++) {
      const int64_t last = a->shape[j] - 1, at = index[j] + (info->axis[j] == LUATTN_AXIS_T ? p->first : 0);
      flat = flat * a->shape[j] + (at < 0 ? 0 : at > last ? last : at);
    }
    return array_get(a, flat);
  }
  return NAN;
}

/* A hook at the channels of one row: x [dim], or NULL where it takes none; out [width]. Sums over the row's channels are
 * found one after another: in each turn the next one is made of what every channel gives for it. */
static luattn_status run_row(plain *p, const char *hook, const double *x, int dim, int width, int b, int h, int token,
                             double *out, luattn_error *err) {
  double sums[MOST_SUMS];
  for (int known = 0; known <= MOST_SUMS; known++) {
    bool more = false;
    double sum = 0;
    const int channels = known == 0 || width < dim ? dim : width;
    for (int d = 0; d < channels; d++) {
      const double args[] = {x != NULL ? x[d] : b, b, h, token, d};
      double value, term;
      front_oracle_set_sums(p->oracle, sums, known);
      TRY(front_oracle_call(p->oracle, hook, x != NULL ? args : args + 1, x != NULL ? 5 : 4, &value, err));
      if (front_oracle_next_sum(p->oracle, &term)) more = true, sum += term;
      if (d < width) out[d] = value;
    }
    if (!more) return LUATTN_OK;
    if (known < MOST_SUMS) sums[known] = sum;
  }
  return luattn_fail(err, LUATTN_UNSUPPORTED, "check: %s: has more than %d sums over a row", hook, MOST_SUMS);
}

static void load_rows(const array *from, int batch, int first, int head, int tokens, double *to) {
  const int64_t rows = from->shape[1], heads = from->shape[2], dim = from->shape[3];
  for (int n = 0; n < tokens; n++)
    for (int64_t d = 0; d < dim; d++)
      to[n * dim + d] = array_get(from, ((batch * rows + first + n) * heads + head) * dim + d);
}

typedef struct plain_hook {
  const char *name;
  const double *x;
  int dim;
  double *out;
  double otherwise; /* of every element, where the spec has no such hook and x is NULL */
} plain_hook;

static luattn_status run_hooks(plain *p, int entry, int head_v, int tokens, luattn_error *err) {
  const linear_tensors *t = p->t;
  const int dim = t->dim, dim_v = t->dim_v;
  double *w = p->y; /* free until the rows are complete */
  const plain_hook hooks[] = {{"query_mod", p->q, dim, p->q, 0},   {"key_mod", p->k, dim, p->k, 0},
                              {"skip", p->v, dim_v, p->skip, 0},   {"value_mod", p->v, dim_v, p->v, 0},
                              {"decay", NULL, dim, p->g, 0},       {"update.write", NULL, dim_v, w, 1},
                              {"update.read", p->k, dim, p->r, 0}, {"update.erase", p->k, dim, p->e, 0}};
  for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
    const plain_hook *h = &hooks[i];
    const bool has = front_oracle_has(p->oracle, h->name);
    const int head = i < 2 ? head_v / (t->heads_v / t->heads) : head_v;
    if (!has && h->x == h->out) continue;
    for (int n = 0; n < tokens; n++) {
      double *out = h->out + n * h->dim;
      for (int d = 0; !has && d < h->dim; d++)
        out[d] = strcmp(h->name, "update.erase") == 0 ? p->k[n * h->dim + d] : h->otherwise;
      if (!has) continue;
      if (h->x != NULL) memcpy(p->raw, h->x + n * h->dim, (size_t)h->dim * sizeof *p->raw);
      TRY(run_row(p, h->name, h->x != NULL ? p->raw : NULL, h->dim, h->dim, entry, head, n, out, err));
    }
  }
  for (int n = 0; n < tokens; n++)
    for (int j = 0; j < t->state_v; j++)
      p->b[n * t->state_v + j] = j < dim_v ? w[n * dim_v + j] * p->v[n * dim_v + j] : w[n * dim_v];
  return LUATTN_OK;
}

/* What is left of row i of the state behind the decays of tokens from .. to - 1. */
static double left(const plain *p, int i, int from, int to) {
  double sum = 0;
  for (int n = from; n < to; n++) {
    const double g = p->g[n * p->t->dim + i];
    sum += g < -1000 ? -1000 : g;
  }
  return exp(sum);
}

/* x' S [state_v]: of the state that tokens 0 .. count - 1 have made, behind the decays of those before `decays`. */
static void read_past(const plain *p, const double *x, const double *initial, int count, int decays, double *out) {
  const int dim = p->t->dim, width = p->t->state_v;
  for (int j = 0; j < width; j++) out[j] = 0;
  for (int i = 0; i < dim; i++) {
    const double of_initial = x[i] * left(p, i, 0, decays);
    for (int j = 0; j < width; j++) out[j] += of_initial * initial[j * dim + i];
    for (int n = 0; n < count; n++) {
      const double f = x[i] * left(p, i, n + 1, decays), k = f * p->k[n * dim + i], e = f * p->e[n * dim + i];
      for (int j = 0; j < width; j++) out[j] += k * p->b[n * width + j] - e * p->y[n * width + j];
    }
  }
}

static void run_tokens(plain *p, int entry, int head_v, int tokens, int batch, int first, double *initial, array *o,
                       array *final) {
  const linear_tensors *t = p->t;
  const traced_linear *l = &t->spec->traced.linear;
  const int dim = t->dim, width = t->state_v;
  const double scale = t->scale != 0 ? t->scale : l->scale != 0 ? l->scale : 1 / sqrt((double)dim);
  double *u = p->raw;
  memset(p->y, 0, (size_t)tokens * (size_t)width * sizeof *p->y);
  for (int n = 0; n < tokens; n++) {
    if (l->read != IR_NONE) read_past(p, p->r + n * dim, initial, n, l->before ? n : n + 1, p->y + n * width);
    read_past(p, p->q + n * dim, initial, n + 1, n + 1, u);
    for (int j = 0; j < t->dim_v; j++)
      array_set(
          o, (((int64_t)batch * t->tokens + first + n) * t->heads_v + head_v) * t->dim_v + j,
          (l->normalize ? u[j] / u[t->dim_v] : scale * u[j]) + (l->skip != IR_NONE ? p->skip[n * t->dim_v + j] : 0));
  }
  for (int i = 0; i < dim; i++) {
    double *row = p->skip + (size_t)tokens * (size_t)t->dim_v; /* of the unit vector i */
    memset(p->r, 0, (size_t)dim * sizeof *p->r);
    p->r[i] = 1;
    read_past(p, p->r, initial, tokens, tokens, row);
    for (int j = 0; j < width; j++)
      array_set(final, (((int64_t)entry * t->heads_v + head_v) * width + j) * dim + i, row[j]);
  }
}

static luattn_status run_head(plain *p, int entry, int head_v, array *o, array *final, luattn_error *err) {
  linear_tensors *t = p->t;
  const bool packed = t->ends.storage != NULL;
  const int first = packed ? (int)array_get(&t->ends, entry) : 0, batch = packed ? 0 : entry;
  const int tokens = packed ? (int)array_get(&t->ends, entry + 1) - first : t->tokens;
  const size_t state = (size_t)t->state_v * (size_t)t->dim;
  double *initial = calloc(state, sizeof *initial);
  if (initial == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the plain run; choose smaller sizes");
  for (size_t i = 0; t->initial.storage != NULL && i < state; i++)
    initial[i] = array_get(&t->initial, (int64_t)(((size_t)entry * (size_t)t->heads_v + (size_t)head_v) * state + i));
  p->first = first;
  load_rows(&t->q, batch, first, head_v / (t->heads_v / t->heads), tokens, p->q);
  load_rows(&t->k, batch, first, head_v / (t->heads_v / t->heads), tokens, p->k);
  load_rows(&t->v, batch, first, head_v, tokens, p->v);
  const luattn_status status = run_hooks(p, entry, head_v, tokens, err);
  if (status == LUATTN_OK) run_tokens(p, entry, head_v, tokens, batch, first, initial, o, final);
  free(initial);
  return status;
}

static luattn_status open_oracle(const cli_options *o, plain *p, luattn_error *err) {
  const linear_tensors *t = p->t;
  char *text = calloc(1, MAX_SPEC);
  FILE *f = text != NULL ? fopen(o->spec, "rb") : NULL;
  if (f == NULL) {
    free(text);
    return luattn_fail(err, LUATTN_IO, "%s: cannot be read again; name a Lua file", o->spec);
  }
  const size_t size = fread(text, 1, MAX_SPEC, f);
  fclose(f);
  luattn_status status = front_oracle_open(o->spec, text, size, load_input, p, &p->oracle, err);
  free(text);
  for (int i = 0; i < t->num_scalars && status == LUATTN_OK; i++)
    status = front_oracle_set(p->oracle, t->scalar[i].name, t->scalar[i].value, err);
  const struct {
    const char *name;
    int value;
  } sizes[] = {{"heads", t->heads}, {"heads_v", t->heads_v}, {"head_dim", t->dim}, {"head_dim_v", t->dim_v}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == LUATTN_OK; i++)
    status = front_oracle_set(p->oracle, sizes[i].name, sizes[i].value, err);
  return status;
}

luattn_status linear_naive(const cli_options *o, linear_tensors *t, array *out, array *final, luattn_error *err) {
  plain p = {.t = t};
  const size_t widest = (size_t)(t->dim > t->dim_v ? t->dim : t->dim_v) + 1, room = ((size_t)t->tokens + 2) * widest;
  double **const rows[] = {&p.q, &p.k, &p.v, &p.b, &p.g, &p.r, &p.e, &p.y, &p.skip, &p.raw};
  double *memory = calloc(room * (sizeof rows / sizeof *rows), sizeof *memory);
  if (memory == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the plain run; choose smaller sizes");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) *rows[i] = memory + i * room;
  luattn_status status = open_oracle(o, &p, err);
  for (int n = 0; n < t->entries && status == LUATTN_OK; n++)
    for (int h = 0; h < t->heads_v && status == LUATTN_OK; h++) status = run_head(&p, n, h, out, final, err);
  front_oracle_close(p.oracle);
  free(memory);
  return status;
}
