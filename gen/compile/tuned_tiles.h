/* tuned_tiles.h: tiles that were measured on a device and are remembered beside the cache. */
#ifndef LUATTN_GEN_TUNED_TILES_H
#define LUATTN_GEN_TUNED_TILES_H

#include "gen/compile/compilation.h"

/* STALE: made with another luattn, NVRTC or set of templates. */
typedef enum tuned_state { TUNED_NONE, TUNED_SOUND, TUNED_DAMAGED, TUNED_STALE } tuned_state;
typedef struct tuned_record {
  tuned_state state;
  luattn_tiles tiles;
  double gain;
  char *path;
} tuned_record;

/* found[lengths]: what there is for c's spec, target and device, once c->at is planned. What it was made
 * with is only asked where there is a record. */
luattn_status tuned_find(compilation *c, tuned_record found[2], luattn_error *err);
/* Remembers tiles for c->target.lengths, or forgets them (NULL). c->at is the plan's own choice, c->nvrtc
 * what they were compiled with. path[size], may be NULL: the file. */
luattn_status tuned_store(compilation *c, const luattn_tiles *tiles, double gain, char *path, size_t size,
                          luattn_error *err);

#endif
