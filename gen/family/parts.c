/* parts.c: what families have in common. */
#include "gen/family/parts.h"

LayoutSizes plan_sizes(const plan *p, const plan_rows *r) {
  return (LayoutSizes){.head_dim = p->head_dim,
                       .head_dim_v = p->head_dim_v,
                       .tile_m = p->tile_m,
                       .tile_n = p->tile_n,
                       .threads = p->threads,
                       .stages = p->stages,
                       .elem = p->dtype == LUATTN_F64 ? 8 : 4,
                       .row = r->row_bytes,
                       .bwd_row = r->bwd_row_bytes,
                       .bias_elem = r->bias_row_bytes,
                       .col = r->col_bytes,
                       .displacements = r->has_displacement_term ? family_displacements(p) : 0,
                       .displacement_sums = p->axes > 0 && r->sums_distances ? family_displacements(p) : 0,
                       .row_axes = plan_kernel(p)->free_boxes ? p->axes : 0,
                       .warps_n = p->sm80_warps_n,
                       .chunk = p->sm80_chunk_m,
                       .has_terms = r->has_distance_term,
                       .hands_sums = (p->deterministic || p->axes > 0) && r->sums_distances,
                       .axes = p->axes,
                       .in_order = p->deterministic,
                       .tangents = (int)p->tangents_of};
}

static int class_of(int shared_limit) {
  return shared_limit < 150 * 1024 ? SMALL : shared_limit < 200 * 1024 ? MIDDLE : LARGE;
}

bool family_row_suits(const tile_row *row, const plan *p) {
  return most_of(p->head_dim, p->head_dim_v) <= row->max_dim && (row->classes & class_of(p->shared_limit)) != 0;
}

luattn_status family_can_run_tangents(const plan *p, int most, const char *name, luattn_error *err) {
  if (name == NULL) return LUATTN_OK;
  if (p->axes > 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: tangents: are given over a grid of %d axes, of which %s has no kernels with tangents "
                       "yet; simt has, or leave family 0",
                       p->axes, name);
  if (most == 0 || most_of(p->head_dim, p->head_dim_v) <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: head_dim: is %d, and %s has kernels with tangents up to %d; simt has, or leave family 0",
                     most_of(p->head_dim, p->head_dim_v), name, most);
}

luattn_status family_refuse(const plan *p, bool keys, const char *rule, luattn_error *err) {
  const uint64_t asked = keys ? p->key_tile_size : p->query_tile_size;
  int box[LUATTN_MAX_AXES];
  if (asked == 0)
    return luattn_fail(err, LUATTN_INVALID, "plan: %s: %d is not possible: %s; leave it 0 to let the plan choose",
                       keys ? "tile_n" : "tile_m", keys ? p->tile_n : p->tile_m, rule);
  family_unpack_box(asked, box);
  return luattn_fail(err, LUATTN_INVALID,
                     "target: %s: a box of %d %s is not possible: %s; leave it 0 to let the plan choose",
                     keys ? "key_tile_size" : "query_tile_size", family_box_rows(box), keys ? "keys" : "queries", rule);
}

int family_sum_bytes(const plan *p, const plan_rows *rows) {
  return p->threads / 32 * rows->num_acc * (p->dtype == LUATTN_F64 ? 8 : 4);
}

double family_head_arguments(const compile_work *w, int held, double twice) {
  const double beyond = w->head_arguments > held ? w->head_arguments - held : 0;
  return twice * beyond * beyond;
}

const char combine_less_often[] = "-full-inst-combine=0", combine_nothing[] = "-disable-InstructionCombiningPass",
           hoist_nothing[] = "-disable-LICMPass";
