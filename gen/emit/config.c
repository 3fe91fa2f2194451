/* config.c: prints config.cuh, the plan's numbers as named constants. */
#include "gen/base/text.h"
#include "gen/emit/emit.h"

static void add_numbers_of_axes(text *t, const char *name, const int of[LUATTN_MAX_AXES]) {
  text_add(t, "  static constexpr __device__ int %s(int axis) { return ", name);
  for (int a = 0; a < LUATTN_MAX_AXES - 1; a++) text_add(t, "axis == %d ? %d : ", a, of[a]);
  text_add(t, "%d; }\n", of[LUATTN_MAX_AXES - 1]);
}

static void add_boxes(text *t, const plan *p) {
  text_add(t, "  static constexpr int axes = %d;  // of the grid\n", p->axes);
  for (int keys = 0; keys < 2; keys++) {
    int box[LUATTN_MAX_AXES];
    tiles_box(p, keys, box);
    add_numbers_of_axes(t, keys ? "kv_box" : "q_box", box);
  }
  add_numbers_of_axes(t, "place_step", p->step);
}

luattn_status emit_config(arena *a, const plan *p, const plan_rows *rows, const char **out, luattn_error *err) {
  static const char *const elems[] = {"double", "float", "bf16_t", "half_t"};
  const struct {
    const char *name;
    int value;
  } numbers[] = {{"head_dim", p->head_dim},
                 {"head_dim_v", p->head_dim_v},
                 {"tile_m", p->tile_m},
                 {"tile_n", p->tile_n},
                 {"threads", p->threads},
                 {"stages", p->stages},
                 {"shared_bytes", tiles_shared_bytes(p, rows)},
                 {"sm80_warps_n", p->sm80_warps_n},
                 {"sm80_chunk_m", p->sm80_chunk_m},
                 {"dropout_keep", p->keep}};
  const struct {
    const char *name;
    bool value;
  } flags[] = {{"fast_math", p->family->fast_math},
               {"wants_dq", (p->wants & LUATTN_WANT_DQ) != 0},
               {"wants_dk", (p->wants & LUATTN_WANT_DK) != 0},
               {"wants_dv", (p->wants & LUATTN_WANT_DV) != 0},
               {"wants_inputs", (p->wants & LUATTN_WANT_INPUTS) != 0},
               {"wants_scalars", (p->wants & LUATTN_WANT_SCALARS) != 0},
               {"accumulates_dq", plan_kernel(p)->accumulates_dq},
               {"deterministic", p->deterministic},
               {"dq_first_store", p->dq_first_store},
               {"packed", p->packed},
               {"draws", p->draws},
               {"paged", p->pages != 0},
               {"tile_bits", rows->evaluated != NULL}};
  text t;
  text_init(&t, a);
  text_add(&t,
           "// config.cuh: the plan's constants, written by luattn.\n#pragma once\n#include "
           "\"arch/types.cuh\"\n\nstruct Config {\n");
  text_add(&t, "  using Elem = %s;\n", elems[p->dtype]);
  if (p->out_f32) text_add(&t, "  using Out = float;\n");
  if (p->grad_f32) text_add(&t, "  using Grad = float;\n");
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (numbers[i].value > 0) text_add(&t, "  static constexpr int %s = %d;\n", numbers[i].name, numbers[i].value);
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    text_add(&t, "  static constexpr bool %s = %s;\n", flags[i].name, flags[i].value ? "true" : "false");
  text_add(&t, "  static constexpr int offsets = %d;\n", (int)p->offsets);
  if (p->axes > 0) add_boxes(&t, p);
  text_add(&t, "};\n");
  const family_kernel *kernel = plan_kernel(p);
  if (kernel->o_widths != NULL)
    text_add(&t,
             "\n// Widths of products, of S and of O, that arch/wgmma.cuh and sm90/fwd/o_wgmma.cuh are to "
             "define.\n"
             "#define LUATTN_WGMMA_WIDTHS 0x%x\n#define LUATTN_OUT_WIDTHS 0x%x\n",
             kernel->product_widths(p), kernel->o_widths(p));
  else if (kernel->product_widths != NULL)
    text_add(&t, "\n// Widths of products that arch/wgmma.cuh is to define.\n#define LUATTN_WGMMA_WIDTHS 0x%x\n",
             kernel->product_widths(p));
  *out = text_get(&t);
  return *out == NULL ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: config: out of memory") : LUATTN_OK;
}
