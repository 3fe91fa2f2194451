/* modified_copies.h: q, k and v as query_mod, key_mod and value_mod make them (luattn_mod). */
#ifndef LUATTN_RUNTIME_MODIFIED_COPIES_H
#define LUATTN_RUNTIME_MODIFIED_COPIES_H

#include "runtime/parts/part.h"

part_take modified_take;
part_grid modified_grid;

#endif
