/* ptxas.h: judges an attempt by ptxas's results. */
#ifndef LUATTN_GEN_PTXAS_H
#define LUATTN_GEN_PTXAS_H

#include "gen/compile/compilation.h"

/* CROWDED: good, but perhaps better without staged bias rows. */
enum { PTXAS_UNUSABLE = 1 << 20 }; /* spills from here on mean: no code, or remarks of ptxas */
typedef enum ptxas_verdict { PTXAS_FITS, PTXAS_CROWDED, PTXAS_SPILLS } ptxas_verdict;
/* *spills: a measure to compare attempts by; INT_MAX without a cubin. */
ptxas_verdict ptxas_judge(const compilation *c, const nvrtc_result *r, int *spills);

/* Adds to c->at.why, by entry, what ptxas could not keep in registers, for plans that spill after all. */
const char *ptxas_explain(const compilation *c, const nvrtc_result *r);
/* Requested tiles were measured or are about to be: refuses those that ptxas handles badly. */
luattn_status ptxas_refuse_picked(const compilation *c, const nvrtc_result *r, luattn_error *err);
/* Decides after the last choice of tiles. */
luattn_status ptxas_refuse_all(const compilation *c, const nvrtc_result *r, luattn_error *err);

#endif
