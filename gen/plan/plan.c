#include "gen/plan/tangent_mods.h"
#include "gen/plan/plan.h"

#include "abi/params.h"

#include <inttypes.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "abi/workspace.h"
#include "common/call/input_dtype.h"
#include "common/fail.h"
#include "gen/base/text.h"
#include "gen/plan/check_target.h"
#include "gen/plan/policy.h"

/* Fixed shapes of the kernels in templates/around/ (around.cuh; before/: tile_skipping.cuh, tile_bits.cuh,
 * tile_order.cuh, tile_table.cuh, split_list.cuh, block_table.cuh; cache/append.cuh). */
enum {
  AUX_THREADS = 128,
  AUX_TILE = 64,
  STATS_THREADS = 32,
  NORM_TILE = 128,
  BITS_THREADS = 512,
  ORDER_THREADS = 512,
  TABLE_THREADS = 128,
  LIST_THREADS = 256,
  APPEND_THREADS = 256,
  APPEND_HEADS = 4
};

static bool has_parameters(const plan *p, const traced_spec *t) {
  bool some = (p->wants & LUATTN_WANT_SCALARS) != 0 && t->num_scalars > 0;
  for (int i = 0; i < t->num_inputs; i++) some |= (p->wants & LUATTN_WANT_INPUTS) != 0 && t->input[i].grad != 0;
  return some;
}

/* Chooses the family that runs this dtype and these head dims. */
static luattn_status choose_family(const luattn_target *t, plan *p, luattn_error *err) {
  const bool half = (1u << p->dtype & FAMILY_HALVES) != 0;
  p->family = family_choose(p, t);
  TRY(family_can_run(p->family, p, err));
  family_settle(p);
  p->small_pages = half && t->family == 0 && !p->family->merges && t->arch == 90 && t->pages == 1;
  if (half && (p->head_dim % 8 != 0 || p->head_dim_v % 8 != 0)) {
    const bool in_v = p->head_dim % 8 == 0;
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: %s: is %d; the %s family needs multiples of 8 in %s; pad the last "
                       "dimension with zeros (and keep the scale), or use f32",
                       in_v ? "head_dim_v" : "head_dim", in_v ? p->head_dim_v : p->head_dim,
                       kernel_family_name(p->family->id), kernel_dtype_name(p->dtype));
  }
  return LUATTN_OK;
}

/* The rows of a box that the target asks for; 0: of none. */
static int asked_rows(uint64_t size) {
  int box[LUATTN_MAX_AXES];
  family_unpack_box(size, box);
  return size != 0 ? family_box_rows(box) : 0;
}

static void take(plan *p, const luattn_tiles *c, const luattn_target *t) {
  const int box_m = asked_rows(p->query_tile_size), box_n = asked_rows(p->key_tile_size);
  p->tile_m = box_m > 0 ? box_m : t->tile_m > 0 ? t->tile_m : c->tile_m;
  p->tile_n = box_n > 0 ? box_n : t->tile_n > 0 ? t->tile_n : c->tile_n;
  family_settle(p);
  /* A box is of the columns that a walk takes. One of an odd number of keys is refused as it is. */
  if (plan_kernel(p)->pairs_tiles && box_n > 0 && box_n % 2 == 0) p->tile_n = box_n / 2;
  p->threads = plan_kernel(p)->threads != NULL ? plan_kernel(p)->threads(p) : c->threads;
  p->stages = c->stages;
  p->sm80_warps_n = c->warps_n;
  p->sm80_chunk_m = c->chunk_m;
}

/* Takes choice *rank among the family's tiles that fit shared memory, or subtracts their number from
 * *rank. Tiles that suit the cells of an evaluated mask come before all others. */
static bool choose_in_family(plan *p, const luattn_target *t, int *rank) {
  luattn_tiles c;
  for (int suit = 1; suit >= 0; suit--)
    for (int i = 0; policy_tiles(p, i, &c); i++) {
      take(p, &c, t);
      if (tiles_suit_cells(p) == suit && tiles_suit_chunks(p) && tiles_least_shared(p) <= p->shared_limit &&
          (*rank)-- == 0)
        return true;
    }
  return false;
}

static bool fall_back(plan *p) {
  if (!p->may_fall_back) return false;
  p->may_fall_back = false;
  p->family = plan_kernel(p)->falls_back_to;
  return p->fallback = true;
}

static bool choose_tiles(plan *p, const luattn_target *t, int rank) {
  return choose_in_family(p, t, &rank) || (fall_back(p) && choose_in_family(p, t, &rank));
}

/* A forced tile takes threads and stages from the table's first row that can run it. */
static luattn_status choose_forced(plan *p, const luattn_target *t, luattn_error *err) {
  luattn_tiles c;
  luattn_error first;
  luattn_status status = LUATTN_OK;
  int smallest = 0;
  for (int i = 0; policy_tiles(p, i, &c); i++) {
    take(p, &c, t);
    luattn_error why;
    const luattn_status possible = tiles_check(p, &why);
    if (possible != LUATTN_OK) {
      if (i == 0) first = why, status = possible;
      continue;
    }
    const int bytes = tiles_least_shared(p);
    if (bytes <= p->shared_limit) return LUATTN_OK;
    if (smallest == 0 || bytes < smallest) smallest = bytes;
  }
  if (smallest > 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "target: %s: %d x %d at head dims %d and %d needs %d bytes of shared "
        "memory; sm_%d has %d a "
        "block; choose smaller tiles, or leave them 0",
        p->query_tile_size == 0 && p->key_tile_size == 0 ? "tile_m, tile_n" : "query_tile_size, key_tile_size",
        p->tile_m, p->tile_n, p->head_dim, p->head_dim_v, smallest, p->arch, p->shared_limit);
  return luattn_fail(err, status, "%s", first.message);
}

/* Tiles that the target gives in full must be candidates; others are a caller's mistake or come from another
 * version. */
static luattn_status choose_picked(plan *p, const luattn_target *t, luattn_error *err) {
  luattn_tiles list[PLAN_MAX_CANDIDATES];
  const luattn_tiles *x = t->tiles;
  const int count = plan_candidates(p, list);
  if (t->tile_m != 0 || t->tile_n != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: tile_m, tile_n: are %d and %d beside tiles, which say the same; leave them 0",
                       t->tile_m, t->tile_n);
  for (int i = 0; i < count; i++)
    if (plan_same_tiles(x, &list[i])) {
      take(p, x, t);
      return LUATTN_OK;
    }
  return luattn_fail(err, LUATTN_INVALID,
                     "target: tiles: %d x %d, %d threads, %d stages (%d, %d) is not one of the %d of "
                     "luattn_plan_candidates; "
                     "take one of those, or give tile_m and tile_n",
                     x->tile_m, x->tile_n, x->threads, x->stages, x->warps_n, x->chunk_m, count);
}

static bool stores_first(const plan *p, const traced_spec *t) {
  return policy_dq_first_store(p, t->block_mask != IR_NONE, has_parameters(p, t));
}

/* The boxes of tiles, and which others calls choose from. */
static void explain_boxes(arena *a, const plan *p, text *t) {
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
  const box_extents *pairs;
  const int count = family_box_pairs(p, &pairs);
  if (p->axes == 0) return;
  family_box(p, false, q), family_box(p, true, kv);
  text_add(t, "boxes: %s queries by %s keys%s", family_box_text(a, p, q), family_box_text(a, p, kv),
           tiles_free_boxes(p) ? ", which begin where the range of the queries does" : "");
  if (tiles_step(p)) text_add(t, ", of every %s place", family_box_text(a, p, p->step));
  for (int i = 0; i < count && !p->forced; i++)
    text_add(t, "%s%s by %s", i == 0 ? "; by its mask and extents a call takes one of " : ", ",
             family_box_text(a, p, pairs[i].q), family_box_text(a, p, pairs[i].kv));
  text_add(t, "\n");
}

/* The copies that calls of other extents than multiples of a far step take. */
static void explain_copies(arena *a, const plan *p, text *t) {
  const bool forward = p->pass == LUATTN_FORWARD;
  const int of_v = 2 * p->head_dim_v, of_q = 2 * p->head_dim + (!forward || tiles_copies_o(p) ? of_v : 0);
  if (!tiles_step_far(p)) return;
  text_add(
      t,
      "copies: TMA steps by at most %d and reaches %d places, so boxes of every %s place have the groups of a dilation "
      "that "
      "it does not step by as an axis; "
      "where an extent is above its dilation there and no multiple, luattn_copy_in copies q, k%s with zeros up to "
      "the next multiple%s: %d bytes for each head and place of queries and %d for those of keys, in the workspace\n",
      LUATTN_TMA_STEPS, LUATTN_TMA_REACH, family_box_text(a, p, p->step), forward ? " and v" : ", v and dout",
      tiles_copies_o(p) ? ", and luattn_copy_out the o of such extents back" : "", of_q, 2 * p->head_dim + of_v);
}

static const char *explain(arena *a, const plan *p) {
  const char *const note = p->family->note != NULL ? p->family->note(a, p) : "";
  text t;
  text_init(&t, a);
  if (p->family->before != NULL) text_add(&t, "%s", p->family->before);
  text_add(&t, "family %s: %s, %s\n", kernel_family_name(p->family->id), kernel_dtype_name(p->dtype), p->family->says);
  if (note == NULL) return NULL;
  text_add(&t, "%s", note);
  text_add(&t, "tiles %d x %d, %d threads, %d stages: %s\n", p->tile_m, p->tile_n, p->threads, p->stages,
           p->picked      ? "picked from the candidates"
           : p->forced    ? "asked for by the caller"
           : p->rank == 0 ? p->by_cells ? "first choice for these head dims and a mask that is evaluated for cells"
                            : p->softcap_poly ? "first choice for these head dims and a soft cap"
                            : p->lengths == LUATTN_SHORT && p->family->merges
                                ? "first choice for these head dims and up to 16 rows of a kv head"
                            : p->many_rows ? "first choice for these head dims and more than 32 rows of a kv head"
                            : p->lengths == LUATTN_SHORT ? "first choice for these head dims, a mask and short lengths"
                                                         : "first choice for these head dims and this shared memory"
                          : "a later choice: those before have too few registers or too much shared memory");
  explain_boxes(a, p, &t);
  explain_copies(a, p, &t);
  if (p->pass == LUATTN_BACKWARD)
    text_add(&t, "dq: %s\n",
             !plan_kernel(p)->accumulates_dq ? "in its own kernel, in a fixed order"
             : p->deterministic ? "added up in f32 beside dk and dv, kv tiles in turn (deterministic), then "
                                  "written by luattn_finish"
             : p->dq_first_store
                 ? "stored in f32 by the first kv tile of each q tile, beside dk and dv, the others added by "
                   "atomics, then written by luattn_finish"
                 : "added up by atomics in f32 beside dk and dv, then written by luattn_finish");
  if (p->pass == LUATTN_BACKWARD && plan_kernel(p)->splits)
    text_add(&t,
             "queries: shared among blocks where kv tiles are fewer than multiprocessors "
             "(luattn_args.num_splits)\n");
  if (p->rounds)
    text_add(&t,
             "gradients of inputs and scalars: summed exactly, so in any order (deterministic), then rounded by "
             "luattn_round; %d bytes of workspace an element\n",
             8 * workspace_limbs(p->dtype == LUATTN_F64 ? 8 : 4));
  return text_get(&t);
}

/* Defaults, and what changes no kernel of this pass. */
static void fill_defaults(plan *p) {
  if (p->head_dim_v == 0) p->head_dim_v = p->head_dim;
  const unsigned wants = kernel_pass_wants(p->pass);
  if (p->wants == 0 || wants == 0) p->wants = wants;
}

/* Classes of lengths and rows count where the family has tiles of their own for them. */
static void fill_classes(plan *p, const struct luattn_spec *spec, const luattn_target *t) {
  const bool may_be_short =
                 t->lengths == LUATTN_SHORT && (p->family->merges || spec->traced.block_mask != IR_NONE) && !p->picked,
             may_be_many = t->many_rows != 0 && p->family->merges && t->lengths == LUATTN_LONG && !p->picked;
  p->lengths = may_be_short && policy_knows_short(p) ? LUATTN_SHORT : LUATTN_LONG;
  p->many_rows = may_be_many && policy_knows_many_rows(p);
}

/* The boxes that a target asks for. */
static luattn_status check_boxes(const struct luattn_spec *spec, const luattn_target *t, luattn_error *err) {
  const int axes = spec->traced.grid_axes;
  const struct {
    const char *name;
    uint64_t size;
  } of[] = {{"query_tile_size", t->query_tile_size}, {"key_tile_size", t->key_tile_size}};
  for (int i = 0; i < 2; i++) {
    if (of[i].size == 0) continue;
    if (axes == 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "target: %s: is given, and the spec '%s' has no grid, whose boxes it is of; give tile_m and "
                         "tile_n, or leave it "
                         "0",
                         of[i].name, spec->traced.name);
    int box[LUATTN_MAX_AXES];
    family_unpack_box(of[i].size, box);
    for (int a = 0; a < LUATTN_MAX_AXES - axes; a++)
      if (box[a] != 1)
        return luattn_fail(err, LUATTN_INVALID,
                           "target: %s: has an extent of %d along an axis before the %d of the grid of '%s'; give %d "
                           "extents",
                           of[i].name, box[a], axes, spec->traced.name, axes);
    if (t->tile_m != 0 || t->tile_n != 0 || t->tiles != NULL)
      return luattn_fail(err, LUATTN_INVALID, "target: %s: is given beside tiles, which say the same; leave these 0",
                         of[i].name);
  }
  return LUATTN_OK;
}

/* What kernels over a grid of several axes lack. */
static luattn_status check_grid(const struct luattn_spec *spec, const luattn_target *t, luattn_error *err) {
  const int axes = spec->traced.grid_axes;
  const char *asked = t->packed          ? "packed: is 1"
                      : t->pages != 0    ? "pages: is given"
                      : t->decode != 0   ? "decode: is 1"
                      : t->offsets != 0  ? "offsets: are given"
                      : t->keys_modified ? "keys_modified: is 1"
                                         : NULL;
  if (axes <= 1) return LUATTN_OK;
  if (asked != NULL)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: %s, and the spec '%s' has a grid of %d axes, whose calls have neither packed sequences, "
        "pages, offsets nor kernels for few queries; leave it 0",
        asked, spec->traced.name, axes);
  if (t->pass == LUATTN_BACKWARD && spec->derived.num_passes > 0)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "plan: grid: backward of '%s' takes a row pass, and kernels over a grid of %d axes have none yet; "
        "run it on the CPU, or write backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, "
        "kv_idx, scores) .. end",
        spec->traced.name, axes);
  return LUATTN_OK;
}

/* What kernels with tangents lack of a spec. */
static luattn_status check_tangents(const struct luattn_spec *spec, const luattn_target *t, luattn_error *err) {
  const traced_spec *s = &spec->traced;
  uint64_t rest = t->tangents & ~(LUATTN_TANGENT_Q | LUATTN_TANGENT_K | LUATTN_TANGENT_V);
  if (t->tangents == 0) return LUATTN_OK;
  if (t->pass == LUATTN_BACKWARD) rest &= ~(LUATTN_TANGENT_DOUT | LUATTN_TANGENT_DLSE);
  for (int i = 0; i < s->num_inputs; i++)
    if (input_is_real(s->input[i].dtype)) rest &= ~LUATTN_TANGENT_INPUT(i);
  for (int i = 0; i < s->num_scalars; i++) rest &= ~LUATTN_TANGENT_SCALAR(i);
  if (rest != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: tangents: has the bits 0x%" PRIx64
                       ", and '%s' has no such input of real numbers, or scalar; leave them 0",
                       rest, s->name);
  return LUATTN_OK;
}

/* 0 where the family has no pairs, and for the first one. */
static luattn_status take_pair(plan *p, luattn_error *err) {
  const box_extents *pairs;
  const int count = family_box_pairs(p, &pairs);
  if (count > 0 && p->boxes > count)
    return luattn_fail(
        err, LUATTN_INVALID,
        "target: boxes: is %d, and the %s family has %d pairs of boxes over a grid of %d axes; give 0 to %d", p->boxes,
        kernel_family_name(p->family->id), count, p->axes, count);
  if (count == 0 || p->boxes == 1) p->boxes = 0;
  return LUATTN_OK;
}

luattn_status plan_start(const struct luattn_spec *spec, const luattn_target *t, plan *p, luattn_error *err) {
  memset(p, 0, sizeof *p);
  TRY(target_check(t, err));
  TRY(check_grid(spec, t, err));
  TRY(check_boxes(spec, t, err));
  TRY(check_tangents(spec, t, err));
#define TARGET_FACT(name, type, range, expected, key) OF_PLAN(key, p->name = t->name;)
#include "abi/kernel_facts.def"
  fill_defaults(p);
  p->arch = t->arch;
  p->arch_suffix = t->arch == 90 ? 'a' : 0;
  p->shared_limit = tiles_shared_limit(t->arch);
  p->keep = spec->traced.online.keep;
  p->draws = spec_draws(&spec->traced);
  p->has_mods = spec_has_mods(&spec->traced);
  if (p->tangents != 0) p->tangents_of = tangent_mods_of(&spec->traced, p->tangents);
  if (p->tangents != 0 && p->pass == LUATTN_BACKWARD) p->mod_values = tangent_mods_values(spec, p->tangents);
  p->axes = spec->traced.grid_axes > 1 ? spec->traced.grid_axes : 0;
  for (int a = 0; a < LUATTN_MAX_AXES; a++) p->step[a] = spec->step[a] > 1 ? spec->step[a] : 1;
  p->learns_displacements =
      spec->learns_displacements && p->pass == LUATTN_BACKWARD && (p->wants & LUATTN_WANT_INPUTS) != 0;
  p->picked = t->tiles != NULL;
  p->forced = p->picked || t->tile_m != 0 || t->tile_n != 0 || p->query_tile_size != 0 || p->key_tile_size != 0;
  p->has_parameters = p->pass == LUATTN_BACKWARD && has_parameters(p, &spec->traced);
  TRY(choose_family(t, p, err));
  TRY(take_pair(p, err));
  p->merges = p->family->merges;
  /* Forward gives the same bits in every run; kernels that merge, whatever else is in the batch. */
  p->deterministic = (p->pass == LUATTN_BACKWARD || p->merges) && t->deterministic != 0;
  p->rounds = p->deterministic && has_parameters(p, &spec->traced);
  if (p->pages > p->family->page_multiple) p->pages = p->family->page_multiple;
  p->by_cells = spec->by_cells && tiles_may_have_bits(p);
  p->by_query_blocks = spec->by_query_blocks && p->by_cells;
  p->by_narrow_blocks = spec->by_narrow_blocks && p->by_cells;
  p->by_block_bounds = spec->by_block_bounds;
  p->may_fall_back = plan_kernel(p)->falls_back_to != NULL && t->family == 0 && !p->forced &&
                     (p->axes == 0 || plan_kernel(p)->falls_back_to->grid_dtypes != 0);
  fill_classes(p, spec, t);
  return LUATTN_OK;
}

luattn_target plan_target(const plan *p, const luattn_target *given) {
  luattn_target t = *given;
#define TARGET_FACT(name, type, range, expected, key) OF_PLAN(key, t.name = p->name;)
#include "abi/kernel_facts.def"
  t.family = 1 + (int)p->family->id;
  t.deterministic = p->deterministic;
  return t;
}

bool plan_alternative(arena *a, const struct luattn_spec *spec, const luattn_target *target, bool softcap_poly,
                      int rank, plan *out) {
  plan p;
  if (plan_start(spec, target, &p, NULL) != LUATTN_OK || p.forced) return false;
  p.rank = rank;
  p.softcap_poly = softcap_poly;
  if (!choose_tiles(&p, target, rank)) return false;
  p.dq_first_store = stores_first(&p, &spec->traced);
  p.why = explain(a, &p);
  if (p.why == NULL) return false;
  *out = p;
  return true;
}

luattn_status plan_choose(arena *a, const struct luattn_spec *spec, const luattn_target *target, plan *out,
                          luattn_error *err) {
  TRY(plan_start(spec, target, out, err));
  if (out->picked)
    TRY(choose_picked(out, target, err));
  else if (out->forced)
    TRY(choose_forced(out, target, err));
  else if (!choose_tiles(out, target, 0))
    return out->offsets == LUATTN_OFFSET_CHUNKS
               ? family_refuse_chunks(out->family, out, err)
               : luattn_fail(err, LUATTN_UNSUPPORTED,
                             "plan: head dims %d and %d: no tile fits the %d bytes of shared memory of sm_%d",
                             out->head_dim, out->head_dim_v, out->shared_limit, out->arch);
  out->dq_first_store = stores_first(out, &spec->traced);
  out->why = explain(a, out);
  return out->why == NULL ? luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory") : LUATTN_OK;
}

bool plan_of_tiles(arena *a, const struct luattn_spec *spec, const luattn_target *target, luattn_family family,
                   const luattn_tiles *tiles, plan *out) {
  luattn_tiles list[PLAN_MAX_CANDIDATES];
  bool found = false;
  if (plan_start(spec, target, out, NULL) != LUATTN_OK || out->forced)
    return plan_choose(a, spec, target, out, NULL) == LUATTN_OK;
  if (family != out->family->id && !fall_back(out)) return false;
  const int count = plan_candidates(out, list);
  for (int i = 0; i < count; i++) found |= plan_same_tiles(tiles, &list[i]);
  if (!found || family != out->family->id) return false;
  take(out, tiles, target);
  out->dq_first_store = stores_first(out, &spec->traced);
  out->why = explain(a, out);
  return out->why != NULL;
}

luattn_status plan_list(const struct luattn_spec *spec, const luattn_target *target,
                        luattn_tiles out[PLAN_MAX_CANDIDATES], int *count, luattn_error *err) {
  plan p;
  TRY(plan_start(spec, target, &p, err));
  *count = plan_candidates(&p, out);
  return LUATTN_OK;
}

/* ---- entries
 * ----------------------------------------------------------------------------------------------------------
 */

static void add_entry(plan *p, const char *name, luattn_role role, int threads, int tile, int shared) {
  p->entry[p->num_entries++] =
      (plan_entry){name, role, threads, shared, tile > 0 ? tile : p->tile_m, tile > 0 ? tile : p->tile_n};
}

/* tile_m: blocks take items until none is left; tile_n: from the lengths of how many entries they find them without a
 * list. 1, of earlier images: they do not, of none. */
static void add_split_list(plan *p) {
  add_entry(p, "luattn_split_list", LUATTN_ROLE_SPLIT_LIST, LIST_THREADS, 1, 0);
  p->entry[p->num_entries - 1].tile_m = 2;
  p->entry[p->num_entries - 1].tile_n = LUATTN_SPLIT_PLACES;
}

/* Threads: merge_threads of around/after/merge.cuh. tile_n: it waits for forward itself (arch/early_launch.cuh). */
static void add_merge(plan *p) {
  add_entry(p, "luattn_merge", LUATTN_ROLE_MERGE, (p->head_dim_v / 4 + 31) / 32 * 32, 1, 0);
  p->entry[p->num_entries - 1].tile_n = p->arch >= 90 ? 2 : 1;
}

static void add_main(plan *p, const char *name, luattn_role role, const plan_rows *rows) {
  add_entry(p, name, role, p->threads, 0, tiles_shared_bytes(p, rows));
}

/* Adds the kernels of a backward image. Must match struct Needs in contract/needs.cuh, which leaves out the
 * bodies of all other kernels. */
static void add_backward(plan *p, const traced_spec *t, const plan_rows *rows) {
  const bool parameters = (p->wants & (LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS)) != 0;
  const bool mod_q = t->query_mod != IR_NONE, mod_k = t->key_mod != IR_NONE, mod_v = t->value_mod != IR_NONE;
  const bool dq = (p->wants & LUATTN_WANT_DQ) != 0 || (mod_q && parameters);
  const bool dk = (p->wants & LUATTN_WANT_DK) != 0 || (mod_k && parameters);
  const bool dv = (p->wants & LUATTN_WANT_DV) != 0 || (mod_v && parameters);
  if (p->tangents != 0) /* it computes whole rows */
    add_main(p, "luattn_prepare", LUATTN_ROLE_PREPARE, rows);
  else
    add_entry(p, "luattn_prepare", LUATTN_ROLE_PREPARE, AUX_THREADS, AUX_TILE, 0);
  if (dk || dv || parameters || (dq && plan_kernel(p)->accumulates_dq))
    add_main(p, "luattn_dkdv", LUATTN_ROLE_DKDV, rows);
  if (dq && !plan_kernel(p)->accumulates_dq) add_main(p, "luattn_dq", LUATTN_ROLE_DQ, rows);
  if ((dk && (p->mod_values & LUATTN_TANGENT_K)) || (dv && (p->mod_values & LUATTN_TANGENT_V)))
    add_main(p, "luattn_dkdv_values", LUATTN_ROLE_DKDV, rows);
  if (dq && (p->mod_values & LUATTN_TANGENT_Q)) add_main(p, "luattn_dq_values", LUATTN_ROLE_DQ, rows);
  const bool splits = plan_kernel(p)->splits; /* dk and dv may then be split */
  if ((dq && (mod_q || plan_kernel(p)->accumulates_dq)) || (dk && (mod_k || splits)) || (dv && (mod_v || splits)))
    add_entry(p, "luattn_finish", LUATTN_ROLE_FINISH, AUX_THREADS, AUX_TILE, 0);
  if (p->rounds) add_entry(p, "luattn_round", LUATTN_ROLE_ROUND, AUX_THREADS, AUX_THREADS, 0);
}

/* By what means kernels find the tiles that they compute. The rule of evaluation is that of
 * runtime/parts/tile_bits.c. */
static const char *explain_mask(arena *a, const plan *p, const plan_rows *rows) {
  const mask_evaluated *e = rows->evaluated;
  if (rows->mask == NULL) return "";
  const bool minima = rows->num_stats > 0, undecided = e == NULL && rows->mask->evaluated.is;
  const char *line = arena_printf(
      a, "mask: tiles by ranges of positions%s%s\n", minima ? ", and by minima and maxima of numbers in blocks" : "",
      !undecided ? ""
      : p->family->merges
          ? " alone, which do not decide it: decode does not evaluate it for cells"
          : " alone, which do not decide it: kernels of tensors with offsets do not evaluate it for cells");
  if (e != NULL)
    line = arena_printf(
        a,
        "mask: luattn_tile_bits evaluates it for cells of %d x %d scores, %d instructions for each %d x %d of "
        "them%s%s%s, where "
        "that is at most half of the work on all tiles, which is not too short for it; else by ranges and minima "
        "(luattn_args.skip: always, never)\n",
        MASK_CELL, MASK_CELL, rows->evaluated_cost, e->rows, e->columns,
        e->by_batch || p->packed || p->pages ? ", in each batch entry" : "", e->by_head ? ", for each head" : "",
        e->cell != IR_NONE ? ", as blocks decide most cells" : "");
  return line != NULL ? line : "";
}

/* In which order kernels take the tiles of packed sequences. The rules are those of runtime/parts/tile_table.c. */
static const char *explain_packed(const plan *p) {
  if (!p->packed || p->pages || p->family->merges) return "";
  if (!p->family->lists_tiles) return "packed: blocks for the tiles of as many sequences of the longest one's length\n";
  if (p->pass == LUATTN_BACKWARD) return "packed: luattn_tile_table lists the tiles, the longest sequence first\n";
  return "packed: luattn_tile_table lists the tiles, the longest sequence first, if the mean sequence is shorter than "
         "7/8 of the longest, "
         "and if a batch holds the list or empty tiles would take longer than making it; else tiles as of equal "
         "lengths\n";
}

static const char *explain_list(const plan *p) {
  if (!p->family->merges || (!p->packed && p->pages == 0)) return "";
  if (p->deterministic)
    return "splits: luattn_split_list cuts each entry into blocks of 2048 keys, or 64 blocks, by its own length "
           "alone\n";
  return "splits: blocks of about as many keys, by the lengths of up to 32 entries, by a batch's list or, in long "
         "calls, "
         "the launch's (luattn_split_list); as many for each entry in short calls\n";
}

/* How kernels read keys in pages. */
static const char *explain_pages(const plan *p) {
  if (p->pages == 0)
    return p->keys_modified ? "keys_modified: k and v are read as they are, without key_mod and value_mod\n" : "";
  if (p->pages > 1)
    return "pages: of sizes that are multiples of 8, or one for each entry, by TMA, in boxes of as many rows as divide "
           "a page and a tile\n";
  return "pages: of any size, by copies that look up the page of each row\n";
}

luattn_status plan_entries(arena *a, plan *p, const struct luattn_spec *spec, const plan_rows *rows, const char **line,
                           luattn_error *err) {
  const traced_spec *t = &spec->traced;
  int most = 0;
  p->num_entries = 0;
  if (rows->num_stats > 0 && !tiles_prepares_stats(p, rows->skips || rows->evaluated != NULL))
    add_entry(p, "luattn_stats", LUATTN_ROLE_STATS, STATS_THREADS, 1, 0);
  if (rows->evaluated != NULL) {
    add_entry(p, "luattn_tile_bits", LUATTN_ROLE_TILE_BITS, BITS_THREADS, MASK_CELL, 0);
    if (!p->packed && !p->pages) /* whose sequences have an order */
      add_entry(p, "luattn_tile_order", LUATTN_ROLE_TILE_ORDER, ORDER_THREADS, MASK_CELL, 0);
  }
  if (p->packed && !p->pages && p->family->lists_tiles)
    add_entry(p, "luattn_tile_table", LUATTN_ROLE_TILE_TABLE, TABLE_THREADS, 1, 0);
  if (p->family->merges && (p->packed || p->pages)) add_split_list(p);
  if (rows->evaluated != NULL && mask_reads_table(t, rows->evaluated))
    add_entry(p, "luattn_block_table", LUATTN_ROLE_BLOCK_TABLE, TABLE_THREADS, 1, 0);
  if (p->pages) {
    add_entry(p, "luattn_append", LUATTN_ROLE_APPEND, APPEND_THREADS, APPEND_THREADS, 0);
    if (t->append_mod[0] != IR_NONE || t->append_mod[1] != IR_NONE) p->entry[p->num_entries - 1].tile_n = APPEND_HEADS;
  }
  if (tiles_step_far(p)) add_entry(p, "luattn_copy_in", LUATTN_ROLE_COPY_IN, AUX_THREADS, AUX_TILE, 0);
  if (p->has_mods) add_entry(p, "luattn_mod", LUATTN_ROLE_MOD, AUX_THREADS, AUX_TILE, 0);
  if (rows->skips) {
    add_entry(p, "luattn_norms", LUATTN_ROLE_NORMS, AUX_THREADS, NORM_TILE, 0);
    add_entry(p, "luattn_tile_bitmap", LUATTN_ROLE_TILE_BITMAP, p->pass == LUATTN_FORWARD ? p->tile_m : AUX_THREADS, 0,
              0);
  }
  if (p->pass == LUATTN_FORWARD) add_main(p, plan_kernel(p)->entry, LUATTN_ROLE_FORWARD, rows);
  if (tiles_copies_o(p)) add_entry(p, "luattn_copy_out", LUATTN_ROLE_COPY_OUT, AUX_THREADS, AUX_TILE, 0);
  if (p->family->merges) add_merge(p);
  if (p->pass == LUATTN_BACKWARD) add_backward(p, t, rows);
  for (int i = 0; i < p->num_entries; i++)
    if (p->entry[i].shared_bytes > p->entry[most].shared_bytes) most = i;
  const plan_entry *e = &p->entry[most];
  const int fixed = plan_kernel(p)->static_bytes != NULL ? plan_kernel(p)->static_bytes(p, rows) : 0,
            bytes = e->shared_bytes + fixed;
  if (bytes > p->shared_limit)
    return luattn_fail(err, p->forced ? LUATTN_INVALID : LUATTN_UNSUPPORTED,
                       "plan: %s: tiles %d x %d with %d bytes a row need %d bytes of shared memory; sm_%d has %d "
                       "a block; choose smaller tiles",
                       e->name, p->tile_m, p->tile_n, rows->row_bytes + rows->bwd_row_bytes, bytes, p->arch,
                       p->shared_limit);
  *line = arena_printf(a, "%s%s%s%sshared memory: %s has %d of the %d bytes that a block of sm_%d may have\n",
                       explain_mask(a, p, rows), explain_packed(p), explain_list(p), explain_pages(p), e->name, bytes,
                       p->shared_limit, p->arch);
  if (*line == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory");
  return LUATTN_OK;
}
