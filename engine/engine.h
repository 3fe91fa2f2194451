/* engine.h: shared by the files of the engine. */
#ifndef LUATTN_ENGINE_ENGINE_H
#define LUATTN_ENGINE_ENGINE_H

#include <stdbool.h>

#include "engine/kernel_key.h"

/* The kernel of a key, loaded or compiled on first use. */
luattn_status engine_kernel(luattn_engine *engine, const kernel_key *key, const luattn_kernel **kernel,
                            luattn_error *err);

/* Where the engine computes. */
typedef struct engine_place {
  luattn_driver *driver; /* NULL: on the CPU */
  int device, arch, driver_version;
  const char *nvrtc; /* as in luattn_target */
  bool never_compile, cpu_relaxed;
  bool names_family, deterministic; /* as in luattn_engine_options; names_family: family is set */
  int multiprocessors, family;
  struct box_memory *boxes;
  const char *cache_dir, *tuned_for; /* as luattn_target.cache_dir and device: of boxes that were tuned */
} engine_place;
engine_place engine_get_place(const luattn_engine *engine);

/* The key of a pass's arguments; of arguments that a launch refuses, perhaps one that says as much. for_append: inputs
 * may be missing where keys are in pages. */
luattn_status engine_key(const engine_place *at, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                         bool for_append, kernel_key *key, luattn_error *err);

/* luattn_target.decode for a call whose q and v have their axes. kernel_choice.c. */
int choice_of_decode(const engine_place *at, luattn_pass pass, const luattn_args *args);
/* Whether the rows of a kv head, queries times its query heads, are more than `most`; true for shapes that a launch
 * refuses. */
bool choice_has_more_rows(const luattn_args *args, int64_t most);
/* Says in a line which kernel a call has and why; an empty text where there is no choice. */
void choice_explain(const engine_place *at, luattn_pass pass, const luattn_args *args, bool takes_decode, char *text,
                    size_t size);

/* What merge_parts.c, page_tables.c and na_calls.c keep with an engine, behind the lock; `close` frees it with the engine. */
typedef struct engine_merges {
  struct merge_kernel
      *kernel[2][3][4][4]; /* by pass, merge_call.size, types of parts and of o; NULL: not compiled yet */
  struct merge_kernel *page_table, *na_taps[4]; /* by the type of tensors */
  struct na_spec *na_specs;                     /* of luattn_na_forward (na_fused.c); `close_na_specs` frees them */
  void (*close_na_specs)(struct na_spec *specs);
  struct state_kernel *by_state; /* a list: of specs of parts */
  struct lse_verdict *by_lse;    /* a list: of specs, by their hash, and whether their parts merge by lse */
  void (*close)(struct engine_merges *merges);
} engine_merges;
engine_merges *engine_lock_merges(luattn_engine *engine);
void engine_unlock_merges(luattn_engine *engine);
void engine_close_merges(engine_merges *merges); /* of merge_parts.c */
/* Whether o and lse of parts of the spec's rows merge, and backward reads nothing beside: luattn_spec_merges, which the
 * engine remembers. Errors: LUATTN_NO_MEMORY. */
luattn_status engine_merges_by_lse(luattn_engine *engine, const luattn_spec *spec, bool *out, luattn_error *err);

/* Reports a launch's failure, or its warning, unless `err` has one of the compilation. */
luattn_status engine_tell(luattn_status status, const luattn_error *said, luattn_error *err);

/* After a launch with LUATTN_CHECK=1: waits for the stream, and warns of integers of inputs beyond what kernels compute
 * with. Does nothing while the stream is captured. check_ints.c. Errors: LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status engine_check_ints(const engine_place *at, const luattn_spec *spec, const luattn_args *args, void *stream,
                                luattn_error *err);

#endif
