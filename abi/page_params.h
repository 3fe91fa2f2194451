/* page_params.h: the parameters of the kernel that writes page tables (luattn/pages.h), for host and device. */
#ifndef LUATTN_ABI_PAGE_PARAMS_H
#define LUATTN_ABI_PAGE_PARAMS_H

#include "abi/params.h"

typedef struct LuattnPageLists {
  const int *indptr, *indices, *last_len;
  long long indptr_stride, indices_stride, last_len_stride;
  int *table, *used;     /* [batch, pages]; [batch] */
  LuattnDivisor columns; /* pages, or 1 if there are none: threads of an entry */
  int batch, pages, page_size;
  int total; /* of indices */
} LuattnPageLists;

#endif
