/* compile.h: one compilation, as the files beside compile.c hand it on. */
#ifndef LUATTN_GEN_COMPILE_H
#define LUATTN_GEN_COMPILE_H

#include <stdbool.h>

#include "abi/image.h"
#include "gen/base/hash.h"
#include "gen/emit/emit.h"
#include "gen/nvrtc/nvrtc.h"
#include "gen/spec.h"

typedef struct compilation {
  arena *a;
  arena *beside; /* of the second run of NVRTC (parts.c), whose thread the caller's allocator never meets */
  const ir *loaded;     /* the caller's IR, as it was loaded */
  luattn_spec spec;     /* the caller's, with a clone of that to build in */
  luattn_target target; /* of this version's size */
  mask_info mask;
  plan plan;
  const lowered *lowered;
  const char *spec_text, *config; /* spec.cuh, config.cuh */
  const template_file *templates;
  int num_templates;
  nvrtc_search search;
  nvrtc_file nvrtc;       /* its last candidate, once compile_find_nvrtc was called */
  bool nvrtc_is_useless;  /* that one could not be loaded, or not used for the target */
  image_manifest info; /* complete but for registers and the hash */
  luattn_tiles other;     /* what the other target.lengths would try first */
  bool every_length;      /* and so does this one */
} compilation;

/* Opens an arena with a compilation in it, clones the IR, analyses the mask. compile_close in any case. */
luattn_status compile_open(const luattn_spec *spec, const luattn_target *target, compilation **out,
                           luattn_error *err);
void compile_close(compilation *c); /* NULL is fine */
/* Fills c->nvrtc, unless something has before. */
luattn_status compile_find_nvrtc(compilation *c, luattn_error *err);
/* LUATTN_NO_MEMORY if anything was refused on the way: some of it may have been done without, and such a
 * source is not the spec's. */
luattn_status compile_memory(const compilation *c, luattn_error *err);

/* An image may have another choice of tiles than the first: takes c's plan to the one that `image` was made
 * with. */
bool compile_match_plan(compilation *c, const luattn_image *image);

/* tuned.c: source_plan, and where tiles are remembered for the target's device, once more with them. */
luattn_status plan_and_emit(compilation *c, luattn_error *err);

/* manifest.c: what of an image does not come from NVRTC. */
luattn_status manifest_fill(const compilation *c, image_manifest *out, luattn_error *err);

/* source.c: the plan, and spec.cuh, config.cuh and the manifest for it: for the first choice of tiles that
 * fits. */
luattn_status source_plan(compilation *c, luattn_error *err);
/* The same for the choice after c->plan; false: there is none. */
bool source_alternative(compilation *c);
/* The same tiles for a backward kernel that reads no lines ahead; false: it reads none. */
bool source_without_lines(compilation *c);
/* The key of all that is compiled, and how. */
luattn_status source_key(const compilation *c, hash128 *key, luattn_error *err);
/* Of what is compiled apart from the plan's numbers: what was measured with another origin says nothing. */
luattn_status source_origin(const compilation *c, hash128 *origin, luattn_error *err);
/* One run of NVRTC over c's source, for all kernels or some (LUATTN_PART of the templates). Results of the
 * others lie in c->beside. */
typedef enum source_part { PART_ALL, PART_MAIN, PART_OTHERS } source_part;
luattn_status source_compile(const compilation *c, const nvrtc *lib, source_part part, nvrtc_watcher *watcher,
                             int want_ptx, nvrtc_result *out, luattn_error *err);
/* Leaves what NVRTC refused in `dir`, and adds the place to the message. */
void source_keep(const compilation *c, const char *dir, hash128 key, luattn_error *err);

/* parts.c: whether an image has its main kernel in one code and the others in a second one. */
bool parts_has_two(const compilation *c);
/* Compiles them side by side. What ptxas says of both is in *main; `others` has a code, or is empty. */
luattn_status parts_compile(const compilation *c, const nvrtc *lib, int want_ptx, nvrtc_result *main,
                            nvrtc_result *others, luattn_error *err);
luattn_status parts_image(const compilation *c, image_manifest *info, const nvrtc_result *main,
                          const nvrtc_result *others, luattn_image **image, luattn_error *err);

#endif
