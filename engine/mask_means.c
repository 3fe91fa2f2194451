/* mask_means.c: luattn_mask_survey: joins the plan of a mask's kernels, the rule of a launch and the counts of its
 * tiles. */
#include "common/call/need_attention.h"
#include "common/call/choices.h"
#include "common/struct_size.h"
#include "gen/compile/box_choice.h"
#include "gen/compile/plan_manifest.h"
#include "gen/cpu/mask_boxes.h"
#include "gen/cpu/mask_survey.h"
#include "runtime/parts/tile_bits.h"

static const manifest_entry *main_of(const image_manifest *m) {
  for (uint32_t i = 0; i < m->num_entries; i++)
    if (luattn_role_is_main(m->entry[i].role)) return &m->entry[i];
  return NULL;
}

/* Takes from the plan what the caller leaves open. A mask that positions decide needs no plan for its means, but
 * a family that was named is asked whether it runs such calls. */
static luattn_status as_planned(const luattn_target *target, mask_survey_call *call, luattn_error *err) {
  image_manifest m;
  const DLTensor *q = call->args->q, *k = call->args->k;
  mask_survey_call asks = *call;
  asks.counts = NULL;
  TRY(host_run(mask_survey_run, &asks, err));
  if (target->family == 0 && (!asks.may_evaluate || call->args->skip != LUATTN_SKIP_AUTO) && call->tile_m != 0)
    return LUATTN_OK;
  TRY(plan_manifest(call->spec, target, &m, err));
  const manifest_entry *main = main_of(&m);
  if (call->tile_m == 0 && main != NULL) call->tile_m = (int)main->tile_m, call->tile_n = (int)main->tile_n;
  if (q == NULL || k == NULL || q->ndim != 4 || k->ndim != 4 || q->shape == NULL || k->shape == NULL)
    return LUATTN_OK; /* the survey refuses them */
  const LuattnShape shape = {
      .batch = (int)q->shape[0], .heads = (int)q->shape[1], .q_len = (int)q->shape[2], .kv_len = (int)k->shape[2]};
  call->evaluates = tile_bits_pay(&m, &shape, call->args->skip);
  return LUATTN_OK;
}

static int places_of(const int box[LUATTN_MAX_AXES], int axes) {
  int places = 1;
  for (int a = 0; a < axes; a++) places *= box[a];
  return places;
}

/* Over a grid of `axes`: counts the boxes that kernels of the target take at these extents. */
static luattn_status count_boxes(const mask_survey_call *survey, const luattn_target *target, int axes,
                                 luattn_error *err) {
  const luattn_args *args = survey->args;
  luattn_mask_counts *out = survey->counts;
  luattn_target t = *target;
  box_choice choice;
  image_manifest m;
  box_call of = {.heads = args->q->shape[1], .heads_kv = args->k->shape[1]};
  for (int a = 0; a < axes; a++) of.q[a] = args->q->shape[2 + a], of.kv[a] = args->k->shape[2 + a];
  TRY(box_choice_find(survey->spec, target, &of, &choice, err));
  if (t.boxes == 0 && t.query_tile_size == 0 && t.key_tile_size == 0) box_choice_take(&choice, &t);
  TRY(plan_manifest(survey->spec, &t, &m, err));
  mask_boxes_call call = {
      .spec = survey->spec, .args = args, .pass = t.pass, .pair = {.origin = choice.origin}, .counts = out};
  if (choice.origin == BOX_PHASE) call.pair.origin = BOX_GIVEN;
  for (int a = 0; a < LUATTN_GRID_AXES; a++) {
    call.pair.q.extent[a] = (int)m.grid[0].q_box[a], call.pair.kv.extent[a] = (int)m.grid[0].kv_box[a];
    call.pair.first[a] = m.has_phases ? -(int)m.phases[0].of[a] : 0;
  }
  TRY(host_run(mask_boxes_run, &call, err));
  for (int a = 0; a < axes && call.is_product; a++) {
    const int from = LUATTN_GRID_AXES - axes + a;
    out->q_box[a] = call.pair.q.extent[from], out->kv_box[a] = call.pair.kv.extent[from];
  }
  return LUATTN_OK;
}

luattn_status luattn_mask_survey(const luattn_spec *spec, const luattn_target *target, const luattn_args *args,
                                 int tile_m, int tile_n, luattn_mask_counts *out, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_mask_counts, means);
  luattn_args used;
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(out);
  TRY(choices_take_dense(args, "mask", &used, err));
  mask_survey_call call = {.spec = spec,
                           .args = &used,
                           .evaluates = used.skip != LUATTN_SKIP_NEVER,
                           .tile_m = tile_m,
                           .tile_n = tile_n,
                           .counts = &counts};
  if (target != NULL) TRY(as_planned(target, &call, err));
  TRY(host_run(mask_survey_run, &call, err));
  counts.tile_m = call.tile_m, counts.tile_n = call.tile_n;
  const int axes = luattn_spec_grid(spec, NULL);
  if (target != NULL && axes > 1) TRY(count_boxes(&call, target, axes, err));
  if (counts.q_box[0] != 0)
    counts.tile_m = places_of(counts.q_box, axes), counts.tile_n = places_of(counts.kv_box, axes);
  return struct_give(&rule, "mask", &counts, out, err);
}
