/* dropout.c: reads seed and offset, and drops weights on the CPU path, with the numbers that kernels draw
 * (abi/philox.h). */
#include "common/call/choices.h"
#include "gen/cpu/cpu.h"

/* Places of a grid are numbered by patches. */
static luattn_status check_patches(const char *name, const cpu_side *side, luattn_error *err) {
  int64_t patches = 1;
  for (int a = 0; a < side->axes; a++)
    patches *=
        a >= side->axes - 2 ? (side->extent[a] + 3) / 4 : side->extent[a]; /* at most the places, 2^30, of each */
  if (side->axes == 1 || patches <= LUATTN_DROPOUT_PATCHES) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "cpu: %s: has %lld patches of 4 x 4 places, and a grid of a spec that draws random numbers has at "
                     "most %d",
                     name, (long long)patches, LUATTN_DROPOUT_PATCHES);
}

luattn_status problem_open_random(const luattn_args *args, cpu_problem *p, luattn_error *err) {
  luattn_random given;
  char why[400];
  p->keep = p->spec->traced.online.keep;
  if (!spec_draws(&p->spec->traced)) return LUATTN_OK;
  TRY(check_patches("q", &p->q_side, err));
  TRY(check_patches("k", &p->kv_side, err));
  if (!choices_random(args, &given, why, sizeof why)) return luattn_fail(err, LUATTN_INVALID, "cpu: %s", why);
  p->seed = given.seed_at != NULL ? *given.seed_at : given.seed;
  p->offset = given.offset + (given.offset_at != NULL ? *given.offset_at : 0);
  return LUATTN_OK;
}

/* The position of a query or a key in the whole by which it draws. */
static int drawn_at(const cpu_side *side, double place, int64_t offset) {
  int at[LUATTN_MAX_AXES], extent[LUATTN_MAX_AXES];
  if (side->axes == 1) return (int)(place + (double)offset);
  for (int a = 0; a < side->axes; a++) {
    at[a] = (int)side_coordinate(side, (int64_t)place, a);
    extent[a] = (int)side->extent[a];
  }
  return dropout_place(at, extent, side->axes);
}

void dropout_apply(const cpu_lanes *lanes, int count, double *x) {
  const cpu_problem *p = lanes->p;
  if (p->keep == SPEC_KEEP_ALL) return;
  const uint64_t counter =
      dropout_counter(p->offset, lanes->b + p->first_entry, p->whole_heads, lanes->h + p->head_offset);
  const int q = drawn_at(&p->q_side, lanes->q_idx, problem_offset(p, LUATTN_AXIS_Q, lanes->b, lanes->q_idx));
  const double factor = (double)SPEC_KEEP_ALL / p->keep;
  for (int i = 0; i < count; i++) {
    const double at = lanes->kv_idx[i];
    const int kv = drawn_at(&p->kv_side, at, problem_offset(p, LUATTN_AXIS_KV, lanes->b, at));
    const unsigned kept = dropout_draw(p->seed, counter, dropout_q_patch(q), dropout_kv_patch(kv), p->keep);
    x[i] *= kept >> dropout_bit(q, kv) & 1u ? factor : 0;
  }
}
