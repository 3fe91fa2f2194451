// around/after/round.cuh: luattn_round: rounds the reproducible sums of gradients of inputs and scalars.
//
// Grid (ceil(most elements / aux_threads), inputs + 1); the last row is for the scalars. aux_threads threads.
#pragma once
#include "around/around.cuh"
#include "contract/needs.cuh"
#include "ops/reproducible_sum.cuh"

// Deterministic backward: rounds exact sums to gradients of inputs and scalars. The gradient already holds a
// sum of infinities and NaN, or 0.
template <class Spec>
LUATTN_FN void round_sums(void *grad, const u64 *exact, i64 count) {
  using Real = typename Spec::Real;
  const i64 at = i64(blockIdx.x) * aux_threads + int(threadIdx.x);
  if (grad != nullptr && exact != nullptr && at < count)
    static_cast<Real *>(grad)[at] += exact_value<Real>(exact + at, count);
}
template <class Spec, class Config>
LUATTN_FN void aux_round(const LuattnParams &p) {
  if constexpr (Config::deterministic && Needs<Spec, Config>::parameters) {
    const bool scalars = blockIdx.y + 1 == gridDim.y;
    const LuattnInput &in = p.inputs.input[scalars ? 0 : blockIdx.y];
    round_sums<Spec>(scalars ? p.inputs.scalar_grad : in.grad, scalars ? p.inputs.scalar_exact : in.exact,
                     scalars ? p.inputs.num_scalars : in.count);
  }
}
