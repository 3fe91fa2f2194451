// arch/divisor.cuh: divides by a run-time number of which the host has made a LuattnDivisor.
#pragma once
#include "arch/types.cuh"
#include "abi/params.h"

// Returns n / by.d for n below 2^31. A division by a run-time number would take 20 instructions.
LUATTN_FN u32 quotient(u32 n, const LuattnDivisor &by) { return __umulhi(n + n, by.multiplier) >> by.shift; }
