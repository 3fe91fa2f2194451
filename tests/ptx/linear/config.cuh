// config.cuh: for linear_test.c.
#pragma once
#include "contract/linear.cuh"

struct Config {
  using Elem = ELEM;
  static constexpr int k_dim = K_DIM, v_dim = V_DIM, v_block = V_BLOCK, stages = STAGES;
  static constexpr LinearPass pass = LinearPass(PASS);
  static constexpr bool packed = PACKED, fast_math = true;
};
