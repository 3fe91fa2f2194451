/* linear_kernels.h: for tests of kernels of templates/linear, compiled for a Spec by hand (hand_kernels.h). */
#ifndef LUATTN_TESTS_LINEAR_KERNELS_H
#define LUATTN_TESTS_LINEAR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "abi/linear_params.h"

/* What a launch computes (LinearPass of contract/linear.cuh). */
typedef enum linear_pass {
  LINEAR_FORWARD,
  LINEAR_GRAD_Q,
  LINEAR_GRAD_K,
  LINEAR_GRAD_V,
  LINEAR_STATES,
  LINEAR_GRAD_STATES,
  LINEAR_ROWS
} linear_pass;

/* What tests/ptx/linear/spec.cuh is made of, and Config, of forward. */
typedef struct linear_kernel {
  const char *elem, *decay, *update, *mods, *skip;
  int k_dim, v_dim, v_block, stages;
  bool packed;
} linear_kernel;

/* The image of the kernels of `entry`, of templates/. */
void *linear_load(const linear_kernel *k, linear_pass pass, const char *entry);
void linear_launch(void *module, const char *name, int blocks, int threads, int shared, LuattnLinearParams *p,
                   void *maps);

/* A descriptor of boxes of 64 channels by 64 rows of t: [entries, heads, tokens, dim], or packed rows. */
LuattnTensorMap linear_map(const LuattnTensor *t, bool bf16, bool packed, int dim, int tokens, int heads, int entries);

#endif
