/* dropout.c: reads seed and offset, and drops weights on the CPU path, with the numbers that kernels draw
 * (abi/philox.h). */
#include "common/call/choices.h"
#include "gen/cpu/cpu.h"

luattn_status problem_open_random(const luattn_args *args, cpu_problem *p, luattn_error *err) {
  luattn_random given;
  char why[400];
  p->keep = p->spec->traced.online.keep;
  if (!spec_draws(&p->spec->traced)) return LUATTN_OK;
  if (!choices_random(args, &given, why, sizeof why)) return luattn_fail(err, LUATTN_INVALID, "cpu: %s", why);
  p->seed = given.seed_at != NULL ? *given.seed_at : given.seed;
  p->offset = given.offset + (given.offset_at != NULL ? *given.offset_at : 0);
  return LUATTN_OK;
}

void dropout_apply(const cpu_lanes *lanes, int count, double *x) {
  const cpu_problem *p = lanes->p;
  if (p->keep == SPEC_KEEP_ALL) return;
  const uint64_t counter =
      dropout_counter(p->offset, lanes->b + p->first_entry, p->whole_heads, lanes->h + p->head_offset);
  const int q = (int)(lanes->q_idx + (double)problem_offset(p, LUATTN_AXIS_Q, lanes->b));
  const int64_t first_kv = problem_offset(p, LUATTN_AXIS_KV, lanes->b);
  const double factor = (double)SPEC_KEEP_ALL / p->keep;
  for (int i = 0; i < count; i++) {
    const int kv = (int)(lanes->kv_idx[i] + (double)first_kv);
    const unsigned kept = dropout_draw(p->seed, counter, dropout_q_patch(q), dropout_kv_patch(kv), p->keep);
    x[i] *= kept >> dropout_bit(q, kv) & 1u ? factor : 0;
  }
}
