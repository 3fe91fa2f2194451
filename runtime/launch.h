/* launch.h: from checked parameters to workspace, grids and launches. */
#ifndef LUATTN_RUNTIME_LAUNCH_H
#define LUATTN_RUNTIME_LAUNCH_H

#include "runtime/args.h"
#include "runtime/driver.h"
#include "runtime/maps.h"
#include "runtime/tickets.h"

/* The kernel itself never changes; what launches learn stands beside it. */
struct luattn_kernel {
  luattn_driver *driver;
  int device;
  int multiprocessors;
  cu_context context;
  cu_pointer zero;       /* 8 bytes of value 0, if there are inputs; see args_call */
  ticket_table *tickets; /* if the image draws tiles */
  map_memory *maps;      /* of the sm90 family */
  cu_module module[2]; /* of the main kernel, or all; of the others, where they have a code of their own */
  cu_function function[MANIFEST_MAX_ENTRIES];
  image_manifest info;
  luattn_function_info functions[MANIFEST_MAX_ENTRIES]; /* as luattn_kernel_describe shows them */
};

#endif
