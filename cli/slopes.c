/* slopes.c: gradients against central differences of the forward pass in plain Lua. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "gen/spec.h"

#define STEP 1e-5
#define JUMP 1e-5 /* of a loss around 1: what smooth ones never differ by on both sides of a step */
#define SAMPLES 6
#define DIRECTION_STEP 2e-6 /* shorter: the more scores, the more of them cross a kink such as relu's */
#define MANY_SCORES 10000

/* sum(dout * o) + sum(dlse * lse) by the definition. */
static luattn_status plain_loss(const cli_options *o, const cli_problem *p, cli_result *scratch, double *loss,
                                luattn_error *err) {
  TRY(naive_forward(o, p, scratch, err));
  *loss = 0;
  for (int64_t i = 0, n = array_count(&scratch->o); i < n; i++)
    *loss += array_get(&p->dout, i) * array_get(&scratch->o, i);
  if (p->dlse.storage == NULL) return LUATTN_OK;
  for (int64_t i = 0, n = array_count(&scratch->lse); i < n; i++) {
    const double lse = array_get(&scratch->lse, i);
    if (isfinite(lse)) *loss += array_get(&p->dlse, i) * lse;
  }
  return LUATTN_OK;
}

/* What rounding does to the loss: each of its terms is off by about a unit roundoff of it, one way or the
 * other; four standard deviations of their sum. Divided by a step, it is what a difference quotient may be
 * off. */
static double loss_noise(const cli_problem *p, const cli_result *got) {
  double squares = 0;
  for (int64_t i = 0, n = array_count(&got->o); i < n; i++) {
    const double term = array_get(&p->dout, i) * array_get(&got->o, i);
    if (isfinite(term)) squares += term * term;
  }
  for (int64_t i = 0, n = p->dlse.storage != NULL ? array_count(&got->lse) : 0; i < n; i++) {
    const double term = array_get(&p->dlse, i) * array_get(&got->lse, i);
    if (isfinite(term)) squares += term * term;
  }
  return 4 * DBL_EPSILON * sqrt(squares);
}

/* The problem's own scalar number i, entered with its default if the call did not set it. */
static double *scalar_of(cli_problem *p, size_t i) {
  const char *name = p->info.scalar_names[i];
  int at = 0;
  while (at < p->num_scalars && strcmp(p->scalar[at].name, name) != 0) at++;
  if (at == p->num_scalars) p->scalar[p->num_scalars++] = (luattn_scalar){name, p->info.scalar_defaults[i]};
  return &p->scalar[at].value;
}

/* ---- entry by entry ---- */

static luattn_status difference(const cli_options *o, const cli_problem *p, cli_result *scratch, array *x,
                                int64_t at, double *slope, luattn_error *err) {
  const double before = array_get(x, at);
  double up = 0, down = 0;
  array_set(x, at, before + STEP);
  const double high = array_get(x, at);
  luattn_status s = plain_loss(o, p, scratch, &up, err);
  array_set(x, at, before - STEP);
  const double low = array_get(x, at);
  if (s == LUATTN_OK) s = plain_loss(o, p, scratch, &down, err);
  array_set(x, at, before);
  *slope = (up - down) / (high - low);
  return s;
}

/* Some of the entries of one tensor's gradient, or all where they are few. */
static luattn_status check_tensor(const cli_options *o, const cli_problem *p, cli_result *scratch,
                                  const char *name, array *x, const array *gradient, double noise,
                                  check_report *out, luattn_error *err) {
  const int64_t n = array_count(x);
  double error = 0, biggest = 0;
  if (gradient->storage == NULL || n == 0) return LUATTN_OK;
  for (int64_t i = 0; i < n; i++) biggest = fmax(biggest, fabs(array_get(gradient, i)));
  for (int64_t i = 0; i < SAMPLES && i < n; i++) {
    const int64_t at = n <= SAMPLES ? i : (int64_t)((uint64_t)(i + 1) * UINT64_C(2654435761) % (uint64_t)n);
    double slope;
    TRY(difference(o, p, scratch, x, at, &slope, err));
    const double e = fabs(slope - array_get(gradient, at));
    error = e > error || isnan(e) ? e : error;
  }
  check_add(out, name, error, 1e-6 * fmax(biggest, 1e-3) + noise);
  return LUATTN_OK;
}

/* The loss with the scalars in `moved`, a bit for each, off by `step`. */
static luattn_status loss_beside(const cli_options *o, cli_problem *p, uint32_t moved, double step,
                                 cli_result *scratch, double *loss, luattn_error *err) {
  double value[32];
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    value[i] = *scalar_of(p, i);
    if (moved >> i & 1) *scalar_of(p, i) += step;
  }
  const luattn_status status = plain_loss(o, p, scratch, loss, err);
  for (size_t i = 0; i < p->info.num_scalars; i++) *scalar_of(p, i) = value[i];
  return status;
}

typedef struct scalar_slope {
  double slope;
  bool jumps; /* the result jumps or bends here: it has no slope */
} scalar_slope;

static luattn_status difference_beside(const cli_options *o, cli_problem *p, uint32_t moved, double here,
                                       cli_result *scratch, scalar_slope *out, luattn_error *err) {
  double up, down;
  TRY(loss_beside(o, p, moved, STEP, scratch, &up, err));
  TRY(loss_beside(o, p, moved, -STEP, scratch, &down, err));
  out->slope = (up - down) / (2 * STEP);
  out->jumps = !(fabs((up - here) - (here - down)) <= JUMP * fmax(1, fabs(here)));
  return LUATTN_OK;
}

/* The slope along each scalar, and which of them stand where the result jumps or bends, as a position that
 * scores compare keys with does at a whole number: there is no derivative to compare. Who needs no slopes
 * asks first whether the result is smooth along all of them together: then none jumps. */
static luattn_status find_jumps(const cli_options *o, cli_problem *p, bool needs_slopes, cli_result *scratch,
                                check_report *out, luattn_error *err) {
  scalar_slope s = {.jumps = true};
  double here;
  if (p->info.num_scalars == 0) return LUATTN_OK;
  TRY(plain_loss(o, p, scratch, &here, err));
  if (!needs_slopes) TRY(difference_beside(o, p, UINT32_MAX, here, scratch, &s, err));
  if (!s.jumps) return LUATTN_OK;
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    TRY(difference_beside(o, p, UINT32_C(1) << i, here, scratch, &s, err));
    out->slope[i] = s.slope;
    if (s.jumps) out->jumps |= UINT32_C(1) << i;
  }
  return LUATTN_OK;
}

static luattn_status check_entries(const cli_options *o, cli_problem *p, const cli_result *got,
                                   cli_result *scratch, check_report *out, luattn_error *err) {
  const double noise = loss_noise(p, got) / STEP;
  char name[80];
  TRY(check_tensor(o, p, scratch, "dq", &p->q, &got->dq, noise, out, err));
  TRY(check_tensor(o, p, scratch, "dk", &p->k, &got->dk, noise, out, err));
  TRY(check_tensor(o, p, scratch, "dv", &p->v, &got->dv, noise, out, err));
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    snprintf(name, sizeof name, "d_%s", p->info.inputs[i].name);
    TRY(check_tensor(o, p, scratch, name, &p->input[i], &got->input_grad[i], noise, out, err));
  }
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    if (out->jumps >> i & 1) continue;
    const double have = array_get(&got->scalar_grads, (int64_t)i);
    snprintf(name, sizeof name, "d_%s", p->info.scalar_names[i]);
    check_add(out, name, fabs(out->slope[i] - have), 1e-6 * fmax(fabs(have), 1) + noise);
  }
  return LUATTN_OK;
}

/* ---- all at once ---- */

/* +1 or -1, a different mix for each tensor. */
static double sign_at(int tensor, int64_t i) {
  uint64_t x = ((uint64_t)i << 8 | (uint64_t)tensor) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return x >> 63 ? -1 : 1;
}

#define NUM_MOVED 15 /* q, k, v and the inputs */

/* What moves: q, k and v, or the inputs and scalars, or all of them. */
typedef enum moving { TENSORS = 1, PARAMETERS = 2, EVERYTHING = 3 } moving;

typedef struct direction {
  moving what;
  array *moved[NUM_MOVED];
  const array *gradient[NUM_MOVED];
  double *before[NUM_MOVED]; /* float64, contiguous or not: as stored */
  uint32_t jumps;            /* scalars that stay */
} direction;

static luattn_status direction_open(direction *d, moving what, cli_problem *p, const cli_result *got,
                                    luattn_error *err) {
  array *const moved[] = {&p->q, &p->k, &p->v};
  const array *const gradient[] = {&got->dq, &got->dk, &got->dv};
  memset(d, 0, sizeof *d);
  d->what = what;
  for (int i = 0; i < NUM_MOVED; i++) {
    d->gradient[i] = i < 3 ? gradient[i] : &got->input_grad[i - 3];
    d->moved[i] = i < 3 ? moved[i] : &p->input[i - 3];
    if (d->gradient[i]->storage == NULL || !(what & (i < 3 ? TENSORS : PARAMETERS))) continue;
    const int64_t n = array_count(d->moved[i]);
    d->before[i] = malloc((size_t)n * sizeof(double) + 1);
    if (d->before[i] == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for a copy of the arrays");
    for (int64_t j = 0; j < n; j++) d->before[i][j] = array_get(d->moved[i], j);
  }
  return LUATTN_OK;
}

static bool moves(const direction *d, size_t scalar) {
  return (d->what & PARAMETERS) != 0 && (d->jumps >> scalar & 1) == 0;
}

static void direction_close(direction *d) {
  for (int i = 0; i < NUM_MOVED; i++) free(d->before[i]);
}

/* Loss with everything moved by `step` along the signs. */
static luattn_status loss_at(const cli_options *o, cli_problem *p, const direction *d, double step,
                             cli_result *scratch, double *loss, luattn_error *err) {
  double scalar[32];
  for (int i = 0; i < NUM_MOVED; i++) {
    for (int64_t j = 0, n = d->before[i] != NULL ? array_count(d->moved[i]) : 0; j < n; j++) {
      array_set(d->moved[i], j, d->before[i][j] + step * sign_at(i, j));
    }
  }
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    scalar[i] = *scalar_of(p, i);
    if (moves(d, i)) *scalar_of(p, i) += step * sign_at(NUM_MOVED, (int64_t)i);
  }
  const luattn_status status = plain_loss(o, p, scratch, loss, err);
  for (size_t i = 0; i < p->info.num_scalars; i++) *scalar_of(p, i) = scalar[i];
  for (int i = 0; i < NUM_MOVED; i++) {
    for (int64_t j = 0, n = d->before[i] != NULL ? array_count(d->moved[i]) : 0; j < n; j++) {
      array_set(d->moved[i], j, d->before[i][j]);
    }
  }
  return status;
}

/* How far an element moved between the two sides, in steps of one side: inputs are stored in their own types,
 * which round. */
static double shift_of(const direction *d, int i, int64_t j) {
  array *a = d->moved[i];
  const double step = DIRECTION_STEP * sign_at(i, j);
  array_set(a, j, d->before[i][j] + step);
  const double high = array_get(a, j);
  array_set(a, j, d->before[i][j] - step);
  const double low = array_get(a, j);
  array_set(a, j, d->before[i][j]);
  return (high - low) / (2 * DIRECTION_STEP);
}

/* allowed: how far off the gradients may be along such a direction; 0: not at all. */
static luattn_status check_direction(const cli_options *o, cli_problem *p, const cli_result *got, moving what,
                                     const char *name, double allowed, cli_result *scratch, check_report *out,
                                     luattn_error *err) {
  direction d;
  double up = 0, down = 0, slope = 0, squares = 0;
  luattn_status status = direction_open(&d, what, p, got, err);
  d.jumps = out->jumps;
  if (status == LUATTN_OK) status = loss_at(o, p, &d, DIRECTION_STEP, scratch, &up, err);
  if (status == LUATTN_OK) status = loss_at(o, p, &d, -DIRECTION_STEP, scratch, &down, err);
  for (int i = 0; i < NUM_MOVED; i++) {
    for (int64_t j = 0, n = d.before[i] != NULL ? array_count(d.gradient[i]) : 0; j < n; j++) {
      const double g = array_get(d.gradient[i], j);
      slope += g * shift_of(&d, i, j), squares += g * g;
    }
  }
  bool by_scalars = false;
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    if (!moves(&d, i)) continue;
    const double g = array_get(&got->scalar_grads, (int64_t)i);
    slope += g * sign_at(NUM_MOVED, (int64_t)i), squares += g * g;
    by_scalars = true;
  }
  if (status == LUATTN_OK) {
    /* A slope along random signs is as large as the root of the sum of squares. Scalars by themselves are off
     * by what check_entries allows them: their slope may be next to nothing. */
    const double size = fmax(sqrt(squares), what == PARAMETERS && by_scalars ? 1 : 0);
    check_add(out, name, fabs((up - down) / (2 * DIRECTION_STEP) - slope),
              allowed + 1e-6 * size + loss_noise(p, got) / DIRECTION_STEP);
  }
  direction_close(&d);
  return status;
}

/* ---- which of them ---- */

static bool gradient_is_given(const luattn_spec *spec) {
  const traced_spec *t = &spec->traced;
  const ir_ref roots[] = {t->score_mod,   t->query_mod,  t->key_mod,        t->value_mod,
                          t->online.prob, t->online.out, t->online.rescale, t->online.forward};
  if (t->online.backward != IR_NONE) return true;
  for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
    if (roots[i] != IR_NONE && ir_uses_op(t->g, roots[i], IR_STOP_GRADIENT)) return true;
  }
  for (int i = 0; i < t->online.num_state; i++) {
    if (ir_uses_op(t->g, t->online.next[i], IR_STOP_GRADIENT)) return true;
  }
  return false;
}

static size_t count_scores(const cli_problem *p) {
  return (size_t)p->batch * (size_t)p->heads * (size_t)p->q_len * (size_t)p->kv_len;
}

/* Some differences, with the mask of this point: it has no gradient, and a step in a number that it compares
 * must not move its edge. */
typedef luattn_status (*differences)(const cli_options *o, cli_problem *p, const cli_result *got,
                                     const double *allowed, cli_result *scratch, check_report *out,
                                     luattn_error *err);

static luattn_status with_mask(differences check, const cli_options *o, cli_problem *p, const cli_result *got,
                               const double *allowed, cli_result *scratch, check_report *out,
                               luattn_error *err) {
  out->gradient_is_given = gradient_is_given(p->spec);
  if (out->gradient_is_given) return LUATTN_OK;
  unsigned char *kept = malloc(count_scores(p) + 1);
  luattn_status s = kept != NULL ? naive_mask(o, p, kept, err)
                                 : luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the mask");
  p->kept = kept;
  out->scalar_names = p->info.scalar_names;
  if (s == LUATTN_OK) s = check(o, p, got, allowed, scratch, out, err);
  p->kept = NULL;
  free(kept);
  return s;
}

static luattn_status slopes(const cli_options *o, cli_problem *p, const cli_result *got,
                            const double *allowed, cli_result *scratch, check_report *out,
                            luattn_error *err) {
  (void)allowed;
  const bool by_entries = count_scores(p) <= MANY_SCORES;
  TRY(find_jumps(o, p, by_entries, scratch, out, err));
  if (by_entries) return check_entries(o, p, got, scratch, out, err);
  return check_direction(o, p, got, EVERYTHING, "all gradients", 0, scratch, out, err);
}

luattn_status check_slopes(const cli_options *o, cli_problem *p, const cli_result *got, cli_result *scratch,
                           check_report *out, luattn_error *err) {
  return with_mask(slopes, o, p, got, NULL, scratch, out, err);
}

static bool has_parameters(const cli_problem *p, const cli_result *got) {
  bool some = p->info.num_scalars > 0;
  for (size_t i = 0; i < p->info.num_inputs; i++) some |= got->input_grad[i].storage != NULL;
  return some;
}

static luattn_status adjoint(const cli_options *o, cli_problem *p, const cli_result *got,
                             const double *allowed, cli_result *scratch, check_report *out,
                             luattn_error *err) {
  TRY(find_jumps(o, p, false, scratch, out, err));
  TRY(check_direction(o, p, got, TENSORS, "along q, k, v", allowed[0], scratch, out, err));
  if (!has_parameters(p, got)) return LUATTN_OK;
  return check_direction(o, p, got, PARAMETERS, "along parameters", allowed[1], scratch, out, err);
}

luattn_status check_adjoint(const cli_options *o, cli_problem *p, const cli_result *got,
                            const double allowed[2], cli_result *scratch, check_report *out,
                            luattn_error *err) {
  return with_mask(adjoint, o, p, got, allowed, scratch, out, err);
}
