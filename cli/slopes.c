/* slopes.c: checks gradients against central differences of the forward pass in plain Lua. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "gen/spec.h"

#define STEP 1e-5
#define JUMP 1e-5 /* for a loss around 1: smooth ones never differ by this much on both sides of a step */
#define SAMPLES 6
#define DIRECTION_STEP 2e-6 /* small: the more scores, the more of them cross a kink such as relu's */
#define SHORTER 0.1         /* factor of each retry: a step that crosses a kink or a jump says nothing */
#define TRIES 3
#define DIRECTION_TRIES 2 /* with all scores */
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

/* The rounding error of the loss: each of its terms is off by about one unit roundoff, in either direction,
 * and by the effect of rounded scores on o (o_noise); four standard deviations of their sum. Divided by a
 * step, it is the error of a difference quotient. */
static double loss_noise(const cli_problem *p, const cli_result *got, const array *o_noise) {
  double squares = 0;
  for (int64_t i = 0, n = array_count(&got->o); i < n; i++) {
    const double dout = array_get(&p->dout, i);
    const double term = dout * array_get(&got->o, i), moved = dout * array_get(o_noise, i);
    if (isfinite(term)) squares += term * term;
    if (isfinite(moved)) squares += moved * moved;
  }
  for (int64_t i = 0, n = p->dlse.storage != NULL ? array_count(&got->lse) : 0; i < n; i++) {
    const double term = array_get(&p->dlse, i) * array_get(&got->lse, i);
    if (isfinite(term)) squares += term * term;
  }
  return 4 * DBL_EPSILON * sqrt(squares);
}

/* The problem's scalar i, entered with its default if the call did not set it. */
static double *scalar_of(cli_problem *p, size_t i) {
  const char *name = p->info.scalar_names[i];
  int at = 0;
  while (at < p->num_scalars && strcmp(p->scalar[at].name, name) != 0) at++;
  if (at == p->num_scalars) p->scalar[p->num_scalars++] = (luattn_scalar){name, p->info.scalar_defaults[i]};
  return &p->scalar[at].value;
}

/* ---- entry by entry ---- */

/* The loss on both sides of an entry. */
typedef struct sides {
  double up, down, slope;
} sides;

static luattn_status difference(const cli_options *o, const cli_problem *p, cli_result *scratch, array *x, int64_t at,
                                double step, sides *out, luattn_error *err) {
  const double before = array_get(x, at);
  array_set(x, at, before + step);
  const double high = array_get(x, at);
  luattn_status s = plain_loss(o, p, scratch, &out->up, err);
  array_set(x, at, before - step);
  const double low = array_get(x, at);
  if (s == LUATTN_OK) s = plain_loss(o, p, scratch, &out->down, err);
  array_set(x, at, before);
  out->slope = (out->up - out->down) / (high - low);
  return s;
}

/* Decides, for an entry whose slope no step confirms, whether it has none, as at a tie or where a comparison
 * flips. The slopes of the two sides differ by a constant at a kink, by more with shorter steps at a jump,
 * and by less elsewhere. At a kink every slope between the two is right. */
static luattn_status has_no_slope(const cli_options *o, const cli_problem *p, cli_result *scratch, array *x, int64_t at,
                                  double gradient, double tolerance, double noise, bool *none, luattn_error *err) {
  double here, gap[2], low = 0, high = 0;
  TRY(plain_loss(o, p, scratch, &here, err));
  const double step = STEP * SHORTER * SHORTER;
  for (int i = 0; i < 2; i++) {
    sides s;
    const double h = i == 0 ? step / SHORTER : step;
    TRY(difference(o, p, scratch, x, at, h, &s, err));
    const double right = (s.up - here) / h, left = (here - s.down) / h;
    gap[i] = fabs(right - left), low = fmin(left, right), high = fmax(left, right);
  }
  const double off = tolerance + 2 * noise / step;
  const bool bends = gap[1] > off && gap[1] > gap[0] / 2, jumps = bends && gap[1] > 4 * gap[0];
  *none = jumps || (bends && gradient >= low - off && gradient <= high + off);
  return LUATTN_OK;
}

/* The error of one entry of a gradient; at most `tolerance` if a shorter step confirms it, or if there is no
 * derivative. */
static luattn_status entry_error(const cli_options *o, const cli_problem *p, cli_result *scratch, array *x, int64_t at,
                                 double gradient, double tolerance, double noise, double *error, luattn_error *err) {
  double step = STEP;
  for (int i = 0; i < TRIES; i++, step *= SHORTER) {
    sides s;
    TRY(difference(o, p, scratch, x, at, step, &s, err));
    const double e = fabs(s.slope - gradient), allowed = tolerance + noise / step;
    if (i == 0) *error = e;
    if (!(e <= allowed)) continue; /* true for NaN */
    if (i > 0) *error = fmin(e, tolerance);
    return LUATTN_OK;
  }
  bool none;
  TRY(has_no_slope(o, p, scratch, x, at, gradient, tolerance, noise, &none, err));
  if (none) *error = 0;
  return LUATTN_OK;
}

/* Checks some entries of one tensor's gradient, or all where they are few. */
static luattn_status check_tensor(const cli_options *o, const cli_problem *p, cli_result *scratch, const char *name,
                                  array *x, const array *gradient, check_report *out, luattn_error *err) {
  const int64_t n = array_count(x);
  double error = 0, biggest = 0;
  if (gradient->storage == NULL || n == 0) return LUATTN_OK;
  for (int64_t i = 0; i < n; i++) biggest = fmax(biggest, fabs(array_get(gradient, i)));
  const double tolerance = 1e-6 * fmax(biggest, 1e-3);
  for (int64_t i = 0; i < SAMPLES && i < n; i++) {
    const int64_t at = n <= SAMPLES ? i : (int64_t)((uint64_t)(i + 1) * UINT64_C(2654435761) % (uint64_t)n);
    double e = 0;
    TRY(entry_error(o, p, scratch, x, at, array_get(gradient, at), tolerance, out->loss_noise, &e, err));
    error = e > error || isnan(e) ? e : error;
  }
  check_add(out, name, error, tolerance + out->loss_noise / STEP);
  return LUATTN_OK;
}

/* The loss with the scalars in `moved`, a bit for each, moved by `step`. */
static luattn_status loss_beside(const cli_options *o, cli_problem *p, uint32_t moved, double step, cli_result *scratch,
                                 double *loss, luattn_error *err) {
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
  bool jumps; /* the result jumps or bends here, so it has no slope */
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

/* The slope along each scalar, and the scalars at which the result jumps or bends, as a position does that
 * scores compare keys with, at a whole number: these have no derivative to compare. Callers that need no
 * slopes first test all scalars together: if the result is smooth along them, none jumps. */
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

static luattn_status check_entries(const cli_options *o, cli_problem *p, const cli_result *got, cli_result *scratch,
                                   check_report *out, luattn_error *err) {
  char name[80];
  TRY(check_tensor(o, p, scratch, "dq", &p->q, &got->dq, out, err));
  TRY(check_tensor(o, p, scratch, "dk", &p->k, &got->dk, out, err));
  TRY(check_tensor(o, p, scratch, "dv", &p->v, &got->dv, out, err));
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    snprintf(name, sizeof name, "d_%s", p->info.inputs[i].name);
    TRY(check_tensor(o, p, scratch, name, &p->input[i], &got->input_grad[i], out, err));
  }
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    if (out->jumps >> i & 1) continue;
    const double have = array_get(&got->scalar_grads, (int64_t)i);
    snprintf(name, sizeof name, "d_%s", p->info.scalar_names[i]);
    check_add(out, name, fabs(out->slope[i] - have), 1e-6 * fmax(fabs(have), 1) + out->loss_noise / STEP);
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

/* The set that moves: q, k and v, or the inputs and scalars, or all. */
typedef enum moving { TENSORS = 1, PARAMETERS = 2, EVERYTHING = 3 } moving;

typedef struct direction {
  moving what;
  array *moved[NUM_MOVED];
  const array *gradient[NUM_MOVED];
  double *before[NUM_MOVED]; /* float64, contiguous or not: as stored */
  uint32_t jumps;            /* scalars that stay fixed */
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
    if (d->before[i] == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for a copy of the arrays");
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
static luattn_status loss_at(const cli_options *o, cli_problem *p, const direction *d, double step, cli_result *scratch,
                             double *loss, luattn_error *err) {
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

/* How far an element moved between the two sides, in steps of one side: inputs are rounded to their own
 * types. */
static double shift_of(const direction *d, int i, int64_t j, double length) {
  array *a = d->moved[i];
  const double step = length * sign_at(i, j);
  array_set(a, j, d->before[i][j] + step);
  const double high = array_get(a, j);
  array_set(a, j, d->before[i][j] - step);
  const double low = array_get(a, j);
  array_set(a, j, d->before[i][j]);
  return (high - low) / (2 * length);
}

/* Along the direction: the change of the loss that the gradients predict, and the root of the sum of their
 * squares, which is its typical size along random signs. Scalars also contribute the tolerance of
 * check_entries: their slope may be next to nothing. */
static double slope_along(const direction *d, const cli_problem *p, const cli_result *got, double step, double *size) {
  double slope = 0, squares = 0;
  bool by_scalars = false;
  for (int i = 0; i < NUM_MOVED; i++) {
    for (int64_t j = 0, n = d->before[i] != NULL ? array_count(d->gradient[i]) : 0; j < n; j++) {
      const double g = array_get(d->gradient[i], j);
      slope += g * shift_of(d, i, j, step), squares += g * g;
    }
  }
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    if (!moves(d, i)) continue;
    const double g = array_get(&got->scalar_grads, (int64_t)i);
    slope += g * sign_at(NUM_MOVED, (int64_t)i), squares += g * g;
    by_scalars = true;
  }
  *size = fmax(sqrt(squares), d->what == PARAMETERS && by_scalars ? 1 : 0);
  return slope;
}

/* allowed: the gradients' error along such a direction; 0: none. A step that disagrees may have crossed a
 * kink, so shorter ones are tried. */
static luattn_status check_direction(const cli_options *o, cli_problem *p, const cli_result *got, moving what,
                                     const char *name, double allowed, cli_result *scratch, check_report *out,
                                     luattn_error *err) {
  direction d;
  double step = DIRECTION_STEP, error = 0, tolerance = 0;
  luattn_status status = direction_open(&d, what, p, got, err);
  d.jumps = out->jumps;
  for (int i = 0; i < DIRECTION_TRIES && status == LUATTN_OK; i++, step *= SHORTER) {
    double up = 0, down = 0, size;
    status = loss_at(o, p, &d, step, scratch, &up, err);
    if (status == LUATTN_OK) status = loss_at(o, p, &d, -step, scratch, &down, err);
    const double slope = slope_along(&d, p, got, step, &size);
    const double e = fabs((up - down) / (2 * step) - slope), most = allowed + 1e-6 * size + out->loss_noise / step;
    const bool agrees = e <= most;
    if (i == 0 || agrees) error = e, tolerance = most;
    if (agrees) break;
  }
  if (status == LUATTN_OK) check_add(out, name, error, tolerance);
  direction_close(&d);
  return status;
}

/* ---- which of them ---- */

/* With a stop_gradient, the gradient differs from that of the loss on purpose. */
bool spec_stops_gradient(const luattn_spec *spec) {
  const traced_spec *t = &spec->traced;
  const ir_ref roots[] = {t->score_mod,   t->query_mod,  t->key_mod,        t->value_mod,
                          t->online.prob, t->online.out, t->online.rescale, t->online.forward};
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

bool spec_gives_backward(const luattn_spec *spec) { return spec->traced.online.backward != IR_NONE; }

/* --own-backward: the differences from line `first` on are meant so, where the backward has a say: dv is P^T dO whatever
 * it is. */
static void accept_own_backward(check_report *r, int first) {
  bool all = true;
  for (int i = first; i < r->count; i++) {
    check_line *l = &r->line[i];
    if (l->ok) continue;
    l->is_accepted = isfinite(l->error) && isfinite(l->tolerance) && strcmp(l->name, "dv") != 0;
    r->failed -= l->is_accepted;
    all &= l->is_accepted;
  }
  r->accepts_backward = all;
}

/* Some differences, with the mask of this point held fixed: it has no gradient, and a step in a number that
 * it compares must not move its edge. */
typedef luattn_status (*differences)(const cli_options *o, cli_problem *p, const cli_result *got, const double *allowed,
                                     cli_result *scratch, check_report *out, luattn_error *err);

static luattn_status with_mask(differences check, const cli_options *o, cli_problem *p, const cli_result *got,
                               const array *o_noise, const double *allowed, cli_result *scratch, check_report *out,
                               luattn_error *err) {
  out->stops_gradient = spec_stops_gradient(p->spec);
  if (out->stops_gradient) return LUATTN_OK;
  out->loss_noise = loss_noise(p, got, o_noise);
  const int failed = out->failed, first = out->count;
  unsigned char *kept = malloc(count_scores(p) + 1);
  luattn_status s =
      kept != NULL ? naive_mask(o, p, kept, err) : luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for the mask");
  p->kept = kept;
  out->scalar_names = p->info.scalar_names;
  if (s == LUATTN_OK) s = check(o, p, got, allowed, scratch, out, err);
  out->backward_disagrees = spec_gives_backward(p->spec) && out->failed > failed;
  if (out->backward_disagrees && o->own_backward) accept_own_backward(out, first);
  p->kept = NULL;
  free(kept);
  return s;
}

static luattn_status slopes(const cli_options *o, cli_problem *p, const cli_result *got, const double *allowed,
                            cli_result *scratch, check_report *out, luattn_error *err) {
  (void)allowed;
  const bool by_entries = count_scores(p) <= MANY_SCORES;
  TRY(find_jumps(o, p, by_entries, scratch, out, err));
  if (by_entries) TRY(check_entries(o, p, got, scratch, out, err));
  if (by_entries && !spec_gives_backward(p->spec)) return LUATTN_OK;
  /* A backward written by hand may be wrong anywhere. */
  return check_direction(o, p, got, EVERYTHING, "all gradients", 0, scratch, out, err);
}

luattn_status check_slopes(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                           cli_result *scratch, check_report *out, luattn_error *err) {
  return with_mask(slopes, o, p, got, o_noise, NULL, scratch, out, err);
}

static bool has_parameters(const cli_problem *p, const cli_result *got) {
  bool some = p->info.num_scalars > 0;
  for (size_t i = 0; i < p->info.num_inputs; i++) some |= got->input_grad[i].storage != NULL;
  return some;
}

static luattn_status adjoint(const cli_options *o, cli_problem *p, const cli_result *got, const double *allowed,
                             cli_result *scratch, check_report *out, luattn_error *err) {
  TRY(find_jumps(o, p, false, scratch, out, err));
  TRY(check_direction(o, p, got, TENSORS, "along q, k, v", allowed[0], scratch, out, err));
  if (!has_parameters(p, got)) return LUATTN_OK;
  return check_direction(o, p, got, PARAMETERS, "along parameters", allowed[1], scratch, out, err);
}

luattn_status check_adjoint(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                            const double allowed[2], cli_result *scratch, check_report *out, luattn_error *err) {
  return with_mask(adjoint, o, p, got, o_noise, allowed, scratch, out, err);
}
