#include "cli/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "cli/one_sequence.h"
#include "cli/packed_cpu.h"
#include "gen/cpu/cpu.h"

/* The largest difference beyond what is `allowed` for each element (NULL: nothing); NaN if only one side is
 * NaN or infinite. *biggest: largest finite |want|. */
static double distance(const array *got, const array *want, const array *allowed, double *biggest) {
  double error = 0;
  *biggest = 0;
  for (int64_t i = 0, n = array_count(want); i < n; i++) {
    const double x = array_get(got, i), y = array_get(want, i);
    if (!isfinite(x) || !isfinite(y)) {
      if (!(x == y)) return NAN; /* equal infinities are equal; a NaN on either side is an error */
      continue;
    }
    error = check_worse(error, fabs(x - y) - (allowed != NULL ? array_get(allowed, i) : 0));
    *biggest = fmax(*biggest, fabs(y));
  }
  return error;
}

typedef struct comparison {
  check_report *out;
  luattn_dtype dtype;
  const cli_result *got, *want,
      *rounded;             /* rounded: of plain arithmetic in the type, in f64 of a coarser one (plain_scale) */
  const cli_result *merged; /* likewise, as kernels order it (cpu_forward_merged); may be NULL */
  const cli_result *parted; /* gradients of run_parted; may be NULL */
  const cli_result *noise;  /* of gradients (cpu_gradient_noise); may be NULL */
  const cli_result *kinks;  /* of dq, dk, dv (cpu_gradient_kinks); may be NULL */
  const cli_result *scores; /* effect of rounded scores (cpu_forward_score_noise), or NULL */
  double exponent;          /* and the magnitude of a row's exponents (likewise) */
  bool out_f32;             /* o is not rounded to the type */
} comparison;

/* Returns the largest finite value: infinities must not widen a tolerance. */
static double biggest_of(const array *a) {
  double biggest = 0;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double x = fabs(array_get(a, i));
    if (isfinite(x)) biggest = fmax(biggest, x);
  }
  return biggest;
}

/* The error of adding and subtracting 0.3 in the type, for the largest value: FlashAttention's tolerance for
 * the output's own rounding, in case plain arithmetic is exact by luck. Two roundings at |x| + 0.3. */
static double rounding_of(luattn_dtype type, double biggest) {
  if (type == LUATTN_F64 || type == LUATTN_F32) return 0;
  return 2 * (biggest + 0.3) * kernel_dtype(type)->unit;
}

/* Half the unit roundoff of a half type, a little less than the standard deviation of one rounding (0.58 of
 * it); of others a quarter of the tolerance. */
static double unit_of(luattn_dtype type) {
  return type == LUATTN_F64 ? 1e-12 / 4 : type == LUATTN_F32 ? 1e-5 / 4 : kernel_dtype(type)->unit / 2;
}

static bool is_tensor_gradient(size_t offset) {
  return offset >= offsetof(cli_result, dq) && offset <= offsetof(cli_result, dv);
}

static const array *at_offset(const cli_result *r, size_t offset) {
  return r != NULL ? (const array *)(const void *)((const char *)r + offset) : NULL;
}

/* What the distance of `rounded` to `want` is multiplied by, for the error of plain arithmetic. In f64 arithmetic of 16
 * bits less is off by 2^16 times as much, however ill-conditioned the hooks are. Two computations are compared that are
 * both off, and their largest error may be twice the one of these, which few elements have. */
static double plain_scale(luattn_dtype type) { return type == LUATTN_F64 ? 4 / CPU_COARSENESS : 1; }

/* The error of plain arithmetic in the type: constants and operations of hooks in float32, and in half types rounded
 * tensors. For dq, dk and dv it is at least two standard deviations of their roundings: the largest of few errors may
 * be small by luck. Kinks: what a derivative that jumps may add to an element, which is allowed to that one alone. */
static double plain_error(const comparison *c, size_t offset, const array *want, const array *kinks) {
  double ignored, error = distance(at_offset(c->rounded, offset), want, NULL, &ignored);
  const array *const others[] = {at_offset(c->merged, offset), at_offset(c->parted, offset)};
  for (int i = 0; i < 2; i++) {
    if (others[i] == NULL || others[i]->storage == NULL) continue;
    const double of_other = distance(others[i], want, kinks, &ignored); /* few elements are at one */
    if (of_other > error) error = of_other;
  }
  error *= plain_scale(c->dtype);
  const bool is_half = c->dtype == LUATTN_F16 || c->dtype == LUATTN_BF16;
  const array *noise = is_half && is_tensor_gradient(offset) ? at_offset(c->noise, offset) : NULL;
  if (noise == NULL || noise->storage == NULL) return error;
  const double least = 2 * unit_of(c->dtype) * biggest_of(noise);
  return error < least ? least : error;
}

/* Scores are float32 in float32, bf16 and f16 kernels, float64 in f64's: one of magnitude |s| rounds by up to
 * 2^-24 |s|, and its exponential has that as a relative error. Between q.k and a weight, a number of this
 * size is rounded twice: the score and its multiple of log2(e); in backward lse and its multiple are too. The
 * standard deviation of a rounding is 1 / sqrt(3) of its bound, of two independent ones 0.82 of it. */
static double score_unit(luattn_dtype type) { return 0.82 * (type == LUATTN_F64 ? 0x1p-53 : 0x1p-24); }

/* Returns the tolerance relative to the largest value. */
static double base_tolerance(luattn_dtype type) { return type == LUATTN_F64 ? 1e-12 : 1e-5; }

static bool adds_up_rows(size_t offset) {
  return offset == offsetof(cli_result, dk) || offset == offsetof(cli_result, dv);
}

/* The effect of these roundings on a result: four standard deviations of the independent roundings of single
 * weights, plus the error that all weights of a row share, through lse and the sum of weights: the magnitude
 * of the row's exponents times the roundoff. lse itself is off by as much, not by a factor, and in dk and dv
 * each term comes from another row. */
static double score_tolerance(const comparison *c, size_t offset, double biggest) {
  const array *moved = at_offset(c->scores, offset);
  if (c->scores == NULL) return 0;
  const double unit = 4 * score_unit(c->dtype), row = adds_up_rows(offset) ? 0 : unit * c->exponent;
  return row * (offset == offsetof(cli_result, lse) ? 1 : biggest) +
         (moved->storage != NULL ? unit * biggest_of(moved) : 0);
}

static void compare(const comparison *c, const char *name, size_t offset, double factor) {
  const array *got = at_offset(c->got, offset), *want = at_offset(c->want, offset);
  double biggest;
  if (want->storage == NULL || got->storage == NULL) return;
  const array *kinks = is_tensor_gradient(offset) ? at_offset(c->kinks, offset) : NULL;
  const double error = distance(got, want, kinks, &biggest);
  double tolerance = base_tolerance(c->dtype) * biggest + score_tolerance(c, offset, biggest);
  tolerance += factor * plain_error(c, offset, want, kinks);
  if (offset == offsetof(cli_result, o) && !c->out_f32) tolerance += rounding_of(c->dtype, biggest);
  const array *noise = at_offset(c->noise, offset);
  if (noise != NULL && noise->storage != NULL && offset >= offsetof(cli_result, input_grad)) {
    /* Tolerance of a sum of many contributions that cancel: four standard deviations of their independent
     * roundings. */
    tolerance += 4 * unit_of(c->dtype) * biggest_of(noise);
  }
  /* Sums below the smallest normal number of their type become 0. */
  check_add(c->out, name, error, tolerance + (c->dtype == LUATTN_F64 ? DBL_MIN : FLT_MIN));
}

static void compare_all(const comparison *c, const luattn_spec_info *info) {
  compare(c, "out", offsetof(cli_result, o), 2);
  compare(c, "lse", offsetof(cli_result, lse), 2);
  if (c->want->saved.shape[0] > 0) compare(c, "saved", offsetof(cli_result, saved), 2);
  compare(c, "dq", offsetof(cli_result, dq), 3);
  compare(c, "dk", offsetof(cli_result, dk), 3);
  compare(c, "dv", offsetof(cli_result, dv), 3);
  for (size_t i = 0; i < info->num_inputs; i++) {
    char name[80];
    snprintf(name, sizeof name, "d_%s", info->inputs[i].name);
    compare(c, name, offsetof(cli_result, input_grad) + i * sizeof(array), 3);
  }
  compare(c, "scalar gradients", offsetof(cli_result, scalar_grads), 3);
}

static luattn_status run_cpu(const cli_problem *p, luattn_dtype precision, bool backward, cli_result *r,
                             luattn_error *err) {
  cli_binding bind;
  const luattn_args args = problem_args(p, r, backward, &bind);
  TRY(luattn_cpu_forward_in(p->spec, &args, precision, err));
  return backward ? luattn_cpu_backward_in(p->spec, &args, precision, err) : LUATTN_OK;
}

static DLDataType real_of(const cli_problem *p) { return dtype_dl(p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32); }

/* As kernels order the arithmetic. */
static luattn_status run_merged(const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  cli_binding bind;
  const luattn_args args = problem_args(p, r, backward, &bind);
  TRY(cpu_forward_merged(p->spec, &args, p->dtype, err));
  return backward ? cpu_backward_merged(p->spec, &args, p->dtype, err) : LUATTN_OK;
}

static bool may_part(const cli_problem *p) { return p->dtype == LUATTN_F32 || p->dtype == LUATTN_F64; }

static luattn_status parted_new(const cli_problem *p, cli_result *parted, luattn_error *err) {
  if (!may_part(p)) return LUATTN_OK;
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), true, parted, err));
  array_free(&parted->o), array_free(&parted->lse), array_free(&parted->saved);
  return LUATTN_OK;
}

/* The gradients where backward has the spec's own order: a kernel's two passes may merge other constants. In half types
 * each rounds its scores, alike, to far fewer bits. */
static luattn_status run_parted(const cli_problem *p, const cli_result *merged, cli_result *parted, luattn_error *err) {
  cli_binding bind;
  const luattn_args outputs = problem_args(p, merged, true, &bind);
  TRY(parted_new(p, parted, err));
  if (!may_part(p)) return LUATTN_OK;
  luattn_args args = problem_args(p, parted, true, &bind);
  args.o = outputs.o, args.lse = outputs.lse, args.saved = outputs.saved;
  return p->dtype == LUATTN_F64 ? cpu_backward_coarse(p->spec, &args, err)
                                : luattn_cpu_backward_in(p->spec, &args, p->dtype, err);
}

/* Plain arithmetic of the problem's type; in f64 coarser than that. */
static luattn_status run_plain(const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  cli_binding bind;
  if (p->dtype != LUATTN_F64) return run_cpu(p, p->dtype, backward, r, err);
  const luattn_args args = problem_args(p, r, backward, &bind);
  TRY(cpu_forward_coarse(p->spec, &args, err));
  return backward ? cpu_backward_coarse(p->spec, &args, err) : LUATTN_OK;
}

/* `want` has forward's results. */
static luattn_status gradient_noise(const cli_problem *p, const cli_result *want, cli_result *noise,
                                    luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_binding bind;
  TRY(result_new(p, f64, f64, true, noise, err));
  const luattn_args outputs = problem_args(p, want, true, &bind);
  luattn_args args = problem_args(p, noise, true, &bind);
  args.o = outputs.o, args.lse = outputs.lse, args.saved = outputs.saved;
  return cpu_gradient_noise(p->spec, &args, err);
}

/* Computes the effect of rounded scores. lse and saved stay absent: they are off by `exponent` only. */
typedef struct score_noise {
  cli_result of;
  double exponent;
  bool matters; /* the effect exceeds a tenth of the rest of the tolerance; otherwise only of.o is filled */
} score_noise;

static luattn_status score_noise_compute(const cli_problem *p, const cli_result *want, bool backward, score_noise *out,
                                         luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_binding bind;
  TRY(result_new(p, f64, f64, backward, &out->of, err));
  array_free(&out->of.lse), array_free(&out->of.saved);
  const luattn_args outputs = problem_args(p, want, backward, &bind);
  luattn_args args = problem_args(p, &out->of, backward, &bind);
  TRY(cpu_forward_score_noise(p->spec, &args, &out->exponent, err));
  out->matters = 4 * score_unit(p->dtype) * out->exponent > 0.1 * base_tolerance(p->dtype);
  if (!backward || !out->matters) return LUATTN_OK;
  args.o = outputs.o, args.lse = outputs.lse, args.saved = outputs.saved;
  return cpu_backward_score_noise(p->spec, &args, err);
}

/* Leaves out gradients that are not wanted: the engine compiles for those that have memory. */
static void keep_wanted(cli_result *r, unsigned wants) {
  if (!(wants & LUATTN_WANT_DQ)) array_free(&r->dq);
  if (!(wants & LUATTN_WANT_DK)) array_free(&r->dk);
  if (!(wants & LUATTN_WANT_DV)) array_free(&r->dv);
  for (int i = 0; i < 12 && !(wants & LUATTN_WANT_INPUTS); i++) array_free(&r->input_grad[i]);
  if (!(wants & LUATTN_WANT_SCALARS)) array_free(&r->scalar_grads);
}

/* Results of the CPU path: in double precision; by plain arithmetic in another type; the magnitude of the terms of
 * parameter gradients; the possible error of other gradients where a derivative jumps; and the effect of
 * rounded scores. */
typedef struct references {
  cli_result want, rounded, merged, parted, noise, kinks;
  score_noise scores;
  bool has_kinks;
} references;

static void references_free(references *r) {
  result_free(&r->want), result_free(&r->rounded), result_free(&r->merged), result_free(&r->noise);
  result_free(&r->parted), result_free(&r->kinks);
  result_free(&r->scores.of);
}

/* A kernel sums in float, or double, in an order of its own: the error is a few units of the largest partial
 * sum, which is at most the sum of magnitudes. */
static luattn_status gradient_kinks(const cli_problem *p, references *r, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_binding bind;
  TRY(result_new(p, f64, f64, true, &r->kinks, err));
  const luattn_args outputs = problem_args(p, &r->want, true, &bind);
  luattn_args args = problem_args(p, &r->kinks, true, &bind);
  args.o = outputs.o, args.lse = outputs.lse, args.saved = outputs.saved;
  return cpu_gradient_kinks(p->spec, &args, p->dtype == LUATTN_F64 ? 0x1p-49 : 0x1p-20, &r->has_kinks, err);
}

static luattn_status references_compute(const cli_problem *p, bool backward, references *r, luattn_error *err);

/* Arrays for all sequences' references, zero until these are put there. */
static luattn_status references_new(const cli_problem *p, bool backward, references *r, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_result *const of_gradients[] = {&r->noise, &r->kinks};
  TRY(result_new(p, f64, f64, backward, &r->want, err));
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), backward, &r->rounded, err));
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), backward, &r->merged, err));
  if (backward) TRY(parted_new(p, &r->parted, err));
  TRY(result_new(p, f64, f64, backward, &r->scores.of, err));
  array_free(&r->scores.of.lse), array_free(&r->scores.of.saved);
  for (int i = 0; i < 2 && backward; i++) TRY(result_new(p, f64, f64, true, of_gradients[i], err));
  return LUATTN_OK;
}

/* The references of packed sequences: of each by itself. */
static luattn_status references_of_sequences(const cli_problem *p, bool backward, references *r, luattn_error *err) {
  TRY(references_new(p, backward, r, err));
  for (int i = 0; i < p->batch; i++) {
    cli_problem one;
    references of;
    if (sequence_is_empty(p, i)) continue;
    TRY(sequence_take(p, i, &one, err));
    const luattn_status s = references_compute(&one, backward, &of, err);
    if (s == LUATTN_OK) {
      sequence_put(p, i, &of.want, false, &r->want), sequence_put(p, i, &of.rounded, false, &r->rounded);
      sequence_put(p, i, &of.merged, false, &r->merged), sequence_put(p, i, &of.parted, false, &r->parted);
      sequence_put(p, i, &of.noise, true, &r->noise), sequence_put(p, i, &of.kinks, false, &r->kinks);
      sequence_put(p, i, &of.scores.of, false, &r->scores.of);
      r->scores.exponent = fmax(r->scores.exponent, of.scores.exponent);
      r->scores.matters |= of.scores.matters, r->has_kinks |= of.has_kinks;
    }
    references_free(&of);
    problem_free(&one);
    TRY(s);
  }
  return LUATTN_OK;
}

/* references_free also frees the results of a failed call */
static luattn_status references_compute(const cli_problem *p, bool backward, references *r, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  *r = (references){0};
  if (p->sequences != NULL) return references_of_sequences(p, backward, r, err);
  TRY(result_new(p, f64, f64, backward, &r->want, err));
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), backward, &r->rounded, err));
  TRY(run_cpu(p, LUATTN_F64, backward, &r->want, err));
  TRY(run_plain(p, backward, &r->rounded, err));
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), backward, &r->merged, err));
  TRY(run_merged(p, backward, &r->merged, err));
  TRY(score_noise_compute(p, &r->want, backward, &r->scores, err));
  if (!backward) return LUATTN_OK;
  TRY(run_parted(p, &r->merged, &r->parted, err));
  TRY(gradient_noise(p, &r->want, &r->noise, err));
  return gradient_kinks(p, r, err);
}

static comparison comparison_of(const cli_problem *p, const cli_result *got, const references *r, check_report *out) {
  return (comparison){out,
                      p->dtype,
                      got,
                      &r->want,
                      &r->rounded,
                      &r->merged,
                      &r->parted,
                      &r->noise,
                      r->has_kinks ? &r->kinks : NULL,
                      r->scores.matters ? &r->scores.of : NULL,
                      r->scores.exponent,
                      p->out_f32};
}

/* Compares m + log l of large_scores, the last two rows of `saved`, with lse: a kernel may subtract a number
 * below the maximum m. */
static luattn_status compare_maximum(const cli_problem *p, const comparison *c, luattn_error *err) {
  const array *saved = &c->got->saved;
  const int64_t rows = array_count(&c->want->lse), first = (int64_t)p->info.num_saved * rows;
  cli_result sum = *c->got;
  comparison of = *c;
  of.got = &sum;
  TRY(array_new(&sum.lse, saved->t.dtype, c->want->lse.t.ndim, c->want->lse.shape, false, err));
  for (int64_t i = 0; i < rows; i++)
    array_set(&sum.lse, i, array_get(saved, first + i) + array_get(saved, first + rows + i));
  compare(&of, "m + log l", offsetof(cli_result, lse), 2);
  array_free(&sum.lse);
  return LUATTN_OK;
}

/* A result without the last two rows of `saved`. */
static cli_result without_maximum(const cli_problem *p, const cli_result *r) {
  cli_result first = *r;
  first.saved.shape[0] = (int64_t)p->info.num_saved;
  return first;
}

/* Compares like compare_all, and m and log l as they are meant. */
static luattn_status compare_large_scores(const cli_problem *p, const comparison *c, luattn_error *err) {
  comparison others = *c;
  const cli_result got = without_maximum(p, c->got), want = without_maximum(p, c->want),
                   rounded = without_maximum(p, c->rounded), merged = without_maximum(p, c->merged);
  others.got = &got, others.want = &want;
  others.rounded = &rounded, others.merged = &merged;
  compare_all(&others, &p->info);
  return compare_maximum(p, c, err);
}

luattn_status check_results(const cli_problem *p, const cli_result *got, bool backward, check_report *out,
                            luattn_error *err) {
  references r;
  *out = (check_report){0};
  luattn_status s = references_compute(p, backward, &r, err);
  const comparison c = comparison_of(p, got, &r, out);
  if (s == LUATTN_OK && problem_num_saved(p) > p->info.num_saved)
    s = compare_large_scores(p, &c, err);
  else if (s == LUATTN_OK)
    compare_all(&c, &p->info);
  if (s == LUATTN_OK && out->failed > 0) s = check_lost(p, &r.want, backward, out, err);
  references_free(&r);
  return s;
}

luattn_status check_kernels(cli_gpu *gpu, const cli_problem *p, unsigned wants, check_report *out, luattn_error *err) {
  cli_result got;
  const bool backward = p->info.has_backward != 0;
  *out = (check_report){0};
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), backward, &got, err));
  keep_wanted(&got, wants);
  luattn_status s = gpu_run(gpu, p, backward, &got, err);
  if (s == LUATTN_OK) s = check_results(p, &got, backward, out, err);
  result_free(&got);
  return s;
}

luattn_status check_sequences(const cli_problem *p, check_report *out, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  const bool backward = p->info.has_backward != 0;
  cli_result got;
  *out = (check_report){0};
  TRY(result_new(p, f64, f64, backward, &got, err));
  luattn_status s = packed_run_cpu(p, backward, &got, err);
  if (s == LUATTN_OK) s = check_results(p, &got, backward, out, err);
  result_free(&got);
  return s;
}

/* Converts values to float64, so that a small step in one of them is not rounded away. The CPU path takes any
 * type. */
static luattn_status widen(array *from, luattn_error *err) {
  array to;
  const uint8_t code = from->t.dtype.code;
  if (from->storage == NULL || (code != kDLFloat && code != kDLBfloat) || from->t.dtype.bits == 64) return LUATTN_OK;
  TRY(array_new(&to, dtype_dl(LUATTN_F64), from->t.ndim, from->shape, false, err));
  for (int64_t j = 0, n = array_count(from); j < n; j++) array_set(&to, j, array_get(from, j));
  array_free(from);
  *from = to;
  return LUATTN_OK;
}

static luattn_status widen_inputs(cli_problem *p, luattn_error *err) {
  for (size_t i = 0; i < p->info.num_inputs; i++) TRY(widen(&p->input[i], err));
  return LUATTN_OK;
}

luattn_status check_plain(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_result got = {0}, want = {0}, rounded = {0};
  score_noise scores = {.matters = false};
  *out = (check_report){0};
  luattn_status s = widen_inputs(p, err);
  const bool backward = p->info.has_backward != 0;
  if (s == LUATTN_OK) s = result_new(p, f64, f64, backward, &got, err);
  if (s == LUATTN_OK) s = result_new(p, f64, f64, false, &want, err);
  if (s == LUATTN_OK) s = result_new(p, f64, f64, false, &rounded, err);
  if (s == LUATTN_OK) s = run_cpu(p, LUATTN_F64, backward, &got, err);
  if (s == LUATTN_OK) s = run_plain(p, false, &rounded, err);
  if (s == LUATTN_OK) s = naive_forward(o, p, &want, err);
  if (s == LUATTN_OK) s = score_noise_compute(p, &got, false, &scores, err);
  if (s == LUATTN_OK) {
    const comparison c = {out,
                          LUATTN_F64,
                          &got,
                          &want,
                          &rounded,
                          NULL,
                          NULL,
                          NULL,
                          NULL,
                          scores.matters ? &scores.of : NULL,
                          scores.exponent,
                          false};
    compare(&c, "out", offsetof(cli_result, o), 2);
    compare(&c, "lse", offsetof(cli_result, lse), 2);
    if (backward) s = check_slopes(o, p, &got, &scores.of.o, &want, out, err);
  }
  result_free(&got), result_free(&want), result_free(&rounded), result_free(&scores.of);
  return s;
}

/* ---- the adjoint identity ---- */

/* The sum of squares of three times plain arithmetic's error in one gradient, and of the roundings of its
 * terms: as in `compare`, but over all elements. */
static double squares_of_errors(const comparison *c, size_t offset) {
  const array *want = at_offset(c->want, offset), *rounded = at_offset(c->rounded, offset),
              *merged = at_offset(c->merged, offset), *noise = at_offset(c->noise, offset),
              *scores = at_offset(c->scores, offset);
  const double unit = score_unit(c->dtype), type = base_tolerance(c->dtype) + unit * c->exponent;
  double sum = 0;
  for (int64_t i = 0, n = want->storage != NULL ? array_count(want) : 0; i < n; i++) {
    const double x = array_get(want, i), plain = fmax(fabs(array_get(rounded, i) - x), fabs(array_get(merged, i) - x)),
                 error = 3 * plain_scale(c->dtype) * plain;
    const double moved = scores != NULL ? unit * array_get(scores, i) : 0;
    sum += error * error + type * type * x * x + moved * moved;
  }
  for (int64_t i = 0, n = noise->storage != NULL && offset >= offsetof(cli_result, input_grad) ? array_count(noise) : 0;
       i < n; i++) {
    const double x = unit_of(c->dtype) * array_get(noise, i);
    sum += x * x;
  }
  return sum;
}

/* Checks gradients of q, k and v, and of inputs and scalars. */
static void allow_along(const comparison *c, size_t num_inputs, double allowed[2]) {
  const double tensors = squares_of_errors(c, offsetof(cli_result, dq)) +
                         squares_of_errors(c, offsetof(cli_result, dk)) +
                         squares_of_errors(c, offsetof(cli_result, dv));
  double parameters = squares_of_errors(c, offsetof(cli_result, scalar_grads));
  for (size_t i = 0; i < num_inputs; i++)
    parameters += squares_of_errors(c, offsetof(cli_result, input_grad) + i * sizeof(array));
  allowed[0] = 4 * sqrt(tensors), allowed[1] = 4 * sqrt(parameters);
}

/* Converts all arrays, so that differences of a small step are exact enough. */
static luattn_status widen_problem(cli_problem *p, luattn_error *err) {
  array *const arrays[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) TRY(widen(arrays[i], err));
  return widen_inputs(p, err);
}

luattn_status check_results_adjoint(const cli_options *o, cli_problem *p, const cli_result *got, check_report *out,
                                    luattn_error *err) {
  references r;
  double allowed[2];
  *out = (check_report){0};
  luattn_status s = references_compute(p, true, &r, err);
  if (s == LUATTN_OK) {
    const comparison c = comparison_of(p, got, &r, out);
    allow_along(&c, p->info.num_inputs, allowed);
    s = widen_problem(p, err);
  }
  if (s == LUATTN_OK) s = check_adjoint(o, p, got, &r.scores.of.o, allowed, &r.want, out, err);
  references_free(&r);
  return s;
}

luattn_status check_kernels_adjoint(cli_gpu *gpu, const cli_options *o, cli_problem *p, check_report *out,
                                    luattn_error *err) {
  cli_result got;
  *out = (check_report){0};
  TRY(result_new(p, dtype_dl(p->dtype), real_of(p), true, &got, err));
  luattn_status s = gpu_run(gpu, p, true, &got, err);
  if (s == LUATTN_OK) s = check_results_adjoint(o, p, &got, out, err);
  result_free(&got);
  return s;
}
