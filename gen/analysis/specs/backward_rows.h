/* backward_rows.h: splits the backward into row-level and per-element parts. Internal to analysis/. */
#ifndef LUATTN_GEN_BACKWARD_ROWS_H
#define LUATTN_GEN_BACKWARD_ROWS_H

#include "gen/base/text.h"
#include "gen/spec.h"

/* Moves row-level subexpressions of out's element expressions into out->row, and decides what forward saves
 * for them. Before the call the expressions use VAR_FINAL (numbered as in traced_online) and VAR_STATE;
 * afterwards as derived_spec says. */
luattn_status backward_rows_place(arena *scratch, const traced_spec *t, derived_spec *out, text *how,
                                  luattn_error *err);

#endif
