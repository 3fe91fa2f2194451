/* describe_linear.h: the class of a linear attention in words. */
#ifndef LUATTN_GEN_ANALYSIS_LINEAR_DESCRIBE_LINEAR_H
#define LUATTN_GEN_ANALYSIS_LINEAR_DESCRIBE_LINEAR_H

#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/base/text.h"

/* "class L2", then a line for each fact, with its reason. */
void describe_linear(const derived_linear *d, text *out);

#endif
