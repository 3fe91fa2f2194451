/* search.h: THE LOOP over tiles: plan -> lower -> emit -> ptxas, until a choice suits the spec. */
#ifndef LUATTN_GEN_SEARCH_H
#define LUATTN_GEN_SEARCH_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

typedef struct search {
  /* What is asked for. */
  bool compiles;   /* else ptxas is not asked, and c->at is the first choice that it would be */
  const char *dir; /* where a source is kept that NVRTC refuses, */
  hash128 key;     /* and under which name */

  /* What came of it, with `compiles`. */
  attempt best;
  nvrtc_result result, others; /* of the best one */
  nvrtc_result last;           /* of the last one */
  bool fits;                   /* the best one is good */
  double nvrtc_ms;             /* 0: it was not asked */

  /* On the way. */
  nvrtc lib;
  bool is_open;
  int least;            /* spills of the best one; -1: there is none */
  bool found;           /* it is good, and a better one is looked for */
  bool made;            /* c->at is, and the loop goes on with it */
  attempt crowded;      /* the first one that is; lowered NULL: none */
  bool takes_crowded;   /* or there is no more need to look for others */
  luattn_error refusal; /* why the first attempt could not be made */
} search;
search *search_new(compilation *c); /* NULL: out of memory */

/* Errors: those of plan_choose, of the first attempt where no other can be made, and of NVRTC. */
luattn_status search_tiles(compilation *c, search *s, luattn_error *err);

#endif
