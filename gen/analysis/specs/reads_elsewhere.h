/* reads_elsewhere.h: finds axes of inputs that a spec reads at other places than their own, as an input along kv at
 * q_idx. In a part of a whole, whose inputs are parts too, these may lie outside of it. */
#ifndef LUATTN_GEN_READS_ELSEWHERE_H
#define LUATTN_GEN_READS_ELSEWHERE_H

#include "gen/spec.h"

/* Fills t->elsewhere. false: out of memory. */
bool spec_find_elsewhere(traced_spec *t);

/* Whether hooks compute with the batch entry's number, other than to read an input along its axis b, or read it there at
 * another entry. */
bool spec_reads_batch(const traced_spec *t);

#endif
