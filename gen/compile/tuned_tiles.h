/* tuned_tiles.h: reads and writes tiles that were measured on a device, remembered next to the cache. */
#ifndef LUATTN_GEN_TUNED_TILES_H
#define LUATTN_GEN_TUNED_TILES_H

#include "gen/compile/compilation.h"
#include "gen/compile/tuned_record.h"

typedef struct tuned_record {
  tuned_state state;
  luattn_tiles tiles;
  double gain;             /* speedup over the plan's own */
  luattn_tiles own, other; /* the plan's own; and those that the other class of lengths tries first */
  char *path;
} tuned_record;

/* found[lengths]: the records for c's spec, target and device, once c->at.plan is started. The origin is
 * checked only if there is a record. */
luattn_status tuned_find(compilation *c, tuned_record found[2], luattn_error *err);
/* Remembers `r` for c->target.lengths, or forgets the record (NULL). c->at is the plan's own choice, c->nvrtc
 * the NVRTC that compiled the tiles. path[size], may be NULL: the file. */
luattn_status tuned_store(compilation *c, const tuned_record *r, char *path, size_t size, luattn_error *err);

#endif
