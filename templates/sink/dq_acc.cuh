// sink/dq_acc.cuh: the layouts of dq_acc, dk_acc and dv_acc, which follow the fragments of a family's main
// kernel.
#pragma once
#include "abi/workspace.h"
#include "arch/mma_registers.cuh"
#include "arch/tensor.cuh"

// The layout of C fragments of mma.m16n8k16 (the sm80 family).
//
// The accumulator of a head is q_len x Dim floats. Every 8 rows, and the remaining rows at the end, are an
// octet of contiguous floats. An octet consists of groups of its rows x 16 columns. A group is what one warp
// holds of two adjacent C fragments, 4 floats a lane, so that an atomic add touches full cache lines. If Dim
// is not a multiple of 16, the last 8 columns are a group of half that width, 2 floats a lane. Lane 4 * g + t
// holds row g, columns 2t, 2t + 1, 2t + 8 and 2t + 9. With fewer than 8 rows, the first lanes hold the rows
// that exist, so no row beyond q_len is ever touched, and the array is as large as a plain one.
struct FragmentGroups {
  static constexpr bool writes = false;
  static constexpr int neighbours = 8;
  LUATTN_FN int head_rows(int len) { return len; }
  // The number of rows that exist in the octet at row0 (a multiple of 8). None if it is not positive.
  LUATTN_FN int rows(int len, int row0) { return min_of(len - row0, 8); }

  // Adds half Half of blocks C .. C + Tiles - 1 to the octet at row0. A block is 16 columns; the first one
  // begins at d0, a multiple of 16.
  template <int Dim, int C, int Half, int Tiles>
  LUATTN_FN void add(float *head, int len, int row0, int d0, int lane) {
    const int n = rows(len, row0);
    if (lane >= 4 * n) return;
    add_tiles<Dim, C, Half, Tiles>(head + i64(row0) * Dim + d0 * n, d0, lane, n);
  }

  // Returns 8 adjacent numbers of row q from column d on, a multiple of 8.
  template <int Dim, int N>
  LUATTN_FN void load(Pack<float, N> &x, const float *head, int len, int q, int d) {
    static_assert(N == 8, "tensors of 16-bit elements are read 8 at a time");
    const int row0 = q & ~7, d0 = d & ~15, n = rows(len, row0), lane = (q & 7) * 4;
    const float *group = head + i64(row0) * Dim + d0 * n;
    if (Dim % 16 != 0 && d0 + 16 > Dim)
      x.load(group + lane * 2);
    else
      load_wide(x, group, lane, (d & 8) / 4, n);
  }

 private:
  template <int Dim, int C, int Half, int Tiles>
  LUATTN_FN void add_tiles(float *group, int d0, int lane, int rows) {
    if constexpr (Tiles > 0) {
      if (d0 + 16 <= Dim)
        add_half<C, Half, true>(group + lane * lane_stride, rows * 16);
      else if (Dim % 16 != 0 && d0 < Dim)
        add_half<C, Half, false>(group + lane * 2, 0);
      add_tiles<Dim, C + 1, Half, Tiles - 1>(group + 16 * rows, d0 + 16, lane, rows);
    }
  }

  // The distance from a lane's first number to the next lane's. Before sm_90 an atomic add takes one float.
  // Numbers with the same index are then adjacent over all lanes, so that an instruction touches as few cache
  // lines as possible.
#if __CUDA_ARCH__ >= 900
  static constexpr int lane_stride = 4;
#else
  static constexpr int lane_stride = 1;
#endif
  // Columns 2t and 2t + 1 of a fragment (t = 0 .. 3) are numbers `first` and first + 1 of lane + t.
  LUATTN_FN void load_wide(Pack<float, 8> &x, const float *group, int lane, int first, int rows) {
    if constexpr (lane_stride == 4) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 pair = *reinterpret_cast<const float2 *>(group + (lane + t) * 4 + first);
        x[2 * t] = pair.x, x[2 * t + 1] = pair.y;
      }
    } else {
      const float *slot = group + first * 4 * rows + lane;
      const float4 even = *reinterpret_cast<const float4 *>(slot);
      const float4 odd = *reinterpret_cast<const float4 *>(slot + 4 * rows);
      x[0] = even.x, x[2] = even.y, x[4] = even.z, x[6] = even.w;
      x[1] = odd.x, x[3] = odd.y, x[5] = odd.z, x[7] = odd.w;
    }
  }
};

// The layout of p.scratch.dq_acc where the sm90 family's luattn_dkdv adds to it: a warp's wgmma result, as
// groups of 16 rows x 8 columns, one after another for 16 rows, 4 floats a lane. What a warp adds is
// contiguous both in memory and in registers. Lane 4 * g + t holds columns 2t and 2t + 1 of rows g and g + 8.
// The last 16 rows of a head always exist.
struct ResultGroups {
  static constexpr bool writes = false, zeroes = true;  // by prepare
  static constexpr int neighbours = 8;
  LUATTN_FN int head_rows(int len) { return workspace_rows(true, len); }

  // Returns 8 adjacent numbers of row q from column d on, a multiple of 8.
  template <int Dim, int N>
  LUATTN_FN void load(Pack<float, N> &x, const float *head, int, int q, int d) {
    static_assert(N == 8, "tensors of 16-bit elements are read 8 at a time");
    const float *from = head + i64(q & ~15) * Dim + d * 16 + (q & 7) * 16 + (q & 8) / 4;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 pair = *reinterpret_cast<const float2 *>(from + t * 4);
      x[2 * t] = pair.x, x[2 * t + 1] = pair.y;
    }
  }
};
