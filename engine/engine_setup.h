/* engine_setup.h: what an engine was opened with: its device, where kernels come from, and what holds for all of
 * them. */
#ifndef LUATTN_ENGINE_SETUP_H
#define LUATTN_ENGINE_SETUP_H

#include <stdbool.h>

#include "luattn/engine.h"

typedef struct engine_setup {
  luattn_driver *driver; /* NULL: on the CPU */
  bool cpu_relaxed;
  int device, arch, driver_version, multiprocessors;
  char device_name[sizeof((luattn_device_info *)NULL)->name];
  int family; /* 0: the plan chooses; else 1 + luattn_family */
  bool no_tuned;
  int lengths;             /* 0: by the lengths of each call; else 1 + luattn_lengths */
  char *cache_dir, *nvrtc; /* NULL: as in luattn_target */
  const luattn_pack **packs;
  size_t num_packs;
  bool never_compile, deterministic;
  luattn_log *log; /* may be NULL */
  void *log_user;
} engine_setup;

/* Fills *e, which is all zeros. Call engine_setup_close in any case. Errors: those of luattn_engine_open. */
luattn_status engine_setup_open(engine_setup *e, const luattn_engine_options *given, luattn_error *err);
void engine_setup_close(engine_setup *e);

#endif
