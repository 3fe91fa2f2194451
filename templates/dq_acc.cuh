// dq_acc.cuh: the order of p.dq_acc where luattn_dkdv adds into it from C fragments of mma.m16n8k16 (the sm80
// family).
//
// The accumulator of a head is q_len x Dim floats. Every 8 whole rows make 8 * Dim contiguous floats, in
// groups of 8 rows x 16 columns: a group is what one warp holds of two neighbouring C fragments, 4 floats a
// lane, so that it is added with full lines. Columns beyond the last multiple of 16 (8 of them or none)
// follow as 8 rows x 8 columns; the rows beyond the last multiple of 8 are plain rows. No row beyond q_len is
// ever touched, and the array is as large as a plain one.
#pragma once
#include "mma.cuh"
#include "tensors.cuh"

struct FragmentGroups {
  LUATTN_FN bool grouped(int len, int row0) { return row0 + 8 <= len; }

  // Where a lane adds to rows row0 .. row0 + 7.
  struct Octet {
    float *group, *row;
    bool grouped, inside;  // all rows are grouped; or not, and the lane's row exists
  };
  // row0 is a multiple of 8, d0 of 16.
  template <int Dim>
  LUATTN_FN Octet octet(float *head, int len, int row0, int d0, int lane) {
    const bool whole = grouped(len, row0);
    return {head + i64(row0) * Dim + d0 * 8 + lane * group_stride,
            head + i64(row0 + lane / 4) * Dim + d0 + lane % 4 * 2, whole,
            !whole && row0 + lane / 4 < len};
  }

  // Columns d0 + d .. d0 + d + 15 of the rows, d0 that of the octet (wide: all 16 exist, otherwise 8 do): lane
  // 4 * g + t brings row row0 + g, columns d0 + d + 2t, d0 + d + 2t + 1 and, if wide, those 8 further.
  template <int Dim>
  LUATTN_FN void add(const Octet &to, int d, bool wide, float x0, float x1, float x2, float x3) {
    float *group = to.group + d * 8, *row = to.row + d;
    if (Dim % 16 == 0 || wide) {
      add_global_either(to.grouped, group, to.inside, row, x0, x1, x2, x3);
    } else {
      const int lane = int(threadIdx.x) % 32;
      if (to.grouped) add_global_2(group + lane * (2 - group_stride), x0, x1);
      if (to.inside) add_global_2(row, x0, x1);
    }
  }

  template <int Dim>
  LUATTN_FN i64 offset(int len, int q, int d) {
    const int row0 = q & ~7, d0 = d & ~15, lane = (q & 7) * 4 + (d & 7) / 2;
    if (!grouped(len, row0)) return i64(q) * Dim + d;
    const i64 group = i64(row0) * Dim + d0 * 8;
    if (Dim % 16 != 0 && d0 + 16 > Dim) return group + lane * 2 + d % 2;
    return group + group_slot(lane, (d & 8) / 4 + d % 2);
  }
  // N neighbours of row q from d on; N is 1, or 8 with d a multiple of 8.
  template <int Dim, int N>
  LUATTN_FN void load(Pack<float, N> &x, const float *head, int len, int q, int d) {
    if constexpr (N == 1) {
      x[0] = head[offset<Dim>(len, q, d)];
    } else {
      const int row0 = q & ~7, d0 = d & ~15;
      const bool whole = Dim % 16 == 0 || d0 + 16 <= Dim;
      if (grouped(len, row0) && whole)
        load_group_row(x, head + i64(row0) * Dim + d0 * 8, (q & 7) * 4, (d & 8) / 4);
      else
        x.load(head + offset<Dim>(len, q, d));
    }
  }

 private:
  // Columns 2t and 2t + 1 of a fragment, t = 0 .. 3, are floats `first` and first + 1 of lane + t.
  LUATTN_FN void load_group_row(Pack<float, 8> &x, const float *group, int lane, int first) {
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 pair = *reinterpret_cast<const float2 *>(group + group_slot(lane + t, first));
      x[2 * t] = pair.x, x[2 * t + 1] = pair.y;
    }
#else
    const float4 even = *reinterpret_cast<const float4 *>(group + group_slot(lane, first));
    const float4 odd = *reinterpret_cast<const float4 *>(group + group_slot(lane, first + 1));
    x[0] = even.x, x[2] = even.y, x[4] = even.z, x[6] = even.w;
    x[1] = odd.x, x[3] = odd.y, x[5] = odd.z, x[7] = odd.w;
#endif
  }
};
