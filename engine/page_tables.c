/* page_tables.c: luattn_page_table: on the CPU, or by a kernel that is compiled on first use. */
#include <stdlib.h>

#include "common/host.h"
#include "engine/engine.h"
#include "gen/compile/merge_code.h"
#include "runtime/parts/page_table.h"

static luattn_status compile(const engine_place *at, merge_kernel **kernel, luattn_error *err) {
  void *cubin;
  size_t size;
  if (at->never_compile)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "luattn_page_table: its kernel is compiled by NVRTC, and the engine's never_compile is set; leave it 0");
  TRY(page_table_code(at->arch, at->driver_version, at->nvrtc, &cubin, &size, err));
  const luattn_status status = merge_kernel_load(at->driver, at->device, cubin, "luattn_page_table", kernel, err);
  free(cubin);
  return status;
}

/* Others wait while it is compiled. */
static luattn_status find_kernel(luattn_engine *engine, const engine_place *at, const merge_kernel **out,
                                 luattn_error *err) {
  luattn_status status = LUATTN_OK;
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges;
  if (m->page_table == NULL) status = compile(at, &m->page_table, err);
  *out = m->page_table;
  engine_unlock_merges(engine);
  return status;
}

luattn_status luattn_page_table(luattn_engine *engine, const luattn_page_lists *lists, const DLTensor *block_table,
                                const DLTensor *seqused_k, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(lists);
  NEED(block_table);
  NEED(seqused_k);
  const engine_place at = engine_get_place(engine);
  const bool on_cpu = at.driver == NULL;
  const merge_kernel *kernel;
  LuattnPageLists p;
  if (on_cpu && stream != NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_page_table: stream: is not NULL, and the CPU has none; give NULL");
  TRY(page_table_fill(lists, block_table, seqused_k, on_cpu ? LUATTN_CPU : at.device, &p, err));
  if (p.batch == 0) return LUATTN_OK;
  if (on_cpu) return page_table_on_host(&p, err);
  TRY(find_kernel(engine, &at, &kernel, err));
  return page_table_launch(kernel, &p, stream, err);
}
