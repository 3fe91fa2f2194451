/* left_out.h: shows that scores of -inf, or of 0, leave their elements out of a row. Internal to gen/lower. */
#ifndef LUATTN_GEN_LEFT_OUT_H
#define LUATTN_GEN_LEFT_OUT_H

#include "gen/lower/lowering.h"

/* Whether such a score has no part in any reduction and no weight, and a step over only such scores changes
 * nothing, whether it is a row's first or a later one, for all finite states, scalars and inputs. false: it
 * is not shown. */
bool left_out_by_score(lowered *f, double score);

#endif
