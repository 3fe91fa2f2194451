/* emit.c: prints spec.cuh, in the order of templates/contract/contract.cuh. */
#include "gen/emit/sections.h"

static bool sums_gradients(const traced_spec *t) {
  bool any = t->num_scalars > 0;
  for (int i = 0; i < t->num_inputs; i++) any |= t->input[i].grad != 0;
  return any;
}

static bool has_bits(const writer *w) {
  static const ir_op ops[] = {IR_BAND, IR_BOR, IR_BXOR, IR_SHL, IR_SHR, IR_SHR_BAND, IR_WRAP};
  bool any = false;
  for (ir_ref r = 1; r < w->f->num_nodes; r++)
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) any |= ir_get(w->f->g, r)->op == ops[i];
  return any;
}

/* Headers for features that the spec lacks are skipped: reading them takes time. */
static void write_includes(writer *w) {
  const traced_spec *t = writer_traced(w);
  text_add(&w->out, "#pragma once\n");
  if (w->f->plan->axes > 0) text_add(&w->out, "#define LUATTN_GRID             // positions are slots of boxes\n");
  if (writer_free_boxes(w))
    text_add(&w->out, "#define LUATTN_FREE_BOXES       // but keys, whose boxes begin anywhere\n");
  if (tiles_step_far(w->f->plan))
    text_add(&w->out, "#define LUATTN_FAR_PLACES       // of boxes, further apart than TMA steps\n");
  if (tiles_copies_o(w->f->plan)) text_add(&w->out, "#define LUATTN_COPY_OUT         // an entry for such an o\n");
  if (w->f->plan->offsets == LUATTN_OFFSET_ARRAYS)
    text_add(&w->out, "#define LUATTN_OFFSET_ARRAYS   // a Site loads its entry's offsets\n");
  if (w->f->plan->offsets == LUATTN_OFFSET_CHUNKS)
    text_add(&w->out, "#define LUATTN_CHUNKS          // a Site has the offsets of a tile, which kernels enter\n");
  const bool packed_chunks = w->f->plan->packed && w->f->plan->offsets == LUATTN_OFFSET_CHUNKS;
  if (packed_chunks) text_add(&w->out, "#define LUATTN_PACKED_CHUNKS   // of sequences that are packed there\n");
  if (entry_rows_are_read(w) || packed_chunks)
    text_add(&w->out, "#define LUATTN_PACKED_INPUTS   // a Site says where its entry's rows are\n");
  if ((w->f->plan->packed || w->f->plan->pages) && w->f->facts.tile_bits)
    text_add(&w->out, "#define LUATTN_PACKED_BITS     // lines of tile bits are as long as the longest entry's\n");
  if (!sums_gradients(t)) text_add(&w->out, "#define LUATTN_NO_GRADIENTS    // of inputs and scalars\n");
  if (!w->f->facts.bounds_reals)
    text_add(&w->out, "#define LUATTN_NO_REAL_BOUNDS  // the mask computes with integers\n");
  if (w->f->score_bounds != IR_NONE)
    text_add(&w->out, "#define LUATTN_SCORE_BOUNDS    // some tiles may have no weight\n");
  if (w->f->facts.tile_bits) text_add(&w->out, "#define LUATTN_TILE_BITS       // the mask is evaluated for cells\n");
  if (w->f->facts.tile_bits && mask_reads_table(t, &w->f->mask->evaluated))
    text_add(&w->out, "#define LUATTN_BLOCK_TABLE     // an entry that writes what the mask reads\n");
  if (w->f->plan->packed && !w->f->plan->pages && w->f->plan->family->lists_tiles)
    text_add(&w->out, "#define LUATTN_TILE_TABLE      // an entry that lists the tiles of packed sequences\n");
  if (w->f->plan->family->merges && (w->f->plan->packed || w->f->plan->pages))
    text_add(&w->out,
             "#define LUATTN_SPLIT_LIST      // an entry that lists the blocks of entries of different lengths\n");
  if (w->f->plan->pages) text_add(&w->out, "#define LUATTN_APPEND          // an entry that writes rows to a cache\n");
  if (t->append_mod[0] != IR_NONE || t->append_mod[1] != IR_NONE)
    text_add(&w->out, "#define LUATTN_APPEND_MODS     // which it applies AppendMods to\n");
  if (w->f->facts.bounds_small) text_add(&w->out, "#define LUATTN_SMALL_BOUNDS    // of 32 bits, at every length\n");
  if (w->f->mask->num_stats == 0 ||
      tiles_prepares_stats(w->f->plan, w->f->score_bounds != IR_NONE || w->f->facts.tile_bits))
    text_add(&w->out, "#define LUATTN_NO_STATS        // nor an entry for them\n");
  if (w->f->plan->tangents != 0) text_add(&w->out, "#define LUATTN_TANGENTS        // of what kernels compute\n");
  if (w->f->plan->mod_values != 0)
    text_add(&w->out, "#define LUATTN_MOD_VALUES      // gradients behind mods, beside their tangents\n");
  if (!w->f->plan->has_mods)
    text_add(&w->out, "#define LUATTN_NO_MODS         // of q, k and v, nor an entry for them\n");
  text_add(&w->out,
           "#include \"config.cuh\"\n#include \"contract/contract.cuh\"\n#include \"ops/math.cuh\"\n"
           "#include \"ops/input.cuh\"\n#include \"ops/input_bounds.cuh\"\n");
  if (w->f->has_lists) text_add(&w->out, "#include \"ops/input_list.cuh\"\n");
  if (t->random) text_add(&w->out, "#include \"ops/random.cuh\"\n");
  if (w->f->plan->offsets) text_add(&w->out, "#include \"ops/offsets.cuh\"\n");
  if (entry_rows_are_read(w)) text_add(&w->out, "#include \"ops/packed_inputs.cuh\"\n");
  if (w->f->plan->axes > 0) text_add(&w->out, "#include \"ops/grid_places.cuh\"\n");
  if (writer_free_boxes(w)) text_add(&w->out, "#include \"ops/free_boxes.cuh\"\n");
  if (w->f->plan->tangents != 0) text_add(&w->out, "#include \"contract/tangent.cuh\"\n");
  if (has_bits(w)) text_add(&w->out, "#include \"ops/bits.cuh\"\n");
}

static void write_spec(writer *w) {
  text_add(&w->out, "// spec.cuh: the spec '%s', written by luattn from %s. The names are those of contract/.\n",
           writer_traced(w)->name, writer_file(w));
  write_includes(w);
  emit_hoisted(w);
  const char *const base[] = {emit_mask(w), emit_score(w), emit_online(w), emit_grad(w),
                              w->f->plan->tangents != 0 ? emit_dual_mods(w) : emit_mods(w)};
  const char *const more = w->f->plan->merges ? emit_merge(w) : w->f->plan->tangents != 0 ? emit_tangents(w) : NULL;
  emit_append_mods(w);
  text_add(&w->out, "\nstruct Spec : %s, %s, %s, %s, %s%s%s {};\n", base[0], base[1], base[2], base[3], base[4],
           more != NULL ? ", " : "", more != NULL ? more : "");
}

luattn_status emit_spec(const lowered *f, const char **out, luattn_error *err) {
  writer *w = arena_new(f->a, sizeof *w);
  const char *name = f->spec->traced.name;
  if (w == NULL || !writer_open(w, f)) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", name);
  emit_name_slots(w);
  if (!w->failed) write_spec(w); /* a missing name means out of memory */
  *out = text_get(&w->out);
  if (text_failed(&w->out) || *out == NULL || arena_failed(f->a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL, "emit: %s: an expression holds what no kernel has; please report the spec",
                       name);
  return LUATTN_OK;
}
