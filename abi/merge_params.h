/* merge_params.h: the parameters of the kernels that merge finished parts (luattn/merge.h), for host and device. */
#ifndef LUATTN_ABI_MERGE_PARAMS_H
#define LUATTN_ABI_MERGE_PARAMS_H

#include "abi/params.h"

#define LUATTN_MOST_PARTS 16

/* Numbers of rows: number i of a row is i * plane numbers behind number 0. */
typedef struct LuattnRowNumbers {
  LuattnTensor first;
  long long plane;
} LuattnRowNumbers;

typedef struct LuattnPart {
  LuattnTensor o, lse;
  LuattnTensor d_o, d_lse; /* backward: null: not wanted */
  LuattnRowNumbers state;  /* of a merge by state */
} LuattnPart;

/* Rows are of (batch entry, head, query); packed ones have one batch entry. Rows of o have `dim` contiguous numbers. */
typedef struct LuattnMergeParams {
  LuattnPart part[LUATTN_MOST_PARTS];
  LuattnTensor o, lse;           /* forward: lse may be null */
  LuattnTensor dout, dlse;       /* backward: null: 0 */
  LuattnRowNumbers state, saved; /* of a merge by state: null: not wanted */
  int count;                     /* of parts */
  int rows, dim;                 /* rows: of all heads of all batch entries */
  LuattnDivisor heads, q_len;
  int wide;  /* every row of o, d_o and dout allows accesses of 16 bytes */
  int lanes; /* threads of a row, a power of two up to 32 */
  int unused;
} LuattnMergeParams;

ABI_ASSERT(sizeof(LuattnMergeParams) <= 4096, "a driver before CUDA 12.1 gives a kernel 4096 bytes of parameters");

#endif
