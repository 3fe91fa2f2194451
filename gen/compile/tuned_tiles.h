/* tuned_tiles.h: tiles that were measured on a device and are remembered next to the cache. */
#ifndef LUATTN_GEN_TUNED_TILES_H
#define LUATTN_GEN_TUNED_TILES_H

#include "gen/compile/compilation.h"

/* STALE: made with another luattn, NVRTC or set of templates. */
typedef enum tuned_state { TUNED_NONE, TUNED_SOUND, TUNED_DAMAGED, TUNED_STALE } tuned_state;
typedef struct tuned_record {
  tuned_state state;
  luattn_tiles tiles;
  double gain;             /* times as fast as the plan's own */
  luattn_tiles own, other; /* those; and what the other class of lengths tries first */
  char *path;
} tuned_record;

/* found[lengths]: what there is for c's spec, target and device, once c->at.plan is started. What it was made with
 * is only asked where there is a record. */
luattn_status tuned_find(compilation *c, tuned_record found[2], luattn_error *err);
/* Remembers `r` for c->target.lengths, or forgets what is (NULL). c->at is the plan's own choice, c->nvrtc what they
 * were compiled with. path[size], may be NULL: the file. */
luattn_status tuned_store(compilation *c, const tuned_record *r, char *path, size_t size, luattn_error *err);

#endif
