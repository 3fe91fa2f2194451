/* parts.h: the pieces of spec.cuh, in one file each. Internal to gen/emit. */
#ifndef LUATTN_GEN_PARTS_H
#define LUATTN_GEN_PARTS_H

#include "gen/emit/write.h"

void open_function(writer *w, const char *signature);
void close_function(writer *w);
void table_function(writer *w, const char *type, const char *name, const char *const *values, int n,
                    const char *otherwise);

/* gradient.c */
luattn_status collect_acc(writer *w,
                          luattn_error *err); /* which parameter gradients a block sums before it adds them */
void plan_gradient_slots(writer *w);
void add_gradient_hooks(writer *w, const plan_copies *copies);
void emit_gradients(writer *w);
void emit_mods(writer *w);

/* tile.c */
void emit_stat_tables(writer *w);
void emit_tiles(writer *w);
bool emit_bounds_reals(writer *w);   /* whether tile_class or alike bounds a real number */
bool emit_bounds_small(writer *w);   /* or integers of 32 bits alone, all of them with bounds */
bool tiles_may_be_alike(writer *w);  /* contract.cuh: may_be_alike */
bool tiles_index_is_long(writer *w); /* of what add_distance adds to, in instructions; of T5 */

#endif
