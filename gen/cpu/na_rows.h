/* na_rows.h: neighborhood attention in two steps on the CPU (luattn/natten.h), in double. */
#ifndef LUATTN_GEN_NA_ROWS_H
#define LUATTN_GEN_NA_ROWS_H

#include <stdint.h>

#include "abi/na_params.h"
#include "luattn/tensors.h"

/* Computes rows first .. end - 1 of the result. type: of all tensors; real: of the bias's gradient. */
void na_taps_rows(const LuattnNaParams *p, luattn_dtype type, luattn_dtype real, int64_t first, int64_t end);

#endif
