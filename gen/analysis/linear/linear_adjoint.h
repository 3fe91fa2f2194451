/* linear_adjoint.h: the hooks of linear attention, cut at their sums, and the derivative of each. */
#ifndef LUATTN_GEN_ANALYSIS_LINEAR_LINEAR_ADJOINT_H
#define LUATTN_GEN_ANALYSIS_LINEAR_LINEAR_ADJOINT_H

#include "gen/analysis/linear/channel_sums.h"
#include "gen/analysis/linear/linear_class.h"

typedef enum linear_hook_id {
  LINEAR_QUERY,
  LINEAR_KEY,
  LINEAR_VALUE,
  LINEAR_DECAY,
  LINEAR_WRITE,
  LINEAR_READ,
  LINEAR_ERASE,
  LINEAR_SKIP,
  LINEAR_HOOKS
} linear_hook_id;

typedef struct linear_hook {
  bool given;      /* false: what is below is 0 */
  bool by_channel; /* the value differs between the channels of a row */
  channel_sums sums;
  channel_sums_grad grad;
} linear_hook;

typedef struct linear_hook_row {
  const char *name;      /* as the spec writes it */
  bool of_queries, of_v; /* h counts heads of q; its channels are those of v */
  bool reads_x;          /* VAR_X is an element of q, k, v, or of k behind key_mod */
} linear_hook_row;
extern const linear_hook_row linear_hook_rows[LINEAR_HOOKS];

typedef struct derived_linear {
  linear_hook hook[LINEAR_HOOKS];
  linear_class class;
} derived_linear;

/* Derives a spec of LUATTN_FORM_LINEAR. *out lives in the spec's arena. Errors: LUATTN_SPEC, LUATTN_NO_MEMORY. */
luattn_status derive_linear(const traced_spec *t, const derived_linear **out, luattn_error *err);

#endif
