/* linear_passes.c: the passes of a call of linear attention: their tensors, segments, and what lies in the workspace. */
#include <stdint.h>
#include <string.h>

#include "abi/workspace.h"

#include "runtime/call/linear_args.h"
#include "runtime/call/tensor_rule.h"

enum {
  LEAST_SEGMENT = 16 * LUATTN_CHUNK, /* tokens: below, a segment's state costs more than it saves */
  ALIGNMENT = 256
};

typedef struct room {
  char *base;
  size_t used;
} room;

static void *take(room *r, size_t bytes) {
  void *at = r->base != NULL ? r->base + r->used : NULL;
  r->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static size_t rows_of(const linear_call *l) {
  return (size_t)l->p.tokens * (l->c.info->packed ? 1 : (size_t)l->p.entries);
}

/* Contiguous rows [rows][heads][dim] of numbers of `size` bytes. */
static LuattnTensor take_numbers(room *r, const linear_call *l, int heads, int dim, size_t size) {
  const long long row = (long long)heads * dim;
  return (LuattnTensor){take(r, rows_of(l) * (size_t)row * size), row * l->p.tokens, dim, row};
}
/* The same of the call's type. */
static LuattnTensor take_rows(room *r, const linear_call *l, int heads, int dim) {
  return take_numbers(r, l, heads, dim, args_elem(l->c.info).bits / 8u);
}

static int64_t turns_of(int64_t blocks, int64_t at_once) { return (blocks + at_once - 1) / at_once; }

/* How many chunks one after another a call of `chunks` takes whose segments are maps: those of a segment, in as many turns as
 * blocks for what is added and for maps need, and once more with their states; joining takes one for each. */
static int64_t chunks_in_turn(const linear_call *l, const linear_pass *pass, int64_t chunks, int64_t count) {
  const int64_t sums = pass->blocks * (count - 1) + pass->map_blocks * (count - 2);
  return count == 1 ? chunks : turns_of(chunks, count) * (1 + turns_of(sums, l->c.multiprocessors)) + count;
}
static int64_t choose_maps(const linear_call *l, const linear_pass *pass, int64_t chunks, int64_t most) {
  int64_t best = 1;
  for (int64_t count = 2; count <= most; count++)
    if (chunks_in_turn(l, pass, chunks, count) < chunks_in_turn(l, pass, chunks, best)) best = count;
  return best;
}

/* The same where what segments add needs no other one, in tenths of a chunk: blocks for it look at some ten chunks where
 * decays leave no more of a state, and take less for each. heads: of a block of the kernel behind. */
static int64_t tenths_in_turn(const linear_pass *pass, int64_t heads, int64_t at_once, int64_t chunks, int64_t count) {
  enum { LOOKED_AT = 10, TENTHS_OF_SUMS = 6 };
  const int64_t each = turns_of(chunks, count), looked_at = each < LOOKED_AT ? each : LOOKED_AT;
  return 10 * turns_of(pass->blocks / heads * count, at_once) * each +
         TENTHS_OF_SUMS * turns_of(pass->blocks * (count - 1), at_once) * looked_at;
}
static int64_t choose_sums(const linear_pass *pass, int64_t heads, int64_t at_once, int64_t chunks, int64_t most) {
  int64_t best = 1;
  for (int64_t count = 2; count <= most; count++)
    if (tenths_in_turn(pass, heads, at_once, chunks, count) < tenths_in_turn(pass, heads, at_once, chunks, best))
      best = count;
  return best;
}

static bool has_role(const image_manifest *m, uint32_t role) {
  for (uint32_t i = 0; i < m->num_entries; i++)
    if (m->entry[i].role == role) return true;
  return false;
}

/* Whether a kernel adds up dq and dk of the value heads that read a head of q and k, as it makes them. */
bool linear_adds_heads(const image_manifest *m) { return has_role(m, LUATTN_ROLE_LINEAR_GROUP_ROWS); }

/* Whether forward's blocks have two value heads of a head of q and k. */
static bool has_two_heads(const linear_call *l) {
  return has_role(l->c.info, LUATTN_ROLE_LINEAR_TWO) && l->p.group % 2 == 0;
}

/* As many as fill the device, of tokens enough that a state more costs little. */
static luattn_status choose_segments(const linear_call *l, int v_block, linear_pass *pass) {
  /* A multiprocessor runs two blocks of the chains before luattn_linear_group_rows. */
  const int64_t at_once = l->c.multiprocessors * (linear_adds_heads(l->c.info) ? 2 : 1);
  const args_call *c = &l->c;
  const int64_t of_v = (pass->value.dim + v_block - 1) / v_block;
  const int64_t each = l->p.entries > 0 && c->info->packed ? l->p.tokens / l->p.entries : l->p.tokens;
  const manifest_linear *facts = &c->info->linear_facts[0];
  int64_t count = 1, most = each / LEAST_SEGMENT < LUATTN_MAX_SEGMENTS ? each / LEAST_SEGMENT : LUATTN_MAX_SEGMENTS;
  pass->segments = 1;
  pass->blocks = (int64_t)l->p.entries * l->p.heads_v;
  if (pass->blocks > INT32_MAX / LUATTN_MAX_SEGMENTS / of_v)
    return args_fail(c, "q, v: %d entries of %d value heads are more blocks than a launch has; split the batch",
                     l->p.entries, l->p.heads_v);
  pass->blocks *= of_v;
  const int64_t chunks = (each + LUATTN_CHUNK - 1) / LUATTN_CHUNK;
  if (facts->cuts && pass->blocks > 0) count = at_once / pass->blocks;
  if (count > most) count = most;
  if (facts->cuts == MANIFEST_CUT_SUMS && facts->decays == 1)
    count = choose_sums(pass, has_two_heads(l) ? 2 : 1, at_once, chunks, most);
  if (facts->cuts == MANIFEST_CUT_MAPS) {
    pass->map_blocks = (int64_t)l->p.entries * l->p.heads_v * ((pass->key.dim + v_block - 1) / v_block);
    count = choose_maps(l, pass, chunks, count);
  }
  if (count > 1) pass->segments = (int)count;
  return LUATTN_OK;
}

/* Rows that main kernels read: the caller's, or ones that are made. */
static void place_rows(linear_call *l, room *r) {
  LuattnLinearParams *p = &l->p;
  const image_manifest *m = l->c.info;
  LuattnTensor *const to[] = {&p->q, &p->k, &p->v};
  for (int i = 0; i < LUATTN_LINEAR_TENSORS; i++)
    *to[i] = m->linear_facts[0].made >> i & 1
                 ? take_rows(r, l, i < 2 ? p->heads : p->heads_v, (int)(i < 2 ? m->head_dim : m->head_dim_v))
                 : p->rows.from[i];
}

/* ---- backward ---- */

/* Whether one kernel has the chain of gradients and what is made of them, which need no memory then. */
static bool joins_chain(const image_manifest *m) { return has_role(m, LUATTN_ROLE_LINEAR_GRADS); }

bool linear_has_chains(const image_manifest *m) {
  return has_role(m, LUATTN_ROLE_LINEAR_ROWS) || joins_chain(m) || linear_adds_heads(m);
}

/* Whether the caller wants the gradient of q, k or v. */
static bool grad_of(const linear_call *l, int which) {
  const DLTensor *const of[] = {l->args->dq, l->args->dk, l->args->dv};
  return of[which] != NULL;
}

static bool is_grad_given(const linear_call *l, uint32_t input) {
  const luattn_linear_args *a = l->args;
  for (size_t i = 0; i < a->num_inputs; i++)
    if (a->inputs[i].name != NULL && strcmp(a->inputs[i].name, l->c.info->input[input].name) == 0)
      return a->inputs[i].grad != NULL;
  return false;
}

static bool has_gaps(const linear_call *l) { return l->c.info->packed || l->args->state_indices != NULL; }

/* Whether each element of the input has a token and value head of its own, and they have one each. */
static bool is_alone(const linear_call *l, uint32_t input) {
  const luattn_input_info *info = &l->c.info->input[input];
  const LuattnInput *in = &l->p.inputs.input[input];
  bool by_entry = l->c.info->packed != 0 || l->p.entries <= 1;
  if (!(l->c.info->linear_facts[0].alone >> input & 1)) return false;
  for (uint32_t i = 0; i < info->num_axes; i++) {
    if (info->axis[i] == LUATTN_AXIS_HV && in->size[i] != l->p.heads_v) return false;
    if (info->axis[i] == LUATTN_AXIS_B) by_entry |= in->size[i] == l->p.entries;
  }
  return by_entry;
}

/* Rows of no entry have gradients of 0, which no kernel stores; nor are elements stored that no token has. */
bool linear_is_stored(const linear_call *l, uint32_t input) {
  const luattn_input_info *info = &l->c.info->input[input];
  bool of_tokens = (l->c.info->linear_facts[0].sole >> input & 1) != 0 && l->c.info->linear_facts[0].run == 0;
  for (uint32_t i = 0; i < info->num_axes; i++)
    of_tokens &= info->axis[i] == LUATTN_AXIS_B || info->axis[i] == LUATTN_AXIS_T || info->axis[i] == LUATTN_AXIS_HV ||
                 info->axis[i] == LUATTN_AXIS_D;
  return of_tokens && is_alone(l, input) && !has_gaps(l) && l->p.tokens > 0;
}

/* Exact sums of gradients of inputs and scalars; whether some are wanted. */
static bool place_sums(linear_call *l, room *r) {
  const image_manifest *m = l->c.info;
  LuattnInputs *in = &l->p.inputs;
  const size_t limbs = (size_t)workspace_limbs((int)args_real_size(l->c.info)) * sizeof(uint64_t), first = r->used;
  const bool scalars = l->args->scalar_grads != NULL && m->num_scalars > 0;
  bool any = scalars;
  in->num_scalars = (int)m->num_scalars;
  for (uint32_t i = 0; i < m->num_inputs; i++) {
    LuattnInput *one = &in->input[i];
    one->count = 1, one->exact = NULL;
    for (uint32_t k = 0; k < m->input[i].num_axes; k++) one->count *= one->size[k];
    if (!is_grad_given(l, i)) continue;
    any = true;
    if (!is_alone(l, i)) one->exact = take(r, limbs * (size_t)one->count);
  }
  if (scalars) in->scalar_exact = take(r, limbs * m->num_scalars);
  l->exact = r->base != NULL ? r->base + first : NULL, l->exact_bytes = r->used - first;
  return any;
}

/* Whether main kernels write the rows that the caller's tensor has, and none for each value head. */
static bool has_own_rows(const linear_call *l, int which) {
  return which == 2 || l->p.group == 1 || linear_adds_heads(l->c.info);
}

/* Rows of gradients that main kernels write: the caller's, or ones that are finished. */
static linear_tensor place_gradient(linear_call *l, room *r, int which, bool wanted) {
  const image_manifest *m = l->c.info;
  LuattnLinearRows *rows = &l->p.rows;
  const int dim = (int)(which < 2 ? m->head_dim : m->head_dim_v),
            heads = which < 2 && linear_adds_heads(m) ? l->p.heads : l->p.heads_v;
  static const char *const names[] = {"dq", "dk", "dv"};
  const bool is_direct = !(m->linear_facts[0].made >> which & 1) && has_own_rows(l, which) && grad_of(l, which);
  rows->made[which] = (LuattnTensor){0};
  if (wanted) rows->made[which] = is_direct ? rows->grad[which] : take_rows(r, l, heads, dim);
  return (linear_tensor){rows->made[which], names[which], heads, dim};
}

/* Blocks of luattn_linear_finish. Rows of no entry become 0. */
static void count_blocks(linear_call *l, const bool wanted[3], bool numbers) {
  const manifest_linear *m = &l->c.info->linear_facts[0];
  LuattnLinearRows *rows = &l->p.rows;
  const size_t all = rows_of(l), tiles = (all + LUATTN_FINISH_ROWS - 1) / LUATTN_FINISH_ROWS;
  for (int i = 0; i < 3; i++) {
    const bool is_direct =
        !(m->made >> i & 1) && (i == 2 ? !m->skips || linear_adds_heads(l->c.info) : has_own_rows(l, i));
    const bool runs =
        is_direct ? has_gaps(l) && grad_of(l, i) : wanted[i] || grad_of(l, i) || (i == 2 && m->terms >> 3 & 1);
    rows->blocks[i] = runs ? (unsigned)(tiles * (size_t)(i < 2 ? l->p.heads : l->p.heads_v)) : 0;
  }
  rows->blocks[3] = numbers ? (unsigned)((all + 255) / 256 * (size_t)l->p.heads_v) : 0;
}

/* A state whose rows are channels of k. */
static LuattnStates turned(LuattnStates s) {
  const long long value = s.value;
  s.value = s.key, s.key = value;
  return s;
}

/* The slots of chunks of all value heads. */
static size_t slots_of(const linear_call *l) {
  const LuattnLinearParams *p = &l->p;
  return (size_t)linear_chunk_slots(p->entries, p->tokens, l->c.info->packed != 0) * (size_t)p->heads_v;
}

/* Whether forward can keep states of chunks for backward, whose kernels of chunks take no mods of v and no skip. */
static bool can_keep(const image_manifest *m) {
  return has_role(m, LUATTN_ROLE_LINEAR_INVERSES) && m->head_dim <= 128 && m->head_dim_v <= 128 && !m->has_value_mod &&
         !m->linear_facts[0].skips;
}

/* Whether the call has memory for that, and its kernels write or take it. */
static bool is_kept(const linear_call *l) { return l->args->kept != NULL && can_keep(l->c.info); }

/* Bytes of a number of each element of the maps of a pass's segments. */
static size_t maps_bytes(const linear_call *l, int segments) {
  const size_t k_dim = l->c.info->head_dim;
  return (size_t)l->p.entries * (size_t)l->p.heads_v * (size_t)segments * k_dim * k_dim * sizeof(float);
}

static size_t decays_bytes(const linear_call *l, int segments) {
  return (size_t)l->p.entries * (size_t)l->p.heads_v * (size_t)segments * l->c.info->linear_facts[0].decays *
         sizeof(float);
}

/* What forward leaves for backward, in the caller's memory: inverses of chunks, states, U; maps of segments, and which count. */
static void place_handed_on(linear_call *l) {
  const image_manifest *m = l->c.info;
  const LinearRowsLayout size = linear_rows_layout((int)m->head_dim, (int)m->head_dim_v);
  const size_t slots = slots_of(l);
  const int segments = l->pass[m->pass == LUATTN_FORWARD ? 0 : 1].segments;
  room r = {l->args->kept, 0};
  if (!can_keep(m)) return;
  void *const inverses = take(&r, slots * LINEAR_BOX), *const left = take(&r, slots * sizeof(float)),
              *const states = take(&r, slots * (size_t)size.state), *const values = take(&r, slots * (size_t)size.v),
              *const maps = segments > 1 ? take(&r, maps_bytes(l, segments)) : NULL,
              *const decays = segments > 1 ? take(&r, decays_bytes(l, segments)) : NULL;
  l->kept_size = r.used;
  if (!is_kept(l)) return;
  l->p.inverses = inverses, l->p.chunk_decays = left, l->p.kept.states = states, l->p.kept.values = values,
  l->p.segments.maps = maps, l->p.segments.decays = decays;
}

static void place_tiles(linear_call *l, room *r, bool backward) {
  const bool erases = l->c.info->linear_facts[0].cuts == MANIFEST_CUT_MAPS;
  l->p.kept.tiles =
      take(r, slots_of(l) * (size_t)linear_tiles_layout((int)l->c.info->head_dim, erases, backward).bytes);
}

static void place_kept(linear_call *l, room *r, bool chains, bool numbers) {
  const LinearRowsLayout size = linear_rows_layout((int)l->c.info->head_dim, (int)l->c.info->head_dim_v);
  const size_t slots = slots_of(l), each = rows_of(l) * (size_t)l->p.heads_v * sizeof(float);
  LuattnLinearKept *kept = &l->p.kept;
  LuattnLinearSums *sums = &l->p.sums;
  const uint32_t which = l->c.info->linear_facts[0].numbers;
  if (chains || numbers) {
    if (!is_kept(l)) kept->states = take(r, slots * (size_t)size.state);
    if (!joins_chain(l->c.info)) kept->grad_states = take(r, slots * (size_t)size.state);
  }
  if (has_role(l->c.info, LUATTN_ROLE_LINEAR_TILES)) place_tiles(l, r, true);
  if (chains && l->c.info->linear_facts[0].cuts == MANIFEST_CUT_MAPS) {
    if (!is_kept(l)) kept->values = take(r, slots * (size_t)size.v);
    if (!joins_chain(l->c.info)) kept->grad_values = take(r, slots * (size_t)size.v);
  }
  if (!numbers) return;
  float **const to[] = {&sums->decay, &sums->write, &sums->read};
  for (int i = 0; i < 3; i++)
    if (which >> i & 1) *to[i] = take(r, i == 0 ? each * l->c.info->linear_facts[0].decays : each);
}

static luattn_status place_backward(linear_call *l, room *r) {
  const image_manifest *m = l->c.info;
  const manifest_linear *facts = &m->linear_facts[0];
  const LuattnLinearParams *p = &l->p;
  const int k_dim = (int)m->head_dim, v_dim = (int)m->head_dim_v;
  const bool any = place_sums(l, r), numbers = any && facts->numbers != 0;
  const bool chains = linear_has_chains(m);
  bool wanted[3];
  linear_tensor o[3];
  for (int i = 0; i < 3; i++) {
    wanted[i] = chains || grad_of(l, i) || (any && facts->terms >> i & 1) || (i < 2 && numbers) ||
                (i == 2 && l->args->dinitial_state != NULL);
    o[i] = place_gradient(l, r, i, wanted[i]);
  }
  place_kept(l, r, chains, numbers);
  count_blocks(l, wanted, numbers);
  const linear_tensor q = {p->q, "q", p->heads, k_dim}, k = {p->k, "k", p->heads, k_dim},
                      v = {p->v, "v", p->heads_v, v_dim}, dout = {p->rows.dout, "dout", p->heads_v, v_dim};
  if (chains) {
    l->pass[1] = (linear_pass){true, q, k, v, v, p->first, {0}, 1, 0, 0};
    /* Of decays of channels its o is dv, where updates add. */
    l->pass[2] = (linear_pass){true, q, k, dout, facts->decays > 1 ? o[2] : dout, l->dlast, l->dfirst, 1, 0, 0};
    /* Of additive updates with decays of tokens what segments add is what the pass for dv adds up. */
    if ((joins_chain(m) || linear_adds_heads(m)) && facts->cuts != MANIFEST_CUT_MAPS)
      l->pass[2].query = k, l->pass[2].key = q;
    l->p.dq = o[0].t, l->p.dk = o[1].t, l->p.dv = o[2].t;
  } else {
    l->pass[1] = (linear_pass){wanted[0], dout, v, k, o[0], turned(p->first), {0}, 1, 0, 0};
    l->pass[2] = (linear_pass){wanted[1], v, dout, q, o[1], turned(l->dlast), {0}, 1, 0, 0};
    l->pass[3] = (linear_pass){wanted[2], k, q, dout, o[2], l->dlast, l->dfirst, 1, 0, 0};
  }
  for (int i = 1; i < LINEAR_PASSES; i++)
    if (l->pass[i].wanted) TRY(choose_segments(l, l->pass[i].value.dim > 64 ? 128 : 64, &l->pass[i]));
  if (chains) l->pass[2].map_blocks = 0; /* it takes the maps of the chain before */
  return LUATTN_OK;
}

/* ---- backward token by token ---- */

/* As ReverseRows and ReverseWalk of templates/linear/recurrent/reverse_recurrent.cuh have it. */
static luattn_status place_reverse(linear_call *l, room *r) {
  const image_manifest *m = l->c.info;
  const manifest_linear *of = &m->linear_facts[0];
  LuattnReverse *to = &l->p.reverse;
  const size_t rows = rows_of(l), heads = (size_t)l->p.heads_v, entries = (size_t)l->p.entries,
               number = args_real_size(m);
  const size_t v_dim = m->head_dim_v + of->normalizes, runs = rows / of->run + entries + 1;
  place_sums(l, r);
  to->starts = take(r, runs * heads * v_dim * m->head_dim * number);
  to->states = take(r, entries * heads * of->run * of->numbers_kept * m->entry[0].threads * number);
  to->keys = take(r, rows * heads * of->keys * m->head_dim * number);
  to->written = take(r, rows * heads * v_dim * number);
  if (of->normalizes) to->sums = take(r, rows * heads * number);
  if (of->normalizes) l->p.o = take_numbers(r, l, l->p.heads_v, (int)m->head_dim_v, number);
  to->dlast = l->dlast, to->dfirst = l->dfirst;
  to->parts = 1;
  const int64_t blocks = (int64_t)l->p.entries * l->p.heads;
  while (blocks * to->parts < 8 * (int64_t)l->c.multiprocessors && to->parts * 64 < l->p.tokens) to->parts *= 2;
  return LUATTN_OK;
}

/* ---- forward ---- */

/* Whether one kernel computes all of a forward call whose updates erase: entries are not cut, and T is not kept for backward. */
static bool is_whole(const linear_call *l) {
  return has_role(l->c.info, LUATTN_ROLE_LINEAR_WHOLE) && l->pass[0].segments == 1 && !is_kept(l);
}

/* An image of decays of channels has a kernel for entries that are whole, and a chain of tiles for those that are cut, or, of
 * updates that add, whose states between tokens are wanted. */
bool linear_passes_over(const linear_call *l, uint32_t role) {
  const image_manifest *m = l->c.info;
  if (role == LUATTN_ROLE_LINEAR_TWO) return !has_two_heads(l);
  if (role == LUATTN_ROLE_LINEAR && has_two_heads(l)) return true;
  if (role == LUATTN_ROLE_LINEAR_WHOLE) return !is_whole(l);
  if ((role == LUATTN_ROLE_LINEAR_INVERSES || role == LUATTN_ROLE_LINEAR) && is_whole(l)) return true;
  if (m->pass != LUATTN_FORWARD || !has_role(m, LUATTN_ROLE_LINEAR_CHAIN)) return false;
  const bool by_end = has_role(m, LUATTN_ROLE_LINEAR_END); /* of those, kernels find out which has something to do */
  const bool cut = l->pass[0].segments > 1 || (l->args->intermediate_states != NULL && !by_end);
  if (role == LUATTN_ROLE_LINEAR && by_end) return false;
  return role == LUATTN_ROLE_LINEAR ? cut
                                    : (role == LUATTN_ROLE_LINEAR_CHAIN || role == LUATTN_ROLE_LINEAR_TILES) && !cut;
}

static luattn_status place_forward(linear_call *l, room *r) {
  const LuattnLinearParams *p = &l->p;
  const int k_dim = (int)l->c.info->head_dim, v_dim = (int)l->c.info->head_dim_v;
  l->pass[0] = (linear_pass){.wanted = true,
                             .query = {p->q, "q", p->heads, k_dim},
                             .key = {p->k, "k", p->heads, k_dim},
                             .value = {p->v, "v", p->heads_v, v_dim},
                             .o = {p->o, "o", p->heads_v, v_dim},
                             .first = p->first,
                             .last = p->last};
  TRY(choose_segments(l, (int)l->c.info->linear_facts[0].v_block, &l->pass[0]));
  if (has_role(l->c.info, LUATTN_ROLE_LINEAR_TILES) && !linear_passes_over(l, LUATTN_ROLE_LINEAR_TILES))
    place_tiles(l, r, false);
  return LUATTN_OK;
}

/* Passes run one after another, and share the memory of their segments. */
static void place_segments(linear_call *l, room *r) {
  const size_t state = (size_t)l->c.info->head_dim * l->c.info->head_dim_v;
  int most = 1;
  for (int i = 0; i < LINEAR_PASSES; i++)
    if (l->pass[i].wanted && l->pass[i].segments > most) most = l->pass[i].segments;
  if (most <= 1) return;
  const size_t slots = (size_t)l->p.entries * (size_t)l->p.heads_v * (size_t)most;
  l->p.segments.states = take(r, slots * state * sizeof(float));
  if (!is_kept(l)) l->p.segments.decays = take(r, decays_bytes(l, most));
  if (l->c.info->linear_facts[0].cuts == MANIFEST_CUT_MAPS && !is_kept(l))
    l->p.segments.maps = take(r, maps_bytes(l, most));
}

luattn_status linear_place_passes(linear_call *l, void *base) {
  room r = {base, 0};
  l->p.segments.count = 1;
  place_rows(l, &r);
  TRY(l->c.info->linear_facts[0].run > 0   ? place_reverse(l, &r)
      : l->c.info->pass == LUATTN_BACKWARD ? place_backward(l, &r)
                                           : place_forward(l, &r));
  if (has_role(l->c.info, LUATTN_ROLE_LINEAR_INVERSES) && !is_kept(l) && !is_whole(l)) {
    l->p.inverses = take(&r, slots_of(l) * LINEAR_BOX);
    l->p.chunk_decays = take(&r, slots_of(l) * sizeof(float));
  }
  place_handed_on(l);
  place_segments(l, &r);
  l->workspace = r.used;
  return LUATTN_OK;
}

LuattnLinearParams linear_pass_params(const linear_call *l, int i) {
  const linear_pass *pass = &l->pass[i];
  LuattnLinearParams p = l->p;
  p.q = pass->query.t, p.k = pass->key.t, p.v = pass->value.t, p.o = pass->o.t;
  p.first = pass->first, p.last = pass->last;
  p.segments.count = pass->segments;
  return p;
}
