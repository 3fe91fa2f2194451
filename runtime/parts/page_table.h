/* page_table.h: page tables from lists of pages (luattn/pages.h): checks of arguments, the host's way, and checks of a
 * device's lists. */
#ifndef LUATTN_RUNTIME_PAGE_TABLE_H
#define LUATTN_RUNTIME_PAGE_TABLE_H

#include "abi/page_params.h"
#include "luattn/pages.h"
#include "runtime/parts/merge_kernel.h"

/* Checks the arguments for `device`, or LUATTN_CPU, and fills *out. */
luattn_status page_table_fill(const luattn_page_lists *lists, const DLTensor *table, const DLTensor *used, int device,
                              LuattnPageLists *out, luattn_error *err);

/* Writes the table on the host. Errors: LUATTN_INVALID (values). */
luattn_status page_table_on_host(const LuattnPageLists *p, luattn_error *err);

/* Launches the kernel. With LUATTN_CHECK=1, if the stream is not captured, waits and checks the lists before. */
luattn_status page_table_launch(const merge_kernel *kernel, const LuattnPageLists *p, void *stream, luattn_error *err);

#endif
