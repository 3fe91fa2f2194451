/* sections.h: the sections of spec.cuh, in one file each. Internal to gen/emit. */
#ifndef LUATTN_GEN_SECTIONS_H
#define LUATTN_GEN_SECTIONS_H

#include "gen/emit/emit.h"
#include "gen/emit/write.h"

void open_function(writer *w, const char *signature);
void close_function(writer *w);

/* constants.c */
void emit_constants(writer *w);
void table_function(writer *w, const char *type, const char *name, const char *const *values, int n,
                    const char *otherwise); /* `static constexpr type name(int i)`, given its values */

/* slots.c: struct Head, Row and Col: names, and for each kind the struct's function. */
void emit_name_slots(writer *w);
void emit_slots(writer *w, int kind);

/* gradients.c */
void emit_gradients(writer *w);
void emit_mods(writer *w);

/* tile_class.c */
void emit_stat_tables(writer *w);
void emit_tiles(writer *w);

#endif
