/* deps.h: tracks what each node depends on, as the IR grows. */
#ifndef LUATTN_GEN_DEPS_H
#define LUATTN_GEN_DEPS_H

#include "gen/ir/ir.h"

/* Kinds of dependence. SITE: constant per (b, h): scalars, lengths, gathers, the scale. */
enum {
  DEP_SITE = 1,
  DEP_Q = 2,       /* query position */
  DEP_KV = 4,      /* key position */
  DEP_ELEMENT = 8, /* dot, score, dO.v */
  DEP_STEP = 16,   /* online state, reductions: one value per row and step */
  DEP_ROW = 32,    /* numbers of a backward row */
  DEP_MOD = 64,    /* element, position, channel and gradient of an input mod; bounds of a tile */
  DEP_PART = 128   /* base or offset of a position; never in a slot: the compiler optimises better where it is
                    * used */
};

typedef struct deps {
  const ir *g;
  arena *a;
  uint8_t *mask;
  uint32_t count, capacity;
} deps;
void deps_open(deps *d, arena *a, const ir *g);
int deps_of(deps *d, ir_ref r); /* includes nodes built after deps_open; 0 for IR_NONE */

/* Whether the value differs between the elements of a tile, not only between rows, columns or heads. */
static inline bool deps_element(int mask) {
  const int row = DEP_Q | DEP_STEP | DEP_ROW;
  return (mask & (DEP_ELEMENT | DEP_MOD | DEP_PART)) != 0 || ((mask & DEP_KV) != 0 && (mask & row) != 0);
}

#endif
