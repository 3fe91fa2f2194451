// ops/random.cuh: what a spec's hooks draw, the numbers of abi/philox.h.
#pragma once
#include "abi/philox.h"
#include "ops/hook_types.cuh"

// Batch entry, head and positions are those that hooks see. Of a spec that draws, every kernel takes
// LuattnRandomParams.
template <class Real>
LUATTN_FN Real random_number(const LuattnParams &p, int b, int h, int q, int kv) {
  const LuattnRandom &from = static_cast<const LuattnRandomParams &>(p).random;
  const u64 key = from.seed_at != nullptr ? __ldg(from.seed_at) : from.seed;
  const u64 more = from.offset_at != nullptr ? __ldg(from.offset_at) : 0;
  return Real(random_bits(key, dropout_counter(from.offset + more, b, from.heads, h), q, kv)) * Real(0x1p-24);
}
