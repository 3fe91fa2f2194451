#include "runtime/parts/part.h"

#include "runtime/call/sizes.h"
#include "runtime/device/launch_entry.h"

void prepared_begin(prepared *p, uintptr_t base) {
  p->room = (room){.base = base};
  p->sums = p->sums_size = 0;
  p->makes_bits = p->makes_order = false;
  p->has_table = p->makes_table = false;
  p->has_list = p->makes_list = false;
  p->orders = NULL;
}

luattn_status part_find_grid(const args_call *c, const manifest_entry *entry, part_grid *of, const prepared *p,
                             unsigned grid[3]) {
  int64_t size[3] = {0, p->all.dense.shape.heads, p->all.dense.shape.batch};
  TRY(of(c, entry, p, size));
  TRY(sizes_grid(c, entry, size));
  for (int i = 0; i < 3; ++i) grid[i] = (unsigned)size[i];
  return LUATTN_OK;
}

luattn_status part_launch(const luattn_kernel *kernel, const args_call *c, luattn_role role, part_grid *of,
                          const prepared *p, void *params, cu_stream stream) {
  const manifest_entry *entry = sizes_entry(&kernel->info, role);
  unsigned grid[3];
  if (entry == NULL)
    return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no entry of role %d", kernel->info.spec_name, (int)role);
  TRY(part_find_grid(c, entry, of, p, grid));
  return launch_entry(kernel, (uint32_t)(entry - kernel->info.entry), params, NULL, grid, stream, c->err);
}
