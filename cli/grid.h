/* grid.h: specs x dtypes x head dims x architectures x passes, compiled on several threads: for luattn pack
 * and luattn warm. */
#ifndef LUATTN_CLI_GRID_H
#define LUATTN_CLI_GRID_H

#include "cli/cli.h"

typedef struct grid_kernel {
  size_t spec; /* index in grid.spec */
  luattn_target target;
  luattn_image *image[2]; /* by luattn_lengths; the second is NULL where the first has the tiles for both */
  char *source[2];        /* the generated CUDA, if asked for */
  int from_cache;         /* how many images were there already */
} grid_kernel;

#define GRID_MAX_CHOICES 16

typedef struct grid {
  const cli_options *options;
  luattn_spec **spec;
  size_t num_specs;
  grid_kernel *kernel; /* in an order that depends on the command line alone */
  size_t num_kernels;
  size_t num_images, from_cache;
  bool is_warming; /* for this machine's cache: tiles that were measured on its GPUs; what cannot be kept is a
                      failure */
  bool has_bar;
  int lengths[2]; /* by luattn_pass: 1 + the luattn_lengths to compile for alone; 0: both */
  char device[GRID_MAX_CHOICES]
             [128]; /* names of this machine's GPUs, where those were asked for their architectures */
} grid;

/* is_warming is set before. Loads the specs of the command line and crosses them with --dtype, --head-dim,
 * --arch or --device, and --pass; for warm --shape and --lengths, too. grid_close in any case. */
luattn_status grid_open(const cli_options *o, grid *g, luattn_error *err);
/* Compiles everything, with a progress bar on a terminal. Errors name the kernel. */
luattn_status grid_compile(grid *g, luattn_error *err);
void grid_close(grid *g);

#endif
