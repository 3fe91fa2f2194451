/* naive.c: attention by its definition: hooks called in plain Lua with numbers. Slow, and independent of
 * everything that it checks. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "abi/philox.h"
#include "cli/cli.h"
#include "cli/extents.h"
#include "gen/lua/front.h"
#include "gen/spec.h"

#define MAX_SPEC ((size_t)4 << 20) /* as luattn_spec_load */

typedef struct naive {
  const cli_problem *p;
  cli_result *r;
  front_oracle *oracle;
  bool query_mod, key_mod, value_mod, score_mod, block_mask;
  double *q, *k, *v; /* after the input mods */
} naive;

static double load_input(void *user, const char *name, int n_index, const long long *index) {
  const cli_problem *p = user;
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    if (strcmp(p->info.inputs[i].name, name) != 0) continue;
    const array *a = &p->input[i];
    int64_t flat = 0;
    for (int j = 0; j < n_index; j++) {
      const int64_t last = a->shape[j] - 1, at = index[j];
      flat = flat * a->shape[j] + (at < 0      ? 0
                                   : at > last ? last
                                               : at); /* gathers clamp; an axis of size 1 broadcasts */
    }
    return array_get(a, flat);
  }
  return NAN;
}

/* random() of a spec, by the formula of docs/language.md. */
static double draw_number(void *user, const long long at[4]) {
  const cli_problem *p = user;
  const LuattnPhilox of = philox_4x32_10(p->seed, (uint64_t)(at[0] * p->heads + at[1]),
                                         (unsigned)at[2] | UINT32_C(1) << 31, (unsigned)at[3]);
  return floor(of.x[0] / 256.0) / (1 << 24);
}

luattn_status spec_can_be_reread(const char *path, luattn_error *err) {
  struct stat st;
  if (stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
    return LUATTN_OK; /* reading the others fails by itself */
  return luattn_fail(err, LUATTN_INVALID, "%s: is not a regular file, and its text is read twice here; save it in one",
                     path);
}

static luattn_status read_spec(const char *path, char **text, size_t *size, luattn_error *err) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) return luattn_fail(err, LUATTN_IO, "%s: cannot be opened: %s; name a Lua file", path, strerror(errno));
  *text = calloc(1, MAX_SPEC);
  *size = *text != NULL ? fread(*text, 1, MAX_SPEC, f) : 0;
  fclose(f);
  return *text != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "%s: no memory to read it", path);
}

/* The length of a side, or its extents, as q_len.y. */
static luattn_status set_lengths(naive *n, int side, const char *name, luattn_error *err) {
  const cli_problem *p = n->p;
  const char *const *axis = NULL;
  char text[2 * LUATTN_NAME_SIZE];
  if (p->axes <= 1) return front_oracle_set(n->oracle, name, side == 0 ? p->q_len : p->kv_len, err);
  (void)luattn_spec_grid(p->spec, &axis);
  for (int a = 0; a < p->axes; a++) {
    snprintf(text, sizeof text, "%s.%s", name, axis[a]);
    TRY(front_oracle_set(n->oracle, text, p->extent[side][a], err));
  }
  return LUATTN_OK;
}

static luattn_status set_globals(naive *n, luattn_error *err) {
  const cli_problem *p = n->p;
  for (int i = 0; i < p->num_scalars; i++) TRY(front_oracle_set(n->oracle, p->scalar[i].name, p->scalar[i].value, err));
  TRY(set_lengths(n, 0, "q_len", err));
  TRY(set_lengths(n, 1, "kv_len", err));
  TRY(front_oracle_set(n->oracle, "heads", p->heads, err));
  TRY(front_oracle_set(n->oracle, "head_dim", p->dim, err));
  TRY(front_oracle_set(n->oracle, "head_dim_v", p->dim_v, err));
  return front_oracle_set(n->oracle, "heads_kv", p->heads_kv, err);
}

static luattn_status modify(naive *n, const char *hook, bool used, int side, const array *from, double **out,
                            luattn_error *err) {
  const int64_t count = array_count(from), dim = from->shape[from->t.ndim - 1],
                rows = side == 0 ? n->p->q_len : n->p->kv_len, heads = from->shape[1];
  double *to = calloc((size_t)count + (size_t)dim + 1, sizeof *to);
  if (to == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the plain run; choose smaller sizes");
  *out = to;
  double *row = to + count; /* as it is given */
  front_oracle_set_row(n->oracle, row, (int)dim);
  for (int64_t i = 0; i < count; i++) {
    to[i] = array_get(from, i);
    if (!used) continue;
    for (int64_t c = 0; i % dim == 0 && c < dim; c++) row[c] = array_get(from, i + c);
    const int64_t pos = i / dim % rows, h = i / dim / rows % heads, b = i / dim / rows / heads;
    double args[4 + LUATTN_MAX_AXES] = {to[i], (double)b, (double)h};
    const int axes = extents_coordinates(n->p, side, (int)pos, args + 3);
    args[3 + axes] = (double)(i % dim);
    TRY(front_oracle_call(n->oracle, hook, args, 4 + axes, &to[i], err));
  }
  return LUATTN_OK;
}

/* Runs the online function over one row in plain Lua, one score at a time: with a single element, reduce_sum
 * and reduce_max are the identity. weight[i] becomes the factor of v[i] in O; *lse is set where the online
 * function has one. */
static luattn_status online_row(naive *n, const double *score, int kept, int b, int h, int q, double *weight,
                                double *lse, luattn_error *err) {
  const traced_online *on = &n->p->spec->traced.online;
  const int num = on->num_state;
  double args[1 + SPEC_MAX_STATE + 2 + LUATTN_MAX_AXES], results[2 + SPEC_MAX_STATE], scale, *state = args + 1;
  char name[128];
  if (num > 0) {
    snprintf(name, sizeof name, "online.init.%s", on->state_name[0]);
    TRY(front_oracle_call_all(n->oracle, name, (double[]){b, h}, 2, state, num, err));
  }
  args[1 + num] = b, args[2 + num] = h;
  const int count = 3 + num + extents_coordinates(n->p, 0, q, args + 3 + num);
  for (int k = 0; k < kept; k++) {
    args[0] = score[k];
    TRY(front_oracle_call_all(n->oracle, "online.prob", args, count, results, 2 + num, err));
    weight[k] = results[0];
    memcpy(state, results + 2, sizeof *state * (size_t)num);
    for (int i = 0; i < k; i++) weight[i] *= results[1];
  }
  args[0] = 1; /* the epilogue is linear in o */
  TRY(front_oracle_call(n->oracle, "online.out", args, count, &scale, err));
  for (int i = 0; i < kept; i++) weight[i] *= scale;
  return on->lse < 0 ? LUATTN_OK : front_oracle_call(n->oracle, "online.final.lse", args, count, lse, err);
}

/* The bit of a score in a plane of draws, by the formula of docs/language.md. */
static int plane_bit(int q, int kv) { return kv / 2 % 2 * 16 + kv % 2 * 8 + q % 2 * 4 + q / 8 % 2 * 2 + kv / 8 % 2; }

/* What dropout makes of a weight: its draw, put together from the planes, decides. */
static double dropped(const naive *n, double weight, int b, int h, int q, int kv) {
  const int keep = n->p->spec->traced.online.keep;
  int draw = 0;
  if (keep == SPEC_KEEP_ALL) return weight;
  q = extents_draw_number(n->p, 0, q), kv = extents_draw_number(n->p, 1, kv);
  for (int call = 0; call < 2; call++) {
    const LuattnPhilox of =
        philox_4x32_10(n->p->seed, (uint64_t)b * (uint64_t)n->p->heads + (uint64_t)h,
                       (unsigned)(q / 16 * 4 + q % 8 / 2), (unsigned)(kv / 16 * 4 + kv % 8 / 4 * 2 + call));
    for (int plane = 0; plane < 4; plane++) draw = 2 * draw + (int)(of.x[plane] >> plane_bit(q, kv) & 1);
  }
  return draw < keep ? weight * SPEC_KEEP_ALL / keep : 0;
}

/* Calls a hook of a score, whose first argument is that score unless it is NULL. */
static luattn_status call_at(naive *n, const char *hook, const double *score, int b, int h, int q, int kv,
                             double *result, luattn_error *err) {
  double args[3 + 2 * LUATTN_MAX_AXES];
  int count = 0;
  if (score != NULL) args[count++] = *score;
  args[count++] = b, args[count++] = h;
  count += extents_coordinates(n->p, 0, q, args + count);
  count += extents_coordinates(n->p, 1, kv, args + count);
  return front_oracle_call(n->oracle, hook, args, count, result, err);
}

/* Whether the mask keeps this score. */
static luattn_status ask_mask(naive *n, int b, int h, int q, int kv, bool *keep, luattn_error *err) {
  const cli_problem *p = n->p;
  double answer = 1;
  if (p->kept != NULL)
    answer = p->kept[(((int64_t)b * p->heads + h) * p->q_len + q) * p->kv_len + kv];
  else if (n->block_mask)
    TRY(call_at(n, "block_mask", NULL, b, h, q, kv, &answer, err));
  *keep = answer != 0;
  return LUATTN_OK;
}

static luattn_status one_row(naive *n, int b, int h, int q, double *score, double *weight, int *column,
                             luattn_error *err) {
  const cli_problem *p = n->p;
  const int hkv = h / (p->heads / p->heads_kv);
  const double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)p->dim);
  const double *qr = n->q + (((int64_t)b * p->heads + h) * p->q_len + q) * p->dim;
  int kept = 0;
  for (int kv = 0; kv < p->kv_len; kv++) {
    const double *kr = n->k + (((int64_t)b * p->heads_kv + hkv) * p->kv_len + kv) * p->dim;
    bool keep;
    double s = 0;
    TRY(ask_mask(n, b, h, q, kv, &keep, err));
    if (!keep) continue;
    for (int d = 0; d < p->dim; d++) s += qr[d] * kr[d];
    s *= scale;
    if (n->score_mod) TRY(call_at(n, "score_mod", &s, b, h, q, kv, &s, err));
    column[kept] = kv;
    score[kept++] = s;
  }
  const int64_t row = ((int64_t)b * p->heads + h) * p->q_len + q;
  double lse = -INFINITY;
  if (kept > 0) TRY(online_row(n, score, kept, b, h, q, weight, &lse, err));
  for (int i = 0; i < kept; i++) weight[i] = dropped(n, weight[i], b, h, q, column[i]);
  for (int d = 0; d < p->dim_v; d++) {
    double o = 0;
    for (int i = 0; i < kept; i++) {
      o += weight[i] * n->v[(((int64_t)b * p->heads_kv + hkv) * p->kv_len + column[i]) * p->dim_v + d];
    }
    array_set(&n->r->o, row * p->dim_v + d, o);
  }
  if (n->r->lse.storage != NULL) array_set(&n->r->lse, row, lse);
  return LUATTN_OK;
}

static luattn_status all_rows(naive *n, luattn_error *err) {
  const cli_problem *p = n->p;
  double *score = calloc((size_t)p->kv_len + 1, 2 * sizeof *score);
  int *column = calloc((size_t)p->kv_len + 1, sizeof *column);
  luattn_status status =
      score != NULL && column != NULL
          ? LUATTN_OK
          : luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the plain run; choose smaller sizes");
  for (int b = 0; b < p->batch && status == LUATTN_OK; b++) {
    for (int h = 0; h < p->heads && status == LUATTN_OK; h++) {
      for (int q = 0; q < p->q_len && status == LUATTN_OK; q++) {
        status = one_row(n, b, h, q, score, score + p->kv_len + 1, column, err);
      }
    }
  }
  free(score);
  free(column);
  return status;
}

/* Calls every declared hook, whatever the trace made of it, because the trace is checked. */
static luattn_status naive_open(naive *n, const cli_options *o, const cli_problem *p, luattn_error *err) {
  char *text = NULL;
  size_t size = 0;
  *n = (naive){.p = p};
  TRY(read_spec(o->spec, &text, &size, err));
  luattn_status s = front_oracle_open(o->spec, text, size, load_input, (void *)(uintptr_t)p, &n->oracle, err);
  free(text);
  if (s != LUATTN_OK) return s;
  front_oracle_set_random(n->oracle, draw_number);
  n->query_mod = front_oracle_has(n->oracle, "query_mod");
  n->key_mod = !p->keys_modified && front_oracle_has(n->oracle, "key_mod");
  n->value_mod = !p->keys_modified && front_oracle_has(n->oracle, "value_mod");
  n->score_mod = front_oracle_has(n->oracle, "score_mod");
  n->block_mask = front_oracle_has(n->oracle, "block_mask");
  return set_globals(n, err);
}

luattn_status naive_mask(const cli_options *o, const cli_problem *p, unsigned char *kept, luattn_error *err) {
  naive n;
  luattn_status s = naive_open(&n, o, p, err);
  for (int b = 0; b < p->batch; b++)
    for (int h = 0; h < p->heads; h++)
      for (int q = 0; q < p->q_len; q++)
        for (int kv = 0; kv < p->kv_len && s == LUATTN_OK; kv++) {
          bool keep = false;
          s = ask_mask(&n, b, h, q, kv, &keep, err);
          *kept++ = keep;
        }
  front_oracle_close(n.oracle);
  return s;
}

luattn_status naive_forward(const cli_options *o, const cli_problem *p, cli_result *r, luattn_error *err) {
  naive n;
  luattn_status s = naive_open(&n, o, p, err);
  n.r = r;
  if (s == LUATTN_OK) s = modify(&n, "query_mod", n.query_mod, 0, &p->q, &n.q, err);
  if (s == LUATTN_OK) s = modify(&n, "key_mod", n.key_mod, 1, &p->k, &n.k, err);
  if (s == LUATTN_OK) s = modify(&n, "value_mod", n.value_mod, 1, &p->v, &n.v, err);
  if (s == LUATTN_OK) s = all_rows(&n, err);
  front_oracle_close(n.oracle);
  free(n.q), free(n.k), free(n.v);
  return s;
}
