// linear/around/linear_sums.cuh: adds to gradients of scalars, for generated code.
#pragma once
#include "abi/linear_params.h"
#include "ops/reproducible_sum.cuh"

template <class Real>
LUATTN_FN void add_linear_scalar_grad(const LuattnLinearParams &p, int scalar, Real x) {
  const LuattnInputs &in = p.inputs;
  if (in.scalar_grad != nullptr)
    exact_add_called(in.scalar_exact + scalar, in.num_scalars, static_cast<Real *>(in.scalar_grad) + scalar, x);
}
