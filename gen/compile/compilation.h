/* compilation.h: what one compilation works with: the caller's spec and target, and the attempt at hand. */
#ifndef LUATTN_GEN_COMPILATION_H
#define LUATTN_GEN_COMPILATION_H

#include <stdbool.h>

#include "abi/image.h"
#include "gen/lower/lowered.h"
#include "gen/nvrtc/nvrtc.h"
#include "gen/plan/plan.h"
#include "gen/spec.h"

/* One choice of tiles, as far as it has come: planned, lowered, printed. */
typedef struct attempt {
  plan plan;
  const lowered *lowered;         /* for the plan; NULL: not yet */
  const char *spec_text, *config; /* spec.cuh, config.cuh */
  const char *why;                /* one line per fact: the plan's, and what came after it */
  image_manifest info;         /* the manifest, complete but for registers and the hash */
} attempt;

typedef struct compilation {
  arena *a;
  arena *second;        /* of the second run of NVRTC, whose thread the caller's allocator never meets; NULL: none */
  const ir *loaded;     /* the caller's IR, as it was loaded */
  luattn_spec spec;     /* the caller's, with a clone of that to build in */
  luattn_target target; /* of this version's size */
  mask_info mask;
  const template_file *templates;
  int num_templates;
  nvrtc_search search;
  nvrtc_file nvrtc;      /* its last candidate, once compilation_find_nvrtc was called */
  bool nvrtc_is_useless; /* that one could not be loaded, or not used for the target */
  attempt at;
  const char *note; /* lines of this run, which go into no image, or "" */
  image_plan planned; /* once there is an image: how, but for the note */
} compilation;

/* Opens an arena with a compilation in it, clones the IR, analyses the mask. compilation_close in any
 * case. */
luattn_status compilation_open(const luattn_spec *spec, const luattn_target *target, compilation **out,
                               luattn_error *err);
void compilation_close(compilation *c); /* NULL is fine */
/* Fills c->nvrtc, unless something has before. */
luattn_status compilation_find_nvrtc(compilation *c, luattn_error *err);
/* LUATTN_NO_MEMORY if anything was refused on the way: some of it may have been done without, and such a
 * source is not the spec's. */
luattn_status compilation_memory(const compilation *c, luattn_error *err);
/* Adds a line to c->note. NULL: out of memory, as the answer says. */
luattn_status compilation_note(compilation *c, const char *line, luattn_error *err);
/* The reasons of the attempt at hand, and the note. */
const char *compilation_why(const compilation *c);
/* text and a line after it; out of memory: text. */
const char *compilation_add_line(arena *a, const char *text, const char *line);
/* LUATTN_LINEINFO=1: kernels say to a profiler which lines they are from. */
bool compilation_has_line_info(void);
/* "sm_90a"; NULL: out of memory. */
const char *compilation_arch(const compilation *c, arena *a);

#endif
