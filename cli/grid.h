/* grid.h: compiles specs x dtypes x head dims x architectures x passes on several threads, for luattn pack
 * and luattn warm. */
#ifndef LUATTN_CLI_GRID_H
#define LUATTN_CLI_GRID_H

#include "cli/cli.h"

typedef struct grid_kernel {
  size_t spec; /* index in grid.spec */
  luattn_target target;
  luattn_image *image[2]; /* by luattn_lengths; the second is NULL if the first serves both */
  char *source[2];        /* the generated CUDA, if asked for */
  int many_rows;          /* images of luattn_target.many_rows, which only the cache keeps */
  int from_cache;         /* how many of the images were in the cache */
  char *why_not;          /* of --decode, --packed and --pages: there is no such kernel of this spec; or NULL */
} grid_kernel;

#define GRID_MAX_CHOICES 16

typedef struct grid {
  const cli_options *options;
  luattn_spec **spec;
  size_t num_specs;
  grid_kernel *kernel; /* in an order that depends on the command line alone */
  size_t num_kernels;
  size_t num_images, from_cache;
  bool is_warming; /* for this machine's cache: uses tiles measured on its GPUs, and fails if an image cannot
                    * be kept */
  bool has_bar;
  int lengths[KERNEL_PASSES];         /* by luattn_pass: 1 + the only luattn_lengths to compile for; 0: both */
  char device[GRID_MAX_CHOICES][128]; /* names of the local GPUs, if their architectures were asked for */
} grid;

/* Set is_warming before. Loads the specs of the command line and crosses them with --dtype, --head-dim,
 * --arch or --device, and --pass; for warm also with --shape and --lengths. Call grid_close in any case. */
luattn_status grid_open(const cli_options *o, grid *g, luattn_error *err);
/* Compiles everything, with a progress bar on a terminal. Errors name the kernel. */
luattn_status grid_compile(grid *g, luattn_error *err);
void grid_close(grid *g);

#endif
