#include "gen/cpu/append_call.h"

#include <string.h>

#include "common/call/batch.h"
#include "common/fail.h"
#include "common/host.h"
#include "gen/cpu/cpu.h"

typedef struct append_call {
  const luattn_spec *spec;
  const luattn_append_args *args;
  int entries;
  const int32_t *used, *table, *cu; /* of the batch; NULL: not given */
  cpu_problem p;
  cpu_view from[2], to[2];
  double *row;
} append_call;

static const int32_t *numbers_of(const luattn_batch *batch, batch_array_name name) {
  const batch_array *a = &batch->array[name];
  return a->is_given ? (const int32_t *)(const void *)((const char *)a->given.data + a->given.byte_offset) : NULL;
}

static int rows_of(const append_call *c, int entry) {
  return c->cu != NULL ? c->cu[entry + 1] - c->cu[entry] : (int)c->args->new_k->shape[2];
}

/* ---- what hooks read ---- */

typedef struct hook_args {
  luattn_args args;
  luattn_batch batch;
  DLTensor tensor[3], input[12];
  int64_t shape[3][4], input_shape[12][4], input_strides[12][4];
  luattn_input inputs[12];
} hook_args;

static const luattn_input_info *info_of(const traced_spec *t, const char *name) {
  int i = 0;
  while (strcmp(t->input[i].name, name) != 0) i++; /* the arguments have been checked */
  return &t->input[i];
}

/* Cuts an input's axes kv to `most` positions, the most that an entry may have. */
static void cut_input(const traced_spec *t, const luattn_input *given, int64_t most, int i, hook_args *out) {
  const luattn_input_info *in = info_of(t, given->name);
  const DLTensor *of = given->tensor;
  int64_t next = 1;
  out->inputs[i] = (luattn_input){.name = given->name, .tensor = of};
  if (of == NULL || of->ndim != (int)in->num_axes || (of->ndim > 0 && of->shape == NULL)) return; /* no mod reads it */
  for (int a = of->ndim - 1; a >= 0; a--) {
    out->input_strides[i][a] = of->strides != NULL ? of->strides[a] : next;
    if (of->shape[a] < 0 || __builtin_mul_overflow(next, of->shape[a], &next)) return; /* no mod reads it */
    out->input_shape[i][a] = in->axis[a] == LUATTN_AXIS_KV ? most : of->shape[a];
    if (of->shape[a] < out->input_shape[i][a]) return; /* likewise: the runtime has checked those that one reads */
  }
  out->input[i] = *of;
  out->input[i].shape = out->input_shape[i], out->input[i].strides = out->input_strides[i];
  out->inputs[i].tensor = &out->input[i];
}

/* The call whose k and v would be all rows of all entries; their data are not read. */
static void make_args(const append_call *c, int64_t most, hook_args *out) {
  const luattn_append_args *a = c->args;
  const int64_t batch = c->entries, heads = a->k->shape[1], dim = a->k->shape[3], dim_v = a->v->shape[3];
  const int64_t shapes[3][4] = {{batch, heads, 1, dim}, {batch, heads, most, dim}, {batch, heads, most, dim_v}};
  memcpy(out->shape, shapes, sizeof shapes);
  for (int i = 0; i < 3; i++)
    out->tensor[i] = (DLTensor){.device = {kDLCPU, 0}, .ndim = 4, .dtype = a->k->dtype, .shape = out->shape[i]};
  out->batch = *a->batch;
  out->batch.head_offset = out->batch.heads = out->batch.heads_kv = 0; /* new rows have heads of keys alone */
  for (size_t i = 0; i < a->num_inputs; i++) cut_input(&c->spec->traced, &a->inputs[i], most, (int)i, out);
  out->args = (luattn_args){.struct_size = sizeof out->args,
                            .q = &out->tensor[0],
                            .k = &out->tensor[1],
                            .v = &out->tensor[2],
                            .inputs = out->inputs,
                            .num_inputs = a->num_inputs,
                            .scalars = a->scalars,
                            .num_scalars = a->num_scalars,
                            .batch = &out->batch};
}

/* ---- rows ---- */

static luattn_status open_views(append_call *c, luattn_error *err) {
  const DLTensor *const from[] = {c->args->new_k, c->args->new_v}, *const to[] = {c->args->k, c->args->v};
  for (int i = 0; i < 2; i++) {
    const view_rule new_rows = {.name = i == 0 ? "new_k" : "new_v",
                                .axes = "rows",
                                .ndim = from[i]->ndim,
                                .shape = {-1, -1, -1, -1}},
                    cache = {.name = i == 0 ? "k" : "v",
                             .axes = "pages",
                             .ndim = 4,
                             .shape = {-1, -1, -1, -1},
                             .is_output = true};
    TRY(view_open(&new_rows, from[i], &c->from[i], err));
    TRY(view_open(&cache, to[i], &c->to[i], err));
  }
  return LUATTN_OK;
}

static void append_row(append_call *c, int side, int entry, int at) {
  const cpu_view *from = &c->from[side], *to = &c->to[side];
  const cpu_program *mod = side == 0 ? &c->p.key_mod : &c->p.value_mod;
  const int64_t size = to->shape[2], position = c->used[entry] + at, dim = to->shape[3],
                page = c->table != NULL ? c->table[(int64_t)entry * c->args->batch->pages + position / size] : entry;
  for (int h = 0; h < (int)to->shape[1]; h++) {
    for (int64_t d = 0; d < dim; d++)
      c->row[d] = c->cu != NULL ? view_get(from, (int64_t[]){c->cu[entry] + at, h, d, 0})
                                : view_get(from, (int64_t[]){entry, h, at, d});
    if (mod->program != NULL)
      problem_modify_row(&c->p, &c->p.worker[0], mod, (int)dim, true, entry, h, (int)position, c->row);
    for (int64_t d = 0; d < dim; d++) view_set(to, (int64_t[]){page, h, position % size, d}, c->row[d]);
  }
}

static luattn_status append_within(arena *a, append_call *c, luattn_error *err) {
  hook_args *hooks = arena_new(a, sizeof *hooks);
  c->row = arena_array(a, 256, sizeof *c->row);
  if (hooks == NULL || c->row == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  make_args(c, batch_longest_appended(c->args->batch, c->args->k->shape[2], c->args->new_k->shape), hooks);
  TRY(problem_open_rows(c->spec, &hooks->args, a, &c->p, err));
  const luattn_batch *batch = c->args->batch;
  if (batch->heads > 0 && batch->heads_kv > 0) /* the runtime has refused others */
    c->p.kv_head_offset = (int)(batch->head_offset / (batch->heads / batch->heads_kv)),
    c->p.whole_heads_kv = (int)batch->heads_kv;
  TRY(open_views(c, err));
  TRY(problem_start(&c->p, 1, err));
  for (int b = 0; b < c->entries; b++)
    for (int i = 0; i < rows_of(c, b); i++)
      for (int side = 0; side < 2; side++) append_row(c, side, b, i);
  problem_stop(&c->p);
  return LUATTN_OK;
}

static luattn_status append_all(void *of_call, luattn_error *err) {
  append_call *given = of_call;
  arena *a = arena_open(arena_allocator(given->spec->a));
  append_call *c = a != NULL ? arena_new(a, sizeof *c) : NULL;
  if (c == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  }
  const luattn_batch *batch = given->args->batch;
  c->spec = given->spec, c->args = given->args;
  c->entries = (int)batch->array[BATCH_SEQUSED_K].count;
  c->used = numbers_of(batch, BATCH_SEQUSED_K), c->table = numbers_of(batch, BATCH_BLOCK_TABLE),
  c->cu = numbers_of(batch, BATCH_CU_SEQLENS_Q);
  const luattn_status status = append_within(a, c, err);
  arena_close(a);
  return status;
}

luattn_status cpu_append(const luattn_spec *spec, const luattn_append_args *args, luattn_error *err) {
  append_call c = {.spec = spec, .args = args};
  return host_run(append_all, &c, err);
}
