/* append_mods.h: luattn_target.keys_modified: takes key_mod and value_mod out of attention, and leaves them to
 * luattn_append. */
#ifndef LUATTN_GEN_APPEND_MODS_H
#define LUATTN_GEN_APPEND_MODS_H

#include "gen/spec.h"

/* Leaves the spec without key_mod and value_mod, in traced_spec.append_mod and append_inputs if rows are appended
 * through them, and says in *keys_modified whether it had either. Head dims have been put in (mod_rows_resolve).
 * Errors: LUATTN_UNSUPPORTED (a mod that reads what a new row has not), LUATTN_NO_MEMORY. */
luattn_status append_mods_take(arena *a, struct luattn_spec *spec, bool appends, int *keys_modified, luattn_error *err);

#endif
