/* cmd_warm.c: luattn warm. */
#include "cli/grid.h"
#include "gen/cache/cache.h"

static luattn_status run(const cli_options *o, luattn_error *err) {
  char dir[4096];
  grid g = {.is_warming = true};
  TRY(cache_resolve(o->cache_dir, dir, sizeof dir, err));
  if (dir[0] == 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "warm: there is no cache on disk, as its directory is empty; name one with --cache-dir "
                       "or LUATTN_CACHE_DIR");
  luattn_status status = grid_open(o, &g, err);
  if (status == LUATTN_OK) status = grid_compile(&g, err);
  if (status == LUATTN_OK) printf("%s: %zu kernels, %zu of them new\n", dir, g.num_images, g.num_images - g.from_cache);
  grid_close(&g);
  return status;
}

int cmd_warm(const cli_options *o) {
  luattn_error err;
  return run(o, &err) == LUATTN_OK ? 0 : cli_fail(&err);
}
