/* linear_class.h: the class of a linear attention, which its kernels go by, from what its hooks depend on. */
#ifndef LUATTN_GEN_ANALYSIS_LINEAR_LINEAR_CLASS_H
#define LUATTN_GEN_ANALYSIS_LINEAR_LINEAR_CLASS_H

#include "gen/spec.h"

typedef enum linear_number { LINEAR_L0, LINEAR_L1, LINEAR_L2, LINEAR_L3, LINEAR_L4 } linear_number;
typedef enum linear_decay {
  LINEAR_DECAY_NONE,
  LINEAR_DECAY_HEAD,   /* of a value head, and perhaps a batch entry */
  LINEAR_DECAY_TOKEN,  /* one a token */
  LINEAR_DECAY_CHANNEL /* one a token and channel of k */
} linear_decay;

typedef struct linear_class {
  linear_number number; /* L0 nothing is read, L1 with a decay of channels; L2, L3 the same with read; L4 with erase */
  linear_decay decay;
  bool reads, erases, before, normalizes;
  bool writes_channels; /* update.write differs between channels of v */
  bool reads_keys;      /* read is a factor of the token times k */
} linear_class;

struct derived_linear;
linear_class linear_class_of(const traced_spec *t, const struct derived_linear *d);

#endif
