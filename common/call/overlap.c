/* overlap.c: compares the byte ranges of tensors. */
#include "common/call/overlap.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/call/batch.h"

static uint64_t magnitude(int64_t x) { return x < 0 ? -(uint64_t)x : (uint64_t)x; }

bool overlap_nests(const DLTensor *t) {
  uint64_t stride[OVERLAP_MOST_AXES], extent[OVERLAP_MOST_AXES]; /* sorted by stride */
  int n = 0;
  if (t->strides == NULL) return true;
  for (int i = 0; i < t->ndim; i++) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] == 1) continue;
    const uint64_t step = magnitude(t->strides[i]);
    int at = n++;
    for (; at > 0 && stride[at - 1] > step; at--) stride[at] = stride[at - 1], extent[at] = extent[at - 1];
    stride[at] = step, extent[at] = (uint64_t)t->shape[i];
  }
  uint64_t reach = 0; /* distance from the first to the last element of the axes so far */
  for (int i = 0; i < n; i++) {
    if (stride[i] <= reach) return false;
    reach += stride[i] * (extent[i] - 1);
  }
  return true;
}

static void list_text(const int64_t *list, int n, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int i = 0; i < n && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", list[i]);
  if (used < size) snprintf(text + used, size - used, "]");
}

void overlap_reach_text(const DLTensor *t, char *text, size_t size) {
  char shape[128], strides[128] = "contiguous";
  list_text(t->shape, t->ndim, shape, sizeof shape);
  if (t->strides != NULL) list_text(t->strides, t->ndim, strides, sizeof strides);
  snprintf(text, size,
           "has shape %s, strides %s and byte_offset %" PRIu64
           ", which reach beyond what 64 bits can address; give those of its memory",
           shape, strides, t->byte_offset);
}

/* Spans [low, high); `first` is its first element. */
typedef struct region {
  const char *kind, *name; /* "grad of input '", "slopes" */
  const DLTensor *t;       /* NULL: without gaps: the workspace, arrays of a batch */
  uintptr_t first, low, high;
  bool is_output;
} region;

/* Of addressable memory. */
static bool span(const DLTensor *t, region *r) {
  if (t == NULL || t->data == NULL || t->ndim < 0 || t->ndim > OVERLAP_MOST_AXES) return false;
  if (t->shape == NULL && t->ndim > 0) return false;
  const uintptr_t size = t->dtype.bits / 8u;
  uintptr_t next = 1;
  r->t = t;
  r->first = r->low = r->high = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] == 0) return false;
    const int64_t stride = t->strides != NULL ? t->strides[i] : (int64_t)next;
    const uintptr_t reach = (uintptr_t)(t->shape[i] - 1) * (uintptr_t)stride * size;
    next *= (uintptr_t)t->shape[i];
    if (stride < 0)
      r->low += reach;
    else
      r->high += reach;
  }
  r->high += size;
  return true;
}

/* The common case: neither is written, or they lie apart. */
static inline bool is_fine(const region *a, const region *b) {
  return !(a->is_output || b->is_output) || a->low >= b->high || b->low >= a->high;
}

/* ---- whether two regions share a byte ---- */

/* A byte of b minus one of a lies `distance` and a multiple of each stride apart, least .. most times. Strides fall. */
typedef struct difference {
  int64_t stride[2 * OVERLAP_MOST_AXES], least[2 * OVERLAP_MOST_AXES], most[2 * OVERLAP_MOST_AXES];
  int64_t low[2 * OVERLAP_MOST_AXES + 1], high[2 * OVERLAP_MOST_AXES + 1]; /* what axes from this one on reach */
  int64_t size[2];                                                         /* of elements of a and b */
  int n, steps;
} difference;

enum { MOST_STEPS = 1000 }; /* layouts of libraries take some tens */

static void add_axis(difference *d, int64_t stride, int64_t times, bool of_b) {
  int at = 0;
  while (at < d->n && d->stride[at] > stride) at++;
  if (at == d->n || d->stride[at] != stride) {
    for (int i = d->n++; i > at; i--)
      d->stride[i] = d->stride[i - 1], d->least[i] = d->least[i - 1], d->most[i] = d->most[i - 1];
    d->stride[at] = stride, d->least[at] = d->most[at] = 0;
  }
  if (of_b)
    d->most[at] += times;
  else
    d->least[at] -= times;
}

static void add_axes(difference *d, const region *r, bool of_b) {
  const DLTensor *t = r->t;
  d->size[of_b] = t != NULL ? t->dtype.bits / 8 : (int64_t)(r->high - r->low);
  int64_t next = d->size[of_b];
  for (int i = t != NULL ? t->ndim - 1 : -1; i >= 0; next *= t->shape[i--]) {
    const int64_t stride = t->strides != NULL ? (int64_t)magnitude(t->strides[i]) * d->size[of_b] : next;
    if (t->shape[i] > 1 && stride != 0) add_axis(d, stride, t->shape[i] - 1, of_b);
  }
}

static int64_t floor_of(int64_t x, int64_t y) { return x / y - (x % y < 0); }

/* Whether elements meet that lie `at` apart before the axes from `axis` on. */
static bool find_shared(difference *d, int axis, int64_t at) {
  if (at + d->low[axis] >= d->size[0] || at + d->high[axis] <= -d->size[1]) return false;
  if (axis == d->n) return true;
  if (++d->steps > MOST_STEPS) return false;
  const int64_t stride = d->stride[axis];
  int64_t first = -floor_of(at + d->high[axis + 1] + d->size[1] - 1, stride),
          last = floor_of(d->size[0] - 1 - d->low[axis + 1] - at, stride);
  if (first < d->least[axis]) first = d->least[axis];
  if (last > d->most[axis]) last = d->most[axis];
  for (int64_t i = first; i <= last && d->steps <= MOST_STEPS; i++)
    if (find_shared(d, axis + 1, at + i * stride)) return true;
  return false;
}

/* Of layouts that take too many steps, only a first element that both have is known. */
static bool meet(const region *a, const region *b) {
  if (a->first == b->first) return true;
  if ((a->high - a->low) >> 60 != 0 || (b->high - b->low) >> 60 != 0) return false;
  difference d = {.n = 0};
  add_axes(&d, a, false);
  add_axes(&d, b, true);
  for (int i = d.n - 1; i >= 0; i--) {
    d.low[i] = d.low[i + 1] + d.least[i] * d.stride[i];
    d.high[i] = d.high[i + 1] + d.most[i] * d.stride[i];
  }
  return find_shared(&d, 0, (int64_t)(b->low - a->low));
}

enum { UNUSED, READ, WRITTEN };

/* The tensors of a call, and whether forward and backward write them. */
static const struct {
  const char *name;
  size_t at;
  unsigned char use[2];
} members[] = {
    {"q", offsetof(luattn_args, q), {READ, READ}},
    {"k", offsetof(luattn_args, k), {READ, READ}},
    {"v", offsetof(luattn_args, v), {READ, READ}},
    {"o", offsetof(luattn_args, o), {WRITTEN, READ}},
    {"lse", offsetof(luattn_args, lse), {WRITTEN, READ}},
    {"saved", offsetof(luattn_args, saved), {WRITTEN, READ}},
    {"dout", offsetof(luattn_args, dout), {UNUSED, READ}},
    {"dlse", offsetof(luattn_args, dlse), {UNUSED, READ}},
    {"dq", offsetof(luattn_args, dq), {UNUSED, WRITTEN}},
    {"dk", offsetof(luattn_args, dk), {UNUSED, WRITTEN}},
    {"dv", offsetof(luattn_args, dv), {UNUSED, WRITTEN}},
    {"scalar_grads", offsetof(luattn_args, scalar_grads), {UNUSED, WRITTEN}},
};

enum {
  NUM_MEMBERS = sizeof members / sizeof *members,
  MAX_REGIONS = NUM_MEMBERS + 2 * BATCH_ARRAYS + BATCH_MAX_MASKS + 1 + 2 * 12
};

/* The arrays of a batch, their copies in device memory, and its tile bits. */
static int find_batch_arrays(const luattn_batch *batch, region *out) {
  int n = 0;
  for (int i = 0; i < BATCH_ARRAYS && batch != NULL; i++) {
    const batch_array *array = &batch->array[i];
    const uintptr_t size = (uintptr_t)array->count * sizeof(int32_t), prepared = (uintptr_t)array->prepared;
    const uintptr_t given = (uintptr_t)array->given.data + (uintptr_t)array->given.byte_offset;
    if (!array->is_given || size == 0) continue;
    out[n++] = (region){"", array->name, NULL, given, given, given + size, false};
    if (prepared != 0) out[n++] = (region){"", array->name, NULL, prepared, prepared, prepared + size, false};
  }
  for (int i = 0; batch != NULL && i < batch->num_masks; i++) {
    const uintptr_t at = (uintptr_t)batch->mask[i].memory;
    out[n++] = (region){"", "tile bits", NULL, at, at, at + batch->mask[i].size, false};
  }
  return n;
}

static int find_regions(const luattn_args *args, bool is_forward, region out[MAX_REGIONS]) {
  int n = 0;
  for (int i = 0; i < NUM_MEMBERS; i++) {
    const int use = members[i].use[is_forward ? 0 : 1];
    const DLTensor *t;
    memcpy(&t, (const char *)args + members[i].at, sizeof t);
    if (use == UNUSED || !span(t, &out[n])) continue;
    out[n].kind = "", out[n].name = members[i].name, out[n++].is_output = use == WRITTEN;
  }
  n += find_batch_arrays(args->batch, out + n);
  for (size_t i = 0; i < args->num_inputs && n + 3 <= MAX_REGIONS; i++) {
    const luattn_input *in = &args->inputs[i];
    if (span(in->tensor, &out[n])) out[n].kind = "input '", out[n].name = in->name, out[n++].is_output = false;
    if (!is_forward && span(in->grad, &out[n]))
      out[n].kind = "grad of input '", out[n].name = in->name, out[n++].is_output = true;
  }
  if (args->workspace != NULL && args->workspace_size > 0) {
    const uintptr_t at = (uintptr_t)args->workspace;
    out[n++] = (region){"", "workspace", NULL, at, at, at + args->workspace_size, true};
  }
  return n;
}

static void describe(const region *r, char *text, size_t size) {
  snprintf(text, size, "%s%.64s%s", r->kind, r->name, r->kind[0] != 0 ? "'" : "");
}

static bool share_memory(const region *a, const region *b, overlap_pair *found) {
  if (is_fine(a, b) || !meet(a, b)) return false;
  const region *output = a->is_output ? a : b, *other = a->is_output ? b : a;
  describe(output, found->output, sizeof found->output);
  describe(other, found->other, sizeof found->other);
  *found->low = output->low, *found->high = output->high;
  found->low[1] = other->low, found->high[1] = other->high;
  return true;
}

bool overlap_find(const luattn_args *args, bool is_forward, overlap_pair *found) {
  region r[MAX_REGIONS];
  const int n = find_regions(args, is_forward, r);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++)
      if (!is_fine(&r[i], &r[j]) && share_memory(&r[i], &r[j], found)) return true;
  return false;
}

bool overlap_find_among(const overlap_item *items, int n, overlap_pair *found) {
  for (int i = 0; i < n; i++) {
    region a = {"", items[i].name, NULL, 0, 0, 0, items[i].is_output}, b;
    if (!span(items[i].t, &a)) continue;
    for (int j = 0; j < i; j++) {
      b = (region){"", items[j].name, NULL, 0, 0, 0, items[j].is_output};
      if (span(items[j].t, &b) && share_memory(&a, &b, found)) return true;
    }
  }
  return false;
}

void overlap_text(const overlap_pair *pair, char *text, size_t size) {
  snprintf(text, size,
           "%s: its memory, 0x%" PRIxPTR " to 0x%" PRIxPTR ", is shared with %s, 0x%" PRIxPTR " to 0x%" PRIxPTR
           "; give what is written memory of its own",
           pair->output, pair->low[0], pair->high[0], pair->other, pair->low[1], pair->high[1]);
}
