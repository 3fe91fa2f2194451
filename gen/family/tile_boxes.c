/* tile_boxes.c: the boxes of a plan's tiles over a grid of several axes. */
#include <string.h>

#include "abi/grid_params.h"
#include "common/fail.h"
#include "gen/base/arena.h"
#include "gen/family/parts.h"

enum { AXES = LUATTN_MAX_AXES, BOX_BITS = 16 };

int family_box_rows(const int box[LUATTN_MAX_AXES]) {
  int64_t rows = 1;
  for (int a = 0; a < AXES && rows <= INT32_MAX; a++) rows *= box[a];
  return rows <= INT32_MAX ? (int)rows : INT32_MAX;
}

void family_unpack_box(uint64_t size, int box[LUATTN_MAX_AXES]) {
  for (int a = AXES; a-- > 0; size >>= BOX_BITS) box[a] = (size & 0xffff) != 0 ? (int)(size & 0xffff) : 1;
}

/* Extents that are powers of two, the larger ones innermost; what is left of the rows lies along the outermost axis. */
static void default_box(const plan *p, int rows, int box[LUATTN_MAX_AXES]) {
  int axis = AXES - 1;
  for (int a = 0; a < AXES; a++) box[a] = 1;
  for (; rows % 2 == 0; rows /= 2) {
    box[axis] *= 2;
    axis = axis > AXES - p->axes ? axis - 1 : AXES - 1;
  }
  box[AXES - p->axes] *= rows;
}

int family_box_pairs(const plan *p, const box_extents **pairs) {
  const family_kernel *kernel = plan_kernel(p);
  *pairs = NULL;
  return p->axes > 0 && kernel->box_pairs != NULL ? kernel->box_pairs(p, pairs) : 0;
}

void family_box(const plan *p, bool keys, int box[LUATTN_MAX_AXES]) {
  const uint64_t asked = keys ? p->key_tile_size : p->query_tile_size;
  const box_extents *pairs;
  const int count = family_box_pairs(p, &pairs), first = p->boxes > 0 ? p->boxes - 1 : 0,
            columns = (plan_kernel(p)->pairs_tiles ? 2 : 1) * p->tile_n; /* tiles_walk_columns */
  if (asked != 0) {
    family_unpack_box(asked, box);
    return;
  }
  for (int i = 0; i < count; i++) {
    const box_extents *pair = &pairs[(first + i) % count];
    if (family_box_rows(pair->q) != p->tile_m || family_box_rows(pair->kv) != columns) continue;
    memcpy(box, keys ? pair->kv : pair->q, sizeof pair->kv);
    return;
  }
  default_box(p, keys ? columns : p->tile_m, box);
}

int family_displacements(const plan *p) {
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES], count = 1;
  const bool forward = p->pass == LUATTN_FORWARD, twice = plan_kernel(p)->keeps_displacements_twice;
  int rows = forward ? INT32_MAX : 16;
  family_box(p, false, q), family_box(p, true, kv);
  int before = twice ? (q[AXES - 1] + kv[AXES - 1] - 1) % 2 : !forward;
  for (int a = AXES; a-- > 0; before = 0) {
    const int keys = kv[a] < rows ? kv[a] : rows;
    count *= q[a] + keys - 1 + before;
    rows /= keys;
  }
  return twice ? (count + 15) / 32 * 32 + 17 + count : count;
}

const char *family_box_text(arena *a, const plan *p, const int box[LUATTN_MAX_AXES]) {
  const char *text = "";
  for (int axis = AXES - p->axes; axis < AXES && text != NULL; axis++)
    text = arena_printf(a, "%s%s%d", text, axis > AXES - p->axes ? " x " : "", box[axis]);
  return text != NULL ? text : "";
}
