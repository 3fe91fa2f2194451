/* search.h: THE LOOP over tiles: plan -> lower -> emit -> ptxas, until a choice suits the spec. */
#ifndef LUATTN_GEN_SEARCH_H
#define LUATTN_GEN_SEARCH_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

typedef struct search {
  /* The request. */
  bool compiles;   /* otherwise ptxas is not run, and c->at is the first choice that it would see */
  const char *dir; /* the directory that keeps a source that NVRTC refuses, */
  hash128 key;     /* and the key that names it */

  /* The result, if `compiles`. */
  attempt best;
  nvrtc_result result, others; /* of the best attempt */
  nvrtc_result last;           /* of the last attempt */
  bool fits;                   /* the best attempt is good */
  double nvrtc_ms;             /* 0: NVRTC did not run */

  /* The state of the loop. */
  nvrtc lib;
  bool is_open;
  double work;          /* estimate for all compiled attempts, in units of the time for `causal` */
  double passed_over;   /* estimate of the first tiles, if they are beyond the limit; else 0 */
  int compiled;         /* attempts that NVRTC compiled */
  int spills;           /* of the last one */
  int least;            /* spills of the best attempt; -1: none so far */
  bool found;           /* a good attempt exists, and the search goes on for a better one */
  bool made;            /* c->at is made, and the loop goes on with it */
  attempt crowded;      /* the first crowded attempt; lowered NULL: none */
  bool takes_crowded;   /* crowded attempts are acceptable: the search for others ends */
  luattn_error refusal; /* why the first attempt could not be made or compiled */
} search;
search *search_new(compilation *c); /* NULL: out of memory */

/* Errors: those of plan_choose, of the first attempt if no other can be made, and of NVRTC. */
luattn_status search_tiles(compilation *c, search *s, luattn_error *err);

#endif
