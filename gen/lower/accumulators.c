/* accumulators.c: chooses the parameter gradients that a block sums before it adds them; others go to memory
 * directly.
 *
 * A sum is a register of each thread. Where grad has more of them than there are registers, as for an MLP of
 * learned numbers, a warp adds up its elements' terms each time: lane i keeps the sum of term i, so that 32
 * sums take one register (ops/lane_sums.cuh). */
#include "gen/lower/lowering.h"

/* Whether two terms share an element of Acc: they add to the same address, and flush multiplies both by the
 * same factor. */
static bool same_place(const derived_term *a, const derived_term *b) {
  if (a->input != b->input || a->num_index != b->num_index || (a->input < 0 && a->scalar != b->scalar)) return false;
  if (a->of_sum != b->of_sum || a->by_lane != b->by_lane) return false;
  for (int i = 0; i < a->num_index; i++)
    if (a->index[i] != b->index[i]) return false;
  return true;
}

int lowered_acc_of(const lowered *f, const derived_term *t) {
  for (int i = 0; i < f->num_acc + f->num_lane_sums; i++)
    if (same_place(&f->acc[i], t)) return i;
  return -1;
}

static luattn_status too_many(const lowered *f, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "emit: %s: more than %d parameter gradients; ask for fewer (wants), or mark "
                     "fewer inputs grad",
                     f->spec->traced.name, LOWERED_MAX_ACC);
}

static luattn_status no_registers(const lowered *f, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "emit: %s: more than %d parameter gradients, for which the sm90 family has no registers; "
                     "leave the family open, or mark fewer inputs grad",
                     f->spec->traced.name, LOWERED_MAX_ACC);
}

static luattn_status collect_terms(lowered *f, const derived_terms *terms, luattn_error *err) {
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!lowered_wants(f, t) || !lowered_has_one_place(f, t) || lowered_acc_of(f, t) >= 0) continue;
    if (f->num_acc == LOWERED_MAX_ACC) return too_many(f, err);
    f->acc[f->num_acc++] = *t;
  }
  return LUATTN_OK;
}

/* All but the terms of grad. */
static luattn_status collect_others(lowered *f, luattn_error *err) {
  for (int kind = 0; kind < SUM_KINDS; kind++) TRY(collect_terms(f, &f->sum[kind], err));
  TRY(collect_terms(f, &f->row_terms, err));
  for (int i = 0; i < 3; i++) TRY(collect_terms(f, &f->mod_grad[i]->terms, err));
  return LUATTN_OK;
}

/* Leaves the terms of grad to lanes, after those of other hooks. */
static void collect_by_lane(lowered *f) {
  for (int i = 0; i < f->element_terms.count; i++) {
    derived_term *t = &f->element_terms.term[i];
    if (!lowered_wants(f, t) || !lowered_has_one_place(f, t)) continue;
    t->by_lane = true;
    if (lowered_acc_of(f, t) < 0) f->acc[f->num_acc + f->num_lane_sums++] = *t;
  }
}

luattn_status accumulators_collect(lowered *f, luattn_error *err) {
  luattn_status status = collect_terms(f, &f->element_terms, err);
  if (status == LUATTN_OK) status = collect_others(f, err);
  if (status != LUATTN_UNSUPPORTED) return status;
  f->num_acc = 0;
  if (f->plan->pass == LUATTN_BACKWARD) {
    if (!plan_kernel(f->plan)->has_lane_sums) return no_registers(f, err);
    TRY(collect_others(f, err));
    collect_by_lane(f);
  }
  fail_clear(err);
  return LUATTN_OK;
}

bool lowered_adds_to_memory(const lowered *f, const derived_terms *terms) {
  for (int i = 0; i < terms->count; i++)
    if (lowered_wants(f, &terms->term[i]) && lowered_acc_of(f, &terms->term[i]) < 0) return true;
  return false;
}

int lowered_term_roots(const lowered *f, const derived_terms *terms, ir_ref *roots) {
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!lowered_wants(f, t)) continue;
    roots[n++] = t->value;
    if (lowered_acc_of(f, t) < 0)
      for (int j = 0; j < t->num_index; j++) roots[n++] = t->index[j];
  }
  return n;
}
