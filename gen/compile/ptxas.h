/* ptxas.h: judges what ptxas made of an attempt. */
#ifndef LUATTN_GEN_PTXAS_H
#define LUATTN_GEN_PTXAS_H

#include "gen/compile/compilation.h"

/* CROWDED: good, and perhaps better without bias rows that are read ahead. */
typedef enum ptxas_verdict { PTXAS_FITS, PTXAS_CROWDED, PTXAS_SPILLS } ptxas_verdict;
/* *spills: to compare attempts by; INT_MAX without a cubin. */
ptxas_verdict ptxas_judge(const compilation *c, const nvrtc_result *r, int *spills);

/* c->at.why, and what ptxas could not keep in registers, by entry: a plan that spills after all says so. */
const char *ptxas_explain(const compilation *c, const nvrtc_result *r);
/* Tiles that are picked were measured or are about to be: what ptxas could not do well does not take part. */
luattn_status ptxas_refuse_picked(const compilation *c, const nvrtc_result *r, luattn_error *err);
/* After the last choice of tiles. */
luattn_status ptxas_refuse_all(const compilation *c, const nvrtc_result *r, luattn_error *err);

#endif
