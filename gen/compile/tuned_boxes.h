/* tuned_boxes.h: reads and writes pairs of boxes over a grid that were measured on a device, remembered next to the cache.
 * A record is of the extents of a call and of its heads besides what tuned_tiles.h says of records of tiles.
 *
 *   boxes <query_tile_size> <key_tile_size>            as in luattn_target, in hexadecimal digits
 *   gain <times as fast as the plan's choice>
 *   own <that choice>
 *   for <spec> on <device> ..                          for people */
#ifndef LUATTN_GEN_TUNED_BOXES_H
#define LUATTN_GEN_TUNED_BOXES_H

#include "gen/compile/box_call.h"
#include "gen/compile/compilation.h"

/* The record for c's spec, target and device, once c->at.plan is started of a target without boxes. */
luattn_status tuned_boxes_find(compilation *c, const box_call *of, tuned_boxes *found, luattn_error *err);
/* Remembers `r`, or forgets the record (NULL). c->at.plan is started likewise, c->nvrtc is what compiled the boxes.
 * path[size], may be NULL: the file. */
luattn_status tuned_boxes_store(compilation *c, const box_call *of, const tuned_boxes *r, char *path, size_t size,
                                luattn_error *err);

#endif
