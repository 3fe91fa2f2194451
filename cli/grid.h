/* grid.h: specs x dtypes x head dims x architectures x passes, compiled on several threads: for luattn pack
 * and luattn warm. */
#ifndef LUATTN_CLI_GRID_H
#define LUATTN_CLI_GRID_H

#include "cli/cli.h"

typedef struct grid_kernel {
  size_t spec; /* index in grid.spec */
  luattn_target target;
  luattn_image *image;
  bool is_cached; /* it was in the cache already */
  char *source;   /* the generated CUDA, if asked for */
} grid_kernel;

typedef struct grid {
  const cli_options *options;
  luattn_spec **spec;
  size_t num_specs;
  grid_kernel *kernel; /* in an order that depends on the command line alone */
  size_t num_kernels;
  size_t from_cache;
  bool must_keep; /* a kernel that cannot be kept in the disk cache is a failure */
  bool has_bar;
} grid;

/* Loads the specs of the command line and crosses them with --dtype, --head-dim, --arch and --pass.
 * grid_close in any case. */
luattn_status grid_open(const cli_options *o, grid *g, luattn_error *err);
/* Compiles everything, with a progress bar on a terminal. Errors name the kernel. */
luattn_status grid_compile(grid *g, luattn_error *err);
void grid_close(grid *g);

#endif
