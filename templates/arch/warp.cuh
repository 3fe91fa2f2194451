// arch/warp.cuh: values that are the same in a whole warp.
#pragma once
#include "arch/types.cuh"

// Broadcasts lane 0's value, so that ptxas knows it to be the same in the whole warp. ptxas serialises wgmmas
// after a branch that might diverge.
LUATTN_FN u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }
