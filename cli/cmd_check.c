/* cmd_check.c: luattn check. */
#include <string.h>

#include "cli/check_jvp.h"
#include "cli/linear_tensors.h"

/* Warns if the mask keeps few scores of random inputs, or none: zeros agree with zeros. */
static luattn_status print_kept(const cli_problem *p, luattn_error *err) {
  double kept, error, all;
  if (!p->info.has_mask) return LUATTN_OK;
  TRY(bench_kept(p, &all, &kept, &error, err));
  if (all == 0) return LUATTN_OK;
  printf("  the mask keeps %.2f%% of the scores%s\n", 100 * kept / all,
         kept > 0 ? ""
                  : ", so that all that was compared is 0; give inputs that keep some (--input), or another "
                    "--shape");
  return LUATTN_OK;
}

/* A problem in float64, small enough for plain Lua unless its size is given. */
static luattn_status read_plain(const cli_options *given, const luattn_spec *spec, cli_options *o, cli_problem *p,
                                luattn_error *err) {
  char shape[96];
  int dim[2] = {6, 5};
  *o = *given;
  o->dtype = "f64";
  /* A wrong head dim, or one too many, is reported by problem_read. */
  const bool is_small = o->shape == NULL && (o->head_dim == NULL || (o->q == NULL && parse_head_dim(o->head_dim, dim)));
  static const char *const lengths[] = {"19,23", "19,23", "8x9,9x8", "4x5x6,5x6x4", "3x3x3x4,3x4x3x3"};
  snprintf(shape, sizeof shape, "2,2,1,%s,%d,%d", lengths[luattn_spec_grid(spec, NULL)], dim[0], dim[1]);
  if (is_small) o->shape = shape, o->head_dim = NULL;
  const luattn_status status = problem_read(spec, o, true, p, err);
  if (is_small) o->shape = NULL;
  return status;
}

/* --jvp: forward mode, of the CPU path. */
static luattn_status forward_mode(const cli_options *given, const luattn_spec *spec, bool *failed, luattn_error *err) {
  cli_options o;
  cli_problem p;
  check_report r;
  TRY(read_plain(given, spec, &o, &p, err));
  const luattn_status status = check_jvp(&o, &p, &r, err);
  if (status == LUATTN_OK) {
    char title[512], text[PROBLEM_TEXT];
    snprintf(title, sizeof title, "%s: tangents of the CPU path against plain Lua and backward (%s)", p.info.name,
             problem_text(&p, text));
    check_print(title, &r);
    if (r.stops_gradient) printf("  tangents: the spec stops some (stop_gradient), so not compared with differences\n");
    *failed |= r.failed > 0;
  }
  problem_free(&p);
  return status;
}

static luattn_status against_plain_lua(const cli_options *given, const luattn_spec *spec, bool *failed,
                                       luattn_error *err) {
  cli_options o;
  cli_problem p;
  check_report r;
  TRY(read_plain(given, spec, &o, &p, err));
  luattn_status status = check_plain(&o, &p, &r, err);
  if (status == LUATTN_OK) {
    char title[512], text[PROBLEM_TEXT];
    snprintf(title, sizeof title, "%s: the CPU path against plain Lua (%s)", p.info.name, problem_text(&p, text));
    check_print(title, &r);
    if (r.stops_gradient)
      printf("  gradients: the spec stops some (stop_gradient), so not compared with differences\n");
    if (o.own_backward && !r.backward_disagrees && !r.stops_gradient)
      printf("  --own-backward: the spec's own backward agrees with differences of its forward; leave it out\n");
    *failed |= r.failed > 0;
    status = print_kept(&p, err);
  }
  problem_free(&p);
  return status;
}

/* Compares kernels of the problem's type, whose name is o->dtype, with the CPU path. */
typedef luattn_status comparison(const cli_options *o, cli_problem *p, cli_gpu *gpu, bool *failed, luattn_error *err);

static luattn_status of_results(const cli_options *o, cli_problem *p, cli_gpu *gpu, bool *failed, luattn_error *err) {
  char title[512], text[PROBLEM_TEXT];
  check_report r;
  TRY(check_kernels(gpu, p, LUATTN_WANT_ALL, &r, err));
  snprintf(title, sizeof title, "%s: kernels in %s on %s against the CPU path in f64%s (%s)", p->info.name, o->dtype,
           gpu_name(gpu), p->sequences != NULL ? ", one sequence at a time" : "", problem_text(p, text));
  check_print(title, &r);
  gpu_print_tuning(gpu);
  *failed |= r.failed > 0;
  return print_kept(p, err);
}

/* --jvp on a device. */
static luattn_status of_tangents(const cli_options *o, cli_problem *p, cli_gpu *gpu, bool *failed, luattn_error *err) {
  char title[512], text[PROBLEM_TEXT];
  check_report r;
  const luattn_status status = check_jvp_kernels(gpu, o, p, CHECK_ALONG_ALL, &r, err);
  const bool refused = status == LUATTN_UNSUPPORTED && r.count > 0; /* backward alone */
  if (status != LUATTN_OK && !refused) return status;
  snprintf(title, sizeof title, "%s: tangents by kernels in %s on %s against the CPU path, relative (%s)", p->info.name,
           o->dtype, gpu_name(gpu), problem_text(p, text));
  check_print(title, &r);
  *failed |= r.failed > 0;
  if (refused) printf("  tangents of gradients: not compared: %s\n", err->message);
  return LUATTN_OK;
}

/* In each type that is asked for. */
static luattn_status against_cpu(const cli_options *given, const luattn_spec *spec, cli_gpu *gpu, comparison *compare,
                                 bool *failed, luattn_error *err) {
  luattn_status status = LUATTN_OK;
  for (uint32_t i = 0; i < KERNEL_DTYPES && status == LUATTN_OK; i++) {
    cli_options o = *given;
    cli_problem p;
    if (o.dtype != NULL && strcmp(o.dtype, kernel_dtype_name(i)) != 0) continue;
    o.dtype = kernel_dtype_name(i);
    TRY(problem_read(spec, &o, true, &p, err));
    status = compare(&o, &p, gpu, failed, err);
    problem_free(&p);
  }
  return status;
}

/* Kernels and the CPU path share the backward that the spec gives, so only differences can tell whether it is
 * right. Without --full it checks a small problem, unless files fix the size. */
static luattn_status given_backward(const cli_options *given, const luattn_spec *spec, bool *failed,
                                    luattn_error *err) {
  enum { MOST_SCORES = 1 << 20 }; /* some seconds of plain Lua */
  cli_options o = *given;
  const bool sized = o.q != NULL || o.num_inputs > 0;
  cli_problem p;
  if (!sized) o.shape = NULL;
  if (sized) {
    TRY(problem_read(spec, &o, true, &p, err));
    const double scores = (double)p.batch * p.heads * p.q_len * p.kv_len;
    problem_free(&p);
    if (scores > MOST_SCORES) {
      printf(
          "the spec's own backward is not compared with differences, as there are %.3g scores: give --full, "
          "or "
          "smaller files\n",
          scores);
      return LUATTN_OK;
    }
  }
  return against_plain_lua(&o, spec, failed, err);
}

/* The CPU path over packed sequences against itself over each sequence alone. */
static luattn_status against_sequences(const cli_options *given, const luattn_spec *spec, bool *failed,
                                       luattn_error *err) {
  cli_options o = *given;
  cli_problem p;
  check_report r;
  o.dtype = "f64";
  TRY(problem_read(spec, &o, true, &p, err));
  luattn_status status = check_sequences(&p, &r, err);
  if (status == LUATTN_OK) {
    char title[512], text[PROBLEM_TEXT];
    snprintf(title, sizeof title, "%s: the CPU path, packed, against one sequence at a time (%s)", p.info.name,
             problem_text(&p, text));
    check_print(title, &r);
    *failed |= r.failed > 0;
    status = print_kept(&p, err);
  }
  problem_free(&p);
  return status;
}

static luattn_status check_packed(const cli_options *o, const luattn_spec *spec, cli_gpu *gpu, bool *failed,
                                  luattn_error *err) {
  if (o->full)
    return luattn_fail(err, LUATTN_INVALID,
                       "--full: plain Lua computes entries of equal lengths; leave it out, or --cu-seqlens: each "
                       "sequence is compared with itself alone");
  if (spec_gives_backward(spec))
    printf("the spec's own backward is not compared with differences beside --cu-seqlens: check it without\n");
  return gpu == NULL ? against_sequences(o, spec, failed, err) : against_cpu(o, spec, gpu, of_results, failed, err);
}

static luattn_status check(const cli_options *o, const luattn_spec *spec, bool *failed, luattn_error *err) {
  cli_gpu *gpu = NULL;
  luattn_dtype one = LUATTN_F64; /* the dtype of the kernels to check; the CPU path has only one */
  if (o->own_backward && !spec_gives_backward(spec))
    return luattn_fail(
        err, LUATTN_INVALID,
        "--own-backward: the spec has no backward of its own, and the derived one is the gradient; leave "
        "it out");
  TRY(dtype_option(o, &one, err));
  TRY(gpu_pick(o, &gpu, err));
  const bool packed = o->cu_seqlens != NULL || o->cu_seqlens_q != NULL || o->cu_seqlens_k != NULL,
             plain = !packed && (gpu == NULL || o->full), by_hand = !packed && !plain && spec_gives_backward(spec);
  luattn_status status = plain || by_hand ? spec_can_be_reread(o->spec, err) : LUATTN_OK;
  if (gpu == NULL && (o->dtype != NULL || o->family != NULL || o->deterministic || o->decode))
    printf("no kernels run, so --dtype, --family, --decode and --deterministic change nothing: %s is in f64\n",
           packed ? "the CPU path" : "plain Lua");
  if (packed) status = check_packed(o, spec, gpu, failed, err);
  if (status == LUATTN_OK && plain) status = against_plain_lua(o, spec, failed, err);
  if (status == LUATTN_OK && o->jvp) status = spec_can_be_reread(o->spec, err);
  if (status == LUATTN_OK && o->jvp) status = forward_mode(o, spec, failed, err);
  if (status == LUATTN_OK && o->jvp && gpu != NULL && !packed)
    status = against_cpu(o, spec, gpu, of_tangents, failed, err);
  if (status == LUATTN_OK && by_hand) status = given_backward(o, spec, failed, err);
  if (status == LUATTN_OK && gpu != NULL && !packed) status = against_cpu(o, spec, gpu, of_results, failed, err);
  gpu_close(gpu);
  return status;
}

int cmd_check(const cli_options *o) {
  luattn_error err;
  luattn_spec *spec;
  bool failed = false;
  if (spec_option(o, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  if (luattn_spec_form(spec) == LUATTN_FORM_LINEAR) {
    const int code = linear_check(o, spec);
    luattn_spec_free(spec);
    return code;
  }
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  const luattn_status status = check(o, spec, &failed, &err);
  const char *lacks = problem_lacks_backward(o);
  if (status == LUATTN_OK && !info.has_backward)
    printf("gradients are not compared: %s\n", info.why_no_backward);
  else if (status == LUATTN_OK && lacks != NULL)
    printf("gradients are not compared: there is no backward over %.*s\n", (int)strcspn(lacks, ";"), lacks);
  luattn_spec_free(spec);
  if (status != LUATTN_OK) return cli_fail(&err);
  printf(failed ? "FAILED\n" : "all within tolerance\n");
  return failed ? 1 : 0;
}
