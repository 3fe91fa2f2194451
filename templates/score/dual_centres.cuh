// score/dual_centres.cuh: a number of each row that is taken off all tangents of the row's scores, where Spec::centres, and
// given back at the end (contract/tangent.cuh): their mean over the first tile in which the row keeps something. That is
// exact, and P' then holds what differs between keys: keys with a large common mean would else lose it to rounding.
#pragma once
#include "contract/tangent.cuh"
#include "score/online_rows.cuh"

template <class Spec, int Rows, int Cols, int Lanes>
struct DualCentres {
  static constexpr bool any = Spec::centres && Spec::has_score_tangent;
  static constexpr u32 all = ~0u >> (32 - Rows);

  float centre[Rows];
  u32 found;  // a bit for each row: it has its centre

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int r = 0; r < Rows; ++r) centre[r] = 0;
    found = 0;
  }
  // Takes off what rows have, and before that finds what they lack. dot_tangent(r, j): the tangent of a score's dot
  // product, of which xt is `scale` times where score_tangent_as_is. It is then multiplied by a scale that ptxas does not
  // know: so no other use of the product keeps it from becoming one instruction with the subtraction of the centre.
  template <class Dot>
  __device__ __forceinline__ void take_off(float scale, const Dot &dot_tangent, const float (&x)[Rows][Cols],
                                           float (&xt)[Rows][Cols]) {
    if constexpr (any) {
      find(scale, dot_tangent, x, xt);
#pragma unroll
      for (int r = 0; r < Rows; ++r)
#pragma unroll
        for (int j = 0; j < Cols; ++j) xt[r][j] -= centre[r];
    }
  }
  // Gives row r's states back what their tangents lack: centre times themselves.
  template <class State>
  __device__ __forceinline__ void give_back(int r, const State &state, State &tangent) const {
    if constexpr (any)
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i) tangent.x[i] += centre[r] * state.x[i];
  }

 private:
  template <class Dot>
  __device__ __forceinline__ void find(float scale, const Dot &dot_tangent, const float (&x)[Rows][Cols],
                                       const float (&xt)[Rows][Cols]) {
    if (__all_sync(0xffffffffu, found == all)) return;
    asm volatile("" : "+f"(scale));
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      float sum = 0, count = 0;
#pragma unroll
      for (int j = 0; j < Cols; ++j) {
        const bool counts = x[r][j] != -infinity<float>();
        const float of = Spec::score_tangent_as_is ? scale * dot_tangent(r, j) : xt[r][j];
        sum += counts ? of : 0.f, count += counts ? 1.f : 0.f;
      }
      sum = lanes_sum<Lanes>(sum), count = lanes_sum<Lanes>(count);
      const bool takes = (found >> r & 1u) == 0 && count > 0;
      centre[r] =
          takes ? __fdividef(sum, count) : centre[r];  // any number serves, and a call would take uniform registers
      found |= u32(takes) << r;
    }
  }
};
