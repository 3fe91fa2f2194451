/* check_lost.c: tells whether float32, in which kernels of f32, bf16 and f16 compute hooks, can have what these ask for. Where nearly
 * equal numbers are subtracted, none of their digits may be left, and no order of the operations is better than another:
 * then no tolerance says whether a kernel is right. */
#include <math.h>

#include "cli/check.h"
#include "gen/cpu/cpu.h"

/* Of the largest value. Digits are left where one computation is off by less. */
static const double lost_from = 0x1p-7;

/* Notes a result of plain arithmetic that is not finite where it should be, or off by so much. */
static void note(check_report *out, const char *name, const array *got, const array *want) {
  double error = 0, biggest = 0;
  for (int64_t i = 0, n = want->storage != NULL && got->storage != NULL ? array_count(want) : 0; i < n; i++) {
    const double x = array_get(got, i), y = array_get(want, i);
    if (!isfinite(y)) continue;
    biggest = fmax(biggest, fabs(y));
    error = isfinite(x) ? fmax(error, fabs(x - y)) : INFINITY;
  }
  if (error <= lost_from * biggest || (out->lost != NULL && out->lost_error >= error)) return;
  out->lost = name, out->lost_error = error, out->lost_biggest = biggest;
}

/* As hooks are written, or as kernels order them. */
static luattn_status compute(const cli_problem *p, bool merged, bool backward, cli_result *r, luattn_error *err) {
  cli_binding bind;
  const luattn_args args = problem_args(p, r, backward, &bind);
  if (merged) {
    TRY(cpu_forward_merged(p->spec, &args, LUATTN_F32, err));
    return backward ? cpu_backward_merged(p->spec, &args, LUATTN_F32, err) : LUATTN_OK;
  }
  TRY(luattn_cpu_forward_in(p->spec, &args, LUATTN_F32, err));
  return backward ? luattn_cpu_backward_in(p->spec, &args, LUATTN_F32, err) : LUATTN_OK;
}

luattn_status check_lost(const cli_problem *p, const cli_result *want, bool backward, check_report *out,
                         luattn_error *err) {
  const DLDataType f32 = dtype_dl(LUATTN_F32);
  if (p->dtype == LUATTN_F64 || p->sequences != NULL) return LUATTN_OK;
  for (int merged = 0; merged < 2; merged++) {
    cli_result r;
    TRY(result_new(p, f32, f32, backward, &r, err));
    const luattn_status s = compute(p, merged != 0, backward, &r, err);
    if (s == LUATTN_OK) {
      note(out, "lse", &r.lse, &want->lse);
      note(out, "dq", &r.dq, &want->dq), note(out, "dk", &r.dk, &want->dk), note(out, "dv", &r.dv, &want->dv);
    }
    result_free(&r);
    TRY(s);
  }
  return LUATTN_OK;
}
