#include "gen/plan/policy.h"

/* ---- tiles ---- */

bool policy_knows_short(const plan *p) {
  const tile_table t = plan_kernel(p)->tiles(p);
  bool any = false;
  for (int i = 0; i < t.count; i++) any |= family_row_suits(&t.row[i], p) && (t.row[i].classes & NOT_SHORT) != 0;
  return any;
}

bool policy_knows_many_rows(const plan *p) {
  const tile_table t = plan_kernel(p)->tiles(p);
  for (int i = 0; i < t.count; i++)
    if (family_row_suits(&t.row[i], p)) return (t.row[i].classes & MANY_ROWS) != 0;
  return false;
}

bool policy_tiles(const plan *p, int rank, luattn_tiles *out) {
  const family_kernel *kernel = plan_kernel(p);
  const tile_table t = kernel->tiles(p);
  luattn_tiles first[FAMILY_MAX_PREFERRED];
  const int preferred = kernel->preferred != NULL ? kernel->preferred(p, first) : 0;
  if (rank < preferred) {
    *out = first[rank];
    return true;
  }
  rank -= preferred;
  for (int i = 0; i < t.count; i++) {
    const tile_row *row = &t.row[i];
    if (!family_row_suits(row, p)) continue;
    if ((p->lengths == LUATTN_SHORT && (row->classes & NOT_SHORT) != 0) ||
        (!p->many_rows && (row->classes & MANY_ROWS) != 0))
      continue;
    if (rank-- > 0) continue;
    *out = row->choice;
    return true;
  }
  return false;
}

/* Tiles that cannot fit in registers are not worth compiling. ptxas decides in the end. */
bool policy_fits_registers(const plan *p) {
  const family_kernel *kernel = plan_kernel(p);
  return kernel->fits_registers == NULL || kernel->fits_registers(p);
}

int policy_least_list(const plan *p) { return p->pass == LUATTN_BACKWARD ? 8 : 17; }

bool policy_dq_first_store(const plan *p, bool has_mask, bool has_parameters) {
  return plan_kernel(p)->stores_dq_first && !p->deterministic && p->offsets != LUATTN_OFFSET_CHUNKS &&
         p->tile_m == 64 && has_mask && !has_parameters;
}

/* ---- lowering ---- */

bool policy_softcap_poly(const plan *p) { return p->head_dim + p->head_dim_v <= 256; }

bool policy_softcap_factors_early(const plan *p) { return p->tile_m > 128; }

bool policy_uses_column_intervals(const mask_intervals *columns, bool keep_is_cheap) {
  const bool simple = columns->count == 1 && (columns->period == 0 || columns->period >= MASK_GRID);
  return simple || !keep_is_cheap;
}

bool policy_sums_elements(const plan *p) { return p->family->sums_elements; }

bool policy_sums_elements_of_distances(const plan *p) { return !p->family->sums_diagonals_at_128 || p->tile_m != 128; }

static const family_thresholds *measured(const plan *p) { return plan_kernel(p)->measured; }

bool policy_is_crowded(const plan *p, const plan_rows *rows, const crowding *by) {
  return measured(p)->is_crowded != NULL && measured(p)->is_crowded(p, rows, by);
}

/* ---- ptxas and NVVM ---- */

int policy_spills_accepted(const plan *p, const plan_rows *rows, int outlined_work) {
  const int next_to_hooks = outlined_work / 4 < 1024 ? outlined_work / 4 : 1024;
  return measured(p)->spills_accepted != NULL ? measured(p)->spills_accepted(p, rows, next_to_hooks)
                                              : 64 + next_to_hooks;
}

bool policy_lacks_registers(const plan *p, const compile_work *w) {
  return measured(p)->lacks_registers != NULL && measured(p)->lacks_registers(p, w);
}

bool policy_surely_spills(const plan *p, const compile_work *w) {
  return measured(p)->surely_spills != NULL && measured(p)->surely_spills(p, w);
}

/* From spills of 25 specs of examples/, tests/specs/ and other places in each row of the tables, D 64 and 128. */
int policy_tiles_skipped(const plan *p, int spills) { return measured(p)->tiles_skipped(p, spills); }

bool policy_bias_rows_crowd(const plan *p, const plan_rows *rows, int spill_bytes) {
  const int most = measured(p)->bias_rows_spill;
  return most > 0 && rows->bias_row_bytes > 0 && spill_bytes > most;
}

/* ---- the time to compile ---- */

/* Families' weights, what 1000 instructions of a kind add over what `causal` takes for the same family and pass, and
 * the square of that number, were fitted to the CPU time of NVRTC 13.0 for some 900 images of the examples, tests/specs
 * and random specs, then raised, as large ones grow faster than their instructions, and by 350 images of specs that are
 * hard to estimate (tests/templates/hard_specs.py). An argument of a call is moved for each score. A bound takes some
 * ten instructions, a bound of bits in 64 bits more than a hundred. */

/* sm80 kernels that run on sm_90 because the sm90 family lacks registers take little more than half of the
 * time. */
static const double fallback_share = 0.7;

double policy_work_weight(const plan *p, work_kind kind) { return measured(p)->compile.of[kind] / 1000; }

/* What grows faster than the code. */
static double beyond_the_code(const plan *p, const compile_work *w) {
  const compile_weights *weights = &measured(p)->compile;
  double more = weights->reads * w->reads + weights->beside * w->beside;
  for (int kind = 0; kind < WORK_KINDS; kind++) {
    const double thousands = kind == WORK_SLOTS && w->of[WORK_CALLS] > 0 ? 0 : w->of[kind] / 1000;
    more += weights->square[kind] * thousands * thousands;
  }
  more += weights->positions * w->positions * w->positions / 1e4;
  return more + (w->is_evaluated ? weights->evaluated : 0);
}

double policy_compile_estimate(const plan *p, const compile_work *w) {
  const family_thresholds *m = measured(p);
  double estimate = 1 + beyond_the_code(p, w) + (m->beside_calls != NULL ? m->beside_calls(p, w) : 0);
  for (int kind = 0; kind < WORK_KINDS; kind++) estimate += policy_work_weight(p, kind) * w->of[kind];
  return p->fallback ? fallback_share * estimate : estimate;
}

/* Passes of NVVM's optimizer that are disabled for a kernel: combining instructions, repeated combining, and
 * hoisting loop invariants. They take a fortieth to a tenth of the compile time, in sm80's backward up to a
 * sixth, and most kernels are as fast without; T5's forward above head dim 192 is 5 % slower, sm80's backward
 * up to D 128 without a mask and that of some grids 2 to 3 %. Chosen by measurements on an H200 and an H100
 * (bench/journal: compile_time.md, simt.md, parameter_gradients_sm80.md). Disabling more would slow down
 * narrow heads, the masks of grids in forward, f32's forward and all other backward kernels. The option is
 * undocumented; an NVRTC that refuses it compiles with all passes, and one that does not know a pass by this
 * name disables none. Only options whose effect ends with the compilation are listed: others stay on for
 * whatever the process compiles next (parameter_gradients_sm80.md). */
int policy_left_out_passes(const plan *p, bool is_grid, const char *out[POLICY_MAX_LEFT_OUT]) {
  if (p->dtype == LUATTN_F64 || measured(p)->left_out_passes == NULL) return 0;
  return measured(p)->left_out_passes(p, is_grid, out);
}
