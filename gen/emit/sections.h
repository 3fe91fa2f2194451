/* sections.h: the structs of spec.cuh, in one file each. Internal to gen/emit. */
#ifndef LUATTN_GEN_SECTIONS_H
#define LUATTN_GEN_SECTIONS_H

#include "gen/emit/emit.h"
#include "gen/emit/write.h"

/* Parameters of hooks. */
#define P "const LuattnParams &p, const Site &s"
#define PH P ", const Head &head"
#define PHR PH ", const Row &row"
#define BREAK ",\n    "
#define NO_ELEMENT "0"

/* spec_struct.c. Spec has one struct for each concept of templates/contract. A feature that the spec lacks
 * comes from a base in contract/absent.cuh. */
typedef struct absence {
  bool holds;
  const char *type;
} absence;
/* `base`: a base that the struct always has, or NULL. */
void open_struct(writer *w, const char *name, const char *base, const absence *lacks, int n);
void close_struct(writer *w);

typedef struct constant {
  const char *name;
  int value;
  bool absent; /* provided by a base */
} constant;
/* `type`: "bool" or "int". */
void print_constants(writer *w, const char *type, const constant *c, int n);
/* Prints `static constexpr type name(int i)`, given its values. */
void print_table(writer *w, const char *type, const char *name, const char *const *values, int n,
                 const char *otherwise);

void open_function(writer *w, const char *signature);
void close_function(writer *w);
/* Prints a struct with one array of Real, x. */
void return_array(writer *w, const ir_ref *values, int n);
/* Prints a function that returns one expression. */
void expression_function(writer *w, const char *name, const char *signature, int has, const char *state,
                         const char *element, ir_ref r);

/* slots.c: struct Head, Row and Col: prints their types, and the functions that fill them. */
void emit_name_slots(writer *w);
void emit_hoisted(writer *w);

/* Each prints its struct, if the spec needs it, and returns the name of Spec's base. */
const char *emit_mask(writer *w);      /* spec_mask.c */
const char *emit_score(writer *w);     /* spec_score.c */
const char *emit_online(writer *w);    /* spec_online.c */
const char *emit_grad(writer *w);      /* spec_grad.c */
const char *emit_mods(writer *w);      /* spec_grad.c */
const char *emit_dual_mods(writer *w); /* dual_mods.c: in place of emit_mods, where the plan has tangents and mods */
void emit_append_mods(writer *w);      /* spec_grad.c: struct AppendMods, of luattn_append; nothing if it has none */
const char *emit_merge(writer *w);     /* spec_online.c; only where the plan merges */

const char *emit_tangents(writer *w); /* dual_hooks.c; only where the plan has tangents */

/* spec_grad.c: prints statements that add the gradients of `terms`. */
void add_terms(writer *w, const derived_terms *terms);

/* spec_rows.c: prints struct `type`: which channels x[..] of an input mod reads. */
void emit_row_map(writer *w, const char *type, const row_tables *t, int width);

/* spec_mask.c: bounds_lines prints statements that bound the roots over a tile; bounds_of returns the bounds
 * of one root, bounds_of_index those of an index of an input, relative to the call's tensors. */
void bounds_lines(writer *w, const ir_ref *roots, int n);
const char *bounds_of(writer *w, ir_ref r);
const char *bounds_of_index(writer *w, unsigned input, int axis, ir_ref r);

static inline const traced_spec *writer_traced(const writer *w) { return &w->f->spec->traced; }
static inline bool writer_forward(const writer *w) { return w->f->plan->pass == LUATTN_FORWARD; }
/* Whether kernels compute scores and take steps of the online function. */
static inline bool writer_steps(const writer *w) { return writer_forward(w) || w->f->plan->tangents != 0; }

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

#endif
