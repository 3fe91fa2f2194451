/* kv_splits.h: how many blocks of a backward share the q tiles of a kv tile (LuattnSchedule.num_splits). */
#ifndef LUATTN_RUNTIME_KV_SPLITS_H
#define LUATTN_RUNTIME_KV_SPLITS_H

#include "runtime/parts/part.h"

part_take kv_splits_take; /* takes no room. Errors: LUATTN_INVALID (num_splits asks for what the kernel has not) */

#endif
