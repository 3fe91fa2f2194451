/* parts.h: the pieces of spec.cuh, in one file each. Internal to gen/emit. */
#ifndef LUATTN_GEN_PARTS_H
#define LUATTN_GEN_PARTS_H

#include "gen/emit/write.h"

void open_function(writer *w, const char *signature);
void close_function(writer *w);

/* emit.c: the expressions of the forward's functions but `keep`, and what these have. */
typedef struct forward_part {
  int has;
  const ir_ref *root;
  int n;
} forward_part;
enum { FORWARD_PARTS = 16 };
int emit_forward_parts(const writer *w, forward_part out[FORWARD_PARTS]); /* how many */

/* constants.c */
void emit_constants(writer *w);
void table_function(writer *w, const char *type, const char *name, const char *const *values, int n,
                    const char *otherwise); /* `static constexpr type name(int i)`, given its values */
bool emit_has_distance_term(const writer *w);
bool emit_has_line(const writer *w);
bool emit_reads_columns(const writer *w);
int emit_column_ranges(const writer *w);

/* gradient.c */
luattn_status collect_acc(writer *w,
                          luattn_error *err); /* which parameter gradients a block sums before it adds them */
bool emit_grad_adds_to_memory(const writer *w);
void plan_gradient_slots(writer *w);
void add_gradient_hooks(writer *w, const plan_copies *copies);
void emit_gradients(writer *w);
void emit_mods(writer *w);

/* tile.c */
void emit_stat_tables(writer *w);
void emit_tiles(writer *w);
bool emit_bounds_reals(writer *w);   /* whether tile_class or alike bounds a real number */
bool emit_bounds_small(writer *w);   /* or integers of 32 bits alone, all of them with bounds */
bool tiles_may_be_alike(writer *w);  /* contract/contract.cuh: may_be_alike */

#endif
